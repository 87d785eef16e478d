//! Connections from few ports, which are used again as soon as they are free.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use super::{LIMIT, Running};
use crate::traffic::{Connection, Question, Refusal};

/// Number of ports.
const PORTS: u16 = 8;
/// Number of connections at a time.
const AT_A_TIME: usize = 3;

/// Connects from one port after the other until the load stops, and asks on each connection as long as
/// it lives.
pub(super) fn run(client: &Running, first: u16, ready: &Sender<()>) {
    // No thread waits any more if the start has failed.
    let _ = ready.send(());
    let mut open: VecDeque<Connection> = VecDeque::new();
    for number in 0_u16.. {
        if client.is_stopped() {
            break;
        }
        let port = first + number % PORTS;
        let begin = Instant::now();
        match Connection::open_here(question(client.target, port)) {
            Ok(connection) => {
                client.count(|counts| {
                    counts.established += 1;
                    counts.answered(begin.elapsed());
                });
                open.push_back(connection);
            }
            // The former connection from there is not over yet for the client's own kernel.
            Err(Refusal::Other(_)) => {}
            Err(refusal) => client.fail(&refusal, format_args!("a connection from {port}")),
        }
        open.retain_mut(|connection| answers(client, || connection.say().map(drop)));
        if open.len() > AT_A_TIME
            && let Some(oldest) = open.pop_front()
        {
            if number % 2 == 0 {
                answers(client, || oldest.say_last().map(drop));
            } else if let Err(error) = oldest.abort() {
                client.note(format_args!("{error:#}"));
            }
        }
        thread::sleep(client.interval);
    }
}

fn question(target: SocketAddr, port: u16) -> Question {
    let source = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    };
    Question::tcp(target).from_source(source).within(LIMIT)
}

/// Counts an answer, or the lack of it. Returns true if there was one.
fn answers(client: &Running, ask: impl FnOnce() -> Result<(), Refusal>) -> bool {
    let begin = Instant::now();
    let answer = ask();
    match &answer {
        Ok(()) => client.count(|counts| counts.answered(begin.elapsed())),
        Err(refusal) => client.fail(refusal, "a connection from a port that was used before"),
    }
    answer.is_ok()
}
