//! The operator's console: questions to the running program, and the commands that ask them.
//!
//! ```text
//!   kube-ipvs status ──▶ client ──Unix socket──▶ server ──▶ answers ──▶ the loop, by inquiries
//!        (commands)                                            └─────▶ the kernel, by own sockets
//! ```
//!
//! - `server` listens on the socket and answers there, in a thread of its own; [`Desk`] is what
//!   answers are made from;
//! - `answers` has one module for each answer: its JSON, and how the program makes it;
//! - `commands` has one module for each command: its arguments, what it asks, and how people read it;
//! - `client` finds the program and asks it; `table` has what texts and pages share, `output` writes it with
//!   colours, and JSON; `harmless` escapes what a terminal would obey; `outcome` has the exit codes;
//! - `comparison` reads the kernel and compares it with the plan; `words` has operations in words;
//! - `pods` has the source look for a Pod that is named;
//! - `offline` compares without a running program, and plans manifests without a kernel;
//! - `journal` remembers what was done lately, as long as the program lives; `lately` counts repairs, and
//!   `log` keeps the log's last lines;
//! - `bundle` makes support bundles, and `secrets` takes secrets out of them and of the log;
//! - `process` finds the running program;
//! - `page` shows answers to a browser, on the metrics server.
//!
//! An answer is made once, as JSON, and the command makes its text from that: both say the same. What
//! the program does and why is asked of the planner that does it. Answers never hold the loop up: each
//! question is about one Service or a limited part (`reconcile::inquiry`).

pub mod answers;
pub mod bundle;
pub mod client;
pub mod commands;
pub mod comparison;
pub mod desk;
pub mod harmless;
pub mod journal;
pub mod lately;
pub mod log;
pub mod offline;
pub mod outcome;
pub mod output;
pub mod page;
pub mod pods;
pub mod process;
pub mod secrets;
pub mod server;
pub mod table;
pub mod words;

use std::path::PathBuf;

pub use desk::{Desk, RelayedNow};

/// Version of the answers' schema. Fields may be added to it; none is removed or changes its meaning.
pub const API_VERSION: &str = "kube-ipvs.io/console/v1";

/// Returns the path of the socket that a configuration asks for; none if it asks for none.
#[must_use]
pub fn socket_path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}
