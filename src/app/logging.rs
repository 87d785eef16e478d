//! Log lines, for people or for programs.

use std::io::{self, Stderr, Write};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use config::{LogFormat, Logging};
use console::harmless::{escaped_json, harmless_lines};
use console::journal::Journal;
use console::log::{LogLines, NotedFailures};
use console::secrets::scrubbed;
use serve::pages::SetVerbosity;

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

/// Writer of whole lines, which leaves out secrets, and escapes what a terminal obeys: what a library, a program
/// or the API server says may have both.
#[derive(Debug)]
struct Scrubbed<W> {
    stream: W,
    format: LogFormat,
}

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
            .with(fmt::layer().with_ansi(false).with_writer(|| Scrubbed::stderr(LogFormat::Text)))
            .init(),
        LogFormat::Json => registry
            .with(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_writer(|| Scrubbed::stderr(LogFormat::Json)),
            )
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

impl Scrubbed<Stderr> {
    fn stderr(format: LogFormat) -> Self {
        Self { stream: io::stderr(), format }
    }
}

impl<W: Write> Write for Scrubbed<W> {
    /// Takes a whole event at once, as the formatting layer writes it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = scrubbed(&String::from_utf8_lossy(bytes));
        let text = match self.format {
            LogFormat::Text => harmless_lines(&text),
            LogFormat::Json => escaped_json(&text).into(),
        };
        self.stream.write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Verbosity {
    /// Returns the function that takes a number as of `-v`.
    pub(super) fn into_setter(self) -> SetVerbosity {
        Box::new(move |verbosity| {
            self.0.reload(filter(verbosity)).map_err(|error| error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the log has of this text.
    fn written(format: LogFormat, text: &str) -> String {
        let mut log = Scrubbed { stream: Vec::new(), format };
        log.write_all(text.as_bytes()).unwrap();
        String::from_utf8(log.stream).unwrap()
    }

    #[test]
    fn neither_secrets_nor_what_a_terminal_obeys_get_into_the_log() {
        let hostile = "zone \u{1b}[2J\u{9b}\u{202e}, token=hunter2";
        assert_eq!(
            written(LogFormat::Text, &format!("{hostile}\n")),
            "zone \\u{1b}[2J\\u{9b}\\u{202e}, token=(left out)\n"
        );
        let line = serde_json::json!({"message": hostile}).to_string() + "\n";
        let line = written(LogFormat::Json, &line);
        assert!(line.ends_with("}\n") && line.is_ascii(), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let message = "zone \u{1b}[2J\u{9b}\u{202e}, token=(left out)";
        assert_eq!(read["message"], message, "it is the same to a program");
    }
}
