//! `cargo xtask site`: the documents as a site of static pages, by mdBook.
//!
//! `source` gathers what `docs/SUMMARY.md` names, `mdbook` runs the generator, and `links` follows
//! every link of the pages that came out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::build;

mod links;
mod mdbook;
mod source;

/// Files of the book that are no documents, below the folder of the documents.
const SETTINGS: [&str; 2] = ["docs/site/book.toml", "docs/site/site.css"];

/// Builds the site and says where it is.
#[expect(clippy::print_stdout, reason = "the path is what was asked for")]
pub(crate) fn build() -> Result<()> {
    let pages = make()?;
    println!("{}", pages.join("index.html").display());
    Ok(())
}

/// Builds the site, to see that it can be built and that its links lead somewhere.
pub(crate) fn check() -> Result<()> {
    make().map(drop)
}

/// Returns the folder of the pages.
fn make() -> Result<PathBuf> {
    let root = build::workspace();
    let book = root.join("target/site");
    if book.exists() {
        fs::remove_dir_all(&book).with_context(|| format!("cannot remove {}", book.display()))?;
    }
    source::gather(root, &book.join("src"))?;
    for file in SETTINGS {
        let name = Path::new(file).file_name().unwrap_or_default();
        fs::copy(root.join(file), book.join(name))
            .with_context(|| format!("cannot copy {file}"))?;
    }
    mdbook::build(&book)?;
    let pages = book.join("pages");
    links::check(&pages)?;
    Ok(pages)
}
