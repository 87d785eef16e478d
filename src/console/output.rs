//! Output of commands: tables, colours, JSON.
//!
//! Texts have their colours in them; the stream takes them out where they would not be seen: in a
//! pipe, with `NO_COLOR`, or if told so.

use std::borrow::Cow;
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde::Serialize;
use tabwriter::TabWriter;

use super::answers::{Answer, Content};

/// Space between two columns.
const PADDING: usize = 3;

/// Something wrong.
const BAD: Style = AnsiColor::Red.on_default().bold();
/// Something to look at.
const NOTABLE: Style = AnsiColor::Yellow.on_default();
/// As it should be.
const GOOD: Style = AnsiColor::Green.on_default();
/// A heading.
const HEADING: Style = Style::new().bold();

/// Format of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// The answer as it is.
    Json,
    /// The same as YAML.
    Yaml,
}

/// When text has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Colour {
    /// On a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Output of a command.
pub struct Output {
    format: Format,
    /// True if an answer was written, so that another one is another document of YAML.
    has_written: bool,
    stream: AutoStream<Box<dyn Write>>,
}

// === impl Output ===

impl Output {
    /// Output to this process's own.
    #[must_use]
    pub fn stdout(format: Format, colour: Colour) -> Self {
        let choice = match colour {
            Colour::Auto => AutoStream::choice(&io::stdout()),
            Colour::Always => ColorChoice::Always,
            Colour::Never => ColorChoice::Never,
        };
        let stream = AutoStream::new(Box::new(io::stdout()) as Box<dyn Write>, choice);
        Self { format, has_written: false, stream }
    }

    /// JSON into a stream.
    #[must_use]
    pub fn json_to(stream: Box<dyn Write>) -> Self {
        let stream = AutoStream::new(stream, ColorChoice::Never);
        Self { format: Format::Json, has_written: false, stream }
    }

    /// Returns the format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes an answer: as JSON or YAML, or the text that is made of it.
    ///
    /// # Errors
    /// The reader's.
    pub fn show<T: Content>(
        &mut self,
        content: T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        match self.format {
            Format::Text => self.write(&text(&content)),
            format => {
                let begin = if format == Format::Yaml && self.has_written { "---\n" } else { "" };
                self.has_written = true;
                let document = format.document(&Answer::new(content)).map_err(io::Error::other)?;
                self.stream.write_all(format!("{begin}{document}").as_bytes())?;
                self.stream.flush()
            }
        }
    }

    /// Writes a text. What comes from outside may have bytes in it that a terminal obeys: they are escaped.
    ///
    /// # Errors
    /// The reader's.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(harmless(text).as_bytes())?;
        self.stream.flush()
    }
}

/// Returns a text whose control characters are escaped, but for ends of lines and the styles of this module.
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |character: char| {
        // Those of Unicode that turn the direction of what follows hide it, too.
        let is_turning = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (character.is_control() && character != '\n') || is_turning
    };
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let styles = [BAD, NOTABLE, GOOD, HEADING].map(|style| style.to_string());
    let styles: Vec<String> = styles.into_iter().chain([BAD.render_reset().to_string()]).collect();
    let mut harmless = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let style = styles.iter().find(|style| rest.starts_with(style.as_str()));
        let (length, is_kept) = match style {
            Some(style) => (style.len(), true),
            None => (character.len_utf8(), !is_harmful(character)),
        };
        let (begin, behind) = rest.split_at(length);
        if is_kept {
            harmless.push_str(begin);
        } else {
            harmless.extend(begin.escape_debug());
        }
        rest = behind;
    }
    Cow::Owned(harmless)
}

// === impl Format ===

impl Format {
    /// Returns an answer in this format, which is not for people.
    ///
    /// # Errors
    /// The encoder's.
    pub fn document<T: Serialize>(self, answer: &Answer<T>) -> Result<String, String> {
        match self {
            Self::Yaml => serde_saphyr::to_string(answer).map_err(|error| error.to_string()),
            Self::Json | Self::Text => serde_json::to_string_pretty(answer)
                .map(|document| document + "\n")
                .map_err(|error| error.to_string()),
        }
    }
}

