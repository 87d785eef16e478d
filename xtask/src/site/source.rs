//! The site's Markdown: copies of the documents that `docs/SUMMARY.md` names, with links where they name each other.
//!
//! Documents name files of the project in backticks, by their path from its root, which a reader of the repository
//! can follow. On the site, a name of another page becomes a link to it.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// The order of the pages, as mdBook wants it, with links that are true in the repository, too.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Documents of the site and their files, by path from the project's root.
struct Site<'a> {
    root: &'a Path,
    pages: BTreeSet<PathBuf>,
}

/// A piece of a document, and the text that replaces it.
type Change = (Range<usize>, String);

/// Copies documents and pictures into a folder.
pub(crate) fn gather(root: &Path, folder: &Path) -> Result<()> {
    let summary = read(&root.join(SUMMARY))?;
    let mut site = Site { root, pages: BTreeSet::new() };
    let targets = destinations(&summary);
    site.pages.extend(targets.iter().map(|(_, to)| joined(Path::new(SUMMARY), to)));
    ensure!(!site.pages.is_empty(), "{SUMMARY} links no page");
    // mdBook's own file has its links from the folder in which it is.
    let changes = targets.into_iter().map(|(range, to)| {
        let page = published(&joined(Path::new(SUMMARY), &to));
        (range.clone(), with_destination(summary.get(range).unwrap_or_default(), &to, &page))
    });
    let text = replaced(&summary, changes.collect());
    write(&folder.join("SUMMARY.md"), text.as_bytes())?;
    for page in &site.pages {
        let text = read(&root.join(page))?;
        let (text, files) = site.page(page, &text)?;
        write(&folder.join(published(page)), text.as_bytes())?;
        for file in files {
            let content = fs::read(root.join(&file)).with_context(|| {
                format!("cannot find a link of {}: {}", page.display(), file.display())
            })?;
            write(&folder.join(&file), &content)?;
        }
    }
    Ok(())
}

impl Site<'_> {
    /// A document as a page, and the files that it shows or leads to.
    fn page(&self, page: &Path, text: &str) -> Result<(String, BTreeSet<PathBuf>)> {
        let mut changes: Vec<Change> = Vec::new();
        let mut files = BTreeSet::new();
        // Links do not nest, and a heading with a link would be one in the list of headings, too.
        let mut closed = 0_usize;
        for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, link_type, .. }) => {
                    closed += 1;
                    let whole = text.get(range.clone()).unwrap_or_default();
                    if let Some(target) = self.target(page, &dest_url, &mut files)? {
                        let link = match link_type {
                            LinkType::Inline => with_destination(whole, &dest_url, &target),
                            // Its destination stands elsewhere, for the repository.
                            LinkType::Shortcut => format!("{whole}({})", target.display()),
                            _ => bail!(
                                "{}: {whole} is not supported; write [text](file)",
                                page.display()
                            ),
                        };
                        changes.push((range, link));
                    }
                }
                Event::Start(Tag::Image { dest_url, .. }) if !is_foreign(&dest_url) => {
                    files.insert(joined(page, &dest_url));
                }
                Event::Start(Tag::Heading { .. }) => closed += 1,
                Event::End(TagEnd::Link | TagEnd::Heading(_)) => closed -= 1,
                Event::Code(name) if closed == 0 => {
                    let named = PathBuf::from(name.as_ref());
                    if named != page && self.pages.contains(&named) {
                        let link = format!("[`{name}`]({})", between(page, &published(&named)));
                        changes.push((range, link));
                    }
                }
                _ => {}
            }
        }
        Ok((replaced(text, changes), files))
    }

    /// The destination of a link on the site, if that is another one than in the repository. A file that is no page is
    /// copied, and a folder cannot be.
    fn target(
        &self,
        page: &Path,
        link: &str,
        files: &mut BTreeSet<PathBuf>,
    ) -> Result<Option<PathBuf>> {
        if is_foreign(link) || link.starts_with('#') {
            return Ok(None);
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let named = joined(page, path);
        if !self.pages.contains(&named) {
            let from = page.display();
            ensure!(
                !self.root.join(&named).is_dir(),
                "{from}: the link {link} leads to a folder; name a file"
            );
            files.insert(named);
            return Ok(None);
        }
        let mut target = between(page, &published(&named));
        if !anchor.is_empty() {
            target = format!("{target}#{anchor}");
        }
        Ok(Some(PathBuf::from(target)))
    }
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

fn is_foreign(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// Links of a document, with their places.
fn destinations(text: &str) -> Vec<(Range<usize>, String)> {
    Parser::new_ext(text, options())
        .into_offset_iter()
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. }) => Some((range, dest_url.into_string())),
            _ => None,
        })
        .collect()
}

