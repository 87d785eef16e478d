//! Numbers with their noun, in messages.

use std::fmt::Display;

/// Returns a number with its noun: `1 endpoint`, `2 addresses`, `3 entries`.
#[must_use]
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    if number == N::from(1) {
        return format!("{number} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) => format!("{number} {stem}ies"),
        None if noun.ends_with('s') => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_one_are_many() {
        for (number, noun, expected) in [
            (0, "endpoint", "0 endpoints"),
            (1, "entry", "1 entry"),
            (2, "entry", "2 entries"),
            (3, "address", "3 addresses"),
        ] {
            assert_eq!(counted(number, noun), expected);
        }
    }
}
