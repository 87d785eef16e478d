//! Notices that the configuration file has another content than it was read with.
//!
//! kube-proxy watches the file itself, and ends on any write to it: also on one that changes
//! nothing, but not when a ConfigMap's volume is changed, where the file is a symbolic link through
//! `..data`, which is replaced. Here the folder is watched, and the content is compared.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plan::mode::Mode;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use super::file::ConfigurationFile;
use super::resolved::Configuration;
use source::inotify::Inotify;

/// Message that the file has changed, in kube-proxy's words.
pub const UPDATED: &str = "content of the proxy server's configuration file was updated";

/// Without any word from the kernel, the file is looked at this often: a link may lead to a folder
/// that is not watched.
const PERIOD: Duration = Duration::from_secs(10);

/// A write comes in several parts. The file is looked at when it has been left alone for this long.
const SETTLE: Duration = Duration::from_millis(200);

/// Longest time from a change to its consequence. It is random: the nodes of a cluster have the same
/// file, and must not all start, and list everything, at once.
pub const SPREAD: Duration = Duration::from_secs(30);

/// Shortest and longest time from a check that failed to the next one of the same content. What the
/// host lacked may be there by then.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Shortest and longest time until a content is taken on again that could not be served with, after a
/// check that it had passed.
const FAILURE_PAUSES: (Duration, Duration) = (CHECK_PAUSES.1, Duration::from_secs(3_600));

/// Function that finds out if the program could start with the configuration as it would be read
/// now, and what follows. It may take its time.
pub type Check = Arc<dyn Fn() -> Result<Change, Refusal> + Send + Sync>;

/// Consequence of a content that can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The program ends, and its supervisor starts it anew.
    Restart,
    /// The running program takes on this configuration.
    TakeOn(Box<Configuration>),
}

/// Reason for which a content cannot be used.
#[derive(Debug)]
pub struct Refusal {
    /// Mode that the host cannot do, if that is the reason.
    pub lacking: Option<Mode>,
    /// The problem, in words.
    pub problem: anyhow::Error,
}

/// A content that cannot be used. It is checked again with growing pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    content: Vec<u8>,
    /// Problem as it was last reported.
    problem: String,
    /// Time from the last attempt to the next one.
    pause: Duration,
    due: Instant,
}

/// A configuration file, and what became of its changes.
struct Watched {
    file: ConfigurationFile,
    check: Check,
    rejected: Option<Rejected>,
    is_unreadable: bool,
}

impl<E: Into<anyhow::Error>> From<E> for Refusal {
    fn from(problem: E) -> Self {
        Self { lacking: None, problem: problem.into() }
    }
}

impl Rejected {
    /// A content that the program could not serve with, though the check had found nothing. `former`
    /// is what was rejected before.
    #[must_use]
    pub fn after_failure(former: Option<Self>, content: Vec<u8>, problem: String) -> Self {
        Self::again(former, content, problem, FAILURE_PAUSES)
    }

    fn again(
        former: Option<Self>,
        content: Vec<u8>,
        problem: String,
        (shortest, longest): (Duration, Duration),
    ) -> Self {
        let former = former.filter(|former| former.content == content);
        let pause = former.map_or(shortest, |former| former.pause * 2).clamp(shortest, longest);
        Self { content, problem, pause, due: Instant::now() + pause }
    }
}

impl ConfigurationFile {
    /// Ready, with what follows, some time after the file's content is another one that can be
    /// used. That time is random, and `spread` at most. A content that cannot be used is logged, and
    /// checked again later. A file that is gone or cannot be read is waited for: it may be in the
    /// middle of being replaced. `rejected` is what was rejected before.
    ///
    /// `report` is called after each look: with true if the file cannot be used, and with the reason
    /// if that is new.
    pub async fn changed(
        self,
        check: Check,
        rejected: Option<Rejected>,
        spread: Duration,
        report: impl Fn(bool, Option<&Refusal>),
    ) -> Change {
        let watch = match watch(folder(&self.path)) {
            Ok(watch) => Some(watch),
            Err(error) => {
                let path = self.path.display();
                warn!(
                    "cannot watch the directory of the configuration file {path}: {error}; the \
                     file is read every {PERIOD:?} instead"
                );
                None
            }
        };
        let mut watched = Watched { file: self, check, rejected, is_unreadable: false };
        loop {
            let looked = watched.usable_change().await;
            if let Ok(Some((new, change))) = looked {
                let delay = spread.mul_f64(fastrand::f64());
                let follows = match &change {
                    Change::Restart => "kube-ipvs exits".to_owned(),
                    Change::TakeOn(new) => format!("mode {} is taken on", new.configured_mode),
                };
                info!("{UPDATED}; the new content is valid: {follows} in {delay:.0?}");
                sleep(delay).await;
                if watched.read().await == Some(new) {
                    return change;
                }
                continue;
            }
            let is_rejected = watched.rejected.is_some() || watched.is_unreadable;
            report(is_rejected, looked.as_ref().err());
            match &watch {
                Some(watch) => {
                    tokio::select! {
                        () = watch.changed() => sleep(SETTLE).await,
                        () = sleep(PERIOD) => {}
                    }
                }
                None => sleep(PERIOD).await,
            }
        }
    }
}

