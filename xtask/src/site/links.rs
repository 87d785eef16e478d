//! The links of the site's pages: each leads to a file of the site, and to a place in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Places and links of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    ids: BTreeSet<String>,
    links: BTreeSet<String>,
}

/// Fails with all links that lead nowhere.
pub(crate) fn check(folder: &Path) -> Result<()> {
    let mut pages = BTreeMap::new();
    read(folder, &mut pages)?;
    ensure!(pages.len() > 1, "{} has too few pages", folder.display());
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    ensure!(links > pages.len(), "only {links} links found in {} pages", pages.len());
    let mut broken = Vec::new();
    for (path, page) in &pages {
        let dead = page.links.iter().filter(|link| !leads_somewhere(path, link, &pages));
        let from = path.strip_prefix(folder).unwrap_or(path).display();
        broken.extend(dead.map(|link| format!("{from}: {link}")));
    }
    ensure!(broken.is_empty(), "broken links of the site:\n  {}", broken.join("\n  "));
    Ok(())
}

/// Reads the pages below a folder.
fn read(folder: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            // A part of each page, in which links are as of the page: the sidebar where there are no scripts.
            if path.file_name().is_some_and(|name| name == "toc.html") {
                continue;
            }
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, Page::of(&text));
        }
    }
    Ok(())
}

fn leads_somewhere(from: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> bool {
    if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let target = match path {
        "" => from.to_owned(),
        path => normal(&from.with_file_name(path)),
    };
    if !target.is_file() {
        return false;
    }
    anchor.is_empty() || pages.get(&target).is_some_and(|page| page.ids.contains(anchor))
}

/// A path without `..`, by its words alone.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

impl Page {
    /// Reads a page of mdBook, which has each attribute in double quotes, and `&quot;` in text.
    fn of(text: &str) -> Self {
        let values = |name: &str| -> BTreeSet<String> {
            let begin = format!(" {name}=\"");
            let after = text.split(&begin).skip(1);
            after.filter_map(|rest| rest.split_once('"').map(|(value, _)| decoded(value))).collect()
        };
        let mut links = values("href");
        links.extend(values("src"));
        Self { ids: values("id"), links }
    }
}

/// A value without the escapes of HTML and of addresses.
fn decoded(value: &str) -> String {
    let plain = value.replace("&amp;", "&").replace("&#39;", "'").into_bytes();
    let mut bytes = Vec::with_capacity(plain.len());
    let mut rest = plain.as_slice();
    while let [first, after @ ..] = rest {
        let escaped = after
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nowhere_is_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "docs/one.html",
            "<h1 id=\"a\"></h1><a href=\"../two.html#%E6%96%87\">t</a> <a href=\"#a\">a</a>\
             <a href=\"https://kubernetes.io/\">k</a><img src=\"p.svg\"><code> href=&quot;x&quot;</code>",
        );
        write("docs/p.svg", "");
        write("two.html", "<h2 id=\"文\"></h2><a href=\"docs/one.html#a\">o</a>");
        check(folder.path()).unwrap();
        for dead in ["docs/three.html", "docs/one.html#b", "#b", "p.svg"] {
            write("two.html", &format!("<h2 id=\"文\"></h2><a href=\"{dead}\">o</a>"));
            let error = check(folder.path()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("two.html: {dead}")), "{error}");
        }
    }
}
