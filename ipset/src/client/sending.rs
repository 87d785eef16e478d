//! Batches on their way to the kernel.
//!
//! A message with many entries ends at the first that the kernel refuses: those before it are
//! done, those behind it are not tried (net/netfilter/ipset/ip_set_core.c, `ip_set_ad`). The rest
//! is then sent again, one entry a message. By that time the kernel has worked through everything
//! else in the same send, so nothing else about that set may be in it: such a change begins
//! another send, which costs some twenty microseconds. Single entries have no rest, so a few are
//! cheaper sent singly than packed.

use std::sync::Arc;

use super::Client;
use crate::batch::{Batch, Command, Run, Step};
use crate::codec::{self, Lines};
use crate::entry::Entry;
use crate::error::{Attempt, Error};
use crate::name::Name;
use crate::set::SetSpec;
use crate::uapi::{self, cmd};

/// Up to this many entries are sent one a message.
const FEW: usize = 8;

/// A message, and the changes it stands for.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    /// The entries from a run's start, which the run was cut to.
    Entries(Run),
    Command {
        place: usize,
        command: &'a Command,
    },
}

/// Changes that go out together.
#[derive(Debug, Default)]
struct Round<'a> {
    parts: Vec<Part<'a>>,
    /// Sets that a message with several entries is about.
    packed: Vec<Name>,
}

type Results = Vec<Result<(), Error>>;

impl Client {
    /// Carries out the batch's changes and returns a result for each, in their order. The batch is
    /// left as it was, and may be sent again. A refused change does not keep the ones behind it
    /// from being tried.
    ///
    /// Changes to one set are carried out in their order, always. Changes to different sets are
    /// too, but for this: when an entry is refused that follows others in the same set, the
    /// entries right behind it in that set may be carried out after changes to other sets.
    ///
    /// # Errors
    /// When the socket itself fails; it is then unknown which changes were carried out.
    pub fn send(&mut self, batch: &Batch) -> Result<Vec<Result<(), Error>>, Error> {
        let mut results: Results = Vec::with_capacity(batch.len());
        results.resize_with(batch.len(), || Ok(()));
        let mut round = Round::default();
        for step in batch.steps() {
            match step {
                Step::Entries(run) => self.push_run(batch, *run, &mut round, &mut results)?,
                Step::Command { place, command } => {
                    self.make_room(batch, command.sets().as_ref(), &mut round, &mut results)?;
                    if let Err(error) = self.push_command(batch, command) {
                        set_result(&mut results, *place, error);
                    } else {
                        round.parts.push(Part::Command { place: *place, command });
                    }
                }
            }
        }
        self.finish(batch, &mut round, &mut results)?;
        Ok(results)
    }

