//! OOM score of this process: how soon the kernel ends it when memory is short.

use std::path::Path;
use std::time::Duration;
use std::{fs, io, thread};

/// File with the OOM score adjustment of this process.
pub(crate) const PATH: &str = "/proc/self/oom_score_adj";

/// kube-proxy tries it twice, too.
const ATTEMPTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(100);

/// Sets it, if it is another. `path` is [`PATH`], but for tests. Less than it was takes
/// `CAP_SYS_RESOURCE`.
///
/// Nothing depends on it, so a failure is a debug line.
pub(crate) fn set_score(path: &Path, score: i32) {
    for attempt in 1..=ATTEMPTS {
        match try_set(path, score) {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(attempt, "cannot set {} to {score}: {error}", path.display());
            }
        }
        if attempt < ATTEMPTS {
            thread::sleep(PAUSE);
        }
    }
}

fn try_set(path: &Path, score: i32) -> io::Result<()> {
    let found = fs::read_to_string(path)?;
    if found.trim() == score.to_string() { Ok(()) } else { fs::write(path, score.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_different_score_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oom_score_adj");
        fs::write(&path, "0\n").unwrap();
        set_score(&path, -999);
        assert_eq!(fs::read_to_string(&path).unwrap(), "-999");
        // As it is, down to the end of the line.
        fs::write(&path, "-999\n").unwrap();
        set_score(&path, -999);
        assert_eq!(fs::read_to_string(&path).unwrap(), "-999\n");
    }

    #[test]
    fn a_failure_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        set_score(&folder.path().join("missing"), -999);
        assert!(!folder.path().join("missing").exists());
    }
}
