//! Text from outside, such as names and messages, without characters that a terminal obeys.
//!
//! It is escaped where it enters: in answers, before a command makes its text of them, and in messages. The
//! text that is made of it has ends of lines and styles of this program only.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use super::answers::Content;

/// A stream whose lines have no harmful characters, whatever is written to it. Each write has whole characters,
/// as those of the formatting macros have.
#[derive(Debug)]
pub struct HarmlessLines<W>(pub W);

/// True if a terminal obeys a character, or hides what follows it.
pub(super) fn is_harmful(character: char) -> bool {
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || turns
}

/// Returns a text whose harmful characters are escaped, ends of lines among them.
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

/// Returns a text of several lines whose harmful characters are escaped.
#[must_use]
pub fn harmless_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| is_harmful(character) && character != '\n')
}

fn escaped(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_harmful(character) {
            escaped.extend(escape(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// As `escape_debug`, which leaves some that turn the direction.
fn escape(character: char) -> impl Iterator<Item = char> {
    let is_short = matches!(character, '\n' | '\r' | '\t');
    let short = is_short.then(|| character.escape_default());
    let long = (!is_short).then(|| character.escape_unicode());
    short.into_iter().flatten().chain(long.into_iter().flatten())
}

/// Returns JSON without raw harmful characters, which is the same to its readers.
#[must_use]
pub fn escaped_json(json: &str) -> String {
    // Raw ones are in strings alone, but for ends of lines.
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_harmful(character) && character != '\n' {
            // All of them have four digits. Writing to a text cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Returns a content with all its texts [`harmless`].
pub(super) fn harmless_content<T: Content>(content: T) -> io::Result<T> {
    let json = serde_json::to_string(&content).map_err(io::Error::other)?;
    match harmless_json(&json) {
        Cow::Borrowed(_) => Ok(content),
        Cow::Owned(json) => serde_json::from_str(&json).map_err(io::Error::other),
    }
}

/// Returns JSON whose texts are [`harmless`] to their readers: `\n` becomes `\\n`, so that it is read as two
/// characters. Not by way of a `Value`, which has every text and name of a long answer once more, in the daemon's
/// container.
pub(super) fn harmless_json(json: &str) -> Cow<'_, str> {
    let is_raw =
        |character: char| is_harmful(character) && !matches!(character, '\n' | '\r' | '\t');
    if !json.contains(|character: char| character == '\\' || is_raw(character)) {
        return Cow::Borrowed(json);
    }
    let mut harmless = String::with_capacity(json.len() + 16);
    let mut rest = json;
    while let Some(at) = rest.find(|character: char| character == '\\' || is_raw(character)) {
        let (before, behind) = rest.split_at(at);
        harmless.push_str(before);
        let (character, length) = first(behind);
        match character.filter(|it| is_harmful(*it)) {
            Some(character) => {
                harmless.push('\\');
                harmless.extend(escape(character));
            }
            None => harmless.push_str(behind.get(..length).unwrap_or_default()),
        }
        rest = behind.get(length..).unwrap_or_default();
    }
    harmless.push_str(rest);
    if harmless == json { Cow::Borrowed(json) } else { Cow::Owned(harmless) }
}

/// Returns the character that JSON begins with, inside a string, and the length of its escape sequence. No
/// character: it is none that is harmful.
fn first(json: &str) -> (Option<char>, usize) {
    let mut characters = json.chars();
    let Some('\\') = characters.next() else {
        let character = json.chars().next();
        return (character, character.map_or(1, char::len_utf8));
    };
    match characters.next() {
        Some('n') => (Some('\n'), 2),
        Some('r') => (Some('\r'), 2),
        Some('t') => (Some('\t'), 2),
        Some('b') => (Some('\u{8}'), 2),
        Some('f') => (Some('\u{c}'), 2),
        Some('u') => {
            let digits = json.get(2..6).unwrap_or_default();
            // Half a surrogate pair is no character, and none of these.
            (u32::from_str_radix(digits, 16).ok().and_then(char::from_u32), 6)
        }
        // A quotation mark, a slash or a backslash.
        other => (None, 1 + other.map_or(0, char::len_utf8)),
    }
}

impl<W: Write> Write for HarmlessLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(harmless_lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_a_stream_is_escaped() {
        let mut stream = HarmlessLines(Vec::new());
        let mode = "ä\u{1b}[2J\u{9b}\r";
        writeln!(stream, "serves in mode {mode}").unwrap();
        stream.flush().unwrap();
        let text = String::from_utf8(stream.0).unwrap();
        assert_eq!(text, "serves in mode ä\\u{1b}[2J\\u{9b}\\r\n");
    }

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        let text = "z\u{1b}[2J\u{7}\u{202e}\r\u{9b}31m\u{200f}\n";
        let escaped = r"z\u{1b}[2J\u{7}\u{202e}\r\u{9b}31m\u{200f}";
        assert_eq!(harmless(text), format!(r"{escaped}\n"));
        assert_eq!(harmless_lines(text), format!("{escaped}\n"));
        assert!(matches!(harmless("ä \\n"), Cow::Borrowed("ä \\n")));
    }

    #[test]
    fn texts_in_json_are_escaped_and_the_rest_stays() {
        let all: String = (0..0x3000).filter_map(char::from_u32).chain("😀\\\"/".chars()).collect();
        let value = serde_json::json!({"a\nb": [all, 7, null, "c:\\new"], "d": "e"});
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let read: serde_json::Value = serde_json::from_str(&harmless_json(&json)).unwrap();
            let expected =
                serde_json::json!({"a\\nb": [harmless(&all), 7, null, "c:\\new"], "d": "e"});
            assert_eq!(read, expected);
            let same: serde_json::Value = serde_json::from_str(&escaped_json(&json)).unwrap();
            assert_eq!(same, value, "to other programs it is the same");
        }
        // However others write it.
        let json = r#"{"a": "\u001B[1m \u0022 \ud83d\ude00 \/"}"#;
        let read: serde_json::Value = serde_json::from_str(&harmless_json(json)).unwrap();
        assert_eq!(read["a"], r#"\u{1b}[1m " 😀 /"#);
        let plain = r#"{"a": "b\\n\""}"#;
        assert!(matches!(harmless_json(plain), Cow::Borrowed(_)));
    }
}