    /// Appends a run of entries, in as many messages as it takes.
    fn push_run<'a>(
        &mut self,
        batch: &'a Batch,
        mut run: Run,
        round: &mut Round<'a>,
        results: &mut Results,
    ) -> Result<(), Error> {
        let packed = run.count > FEW;
        while run.count > 0 {
            self.make_room(batch, Some(&[run.set; 2]), round, results)?;
            let sendable = sendable(batch, run, results);
            if sendable == 0 {
                run = run.without(1);
                continue;
            }
            let most = if packed { sendable } else { 1 };
            let written = self.push_entries(batch, Run { count: most, ..run });
            round.parts.push(Part::Entries(Run { count: written, ..run }));
            if written > 1 {
                round.packed.push(run.set);
            }
            run = run.without(written.max(1));
        }
        Ok(())
    }

    /// Sends what waits if something about these sets must not go along with it.
    fn make_room<'a>(
        &mut self,
        batch: &'a Batch,
        sets: Option<&[Name; 2]>,
        round: &mut Round<'a>,
        results: &mut Results,
    ) -> Result<(), Error> {
        let touches = |packed: &Name| sets.is_none_or(|sets| sets.contains(packed));
        if round.packed.iter().any(touches) { self.finish(batch, round, results) } else { Ok(()) }
    }

    /// Sends what waits, and again the entries that were not tried.
    fn finish<'a>(
        &mut self,
        batch: &'a Batch,
        round: &mut Round<'a>,
        results: &mut Results,
    ) -> Result<(), Error> {
        let mut again = Vec::new();
        for (part, result) in round.parts.iter().zip(self.transmit()?) {
            if let Err(error) = result {
                again.extend(settle(batch, *part, error, results));
            }
        }
        round.parts.clear();
        round.packed.clear();
        for run in &again {
            let singles = (0..run.count).map(|index| Run { count: 1, ..run.without(index) });
            for single in singles {
                if sendable(batch, single, results) == 1 {
                    self.push_entries(batch, single);
                    round.parts.push(Part::Entries(single));
                }
            }
        }
        for (part, result) in round.parts.drain(..).zip(self.transmit()?) {
            if let Err(error) = result {
                // One entry a message: none is left over.
                settle(batch, part, error, results);
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<Vec<Result<(), netlink::Error>>, Error> {
        let results = self.socket.send(&self.wire);
        self.wire.clear();
        results.map_err(|error| Error::new(Attempt::Send, error))
    }

    /// Writes one message of entries, and returns how many went into it.
    fn push_entries(&mut self, batch: &Batch, run: Run) -> usize {
        let (command, flags) = match run.action {
            crate::batch::Action::Add => (cmd::ADD, exclusive(batch)),
            crate::batch::Action::Delete => (cmd::DEL, exclusive(batch)),
        };
        let lines = Lines {
            set: run.set,
            entries: batch.entries(run.first, run.count),
            options: batch.options_from(run.first),
            first: run.first,
        };
        let (protocol, mut written) = (self.protocol, 0);
        self.wire.push(codec::message_type(command), flags, |message| {
            written = codec::entries(message, protocol, &lines);
        });
        written
    }

    /// Writes a command's message.
    fn push_command(&mut self, batch: &Batch, command: &Command) -> Result<(), Error> {
        let (protocol, flags) = (self.protocol, exclusive(batch));
        let kind = codec::message_type;
        match command {
            Command::Create(set, spec) => {
                let revision = self.revision_for(spec).map_err(|e| e.during(command.attempt()))?;
                self.wire.push(kind(cmd::CREATE), flags | uapi::NLM_F_CREATE, |message| {
                    codec::create(message, protocol, *set, (spec, revision));
                })
            }
            Command::Destroy(set) => self.wire.push(kind(cmd::DESTROY), flags, |message| {
                codec::one_name(message, protocol, *set);
            }),
            Command::Flush(set) => self.wire.push(kind(cmd::FLUSH), flags, |message| {
                codec::one_name(message, protocol, *set);
            }),
            Command::Rename(one, other) => self.wire.push(kind(cmd::RENAME), flags, |message| {
                codec::two_names(message, protocol, *one, *other);
            }),
            Command::Swap(one, other) => self.wire.push(kind(cmd::SWAP), flags, |message| {
                codec::two_names(message, protocol, *one, *other);
            }),
        };
        Ok(())
    }

    /// The oldest revision of the kernel's that has what the set needs.
    fn revision_for(&mut self, spec: &SetSpec) -> Result<u8, Error> {
        let attempt = Attempt::Revisions(spec.set_type);
        if let Some(reason) = spec.contradiction() {
            return Err(Error::not_sent(attempt, reason));
        }
        let needed = spec.set_type.revision_for(&spec.options);
        let found = self.revisions(spec.set_type, spec.family)?;
        needed.map(|needed| needed.max(found.min)).filter(|needed| *needed <= found.max).ok_or_else(
            || {
                let needed = needed.unwrap_or_default();
                let reason = format!(
                    "the options{} need revision {needed} of the type, and the kernel has {} to {}",
                    spec.options, found.min, found.max
                );
                Error::not_sent(attempt, reason)
            },
        )
    }
}

impl Run {
    /// All but the first `count`.
    fn without(self, count: usize) -> Self {
        Self {
            first: self.first + count,
            place: self.place + count,
            count: self.count.saturating_sub(count),
            ..self
        }
    }
}

/// Enters a refusal into the results, and returns the entries that were not tried.
fn settle(
    batch: &Batch,
    part: Part<'_>,
    error: netlink::Error,
    results: &mut Results,
) -> Option<Run> {
    let run = match part {
        Part::Command { place, command } => {
            let error = Error::new(command.attempt(), error);
            // Kernels differ: some refuse to destroy a set that is not there in any case.
            let gone = matches!(command, Command::Destroy(_)) && error.is_no_such_set();
            if batch.is_strict() || !gone {
                set_result(results, place, error);
            }
            return None;
        }
        Part::Entries(run) => run,
    };
    let attempt = |entry: &Entry| run.action.attempt(run.set, *entry);
    let entries = batch.entries(run.first, run.count);
    if error.refusal().is_none() {
        // It is unknown how far the kernel came.
        let error = Arc::new(error);
        for (index, entry) in entries.iter().enumerate() {
            set_result(results, run.place + index, Error::shared(attempt(entry), &error));
        }
        return None;
    }
    // What is refused as a whole (no such set, entries of another shape) names no line: it is the
    // first entry that was refused, and each of the others will be when it is tried.
    let line = error.refusal().and_then(|refusal| codec::failing_line(&refusal.request));
    let failed = line.map_or(0, |line| line as usize - 1).min(run.count - 1);
    let entry = entries.get(failed)?;
    set_result(results, run.place + failed, Error::new(attempt(entry), error));
    Some(run.without(failed + 1)).filter(|rest| rest.count > 0)
}

/// Returns the number of the run's first entries that can be sent. If it is 0, the first entry
/// gets its error here.
fn sendable(batch: &Batch, run: Run, results: &mut Results) -> usize {
    let end = run.first + run.count;
    for (place, options) in batch.options_from(run.first) {
        if *place >= end {
            break;
        }
        if let Some(reason) = codec::entry_too_long(options) {
            let index = place - run.first;
            if let (0, [entry]) = (index, batch.entries(*place, 1)) {
                let attempt = run.action.attempt(run.set, *entry);
                set_result(results, run.place, Error::not_sent(attempt, reason));
            }
            return index;
        }
    }
    run.count
}

fn set_result(results: &mut Results, place: usize, error: Error) {
    if let Some(result) = results.get_mut(place) {
        *result = Err(error);
    }
}

fn exclusive(batch: &Batch) -> u16 {
    if batch.is_strict() { uapi::NLM_F_EXCL } else { 0 }
}
