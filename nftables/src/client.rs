//! The conversation with the kernel.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink::{DUMP_ATTEMPTS, DecodeError, MessageWriter, Namespace, Socket, Traffic};

use crate::batch::Batch;
use crate::codec;
use crate::data::Data;
use crate::error::{Attempt, Error};
use crate::expression::Rule;
use crate::name::Name;
use crate::object::{Chain, Element, FlowTable, Generation, Set, Table, TableId};
use crate::uapi::{self, message};

/// A connection to nf_tables of one network namespace.
///
/// A table with an owner belongs to the connection that created or claimed it: see [`Client::port`].
#[derive(Debug)]
pub struct Client {
    socket: Socket,
}

/// A change that the kernel told of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The end of a transaction, which made this generation.
    Generation(Generation),
    /// Something that was created, changed or deleted. Its table, if the family is known.
    Object(Option<TableId>),
}

impl Client {
    /// Connects to the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no netfilter over netlink. One that has, and has no nf_tables, says so at the first
    /// request.
    pub fn open() -> Result<Self, Error> {
        Self::with_socket(Socket::open(netlink::Protocol::Netfilter))
    }

    /// Connects to another network namespace.
    ///
    /// # Errors
    /// As [`Client::open`], and when the namespace may not be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Self::with_socket(Socket::open_in(namespace, netlink::Protocol::Netfilter))
    }

    fn with_socket(socket: Result<Socket, netlink::Error>) -> Result<Self, Error> {
        Ok(Self { socket: socket.map_err(|error| Error::new(Attempt::Open, error))? })
    }

    /// Returns the number by which the kernel knows the connection as an owner of tables. It changes when the socket
    /// fails and is opened again: the tables have then no owner, and are to be claimed by
    /// [`Batch::create_table`].
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn port(&self) -> Result<u32, Error> {
        self.socket.port().map_err(|error| Error::new(Attempt::Open, error))
    }

    /// Returns the traffic over the socket since it was opened.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.socket.traffic()
    }

    /// Returns the most bytes that a batch may have.
    #[must_use]
    pub fn longest_batch(&self) -> usize {
        // The message that closes the transaction.
        self.socket.longest_send().saturating_sub(20)
    }

    /// Carries out a transaction.
    ///
    /// # Errors
    /// [`Error::refusals`] if the kernel refused changes, and did nothing; [`Error::is_answer_lost`] if that is not
    /// known.
    pub fn commit(&mut self, mut batch: Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        batch.wire.push(uapi::BATCH_END, 0, |message| codec::begin_batch(message, None));
        self.transact(&batch)
    }

    /// Has the kernel check a transaction, for which it may load modules, and carry out nothing of it.
    ///
    /// # Errors
    /// As [`Client::commit`].
    pub fn check(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() { Ok(()) } else { self.transact(batch) }
    }

    fn transact(&mut self, batch: &Batch) -> Result<(), Error> {
        let refused = self.socket.transact(&batch.wire, batch.len());
        let refused = refused.map_err(|error| Error::new(Attempt::Commit, error))?;
        if refused.is_empty() { Ok(()) } else { Err(Error::refused(batch.refusals(refused))) }
    }

    /// Returns the present generation.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the kernel has no nf_tables.
    pub fn generation(&mut self) -> Result<Generation, Error> {
        let mut batch = netlink::Batch::new();
        batch.push(codec::message_type(message::GETGEN), 0, codec::begin_all);
        let answers = self.socket.ask(&batch, codec::decode_generation);
        let one = answers.and_then(|answers| {
            let lacking = || Err(DecodeError::new("generation", "the kernel sent none").into());
            answers.into_iter().next().unwrap_or_else(lacking)
        });
        one.map_err(|error| Error::new(Attempt::ReadGeneration, error))
    }

    /// Returns the tables of all families.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the kernel has no nf_tables, or another refusal.
    pub fn list_tables(&mut self) -> Result<Vec<Table>, Error> {
        let what = Attempt::on_all("list tables");
        self.list(what, message::GETTABLE, codec::begin_all, codec::decode_table)
    }

    /// Returns one table.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it does not exist.
    pub fn table(&mut self, table: &TableId) -> Result<Table, Error> {
        let attempt = Attempt::on_table("read table", table);
        let mut batch = netlink::Batch::new();
        batch.push(codec::message_type(message::GETTABLE), 0, |message| {
            codec::begin(message, table.family);
            codec::table_name(message, table);
        });
        let decode = |body: &[u8]| {
            codec::decode_table(body)?.ok_or_else(|| DecodeError::new("table", "of no family"))
        };
        let lacking = || Err(DecodeError::new("table", "the kernel sent none").into());
        let answers = self.socket.ask(&batch, decode);
        let one = answers.and_then(|answers| answers.into_iter().next().unwrap_or_else(lacking));
        one.map_err(|error| Error::new(attempt, error))
    }

    /// Returns the chains of all tables.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list_chains(&mut self) -> Result<Vec<Chain>, Error> {
        let what = Attempt::on_all("list chains");
        self.list(what, message::GETCHAIN, codec::begin_all, codec::decode_chain)
    }

    /// Returns the rules of a table, or of one of its chains, in their order.
    ///
    /// # Errors
    /// The kernel's refusal. A table that does not exist has no rules.
    pub fn list_rules(
        &mut self,
        table: &TableId,
        chain: Option<&Name>,
    ) -> Result<Vec<Rule>, Error> {
        let attempt = Attempt::Do {
            what: if chain.is_some() { "list rules of chain" } else { "list rules of table" },
            table: Some(table.clone()),
            name: chain.cloned(),
            key: None,
        };
        let write = |message: &mut MessageWriter<'_>| {
            codec::begin(message, table.family);
            codec::rules_of(message, table, chain, None);
        };
        self.list(attempt, message::GETRULE, write, |body| codec::decode_rule(body).map(Some))
    }

    /// Returns the sets and maps of a table, without their elements.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the table does not exist.
    pub fn list_sets(&mut self, table: &TableId) -> Result<Vec<Set>, Error> {
        let attempt = Attempt::on_table("list sets of table", table);
        let write = |message: &mut MessageWriter<'_>| {
            codec::begin(message, table.family);
            codec::set_name(message, table, None);
        };
        self.list(attempt, message::GETSET, write, |body| codec::decode_set(body).map(Some))
    }

    /// Returns the elements of a set or map. The kernel takes a time that grows with the square of their number:
    /// half a second for 100,000.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if table or set does not exist.
    pub fn list_elements(&mut self, table: &TableId, set: &Name) -> Result<Vec<Element>, Error> {
        let attempt = Attempt::on_object("list elements of set", table, set);
        let write = |message: &mut MessageWriter<'_>| {
            codec::begin(message, table.family);
            codec::elements(message, table, set, &[]);
        };
        let parts = self.list(attempt, message::GETSETELEM, write, |body| {
            codec::decode_elements(body).map(Some)
        })?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Returns for each of some keys whether a set or map has it.
    ///
    /// # Errors
    /// When table or set does not exist, or an answer is lost.
    pub fn contains(
        &mut self,
        table: &TableId,
        set: &Name,
        keys: &[Data],
    ) -> Result<Vec<bool>, Error> {
        let attempt = || Attempt::on_object("look up elements of set", table, set);
        let mut batch = netlink::Batch::new();
        for key in keys {
            let element = [Element::new(key.clone())];
            batch.push(codec::message_type(message::GETSETELEM), 0, |message| {
                codec::begin(message, table.family);
                codec::elements(message, table, set, &element);
            });
        }
        let answers = self.socket.ask(&batch, codec::decode_elements);
        let answers = answers.map_err(|error| Error::new(attempt(), error))?;
        let answered = answers.into_iter().map(|answer| match answer {
            Ok(elements) => Ok(!elements.is_empty()),
            Err(error) => match Error::new(attempt(), error) {
                error if error.is_not_found() => Ok(false),
                error => Err(error),
            },
        });
        answered.collect()
    }

    /// Returns the flow tables of a table.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list_flow_tables(&mut self, table: &TableId) -> Result<Vec<FlowTable>, Error> {
        let attempt = Attempt::on_table("list flow tables of table", table);
        let write = |message: &mut MessageWriter<'_>| {
            codec::begin(message, table.family);
            codec::table_name(message, table);
        };
        self.list(attempt, message::GETFLOWTABLE, write, |body| {
            codec::decode_flow_table(body).map(Some)
        })
    }

    /// Has the kernel tell of changes from now on, which [`Client::changes`] returns. This makes every transaction
    /// of the network namespace dearer: the kernel writes a message for each element.
    ///
    /// # Errors
    /// When the kernel has no such notifications.
    pub fn listen(&mut self) -> Result<(), Error> {
        self.socket.join(uapi::GROUP).map_err(|error| Error::new(Attempt::Listen, error))
    }

    /// Waits for changes, of this connection or of others, and hands over those that are there by then. A quiet time
    /// of some seconds ends the wait without any. Use a connection of its own for it: answers would mix with what
    /// the kernel tells.
    ///
    /// # Errors
    /// [`Error::is_overrun`] if changes were lost: then everything is to be read anew.
    pub fn changes(&mut self, mut each: impl FnMut(Change)) -> Result<(), Error> {
        let mut broken = None;
        let received = self.socket.notifications(|notification| {
            if notification.message_type == codec::message_type(message::NEWGEN) {
                match codec::decode_generation(notification.body) {
                    Ok(generation) => each(Change::Generation(generation)),
                    Err(error) => broken = Some(error),
                }
            } else if notification.message_type >> 8 == uapi::SUBSYSTEM {
                each(Change::Object(codec::table_of(notification.body)));
            }
        });
        let result = received.and_then(|()| broken.map_or(Ok(()), |error| Err(error.into())));
        result.map_err(|error| Error::new(Attempt::Listen, error))
    }

    /// Lists objects, and again if a change came between. The kernel marks a listing of elements in no other way
    /// than by the generation in each message (`nf_tables_dump_set` in net/netfilter/nf_tables_api.c).
    fn list<T>(
        &mut self,
        attempt: Attempt,
        command: u8,
        write: impl Fn(&mut MessageWriter<'_>),
        decode: impl Fn(&[u8]) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, Error> {
        for time in 0..DUMP_ATTEMPTS {
            let (generation, is_disturbed) = (Cell::new(None), Cell::new(false));
            let listed = self.socket.dump(codec::message_type(command), &write, |body| {
                let of_message = codec::disturbance(body);
                let before = generation.replace(of_message);
                is_disturbed.set(is_disturbed.get() || before.is_some() && before != of_message);
                decode(body)
            });
            match listed {
                Err(error) if error.is_interrupted() => break,
                Err(error) => return Err(Error::new(attempt, error)),
                Ok(items) if !is_disturbed.get() => return Ok(items),
                Ok(_) => std::thread::sleep(Duration::from_millis(time as u64)),
            }
        }
        Err(Error::disturbed(attempt, DUMP_ATTEMPTS))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
