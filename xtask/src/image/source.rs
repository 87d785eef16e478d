//! The sources that a release is made of.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::vm::host_tool;

/// The version and the commit of what is built.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// As in `Cargo.toml`: `0.1.0`.
    pub(crate) version: String,
    /// All of its digits, and `-dirty` if files differ from it.
    pub(crate) commit: String,
    /// When it was committed, in seconds since 1970: the time of all files.
    pub(crate) time: u64,
}

impl Source {
    /// The digits of the commit that the program says of itself.
    pub(crate) fn short_commit(&self) -> &str {
        self.commit.get(..12).unwrap_or(&self.commit)
    }

    /// Source of this checkout. The commit has a mark if files differ from it.
    ///
    /// # Errors
    /// When it has files that differ from the commit, unless they are allowed.
    pub(crate) fn of_checkout(allow_dirty: bool) -> Result<Self> {
        let changed = git(&["status", "--porcelain"])?;
        ensure!(
            allow_dirty || changed.is_empty(),
            "these files differ from the commit, so the result could not be reproduced. Commit them, or pass \
             --allow-dirty:\n{changed}"
        );
        let mark = if changed.is_empty() { "" } else { "-dirty" };
        let time = git(&["log", "-1", "--format=%ct"])?;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: format!("{}{mark}", git(&["rev-parse", "HEAD"])?),
            time: time
                .parse()
                .with_context(|| format!("git printed {time:?} as the time of the commit"))?,
        })
    }
}

fn git(arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(build::workspace());
    Ok(String::from_utf8_lossy(&host_tool::output(&mut git)?).trim().to_owned())
}