/// Path of a page on the site. A folder's README is what the folder shows.
fn published(page: &Path) -> PathBuf {
    if page.file_name().is_some_and(|name| name == "README.md") {
        page.with_file_name("index.md")
    } else {
        page.to_owned()
    }
}

/// The path of a file from the project's root, as another file names it from its own place.
fn joined(from: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The way from one file to another one, both from the project's root.
fn between(from: &Path, to: &Path) -> String {
    let up = from.parent().map_or(0, |folder| folder.components().count());
    format!("{}{}", "../".repeat(up), to.display())
}

/// A link with another destination.
fn with_destination(link: &str, from: &str, to: &Path) -> String {
    let Some((text, rest)) = link.rsplit_once(from) else { return link.to_owned() };
    format!("{text}{}{rest}", to.display())
}

/// The text with these pieces replaced.
fn replaced(text: &str, mut changes: Vec<Change>) -> String {
    changes.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut text = text.to_owned();
    for (range, new) in changes {
        text.replace_range(range, &new);
    }
    text
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let Some(folder) = path.parent() else { bail!("{} has no parent folder", path.display()) };
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(page: &str, text: &str) -> (String, BTreeSet<PathBuf>) {
        let pages = ["README.md", "docs/modes.md", "docs/config.md", "vagrant/README.md"];
        let root = Path::new("/nowhere");
        let site = Site { root, pages: pages.map(PathBuf::from).into() };
        site.page(Path::new(page), text).unwrap()
    }

    #[test]
    fn a_name_of_another_page_becomes_a_link() {
        let (text, _) =
            shown("docs/modes.md", "See `docs/config.md`, `README.md` and `node/src/host.rs`.");
        assert_eq!(
            text,
            "See [`docs/config.md`](../docs/config.md), [`README.md`](../index.md) and `node/src/host.rs`."
        );
        let cell = "| a | b |\n| --- | --- |\n| `docs/modes.md` | `docs/config.md` |\n";
        let (text, _) = shown("README.md", cell);
        assert!(text.contains("| [`docs/modes.md`](docs/modes.md) |"), "{text}");
    }

    #[test]
    fn a_page_does_not_lead_to_itself_and_links_do_not_nest() {
        for text in
            ["`docs/modes.md` is this", "# As `docs/config.md` says", "```\n`README.md`\n```"]
        {
            assert_eq!(shown("docs/modes.md", text).0, text);
        }
        let (text, _) = shown("README.md", "[`docs/modes.md`](docs/modes.md#one)");
        assert_eq!(text, "[`docs/modes.md`](docs/modes.md#one)");
        let definition = "\n\n[`README.md`]: ../README.md\n";
        let (text, _) = shown("docs/modes.md", &format!("[`README.md`]{definition}"));
        assert_eq!(text, format!("[`README.md`](../index.md){definition}"));
    }

    #[test]
    fn links_lead_to_pages_and_files_come_along() {
        let (text, files) = shown(
            "docs/modes.md",
            "[up](../README.md#try-it), [here](#a), ![p](p/a.svg), [l](../LICENSE)",
        );
        assert_eq!(text, "[up](../index.md#try-it), [here](#a), ![p](p/a.svg), [l](../LICENSE)");
        assert_eq!(files, ["docs/p/a.svg", "LICENSE"].map(PathBuf::from).into());
    }
}
