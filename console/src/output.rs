//! Output of commands: tables, colours, JSON.
//!
//! Texts have their colours in them; the stream takes them out where they would not be seen: in a
//! pipe, with `NO_COLOR`, or if told so.

use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde::Serialize;
use tabwriter::TabWriter;

use super::answers::{Answer, Content};
use super::harmless::{escaped_json, harmless_content, is_harmful};

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

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes an answer: as JSON or YAML, or the text that is made of it without control characters.
    pub fn show<T: Content>(
        &mut self,
        content: T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        match self.format {
            Format::Text => self.write(&text(&harmless_content(content)?)),
            format => {
                let begin = if format == Format::Yaml && self.has_written { "---\n" } else { "" };
                self.has_written = true;
                let document = format.document(&Answer::new(content)).map_err(io::Error::other)?;
                self.stream.write_all(format!("{begin}{document}").as_bytes())?;
                self.stream.flush()
            }
        }
    }

    /// Writes a text of this program, with its styles. What comes from outside is `harmless` already.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())?;
        self.stream.flush()
    }
}

impl Format {
    /// Returns an answer in this format, which is not for people.
    pub fn document<T: Serialize>(self, answer: &Answer<T>) -> Result<String, String> {
        if self == Self::Yaml {
            let yaml = serde_saphyr::to_string(answer).map_err(|error| error.to_string())?;
            if !yaml.contains(|it: char| is_harmful(it) && it != '\n') {
                return Ok(yaml);
            }
            // JSON is YAML, too, and can escape anything.
        }
        let json = serde_json::to_string_pretty(answer).map_err(|error| error.to_string())?;
        Ok(escaped_json(&json) + "\n")
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

#[must_use]
pub fn heading(text: impl AsRef<str>) -> String {
    styled(HEADING, text.as_ref())
}

/// Returns the pieces of a text with the name of the style of each; empty: it has none.
#[must_use]
pub fn pieces(text: &str) -> Vec<(&'static str, &str)> {
    // Some begin as others do.
    let styles = [(BAD, "bad"), (NOTABLE, "notable"), (GOOD, "good"), (HEADING, "heading")];
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, styled)) = rest.find('\u{1b}').and_then(|at| rest.split_at_checked(at))
    {
        let found = styles.iter().find_map(|(style, name)| {
            let inner = styled.strip_prefix(&style.render().to_string())?;
            Some((*name, inner.split_once(&style.render_reset().to_string())?))
        });
        let Some((name, (inner, after))) = found else { break };
        pieces.extend([("", before), (name, inner)]);
        rest = after;
    }
    pieces.push(("", rest));
    pieces
}

/// Returns a value, or a dash for none.
#[must_use]
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| it.to_string())
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
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::answers::names::Names;

    #[test]
    fn columns_are_below_each_other_whatever_their_colours() {
        let rows = [
            ["a".to_owned(), bad("refused"), "x".to_owned()],
            ["longer".to_owned(), "ok".to_owned(), "y".to_owned()],
        ];
        let plain = anstream::adapter::strip_str(&table(&["NAME", "STATE", "Z"], rows)).to_string();
        assert_eq!(plain, "NAME     STATE     Z\na        refused   x\nlonger   ok        y\n");
    }

    /// Bytes that were written. Clones share them.
    #[derive(Debug, Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Shows names, twice, in this format.
    fn shown(format: Format, names: &[&str]) -> String {
        let written = Written::default();
        let stream = Box::new(written.clone()) as Box<dyn Write>;
        let stream = AutoStream::new(stream, ColorChoice::AlwaysAnsi);
        let mut output = Output { format, has_written: false, stream };
        for _ in 0..2 {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let text = |names: &Names| format!("{}\n", bad(names.names.join(" ")));
            output.show(Names { names }, text).unwrap();
        }
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_answer_is_a_document_of_yaml_and_another_one_the_next() {
        let shown = shown(Format::Yaml, &["shop/cart", "shop/card"]);
        let (one, other) = shown.split_once("---\n").unwrap();
        assert_eq!(one, other);
        assert!(one.contains("\nkind: Names\n") && one.contains("shop/card\n"), "{one}");
        let read: serde_json::Value = serde_saphyr::from_str(one).unwrap();
        assert_eq!(read["names"], serde_json::json!(["shop/cart", "shop/card"]));
    }

    #[test]
    fn what_comes_from_outside_is_escaped_in_every_format() {
        // A style of this program, a row, and characters that terminals obey.
        let hostile = format!("a{BAD}b\nc\t\u{7f}\u{9b}31m\u{202e}");
        let text = shown(Format::Text, &[&hostile]);
        let escaped = r"a\u{1b}[1m\u{1b}[31mb\nc\t\u{7f}\u{9b}31m\u{202e}";
        assert_eq!(text, format!("{}\n", bad(escaped)).repeat(2));
        for format in [Format::Json, Format::Yaml] {
            let document = shown(format, &[&hostile]);
            assert!(!document.contains(|it: char| is_harmful(it) && it != '\n'), "{document:?}");
            let one = document.split("---\n").next().unwrap();
            let one = one.get(..one.find("}\n{").map_or(one.len(), |end| end + 2)).unwrap();
            let read: serde_json::Value = serde_json::from_str(one).unwrap();
            assert_eq!(read["names"][0], hostile, "it is the same");
        }
    }

    #[test]
    fn the_styles_of_a_text_have_names() {
        let text = format!("{}, {} of {}{}", good("a"), bad("b"), heading("c"), notable("d"));
        let pieces: Vec<_> = pieces(&text).into_iter().filter(|it| !it.1.is_empty()).collect();
        let expected = [
            ("good", "a"),
            ("", ", "),
            ("bad", "b"),
            ("", " of "),
            ("heading", "c"),
            ("notable", "d"),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn durations_are_as_people_write_them() {
        let texts = [0.000_02, 0.85, 12.0, 184.0, 18_120.0, 1_036_800.0].map(duration);
        assert_eq!(texts, ["20us", "850ms", "12s", "3m4s", "5h2m", "12d"]);
    }
}
