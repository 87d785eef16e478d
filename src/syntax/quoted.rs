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
}
