//! One short connection after another.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use super::{LIMIT, Running};
use crate::traffic::{Question, Refusal, ask_here};

/// Asks on fresh connections until the load stops. With affinity, the same server has to answer.
pub(super) fn run(client: &Running, affinity: bool, ready: &Sender<()>) {
    let question = Question::tcp(client.target).within(LIMIT);
    let mut last: Option<String> = None;
    // No thread waits any more if the start has failed.
    let _ = ready.send(());
    while !client.is_stopped() {
        let begin = Instant::now();
        match ask_here(question) {
            Ok(answer) if !client.may_answer(&answer.server) => {
                client.fail(&Refusal::Foreign(answer.server), "a server that must not answer");
            }
            Ok(answer) => {
                let moved = affinity && last.as_ref().is_some_and(|it| *it != answer.server);
                client.count(|counts| {
                    counts.established += 1;
                    counts.answered(begin.elapsed());
                    counts.moved += usize::from(moved);
                });
                if moved {
                    client.note(format_args!("moved from {last:?} to {}", answer.server));
                }
                last = Some(answer.server);
            }
            Err(refusal) => client.fail(&refusal, "a short connection"),
        }
        thread::sleep(client.interval);
    }
}
