//! Connections that stay.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use super::{LIMIT, Running};
use crate::traffic::{Connection, Question, Refusal};

/// Length of what a stream sends beside a number.
const LENGTH: usize = 100;
/// Longest time between looks at the time.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One connection.
struct Stream {
    socket: Socket,
    number: usize,
    /// Number of questions so far.
    asked: usize,
    /// Time of the next question.
    due: Instant,
    /// Time of the question that has no answer yet.
    open: Option<Instant>,
    /// Part of an answer.
    line: Vec<u8>,
    /// `NAME PEER ` of the first answer, with which each has to start.
    start: Option<Vec<u8>>,
}

/// Opens the connections, asks on each at intervals until the load stops, and waits for the last
/// answers.
pub(super) fn run(client: &Running, number: usize, ready: Sender<()>) {
    let mut streams: Vec<Stream> = (0..number).filter_map(|place| open(client, place)).collect();
    let begin = Instant::now();
    for stream in &mut streams {
        // Spread over the interval.
        let part = u32::try_from(stream.number * 1000 / number.max(1)).unwrap_or_default();
        stream.due = begin + client.interval * part / 1000;
    }
    if streams.len() == number {
        let _ = ready.send(());
    }
    drop(ready);
    while !streams.is_empty() {
        let is_stopped = client.is_stopped();
        if is_stopped && streams.iter().all(|stream| stream.open.is_none()) {
            return;
        }
        let next = streams.iter().filter(|stream| stream.open.is_none()).map(|stream| stream.due);
        let left = next.min().map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
        let has_data = wait(&streams, left).unwrap_or_else(|_| vec![true; streams.len()]);
        let mut has_data = has_data.into_iter();
        let now = Instant::now();
        streams.retain_mut(|stream| {
            let has_data = has_data.next().unwrap_or_default();
            let outcome = stream.step(client, has_data, now, is_stopped);
            if let Err(refusal) = &outcome {
                client.fail(refusal, format_args!("stream {}", stream.number));
            }
            outcome.is_ok()
        });
    }
}

fn open(client: &Running, number: usize) -> Option<Stream> {
    let opened = Connection::open_here(Question::tcp(client.target).within(LIMIT));
    let opened = opened.and_then(|connection| {
        let socket = connection.into_socket();
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    match opened {
        Ok(socket) => {
            client.count(|counts| counts.established += 1);
            let (asked, due, line) = (0, Instant::now(), Vec::new());
            Some(Stream { socket, number, asked, due, open: None, line, start: None })
        }
        Err(refusal) => {
            client.fail(&refusal, format_args!("opening stream {number}"));
            None
        }
    }
}

/// Waits for something to read, and says which connections have it.
fn wait(streams: &[Stream], limit: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        streams.iter().map(|stream| PollFd::new(&stream.socket, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    poll(&mut polled, Some(&limit))?;
    Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
}

/// Text that a stream sends with a question: different bytes each time.
fn text(stream: usize, asked: usize) -> String {
    let letters = (0..LENGTH).map(|place| {
        let letter = u8::try_from((stream * 7 + asked * 11 + place * (1 + stream % 5)) % 26);
        char::from(b'a' + letter.unwrap_or_default())
    });
    format!("{stream}.{asked} {}\n", letters.collect::<String>())
}

impl Stream {
    /// Takes what has come, and asks if it is time. An error ends the stream.
    fn step(
        &mut self,
        client: &Running,
        has_data: bool,
        now: Instant,
        is_stopped: bool,
    ) -> Result<(), Refusal> {
        if has_data {
            self.receive(client)?;
        }
        match self.open {
            Some(since) if since.elapsed() > LIMIT => return Err(Refusal::Timeout),
            None if !is_stopped && now >= self.due => {
                self.socket.write_all(text(self.number, self.asked).as_bytes())?;
                self.open = Some(Instant::now());
                self.due = (self.due + client.interval).max(now);
            }
            _ => {}
        }
        Ok(())
    }

    fn receive(&mut self, client: &Running) -> Result<(), Refusal> {
        let mut chunk = [0; 1024];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(Refusal::Closed),
                Ok(length) => {
                    self.line.extend_from_slice(chunk.get(..length).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if !self.line.ends_with(b"\n") {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        let foreign = || Refusal::Foreign(String::from_utf8_lossy(&line).into_owned());
        let since = self.open.take().ok_or_else(foreign)?;
        let start = line.strip_suffix(text(self.number, self.asked).as_bytes());
        let start = start.ok_or_else(foreign)?;
        let server = start.split(|byte| *byte == b' ').next().unwrap_or_default();
        let is_same = self.start.get_or_insert_with(|| start.to_vec()) == start;
        if !is_same || !client.may_answer(&String::from_utf8_lossy(server)) {
            return Err(foreign());
        }
        self.asked += 1;
        client.count(|counts| counts.answered(since.elapsed()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_questions_have_texts_of_their_own() {
        let texts = [text(0, 0), text(0, 1), text(1, 0), text(1, 1)];
        let unique: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(unique.len(), texts.len());
        assert!(texts.iter().all(|text| text.matches('\n').count() == 1), "{texts:?}");
    }
}
