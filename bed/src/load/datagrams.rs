//! A flow of datagrams that never pauses.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::{Counts, Running};
use crate::traffic::{Connection, Question, Refusal};

/// Time after which a datagram without an answer is lost, unless the answer comes after all.
const LOST: Duration = Duration::from_secs(2);
/// Longest answer.
const MAX_ANSWER: usize = 512;

/// State of a flow.
#[derive(Debug, Default)]
struct Flow {
    next: u64,
    /// Time at which each number without an answer was sent.
    open: BTreeMap<u64, Instant>,
    lost: BTreeSet<u64>,
    /// Server that answered last, and the highest number that it answered.
    last: Option<(String, u64)>,
}

/// Verdict on an answer.
#[derive(Debug, PartialEq, Eq)]
enum Received {
    Right { took: Duration, moved: bool },
    Late,
    Twice,
    Wrong,
}

/// Sends numbers and takes answers until the load stops and all answers are there or lost.
pub(super) fn run(client: &Running, ready: &Sender<()>) {
    let socket = match Connection::open_here(Question::udp(client.target)) {
        Ok(connection) => UdpSocket::from(connection.into_socket()),
        Err(refusal) => return client.fail(&refusal, "a socket"),
    };
    client.count(|counts| counts.established += 1);
    let mut flow = Flow::default();
    let _ = ready.send(());
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        let is_stopped = client.is_stopped();
        if is_stopped && flow.open.is_empty() {
            if !flow.lost.is_empty() {
                // A thread that stood still has answers in its socket that it has not read.
                receive(client, &socket, &mut flow, now + LOST);
            }
            if !flow.lost.is_empty() {
                client.note(format_args!("lost datagrams: {:?}", flow.lost));
            }
            return;
        }
        if !is_stopped && now >= due {
            // Sockets report here what ICMP said of an earlier datagram; that one is counted, and
            // this one is sent again.
            let number = flow.next;
            let text = format!("{number}\n");
            if let Err(error) = socket.send(text.as_bytes()) {
                client.fail(&Refusal::from(error), "a datagram");
                let _ = socket.send(text.as_bytes());
            }
            flow.sent(now);
            // The pace holds even if a round was late.
            due = (due + client.interval).max(now);
        }
        receive(client, &socket, &mut flow, due);
        let lost = flow.expire(Instant::now());
        client.count(|counts| counts.lost += lost);
    }
}

/// Takes the answers that come until it is time for the next datagram.
fn receive(client: &Running, socket: &UdpSocket, flow: &mut Flow, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // No timeout at all would wait for ever.
        if socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).is_err() {
            return;
        }
        let mut buffer = [0; MAX_ANSWER];
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                let received = flow.received(&text, Instant::now(), |it| client.may_answer(it));
                client.count(|counts| note(counts, &received));
                if matches!(received, Received::Right { moved: true, .. } | Received::Wrong) {
                    client.note(format_args!("{received:?}: {text:?}"));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => client.fail(&Refusal::from(error), "a datagram"),
        }
        if left.is_zero() {
            return;
        }
    }
}

fn note(counts: &mut Counts, received: &Received) {
    match received {
        Received::Right { took, moved } => {
            counts.answered(*took);
            counts.moved += usize::from(*moved);
        }
        Received::Late => {
            counts.lost = counts.lost.saturating_sub(1);
            counts.answered(LOST);
        }
        Received::Twice => counts.duplicates += 1,
        Received::Wrong => counts.wrong += 1,
    }
}

impl Flow {
    fn sent(&mut self, now: Instant) {
        self.open.insert(self.next, now);
        self.next += 1;
    }

    /// Takes an answer: `NAME PEER NUMBER`.
    fn received(
        &mut self,
        text: &str,
        now: Instant,
        may_answer: impl FnOnce(&str) -> bool,
    ) -> Received {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [server, _peer, number] = words.as_slice() else { return Received::Wrong };
        let Ok(number) = number.parse::<u64>() else { return Received::Wrong };
        if number >= self.next || !may_answer(server) {
            return Received::Wrong;
        }
        if self.lost.remove(&number) {
            return Received::Late;
        }
        let Some(sent) = self.open.remove(&number) else { return Received::Twice };
        let took = now.saturating_duration_since(sent);
        // Answers overtake one another: only later numbers tell that the flow has moved.
        let (last, highest) = self.last.take().unwrap_or_else(|| ((*server).to_owned(), number));
        let moved = number >= highest && last != *server;
        let is_later = number >= highest;
        self.last = Some(if is_later { ((*server).to_owned(), number) } else { (last, highest) });
        Received::Right { took, moved }
    }

    /// Gives up what has waited too long, and returns how much that is.
    fn expire(&mut self, now: Instant) -> usize {
        let is_lost = |sent: &Instant| now.saturating_duration_since(*sent) > LOST;
        let lost: Vec<u64> =
            self.open.iter().filter(|(_, sent)| is_lost(sent)).map(|(number, _)| *number).collect();
        self.open.retain(|_, sent| !is_lost(sent));
        self.lost.extend(&lost);
        lost.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_tells_answers_that_are_right_late_double_or_wrong() {
        let start = Instant::now();
        let later = start + LOST * 2;
        let mut flow = Flow::default();
        (0..4).for_each(|_| flow.sent(start));
        let mut say = |text: &str| flow.received(text, start, |server| server != "mallory");
        let right = |moved| Received::Right { took: Duration::ZERO, moved };
        assert_eq!(say("one 10.0.0.1:7 1\n"), right(false));
        assert_eq!(say("one 10.0.0.1:7 1\n"), Received::Twice);
        assert_eq!(say("two 10.0.0.1:7 2\n"), right(true));
        assert_eq!(say("one 10.0.0.1:7 0\n"), right(false), "it was overtaken");
        for text in ["", "two", "two 10.0.0.1:7", "two 10.0.0.1:7 x", "two 10.0.0.1:7 9"] {
            assert_eq!(say(text), Received::Wrong, "{text}");
        }
        assert_eq!(say("mallory 10.0.0.1:7 3"), Received::Wrong);
        assert_eq!(flow.expire(start), 0);
        assert_eq!(flow.expire(later), 1);
        assert_eq!(flow.received("two 10.0.0.1:7 3", later, |_| true), Received::Late);
    }
}
