//! The Chinese README says what the English one does, as far as that shows in what is not translated: commands, names,
//! links, figures and the order of the headings.

use std::collections::BTreeSet;

use crate::markdown::Document;
use crate::{read, root};

const ENGLISH: &str = "README.md";
const CHINESE: &str = "README.zh-CN.md";

fn document(name: &str) -> Document {
    Document::read(&read(&root().join(name)))
}

/// The lines of the blocks of code, without comments, which are translated.
fn commands(document: &Document) -> Vec<&str> {
    let lines = document.blocks.iter().flat_map(|block| block.lines());
    lines
        .map(|line| line.split_once(" # ").map_or(line, |(command, _)| command).trim_end())
        .collect()
}

/// Numbers in the text, with what belongs to them: `1.40`, `10,000`, `2026-11`.
fn numbers(text: &str) -> BTreeSet<&str> {
    let belongs = |c: char| c.is_ascii_digit() || ".,-".contains(c);
    let pieces = text.split(|c: char| !belongs(c) && !c.is_ascii_alphabetic() && c != '_');
    let numbers = pieces.map(|piece| piece.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
    numbers.filter(|piece| piece.starts_with(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn both_have_the_same_commands_names_links_and_figures() {
    let (english, chinese) = (document(ENGLISH), document(CHINESE));
    assert_eq!(commands(&chinese), commands(&english));
    assert!(commands(&english).contains(&"cargo xtask demo"));
    assert_eq!(chinese.words, english.words);
    assert_eq!(chinese.headings, english.headings);
    let links = |document: &Document| -> BTreeSet<String> {
        // Each leads to the other one.
        let others =
            document.links.iter().filter(|link| ![ENGLISH, CHINESE].contains(&link.as_str()));
        others.cloned().collect()
    };
    assert_eq!(links(&chinese), links(&english));
    assert!(english.links.iter().any(|link| link == CHINESE));
    assert!(chinese.links.iter().any(|link| link == ENGLISH));
    assert_eq!(numbers(&chinese.text), numbers(&english.text));
    // A bracket in the text is that of a link without a destination.
    for document in [&english, &chinese] {
        assert!(!document.text.contains('['), "{}", document.text);
    }
}

#[test]
fn numbers_are_found_in_both_languages() {
    let expected: BTreeSet<&str> = ["1.40", "10,000", "2026-11", "3"].into();
    assert_eq!(numbers("after 1.40, of 10,000 (2026-11) IPv4; x86_64 has 3."), expected);
    assert_eq!(numbers("1.40之后，10,000个（2026-11）IPv4；x86_64有3。"), expected);
    let block = "cargo xtask demo    # a node\nhelm x#y\n".to_owned();
    let document = Document { blocks: vec![block], ..Document::default() };
    assert_eq!(commands(&document), ["cargo xtask demo", "helm x#y"]);
}
