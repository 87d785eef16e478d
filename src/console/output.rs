//! Output of commands: tables, colours, JSON.
//!
//! Texts have their colours in them; the stream takes them out where they would not be seen: in a
//! pipe, with `NO_COLOR`, or if told so.

use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
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
        Self { format, stream: AutoStream::new(Box::new(io::stdout()), choice) }
    }

    /// JSON into a stream.
    #[must_use]
    pub fn json_to(stream: Box<dyn Write>) -> Self {
        Self { format: Format::Json, stream: AutoStream::new(stream, ColorChoice::Never) }
    }

    /// Returns the format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes an answer: as JSON, or the text that is made of it.
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
            Format::Json => {
                serde_json::to_writer_pretty(&mut self.stream, &Answer::new(content))?;
                self.write("\n")
            }
        }
    }

    /// Writes a text.
    ///
    /// # Errors
    /// The reader's.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())?;
        self.stream.flush()
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
    fn durations_are_as_people_write_them() {
        let texts = [0.000_02, 0.85, 12.0, 184.0, 18_120.0, 1_036_800.0].map(duration);
        assert_eq!(texts, ["20us", "850ms", "12s", "3m4s", "5h2m", "12d"]);
    }
}
