//! The program's log in memory: its last lines, for support bundles, and its failures, for the journal.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;

use super::harmless::harmless_lines;
use super::journal::{Happened, Journal, Origin, noted};
use crate::secrets::scrubbed;

/// Most lines that are kept.
pub const MOST_LINES: usize = 2_000;

/// Most bytes of all lines that are kept.
pub const MOST_BYTES: usize = 512 << 10;

/// Longest part of a line that is kept.
const LONGEST_LINE: usize = 8 << 10;

/// The last lines of the log. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogLines(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<Box<str>>,
    bytes: usize,
    /// Number of lines that were pushed out.
    n_gone: u64,
}

/// A line that is written.
#[derive(Debug)]
pub struct LineWriter(LogLines);

/// Layer of the log that has the journal note warnings and errors. What the loop's observers report, in
/// the words of `reconcile` and `kernel`, is noted by them.
#[derive(Debug)]
pub struct NotedFailures(Journal);

/// Text of an event: the message, and the fields after it.
#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: String,
}

impl LogLines {
    /// Returns the lines, the oldest first, and the number of those before that are not kept.
    #[must_use]
    pub fn all(&self) -> (Vec<String>, u64) {
        let kept = self.0.lock();
        (kept.lines.iter().map(|line| line.as_ref().to_owned()).collect(), kept.n_gone)
    }

    /// Keeps the lines of an event without their secrets, which may go on over several of them, and without what a
    /// terminal obeys.
    fn push(&self, text: &str) {
        // Before a line is cut, or pushed out: what is left of a secret has no form any more.
        let text = scrubbed(text);
        let text = harmless_lines(&text);
        let mut kept = self.0.lock();
        for line in text.lines() {
            let end =
                (0..=line.len().min(LONGEST_LINE)).rev().find(|it| line.is_char_boundary(*it));
            let line = line.get(..end.unwrap_or_default()).unwrap_or_default();
            kept.bytes += line.len();
            kept.lines.push_back(line.into());
        }
        while kept.lines.len() > MOST_LINES || kept.bytes > MOST_BYTES {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len();
            kept.n_gone += 1;
        }
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(self.clone())
    }
}

impl io::Write for LineWriter {
    /// Takes a whole event at once, as the formatting layer writes it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NotedFailures {
    /// A layer that writes into this journal.
    #[must_use]
    pub fn new(journal: Journal) -> Self {
        Self(journal)
    }
}

impl<S: Subscriber> Layer<S> for NotedFailures {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if let Some(origin) = origin(metadata.target(), *metadata.level()) {
            let mut text = Text::default();
            event.record(&mut text);
            let Text { message, fields } = text;
            // Before it is cut: what is left of a secret has no form any more.
            let text = noted(&scrubbed(&format!("{message}{fields}")));
            self.0.note(Happened::Failed { origin, text });
        }
    }
}