/// Returns the text as something wrong.
#[must_use]
pub fn bad(text: impl AsRef<str>) -> String {
    styled(BAD, text.as_ref())
}

/// Returns the text as something to look at.
#[must_use]
pub fn notable(text: impl AsRef<str>) -> String {
    styled(NOTABLE, text.as_ref())
}

/// Returns the text as something that is as it should be.
#[must_use]
pub fn good(text: impl AsRef<str>) -> String {
    styled(GOOD, text.as_ref())
}

/// Returns the text as a heading.
#[must_use]
pub fn heading(text: impl AsRef<str>) -> String {
    styled(HEADING, text.as_ref())
}

fn styled(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// Returns a table with aligned columns, one line for each row, as kubectl writes it.
#[must_use]
pub fn table<R: AsRef<[String]>>(headings: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut lines = String::new();
    if !headings.is_empty() {
        let headings: Vec<String> = headings.iter().map(heading).collect();
        lines += &(headings.join("\t") + "\n");
    }
    for row in rows {
        lines += &(row.as_ref().join("\t") + "\n");
    }
    aligned(&lines)
}

/// Returns the lines with their cells, which tabs separate, below each other.
#[must_use]
pub fn aligned(lines: &str) -> String {
    let mut writer = TabWriter::new(Vec::new()).padding(PADDING).ansi(true);
    // Nothing can fail in memory; if it did, the cells would stand as they are.
    let written = writer.write_all(lines.as_bytes()).and_then(|()| writer.flush());
    let aligned = written.ok().and_then(|()| writer.into_inner().ok());
    aligned.and_then(|it| String::from_utf8(it).ok()).unwrap_or_else(|| lines.to_owned())
}

/// Returns a duration as people write it: `850ms`, `12s`, `3m4s`, `5h2m`, `12d`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
    let whole = seconds.clamp(0.0, 1e12).round() as u64;
    match whole {
        _ if seconds < 0.001 => format!("{:.0}us", seconds.max(0.0) * 1e6),
        _ if seconds < 1.0 => format!("{:.0}ms", seconds * 1e3),
        0..=99 => format!("{whole}s"),
        100..=3_599 => format!("{}m{}s", whole / 60, whole % 60),
        3_600..=172_799 => format!("{}h{}m", whole / 3_600, whole / 60 % 60),
        _ => format!("{}d", whole / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_below_each_other_whatever_their_colours() {
        let rows = [
            ["a".to_owned(), bad("refused"), "x".to_owned()],
            ["longer".to_owned(), "ok".to_owned(), "y".to_owned()],
        ];
        let plain = anstream::adapter::strip_str(&table(&["NAME", "STATE", "Z"], rows)).to_string();
        assert_eq!(plain, "NAME     STATE     Z\na        refused   x\nlonger   ok        y\n");
    }

    #[test]
    fn control_characters_of_others_are_escaped_and_styles_stay() {
        let own = table(&["ZONE"], [[bad("a")]]);
        assert_eq!(harmless(&own), own);
        let theirs = format!("{}\n", bad("z\u{1b}[2J\u{1b}]0;x\u{7}\u{202e}\r\u{9b}31m"));
        let escaped = r"z\u{1b}[2J\u{1b}]0;x\u{7}\u{202e}\r\u{9b}31m";
        assert_eq!(harmless(&theirs), format!("{}\n", bad(escaped)));
        assert_eq!(harmless("ä\n"), "ä\n");
    }

    #[test]
    fn durations_are_as_people_write_them() {
        let texts = [0.000_02, 0.85, 12.0, 184.0, 18_120.0, 1_036_800.0].map(duration);
        assert_eq!(texts, ["20us", "850ms", "12s", "3m4s", "5h2m", "12d"]);
    }
}
