//! Texts of objects, quoted in messages.

use std::fmt::{self, Write as _};

/// Most characters of a text that are quoted. Who writes an annotation may write 256 KiB of it, and
/// every node logs what is wrong with it.
const LONGEST: usize = 100;

/// A text as it is quoted in a message: in quotation marks, escaped, and cut.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write_cut(f, self.0, LONGEST, |character| match character {
            // As in the text itself: no quotation mark ends it.
            '\'' => '\''.to_string(),
            other => other.escape_debug().to_string(),
        })?;
        f.write_char('"')
    }
}

/// Most characters of a decoder's message, which quotes the object.
const LONGEST_PROBLEM: usize = 300;

/// Returns the beginning of a decoder's message, which has texts of an object in it.
#[must_use]
pub fn cut(problem: &str) -> String {
    let mut short = String::new();
    // A String takes everything.
    let _ = write_cut(&mut short, problem, LONGEST_PROBLEM, |character| character.to_string());
    short
}

/// Returns a text, or its beginning if it has more than so many bytes. What does not fit is never made.
#[must_use]
pub fn shortened(text: &impl fmt::Display, longest: usize) -> Box<str> {
    let mut short = Short { text: String::new(), room: longest.saturating_sub(CUT.len()) };
    if write!(short, "{text}").is_err() {
        short.text.push_str(CUT);
    }
    short.text.into()
}

/// End of a text that was cut.
const CUT: &str = "…";

/// A text that takes so many bytes more.
struct Short {
    text: String,
    room: usize,
}

impl fmt::Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let fits = (0..=self.room.min(more.len())).rev().find(|end| more.is_char_boundary(*end));
        let fits = fits.unwrap_or_default();
        self.text.push_str(&more[..fits]);
        self.room -= fits;
        if fits == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

fn write_cut(
    out: &mut impl fmt::Write,
    text: &str,
    longest: usize,
    written: impl Fn(char) -> String,
) -> fmt::Result {
    let mut room = longest;
    for character in text.chars() {
        let written = written(character);
        let Some(left) = room.checked_sub(written.chars().count()) else {
            return write!(out, "… ({} bytes)", text.len());
        };
        room = left;
        out.write_str(&written)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_are_whole() {
        for text in ["", "wrr", "it's", "a \"b\" \\ \n", "\u{1}ä"] {
            assert_eq!(Quoted(text).to_string(), format!("{text:?}"));
        }
        let longest = "x".repeat(LONGEST);
        assert_eq!(Quoted(&longest).to_string(), format!("{longest:?}"));
        assert_eq!(cut(&longest), longest);
    }

    #[test]
    fn long_texts_are_cut_after_they_are_escaped() {
        for text in ["x".repeat(262_144), "\u{1}".repeat(1_000), "ä".repeat(101)] {
            let quoted = Quoted(&text).to_string();
            assert!(quoted.chars().count() <= LONGEST + 20, "{quoted}");
            assert!(quoted.ends_with(&format!("… ({} bytes)\"", text.len())), "{quoted}");
        }
        assert_eq!(cut(&"ab".repeat(151)), format!("{}… (302 bytes)", "ab".repeat(150)));
    }

    #[test]
    fn a_text_is_made_no_longer_than_wanted() {
        assert_eq!(&*shortened(&"short", 100), "short");
        let cut = shortened(&format_args!("{}{}", "x".repeat(90), "ä".repeat(1_000_000)), 100);
        assert!(cut.len() <= 100 && cut.ends_with("ä…"), "{cut}");
    }
}
