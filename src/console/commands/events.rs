//! `kube-ipvs events`: what was done lately.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use super::{Session, has_reader};
use crate::console::answers::events::{EventLine, Events};
use crate::console::outcome::{Failure, Verdict};
use crate::console::output::{Format, bad, duration, table};

/// Pause between two looks with `--follow`.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows what was done lately: changes of the API, what was written, how long it took, drift
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs events --limit 50 --errors")]
pub struct Arguments {
    /// At most so many: the newest
    #[arg(long, default_value_t = 200, value_name = "NUMBER")]
    limit: usize,
    /// Only what went wrong
    #[arg(long)]
    errors: bool,
    /// Only what is about this Service
    #[arg(long, value_name = "NS/NAME")]
    service: Option<String>,
    /// Goes on with what happens next, until it is interrupted
    #[arg(short, long)]
    follow: bool,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let client = session.client()?;
    let mut last = 0;
    loop {
        let all: Events = client.get("/v1/events", &[("after", &last.to_string())])?;
        let is_first = last == 0;
        last = all.events.last().map_or(last, |event| event.number);
        let mut events: Vec<EventLine> =
            all.events.into_iter().filter(|event| arguments.wants(event)).collect();
        events.drain(..events.len().saturating_sub(arguments.limit));
        let shows = is_first || !events.is_empty();
        if shows {
            let has_headings = is_first && session.output.format() == Format::Text;
            let answer = Events { events };
            let shown = session.output.show(answer, |answer| text(answer, has_headings));
            if !has_reader(shown)? {
                return Ok(Verdict::Yes);
            }
        }
        if !arguments.follow {
            return Ok(Verdict::Yes);
        }
        sleep(PAUSE);
    }
}

// === impl Arguments ===

impl Arguments {
    fn wants(&self, event: &EventLine) -> bool {
        (!self.errors || event.is_error)
            && self.service.as_ref().is_none_or(|name| event.service.as_ref() == Some(name))
    }
}

fn text(answer: &Events, has_headings: bool) -> String {
    let headings: &[&str] = if has_headings { &["TIME", "WHAT", "TOOK", "EVENT"] } else { &[] };
    let rows = answer.events.iter().map(|event| {
        let text = if event.is_error { bad(&event.text) } else { event.text.clone() };
        [
            event.at.clone(),
            event.what.clone(),
            event.seconds.map_or_else(|| "-".to_owned(), duration),
            text,
        ]
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
            is_error: false,
            text: "create interface kube-ipvs0".to_owned(),
            seconds: Some(0.012),
        };
        let text = text(&Events { events: vec![event] }, true);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain,
            "TIME                       WHAT    TOOK   EVENT\n\
             2026-01-02T03:04:05.678Z   write   12ms   create interface kube-ipvs0\n"
        );
    }
}