/// Returns the part of the program that a line to be noted is about; none: it is not noted.
fn origin(target: &str, level: Level) -> Option<Origin> {
    // The program's own modules, or a crate of its.
    let path = target.strip_prefix("kube_ipvs")?;
    let is_below = |module: &str| {
        path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_any = |modules: &[&str]| modules.iter().any(|module| is_below(module));
    // Notes on the configuration at the start, which nothing follows from.
    let is_note = path == "::app" || path.is_empty();
    match level {
        Level::ERROR => {}
        Level::WARN if !is_note && !is_any(&["_reconcile", "_kernel"]) => {}
        _ => return None,
    }
    Some(if is_any(&["_source", "::app::input"]) {
        Origin::Source
    } else if is_any(&["_config", "::app::changes"]) {
        Origin::Configuration
    } else if is_any(&["_serve", "_console", "_forwarding"]) {
        Origin::Listener
    } else {
        Origin::Program
    })
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Nothing can fail in memory.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing::{error, info, warn};
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_limits_of_number_and_size() {
        let lines = LogLines::default();
        for number in 0..MOST_LINES + 7 {
            lines.push(&format!("line {number}\n"));
        }
        let (kept, n_gone) = lines.all();
        assert_eq!((kept.len(), n_gone), (MOST_LINES, 7));
        assert_eq!((kept[0].as_str(), kept[MOST_LINES - 1].as_str()), ("line 7", "line 2006"));
        for _ in 0..100 {
            lines.push(&"ä".repeat(LONGEST_LINE));
        }
        let (kept, _) = lines.all();
        let bytes: usize = kept.iter().map(String::len).sum();
        assert!(bytes <= MOST_BYTES && kept.len() >= 64, "{bytes} {}", kept.len());
        assert!(kept.iter().all(|line| line.len() <= LONGEST_LINE));
    }

    #[test]
    fn secrets_are_left_out_before_a_text_is_cut() {
        let (lines, journal) = (LogLines::default(), Journal::default());
        let secret = "hunter2".repeat(LONGEST_LINE);
        lines.push(&format!("token eyJ{secret}\n-----BEGIN KEY-----\n"));
        lines.push(&format!("password: \"{secret}\" is refused"));
        let subscriber = tracing_subscriber::registry().with(NotedFailures::new(journal.clone()));
        tracing::subscriber::with_default(subscriber, || {
            error!(target: "kube_ipvs::app", "refused eyJ{secret}");
        });
        let (kept, _) = lines.all();
        let expected = ["token (left out)", "(left out)", "password: \"(left out)\" is refused"];
        assert_eq!(kept, expected);
        let notes = format!("{:?}", journal.after(0, 1));
        assert!(notes.contains("refused (left out)") && !notes.contains("hunter2"), "{notes}");
    }

    #[test]
    fn a_kept_line_has_nothing_that_a_terminal_obeys() {
        let lines = LogLines::default();
        lines.push("WARN zone \u{1b}[2J\u{202e}\r is unknown\n");
        assert_eq!(lines.all().0, [r"WARN zone \u{1b}[2J\u{202e}\r is unknown"]);
    }

    #[test]
    fn failures_of_parts_that_nobody_observes_are_noted_and_lines_are_kept() {
        let (lines, journal) = (LogLines::default(), Journal::default());
        let kept = fmt::layer().with_ansi(false).with_writer(lines.clone());
        let subscriber =
            tracing_subscriber::registry().with(kept).with(NotedFailures::new(journal.clone()));
        tracing::subscriber::with_default(subscriber, || {
            info!(target: "kube_ipvs_source::kubernetes", "follows");
            warn!(target: "kube_ipvs_source::kubernetes", kind = "Service", "cannot follow");
            error!(target: "kube_ipvs_config::watch", "not valid");
            warn!(target: "kube_ipvs_serve::listen", "cannot listen");
            warn!(target: "kube_ipvs_reconcile::writer", "refused: its observer notes it");
            warn!(target: "kube_ipvs::app", "a flag is ignored");
            warn!(target: "kube_ipvs::app::localhost", "stopped");
            warn!(target: "hyper", "of a library");
        });
        let notes = journal.after(0, 100);
        let found: Vec<(Origin, &str)> = notes
            .iter()
            .filter_map(|note| match &note.happened {
                Happened::Failed { origin, text } => Some((*origin, &**text)),
                _ => None,
            })
            .collect();
        assert_eq!(
            found,
            [
                (Origin::Source, "cannot follow kind=\"Service\""),
                (Origin::Configuration, "not valid"),
                (Origin::Listener, "cannot listen"),
                (Origin::Program, "stopped"),
            ]
        );
        assert!(notes.iter().all(|note| note.happened.is_error()));
        let (kept, _) = lines.all();
        assert_eq!(kept.len(), 8, "{kept:?}");
        assert!(kept[1].contains("WARN") && kept[1].contains("cannot follow"), "{kept:?}");
        assert!(!kept[1].contains('\u{1b}'), "{kept:?}");
    }
}
