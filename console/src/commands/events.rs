//! `kube-ipvs events`: what was done lately.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::service::full_name;
use super::{Session, completion, has_reader};
use crate::answers::events::{EventLine, Events};
use crate::harmless::harmless;
use crate::outcome::{Failure, Verdict};
use crate::output::{Format, bad, duration, or_dash, table};

/// Pause between two looks with `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// Most questions in a row that get no answer with `--follow`: two minutes.
const MOST_FAILURES: u32 = 240;

/// Events that were seen.
#[derive(Debug, Default)]
struct Seen {
    /// Beginning of their journal; none: nothing was seen.
    journal: Option<String>,
    /// Number of the last one.
    last: u64,
}

/// Lists recent events: changes of API objects, batches written and their duration, drift
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs events --limit 50 --errors")]
pub struct Arguments {
    /// Most events to list: the newest
    #[arg(long, default_value_t = 200, value_name = "NUMBER")]
    limit: usize,
    /// Lists errors only
    #[arg(long)]
    errors: bool,
    /// Lists only events of this Service: its changes, and operations for it
    #[arg(long, value_name = "NAMESPACE/NAME", add = ArgValueCompleter::new(completion::services))]
    service: Option<String>,
    /// Follows new events until interrupted, also across restarts and switches of mode
    #[arg(short, long)]
    follow: bool,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let mut client = session.client()?;
    let (mut seen, mut n_failures) = (Seen::default(), 0);
    let service = arguments.service.as_deref().map(full_name);
    loop {
        let after = seen.last.to_string();
        match client.get::<Events>("/v1/events", &[("after", &after)]) {
            Ok(answer) => {
                n_failures = 0;
                let is_first = seen.journal.is_none();
                // All of another journal is new: the program was started again.
                if let Some(Events { since, mut events }) = seen.take(answer) {
                    events.retain(|event| arguments.wants(event, service.as_deref()));
                    events.drain(..events.len().saturating_sub(arguments.limit));
                    if (is_first || !events.is_empty())
                        && !show(session, Events { since, events }, is_first)?
                    {
                        return Ok(Verdict::Yes);
                    }
                }
            }
            // The socket is closed while the program goes to another mode, or is started again.
            Err(Failure::Unanswered(reason))
                if arguments.follow && seen.journal.is_some() && n_failures < MOST_FAILURES =>
            {
                if n_failures == 0 {
                    let reason = harmless(&reason);
                    anstream::eprintln!("waiting for kube-ipvs to answer again: {reason}");
                }
                n_failures += 1;
                if let Ok(found) = session.client() {
                    client = found;
                }
            }
            Err(failure) => return Err(failure),
        }
        if !arguments.follow {
            return Ok(Verdict::Yes);
        }
        sleep(PAUSE);
    }
}

/// Returns false if the output has no reader any more.
fn show(session: &mut Session, answer: Events, is_first: bool) -> Result<bool, Failure> {
    let has_headings = is_first && session.output.format() == Format::Text;
    has_reader(session.output.show(answer, |answer| text(answer, has_headings)))
}

impl Arguments {
    fn wants(&self, event: &EventLine, service: Option<&str>) -> bool {
        let is_about = |name: &str| event.services.iter().any(|it| it == name);
        (!self.errors || event.is_error) && service.is_none_or(is_about)
    }
}

impl Seen {
    /// Returns what is new of an answer; none: it is about another journal, and the question for what
    /// came after a number has to be asked again.
    fn take(&mut self, answer: Events) -> Option<Events> {
        let former = self.journal.replace(answer.since.clone());
        if former.is_some_and(|former| former != answer.since) && self.last > 0 {
            self.last = 0;
            return None;
        }
        self.last = answer.events.last().map_or(self.last, |event| event.number);
        Some(answer)
    }
}

fn text(answer: &Events, has_headings: bool) -> String {
    let headings: &[&str] = if has_headings { &["TIME", "WHAT", "TOOK", "EVENT"] } else { &[] };
    let rows = answer.events.iter().map(|event| {
        let text = if event.is_error { bad(&event.text) } else { event.text.clone() };
        [event.at.clone(), event.what.clone(), or_dash(event.seconds.map(duration)), text]
    });
    table(headings, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_with_its_time_and_duration() {
        let event = EventLine {
            number: 7,
            at: "2026-01-02T03:04:05.678Z".to_owned(),
            what: "write".to_owned(),
            service: None,
            services: Vec::new(),
            is_error: false,
            text: "create interface kube-ipvs0".to_owned(),
            seconds: Some(0.012),
        };
        let text = text(&Events { since: String::new(), events: vec![event] }, true);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain,
            "TIME                       WHAT    TOOK   EVENT\n\
             2026-01-02T03:04:05.678Z   write   12ms   create interface kube-ipvs0\n"
        );
    }
    #[test]
    fn another_journal_is_asked_for_from_its_beginning() {
        let answer = |since: &str, numbers: &[u64]| {
            let events = numbers.iter().map(|number| {
                serde_json::json!({
                    "number": number, "at": "", "what": "write", "service": null, "isError": false,
                    "text": "", "seconds": null,
                })
            });
            let answer = serde_json::json!({"since": since, "events": events.collect::<Vec<_>>()});
            serde_json::from_value::<Events>(answer).unwrap()
        };
        let mut seen = Seen::default();
        assert!(seen.take(answer("a", &[5, 6])).is_some());
        assert!(seen.take(answer("a", &[])).is_some());
        assert_eq!(seen.last, 6);
        // Its numbers are smaller, so that nothing came after 6.
        assert!(seen.take(answer("b", &[])).is_none());
        assert_eq!(seen.last, 0);
        assert_eq!(seen.take(answer("b", &[1])).unwrap().events.len(), 1);
    }
}
