//! `/v1/events`: what was done lately, from the journal.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::question::Parameters;
use super::{Answer, Content, timestamp};
use crate::Desk;
use crate::journal::{Arrival, Happened, Note, Origin};
use syntax::counted::counted;

/// Most events in one answer: all that the journal has.
const MOST: usize = 8_192;

/// Things that were done lately, the oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// Time at which the journal began, as RFC 3339 has it: numbers of another journal are others.
    #[serde(default)]
    pub since: String,
    pub events: Vec<EventLine>,
}

/// Something that was done, or happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    /// Its number. They rise by one, but for errors that are older than everything else that is kept.
    pub number: u64,
    /// Time, as RFC 3339 has it.
    pub at: String,
    /// Kind: `change`, `plan`, `write`, `round`, `drift`, `audit`, `flows`, `sysctl`, `switch`,
    /// `reading`, `drain`, `mode`, `source`, `configuration`, `listener` or `program`.
    pub what: String,
    /// The Service that it is about, or the first of them.
    pub service: Option<String>,
    /// All Services that it is about: of a write for many, the first 32.
    #[serde(default)]
    pub services: Vec<String>,
    /// True if something went wrong.
    pub is_error: bool,
    /// The event in words.
    pub text: String,
    /// Seconds that it took.
    pub seconds: Option<f64>,
}

/// Parameters of the question.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Only those after this number.
    after: u64,
    /// Most connections to list: the newest.
    limit: Option<usize>,
}

impl Content for Events {
    const KIND: &'static str = "Events";
}

pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Answer<Events> {
    let notes = desk.journal.after(asked.after, asked.limit.unwrap_or(MOST).min(MOST));
    let since = timestamp(desk.journal.since());
    Answer::new(Events { since, events: notes.iter().map(EventLine::of).collect() })
}

impl EventLine {
    /// Returns a note in words.
    #[must_use]
    pub fn of(note: &Note) -> Self {
        let Happening { what, text, took } = describe(&note.happened);
        let services: Vec<String> =
            note.happened.services().iter().map(ToString::to_string).collect();
        Self {
            number: note.number,
            at: timestamp(note.at),
            what: what.to_owned(),
            service: services.first().cloned(),
            services,
            is_error: note.happened.is_error(),
            text,
            seconds: took.as_ref().map(Duration::as_secs_f64),
        }
    }
}

struct Happening {
    what: &'static str,
    text: String,
    took: Option<Duration>,
}

fn describe(happened: &Happened) -> Happening {
    let (what, text, took) = match happened {
        Happened::Arrived(arrival) => ("change", of_arrival(arrival), None),
        Happened::Planned { n_operations, took, .. } => {
            ("plan", format!("{} to do", counted(*n_operations, "operation")), Some(*took))
        }
        Happened::Written { operations, refused, n_refused, took, .. } => {
            let mut text = operations.to_string();
            if *n_refused > 0 {
                text += &format!("; FAILED {n_refused}: {refused}");
            }
            ("write", text, Some(*took))
        }
        Happened::Drifted { repairs, .. } => {
            ("drift", format!("another program changed the kernel; repairs: {repairs}"), None)
        }
        Happened::TenureBegan { mode, reason: None } => {
            ("mode", format!("serves in {}", mode.title()), None)
        }
        Happened::TenureBegan { mode, reason: Some(reason) } => {
            ("mode", format!("now serves in {}: {reason}", mode.title()), None)
        }
        Happened::Failed { origin, text } => (word(*origin), text.to_string(), None),
        Happened::ReadingFailed(error) => ("reading", error.to_string(), None),
        Happened::SysctlPutBack => {
            ("sysctl", "another program changed a sysctl; it was set again".to_owned(), None)
        }
        Happened::SysctlWarning(note) => ("sysctl", note.to_string(), None),
        Happened::HeldUp(Some(note)) => ("switch", format!("stalled: {note}"), None),
        Happened::HandDrained(note) => ("drain", note.to_string(), None),
        Happened::HeldUp(None) => ("switch", "no longer stalled".to_owned(), None),
        Happened::FlowsRemoved { family, count } => {
            ("flows", format!("removed {count} stale {family} conntrack entries"), None)
        }
        Happened::PassEnded { cost } => {
            ("audit", "compared everything with the desired state".to_owned(), Some(*cost))
        }
        Happened::RoundEnded { oldest, backlog } => {
            let text = if *backlog == 0 {
                "the kernel has all changes".to_owned()
            } else {
                format!("the kernel has these changes; {} pending", counted(*backlog, "Service"))
            };
            ("round", text, Some(*oldest))
        }
    };
    Happening { what, text, took }
}

const fn word(origin: Origin) -> &'static str {
    match origin {
        Origin::Source => "source",
        Origin::Configuration => "configuration",
        Origin::Listener => "listener",
        Origin::Program => "program",
    }
}

fn of_arrival(arrival: &Arrival) -> String {
    match arrival {
        Arrival::Service(name) => format!("Service {name}"),
        Arrival::ServiceGone(name) => format!("Service {name} is gone"),
        Arrival::Slice(_, name, n_endpoints) => {
            format!("EndpointSlice {name} with {}", counted(*n_endpoints, "endpoint"))
        }
        Arrival::SliceGone(name) => format!("EndpointSlice {name} is gone"),
        Arrival::Node => "this node's Node object".to_owned(),
        Arrival::LocalAddresses(count) => {
            format!("this node's interfaces have {count} addresses")
        }
        Arrival::OtherNode(name) => format!("node {name}"),
        Arrival::OtherNodeGone(name) => format!("node {name} has left"),
        Arrival::Inside(what) => (*what).to_owned(),
    }
}