impl Watched {
    /// The file's content with what follows, if it is another one than is in force, and can be used.
    ///
    /// # Errors
    /// When it cannot be used, if that has not been reported yet.
    async fn usable_change(&mut self) -> Result<Option<(Vec<u8>, Change)>, Refusal> {
        let Some(content) = self.read().await else { return Ok(None) };
        if content == self.file.content {
            if self.rejected.take().is_some() {
                info!(
                    "the configuration file {} was reverted to the content in use",
                    self.file.path.display()
                );
            }
            return Ok(None);
        }
        let is_same = |rejected: &Rejected| rejected.content == content;
        if self.rejected.as_ref().is_some_and(|it| is_same(it) && Instant::now() < it.due) {
            return Ok(None);
        }
        let check = Arc::clone(&self.check);
        // It may run programs to find out what the host can do.
        let checked =
            spawn_blocking(move || check()).await.unwrap_or_else(|ended| Err(ended.into()));
        match checked {
            Ok(change) => Ok(Some((content, change))),
            Err(refusal) => {
                let problem = format!("{:#}", refusal.problem);
                let former = self.rejected.take();
                let is_news =
                    !former.as_ref().is_some_and(|it| is_same(it) && it.problem == problem);
                let rejected = Rejected::again(former, content, problem, CHECK_PAUSES);
                self.log(&rejected, is_news);
                self.rejected = Some(rejected);
                if is_news { Err(refusal) } else { Ok(None) }
            }
        }
    }

    fn log(&self, Rejected { problem, pause, .. }: &Rejected, is_news: bool) {
        let path = self.file.path.display();
        if is_news {
            error!(
                "the configuration file {path} has changed and is not valid: {problem}. The \
                 configuration read at startup stays in use, and kube-ipvs would fail to restart. \
                 Next check in {pause:?}, then at growing intervals"
            );
        } else {
            debug!("the configuration file {path} is still not valid; next check in {pause:?}");
        }
    }

    /// Reads the file on another thread: its file system may be one that has stopped. Only a regular file is read: a
    /// FIFO in its place would be waited for until some process writes to it.
    async fn read(&mut self) -> Option<Vec<u8>> {
        let path = self.file.path.clone();
        let read = spawn_blocking(move || {
            if !std::fs::metadata(&path)?.is_file() {
                return Err(io::Error::other("it is no longer a regular file"));
            }
            std::fs::read(path)
        });
        let read = read.await;
        let content = read.unwrap_or_else(|error| Err(error.into()));
        if let Err(error) = &content
            && !self.is_unreadable
        {
            let path = self.file.path.display();
            warn!(
                "cannot read the configuration file {path}: {error}; the configuration read at \
                 startup stays in use"
            );
        }
        self.is_unreadable = content.is_err();
        content.ok()
    }
}

fn watch(folder: &Path) -> io::Result<Inotify> {
    let inotify = Inotify::new()?;
    inotify.add(folder)?;
    Ok(inotify)
}

