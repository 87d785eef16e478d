//! Log lines, for people or for programs.

use std::io::{self, Write};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{LogFormat, Logging};
use crate::console::journal::Journal;
use crate::console::log::{LogLines, NotedFailures};
use crate::secrets::scrubbed;
use crate::serve::pages::SetVerbosity;

/// Log levels of libraries: their debug lines only help with debugging these. A name
/// stands for all targets that begin with it, so that `kube` would silence `kube_ipvs` too.
const LIBRARIES: &str = "hyper=info,hyper_util=info,rustls=info,kube_client=info,\
    kube_core=info,tower=info,tower_http=info";

/// The log of this process, and what it keeps of it in memory.
#[derive(Debug, Clone)]
pub struct Log {
    pub(super) verbosity: Verbosity,
    /// The last lines.
    pub(super) lines: LogLines,
    /// The journal, which has warnings of parts without an observer.
    pub(super) journal: Journal,
}

/// Handle that changes the log's verbosity while the program runs.
#[derive(Debug, Clone)]
pub struct Verbosity(reload::Handle<EnvFilter, Registry>);

/// Writer of whole lines, which leaves out secrets: what a library says may have some.
#[derive(Debug)]
struct Scrubbed<W>(W);

/// Sends log lines to standard error, and keeps the last ones in memory. The environment variable `RUST_LOG` decides, if it is set.
pub fn start(logging: Logging) -> Log {
    let verbosity = u8::try_from(logging.verbosity).unwrap_or(u8::MAX);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter(verbosity));
    let (filter, handle) = reload::Layer::new(filter);
    let (lines, journal) = (LogLines::default(), Journal::default());
    let kept = fmt::layer().with_ansi(false).with_writer(lines.clone());
    let noted = NotedFailures::new(journal.clone());
    let registry = tracing_subscriber::registry().with(filter).with(kept).with(noted);
    match logging.format {
        // Without colours on a terminal, too: they would stand between a name and its secret.
        LogFormat::Text => registry
            .with(fmt::layer().with_ansi(false).with_writer(|| Scrubbed(io::stderr())))
            .init(),
        LogFormat::Json => registry
            .with(fmt::layer().json().flatten_event(true).with_writer(|| Scrubbed(io::stderr())))
            .init(),
    }
    Log { verbosity: Verbosity(handle), lines, journal }
}

/// Returns the filter of a verbosity, with kube-proxy's numbers: 0 to 3 have what an operator
/// needs, 4 adds every kernel change, 7 everything, 9 libraries too.
fn filter(verbosity: u8) -> EnvFilter {
    EnvFilter::new(directives(verbosity))
}

pub(super) fn directives(verbosity: u8) -> String {
    match verbosity {
        0..=3 => "info".to_owned(),
        4..=6 => format!("debug,{LIBRARIES}"),
        7..=8 => format!("trace,{LIBRARIES}"),
        _ => "trace".to_owned(),
    }
}

// === impl Scrubbed ===

impl<W: Write> Write for Scrubbed<W> {
    /// Takes a whole event at once, as the formatting layer writes it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(scrubbed(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

// === impl Verbosity ===

impl Verbosity {
    /// Returns the function that takes a number as of `-v`.
    pub(super) fn into_setter(self) -> SetVerbosity {
        Box::new(move |verbosity| {
            self.0.reload(filter(verbosity)).map_err(|error| error.to_string())
        })
    }
}
