//! Numbers with their noun, and the first of many names, in messages.

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

/// Most names in a list of them.
const MOST_NAMED: usize = 5;

/// Returns the first five of these, and the number of the others: `a, b, c, d, e and 3 more`.
#[must_use]
pub fn first_named(names: impl ExactSizeIterator<Item: Display>) -> String {
    let n_more = names.len().saturating_sub(MOST_NAMED);
    let named: Vec<String> = names.take(MOST_NAMED).map(|name| name.to_string()).collect();
    let more = if n_more == 0 { String::new() } else { format!(" and {n_more} more") };
    named.join(", ") + &more
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

    #[test]
    fn of_many_names_the_first_stand_and_the_others_are_counted() {
        assert_eq!(first_named(["a", "b"].iter()), "a, b");
        assert_eq!(first_named([1, 2, 3, 4, 5].iter()), "1, 2, 3, 4, 5");
        assert_eq!(first_named([1, 2, 3, 4, 5, 6, 7].iter()), "1, 2, 3, 4, 5 and 2 more");
    }
}