/// The folder that a file is in, which is the working directory's for a bare name.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str() != OsStr::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);
    const NOT_YET: Duration = Duration::from_millis(600);

    fn mk_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.conf");
        fs::write(&path, "mode: ipvs").unwrap();
        (folder, path)
    }

    /// A file of which nothing can be used that contains "wrong".
    fn changed(path: PathBuf, rejected: &AtomicBool) -> impl Future<Output = Change> {
        let file = ConfigurationFile { content: fs::read(&path).unwrap(), path: path.clone() };
        let check = move || match fs::read_to_string(&path) {
            Ok(text) if !text.contains("wrong") => Ok(Change::Restart),
            other => Err(anyhow::anyhow!("{other:?}").into()),
        };
        let report = |is, _: Option<&Refusal>| rejected.store(is, Ordering::Relaxed);
        file.changed(Arc::new(check), None, Duration::ZERO, report)
    }

    /// Returns the seconds at which a content is checked that the host lacks something for, and how
    /// often that is reported, until the host has it after `n_checks`.
    async fn checked_until_possible(
        n_checks: usize,
        rejected: Option<Rejected>,
        problem: fn(usize) -> &'static str,
    ) -> (Vec<u64>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.conf");
        fs::write(&path, "new").unwrap();
        let file = ConfigurationFile { content: b"old".to_vec(), path };
        let started = Instant::now();
        let checks = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&checks);
        let check: Check = Arc::new(move || {
            let mut noted = noted.lock().unwrap();
            let n_before = noted.len();
            noted.push(started.elapsed().as_secs());
            if n_before == n_checks {
                return Ok(Change::Restart);
            }
            Err(Refusal { lacking: Some(Mode::Ipvs), problem: anyhow::anyhow!(problem(n_before)) })
        });
        let n_reports = AtomicUsize::new(0);
        let report = |_, news: Option<&Refusal>| {
            n_reports.fetch_add(usize::from(news.is_some()), Ordering::Relaxed);
        };
        assert_eq!(file.changed(check, rejected, Duration::ZERO, report).await, Change::Restart);
        let checks = checks.lock().unwrap().clone();
        (checks, n_reports.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_host_lacks_is_looked_for_again_and_reported_when_it_is_another_thing() {
        let (checks, n_reports) = checked_until_possible(8, None, |_| "no ip_vs").await;
        let pauses: Vec<u64> = checks.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(n_reports, 1);
        let problem = |number| if number < 2 { "no ip_vs" } else { "no ip_set" };
        assert_eq!(checked_until_possible(4, None, problem).await.1, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_content_that_could_not_be_served_with_is_left_alone_for_longer_each_time() {
        let mut rejected = None;
        for minutes in [5, 10, 20, 40, 60, 60] {
            let failed = Rejected::after_failure(rejected.take(), b"new".to_vec(), "no".to_owned());
            let (checks, _) = checked_until_possible(0, Some(failed.clone()), |_| "").await;
            assert_eq!(checks, [minutes * 60]);
            rejected = Some(failed);
        }
        // Another content is another matter.
        let other = Rejected::after_failure(rejected, b"other".to_vec(), "no".to_owned());
        assert_eq!(other.pause, Duration::from_secs(300));
        assert_eq!(checked_until_possible(0, Some(other), |_| "").await.0, [0]);
    }

    #[tokio::test]
    async fn another_content_is_noticed_and_the_same_is_not() {
        let (_folder, path) = mk_file();
        let rejected = AtomicBool::new(false);
        let changed = changed(path.clone(), &rejected);
        tokio::pin!(changed);
        // Touched, removed, and written again as it was.
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: ipvs").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::remove_file(&path).unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: ipvs").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());

        fs::write(&path, "mode: \"\"").unwrap();
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[tokio::test]
    async fn a_fifo_in_its_place_is_not_waited_for() {
        let (_folder, path) = mk_file();
        let rejected = AtomicBool::new(false);
        let changed = changed(path.clone(), &rejected);
        tokio::pin!(changed);
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        assert!(rejected.load(Ordering::Relaxed));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mode: \"\"").unwrap();
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[tokio::test]
    async fn a_config_maps_volume_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |version: &str, text: &str| {
            let data = folder.path().join(version);
            fs::create_dir(&data).unwrap();
            fs::write(data.join("config.conf"), text).unwrap();
            symlink(version, folder.path().join("..tmp")).unwrap();
            fs::rename(folder.path().join("..tmp"), folder.path().join("..data")).unwrap();
        };
        write("..1", "mode: ipvs");
        let path = folder.path().join("config.conf");
        symlink("..data/config.conf", &path).unwrap();
        let rejected = AtomicBool::new(false);
        let changed = changed(path, &rejected);
        tokio::pin!(changed);
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..2", "mode: ipvs");
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..3", "mode: ipvs # now");
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_told_and_not_used() {
        let (_folder, path) = mk_file();
        let rejected = AtomicBool::new(false);
        let changed = changed(path.clone(), &rejected);
        tokio::pin!(changed);
        for (text, is_rejected) in [("wrong", true), ("wrong, too", true), ("mode: ipvs", false)] {
            fs::write(&path, text).unwrap();
            let is_told = async {
                while rejected.load(Ordering::Relaxed) != is_rejected {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                _ = &mut changed => panic!("{text} is used"),
                told = timeout(SOON, is_told) => told.unwrap(),
            }
            assert!(timeout(NOT_YET, &mut changed).await.is_err());
        }
        fs::write(&path, "wrong").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: \"\"").unwrap();
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[test]
    fn a_bare_name_is_in_the_working_directory() {
        assert_eq!(folder(Path::new("config.conf")), Path::new("."));
        assert_eq!(folder(Path::new("/config.conf")), Path::new("/"));
    }
}
