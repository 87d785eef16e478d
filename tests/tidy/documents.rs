//! The documents: which there are, the files that they name, and their links.

use std::fs;
use std::path::{Path, PathBuf};

use crate::markdown::{Document, target};
use crate::{read, root};

/// Order of the documents on the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Folders in which all Markdown is for the site, and those in which it need not be.
const ON_THE_SITE: [&str; 4] = [".", "docs", "deploy", "vagrant"];
const BESIDE: [&str; 4] = ["netlink", "ipvs", "ipset", ".github"];

/// The document that also names what is gone.
const HISTORY: &str = "CHANGELOG.md";

/// The Markdown in a folder, and below it unless the folder is the project's.
fn markdown(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && folder != "." {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The pages of the site.
fn pages() -> Vec<PathBuf> {
    let summary = root().join(SUMMARY);
    let links = Document::read(&read(&summary)).links;
    assert!(links.len() > 20, "{SUMMARY} names {} pages", links.len());
    links.iter().map(|link| target(&summary, link)).collect()
}

/// True if a word in backticks names a file or a folder of this project.
fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let ending = [".md", ".rs", ".rules", ".sh", ".toml", ".yaml", "/"];
    word.chars().all(plain)
        && !word.starts_with('/')
        // What is built is not there before.
        && !word.starts_with("target/")
        && (ending.iter().any(|ending| word.ends_with(ending)) || word == ".ci/run")
}

#[test]
fn every_document_is_on_the_site_once() {
    let mut wanted: Vec<PathBuf> = ON_THE_SITE.into_iter().flat_map(markdown).collect();
    wanted.retain(|path| *path != root().join(SUMMARY));
    wanted.iter_mut().for_each(|path| *path = path.components().collect());
    wanted.sort();
    let mut named = pages();
    named.sort();
    let differ = |left: &[PathBuf], right: &[PathBuf]| -> Vec<PathBuf> {
        left.iter().filter(|path| !right.contains(path)).cloned().collect()
    };
    let (missing, unknown) = (differ(&wanted, &named), differ(&named, &wanted));
    assert!(missing.is_empty(), "{SUMMARY} does not name {missing:?}");
    assert!(unknown.is_empty(), "{SUMMARY} names {unknown:?}");
    assert_eq!(wanted, named, "{SUMMARY} names a page twice");
}

#[test]
fn documents_name_files_that_exist() {
    let mut missing = Vec::new();
    for document in pages().into_iter().filter(|page| !page.ends_with(HISTORY)) {
        let named = document.strip_prefix(root()).unwrap().display().to_string();
        let Document { words, links, .. } = Document::read(&read(&document));
        let mut paths = words.iter().filter(|word| is_path(word)).peekable();
        assert!(paths.peek().is_some() || !links.is_empty(), "{named} names no file");
        let exists =
            |word: &str| root().join(word).exists() || document.with_file_name(word).exists();
        missing.extend(paths.filter(|word| !exists(word)).map(|word| format!("{named}: {word}")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn pages_for_users_name_no_source_file() {
    let is_for_users = |page: &PathBuf| page.parent() == Some(root().join("docs").as_path());
    let pages: Vec<PathBuf> = pages().into_iter().filter(is_for_users).collect();
    assert!(pages.len() > 15, "{} pages", pages.len());
    for page in pages {
        let words = Document::read(&read(&page)).words;
        let source = words.iter().find(|word| is_path(word) && word.ends_with(".rs"));
        assert_eq!(source, None, "{}: name it in docs/internals/", page.display());
    }
}

/// Figures with a comma, such as `−5,020`, without their sign.
fn figures(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != ',');
    words.map(|word| word.trim_matches(',')).filter(|word| word.contains(','))
}

#[test]
fn figures_of_packets_are_those_of_their_page() {
    const PAGES: [(&str, &str); 3] = [
        ("README.md", "instructions"),
        ("docs/comparison.md", "Instructions above"),
        ("docs/fast-path.md", "Instructions above"),
    ];
    let measured = read(&root().join("docs/internals/packets.md"));
    let measured: Vec<&str> = figures(&measured).collect();
    for (page, begins) in PAGES {
        let text = read(&root().join(page));
        let paragraphs: Vec<&str> = if page == "README.md" {
            // A point of a list, or a row.
            text.split("\n- ").flat_map(|it| it.split("\n|")).collect()
        } else {
            text.split("\n## ").collect()
        };
        let of_packets = paragraphs.into_iter().filter(|it| it.contains(begins));
        let found: Vec<&str> = of_packets.flat_map(figures).collect();
        assert!(found.len() > 3, "{page}: {found:?}");
        let other = found.iter().find(|figure| !measured.contains(figure));
        assert_eq!(other, None, "{page} has it, and docs/internals/packets.md has not");
    }
}

#[test]
fn links_lead_to_files_and_places_that_exist() {
    let (mut broken, mut followed) = (Vec::new(), 0);
    for document in ON_THE_SITE.into_iter().chain(BESIDE).flat_map(markdown) {
        for link in Document::read(&read(&document)).links {
            if link.contains("://") {
                continue;
            }
            followed += 1;
            if !leads_somewhere(&document, &link) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(followed > 50, "only {followed} links were followed");
}

fn leads_somewhere(document: &Path, link: &str) -> bool {
    let (path, place) = link.split_once('#').unwrap_or((link, ""));
    let file = if path.is_empty() { document.to_owned() } else { target(document, path) };
    if place.is_empty() || !file.exists() {
        return file.exists();
    }
    Document::read(&read(&file)).anchors.contains(place)
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let readme = root().join("README.md");
    for link in ["LICENSE", "docs/modes.md", "docs/modes.md#fallback", "#three-ways-to-start"] {
        assert!(leads_somewhere(&readme, link), "{link}");
    }
    for link in ["LICENCE", "docs/moods.md", "docs/modes.md#fall-back", "#four-ways-to-start"] {
        assert!(!leads_somewhere(&readme, link), "{link}");
    }
}

/// Files of the programs, without their tests.
fn program_sources() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        crate::WITHOUT_CYCLES.iter().map(|folder| root().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
            {
                files.push(path);
            }
        }
    }
    // What makes addresses has examples of them.
    files.retain(|file| !file.ends_with("syntax/src/site.rs"));
    assert!(files.len() > 100, "{} files", files.len());
    files
}

/// Pages that a source file refers to, each as a link from the project's folder: by `page!`, and as a file of docs/ in
/// a text of the configuration's reference, which `syntax::site::with_addresses` replaces.
fn pages_referred_to(source: &str) -> Vec<String> {
    let mut links = Vec::new();
    for macro_call in source.split("page!(\"").skip(1) {
        let (words, _) = macro_call.split_once(')').expect("the end of a call");
        let words: Vec<&str> = words.split('"').collect();
        links.push(match words[..] {
            [name, _] => format!("docs/{name}.md"),
            [name, _, section, _] => format!("docs/{name}.md#{section}"),
            _ => panic!("page!(\"{words:?}"),
        });
    }
    let texts = source.lines().map(str::trim_start).filter(|line| !line.starts_with("//!"));
    for part in texts.flat_map(|line| line.split("docs/").skip(1)) {
        links.extend(part.split_once(".md").map(|(name, _)| format!("docs/{name}.md")));
    }
    links
}

#[test]
fn messages_refer_to_pages_that_exist() {
    let from = root().join("README.md");
    let (mut broken, mut followed) = (Vec::new(), 0);
    for file in program_sources() {
        for link in pages_referred_to(&read(&file)) {
            followed += 1;
            if !leads_somewhere(&from, &link) {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(followed > 15, "only {followed} pages are referred to");
}

#[test]
fn a_message_refers_to_a_page_by_its_address() {
    let relative = |line: &str| {
        let is_comment = line.trim_start().starts_with("//");
        !is_comment && line.contains("docs/") && line.contains(".md")
    };
    let mut found = Vec::new();
    for file in program_sources() {
        let source = read(&file);
        let program = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = program.lines().filter(|line| relative(line));
        found.extend(lines.map(|line| format!("{}: {line}", file.display())));
    }
    assert!(found.is_empty(), "write page!(…):\n{}", found.join("\n"));
}
