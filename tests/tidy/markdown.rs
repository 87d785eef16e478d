//! Markdown, as the checks of documents see it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A document, as GitHub and the site show it.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) headings: Vec<HeadingLevel>,
    /// Places that a link can lead to, by the names that GitHub and mdBook give them.
    pub(crate) anchors: BTreeSet<String>,
    /// Destinations of links and pictures.
    pub(crate) links: Vec<String>,
    /// Words in backticks.
    pub(crate) words: BTreeSet<String>,
    /// Blocks of code.
    pub(crate) blocks: Vec<String>,
    /// Everything but code.
    pub(crate) text: String,
}

impl Document {
    pub(crate) fn read(text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        let mut document = Self::default();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let (mut heading, mut block): (Option<String>, Option<String>) = (None, None);
        for event in Parser::new_ext(text, options) {
            match event {
                Event::Start(Tag::Heading { level, .. }) => {
                    document.headings.push(level);
                    heading = Some(String::new());
                }
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let count = known.entry(name.clone()).or_default();
                    let suffix = if *count == 0 { String::new() } else { format!("-{count}") };
                    *count += 1;
                    document.anchors.insert(name + &suffix);
                }
                Event::Start(Tag::CodeBlock(_)) => block = Some(String::new()),
                Event::End(TagEnd::CodeBlock) => document.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Code(word) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&word));
                    document.words.insert(word.into_string());
                }
                Event::Text(piece) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&piece));
                    match &mut block {
                        Some(block) => block.push_str(&piece),
                        None => document.text.push_str(&piece),
                    }
                }
                Event::SoftBreak | Event::End(TagEnd::Paragraph | TagEnd::TableCell) => {
                    document.text.push('\n');
                }
                _ => {}
            }
        }
        document
    }
}

/// The name of a heading's place.
fn anchor(heading: &str) -> String {
    let plain = heading.trim().chars().filter_map(|c| match c {
        c if c.is_whitespace() => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    plain.flat_map(char::to_lowercase).collect()
}

/// The path of a file, from the same place as that of the document that links it.
pub(crate) fn target(document: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in document.with_file_name(link).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

#[test]
fn markdown_is_read_as_github_shows_it() {
    let text = "# A `b`, c?\n\n# a b c\n\n[l](x.md#y) ![p](q.svg) `w`\n\n```sh\n[no](link)\n```\n";
    let document = Document::read(text);
    assert_eq!(document.anchors, ["a-b-c", "a-b-c-1"].map(str::to_owned).into());
    assert_eq!(document.links, ["x.md#y", "q.svg"]);
    assert_eq!(document.words, ["b", "w"].map(str::to_owned).into());
    assert_eq!(document.blocks, ["[no](link)\n"]);
    assert_eq!(target(Path::new("/a/docs/b.md"), "../c.md"), Path::new("/a/c.md"));
}
