//! The conversation with the kernel.

mod sending;

use std::collections::HashMap;

use netlink::{DecodeError, Namespace, Socket, Traffic};

use crate::batch::Batch;
use crate::codec::{self, Fragment};
use crate::entry::{Entry, EntryOptions};
use crate::error::{Attempt, Error};
use crate::name::Name;
use crate::set::{Family, Header, Identity, Revisions, Set, SetSpec, SetType};
use crate::uapi::{self, cmd, err, flag};

/// A connection to the ipset of one network namespace.
///
/// The functions that change one thing are strict: to add an entry that is there is an error. A
/// [`Batch`] made by [`Batch::new`] is not.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    protocol: u8,
    revisions: HashMap<(SetType, Family), Revisions>,
    /// Requests on their way out; kept for its memory.
    wire: netlink::Batch,
}

impl Client {
    /// Connects to the calling thread's network namespace, and agrees on a protocol version.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] when the kernel has no ipset, [`Error::is_permission`] without
    /// `CAP_NET_ADMIN`.
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
        let socket = socket.map_err(|error| Error::new(Attempt::Open, error))?;
        let (revisions, wire) = (HashMap::new(), netlink::Batch::new());
        let mut client = Self { socket, protocol: uapi::PROTOCOL, revisions, wire };
        let protocol = client.protocol;
        let (min, max) = client.ask(
            Attempt::Open,
            cmd::PROTOCOL,
            |message| codec::versions(message, protocol),
            codec::decode_protocol_versions,
        )?;
        if max < uapi::PROTOCOL_MIN || min > uapi::PROTOCOL {
            return Err(Error::protocol(min, max));
        }
        client.protocol = max.min(uapi::PROTOCOL);
        Ok(client)
    }

    /// The protocol version agreed on: 6 or 7.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the traffic over the socket since it was opened.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.socket.traffic()
    }

    /// Returns the revisions of a set type that the kernel has. The kernel is asked once: the
    /// answer cannot change while it has the type.
    ///
    /// # Errors
    /// [`Error::is_unknown_type`] when it does not have the type.
    pub fn revisions(&mut self, set_type: SetType, family: Family) -> Result<Revisions, Error> {
        if let Some(known) = self.revisions.get(&(set_type, family)) {
            return Ok(*known);
        }
        let protocol = self.protocol;
        let found = self.ask(
            Attempt::Revisions(set_type),
            cmd::TYPE,
            |message| codec::revisions_of(message, protocol, set_type, family.number()),
            codec::decode_revisions,
        )?;
        self.revisions.insert((set_type, family), found);
        Ok(found)
    }

    /// Creates a set that does not exist; see [`Batch::create`].
    ///
    /// # Errors
    /// [`Error::is_exists`], [`Error::is_unknown_type`], or another refusal of the kernel.
    pub fn create(&mut self, set: Name, spec: SetSpec) -> Result<(), Error> {
        self.change(|batch| batch.create(set, spec))
    }

    /// Destroys a set; see [`Batch::destroy`].
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], [`Error::is_busy`], or another refusal of the kernel.
    pub fn destroy(&mut self, set: Name) -> Result<(), Error> {
        self.change(|batch| batch.destroy(set))
    }

    /// Destroys all sets of the network namespace; see [`Batch::destroy_all`].
    ///
    /// # Errors
    /// [`Error::is_busy`] if one of them is in use, or another refusal of the kernel.
    pub fn destroy_all(&mut self) -> Result<(), Error> {
        self.change(Batch::destroy_all)
    }

    /// Deletes all entries of a set.
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], or another refusal of the kernel.
    pub fn flush(&mut self, set: Name) -> Result<(), Error> {
        self.change(|batch| batch.flush(set))
    }

    /// Deletes all entries of all sets of the network namespace.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn flush_all(&mut self) -> Result<(), Error> {
        self.change(Batch::flush_all)
    }

    /// Gives a set another name; see [`Batch::rename`].
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], [`Error::is_exists`] if the new name is taken,
    /// [`Error::is_busy`], or another refusal of the kernel.
    pub fn rename(&mut self, from: Name, to: Name) -> Result<(), Error> {
        self.change(|batch| batch.rename(from, to))
    }

    /// Exchanges two sets; see [`Batch::swap`].
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], [`Error::is_type_mismatch`], or another refusal of the kernel.
    pub fn swap(&mut self, one: Name, other: Name) -> Result<(), Error> {
        self.change(|batch| batch.swap(one, other))
    }

    /// Adds an entry to a set.
    ///
    /// # Errors
    /// [`Error::is_exists`], [`Error::is_set_full`], [`Error::is_no_such_set`], or another refusal
    /// of the kernel.
    pub fn add(&mut self, set: Name, entry: Entry) -> Result<(), Error> {
        self.change(|batch| batch.add(set, entry))
    }

    /// Adds an entry to a set with something attached to it.
    ///
    /// # Errors
    /// As [`Client::add`], and when the set was not created for what is attached.
    pub fn add_with(
        &mut self,
        set: Name,
        entry: Entry,
        options: EntryOptions,
    ) -> Result<(), Error> {
        self.change(|batch| batch.add_with(set, entry, options))
    }

    /// Deletes an entry from a set.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the entry or the set is not there, or another refusal of the
    /// kernel.
    pub fn delete(&mut self, set: Name, entry: Entry) -> Result<(), Error> {
        self.change(|batch| batch.delete(set, entry))
    }

    /// Returns true if an entry is in a set, or in one of its networks.
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], or another refusal of the kernel.
    pub fn test(&mut self, set: Name, entry: Entry) -> Result<bool, Error> {
        let mut batch = netlink::Batch::new();
        batch.push(codec::message_type(cmd::TEST), 0, |message| {
            codec::test(message, self.protocol, set, &entry);
        });
        match self.socket.request(&batch, |_| Ok(None::<()>)) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(err::EXIST) => Ok(false),
            Err(error) => Err(Error::new(Attempt::Test(set, entry), error)),
        }
    }

    /// Name, type, revision and family of a set, without a listing.
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], or another refusal of the kernel.
    pub fn identity(&mut self, set: Name) -> Result<Identity, Error> {
        let protocol = self.protocol;
        self.ask(
            Attempt::Identify(set),
            cmd::HEADER,
            |message| codec::one_name(message, protocol, Some(set)),
            codec::decode_identity,
        )
    }

    /// Everything about a set but its entries.
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], or another refusal of the kernel.
    pub fn header(&mut self, set: Name) -> Result<Header, Error> {
        let headers = self.fragments(Some(set), flag::LIST_HEADER)?;
        (headers.into_iter().find_map(|fragment| fragment.header))
            .ok_or_else(|| Error::no_answer(Attempt::List(Some(set))))
    }

    /// Everything about all sets but their entries.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list_headers(&mut self) -> Result<Vec<Header>, Error> {
        let headers = self.fragments(None, flag::LIST_HEADER)?;
        Ok(headers.into_iter().filter_map(|fragment| fragment.header).collect())
    }

    /// The names of all sets.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list_names(&mut self) -> Result<Vec<Name>, Error> {
        let names = self.fragments(None, flag::LIST_SETNAME)?;
        Ok(names.into_iter().map(|fragment| fragment.name).collect())
    }

    /// A set with its entries. What others add or delete meanwhile may or may not be among them.
    ///
    /// # Errors
    /// [`Error::is_no_such_set`], or another refusal of the kernel.
    pub fn list(&mut self, set: Name) -> Result<Set, Error> {
        let sets = joined(self.fragments(Some(set), 0)?);
        sets.into_iter().next().ok_or_else(|| Error::no_answer(Attempt::List(Some(set))))
    }

    /// All sets with their entries.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn list_all(&mut self) -> Result<Vec<Set>, Error> {
        Ok(joined(self.fragments(None, 0)?))
    }

    fn fragments(&mut self, set: Option<Name>, flags: u32) -> Result<Vec<Fragment>, Error> {
        let protocol = self.protocol;
        self.socket
            .dump(
                codec::message_type(cmd::LIST),
                |message| codec::list(message, protocol, set, flags),
                |body| codec::decode_fragment(body).map(Some),
            )
            .map_err(|error| Error::new(Attempt::List(set), error))
    }

    /// Sends a batch with one change in it.
    fn change<T>(&mut self, push: impl FnOnce(&mut Batch) -> T) -> Result<(), Error> {
        let mut batch = Batch::strict();
        push(&mut batch);
        self.send(&batch)?.into_iter().collect()
    }

    /// Sends a request that is answered by one message.
    fn ask<T>(
        &mut self,
        attempt: Attempt,
        command: u8,
        write: impl FnOnce(&mut netlink::MessageWriter<'_>),
        read: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let mut batch = netlink::Batch::new();
        batch.push(codec::message_type(command), 0, write);
        let answers = self
            .socket
            .request(&batch, |body| read(body).map(Some))
            .map_err(|error| Error::new(attempt, error))?;
        answers.into_iter().next().ok_or_else(|| Error::no_answer(attempt))
    }
}

/// Puts the parts of each set together. A set that was destroyed and created anew while it was
/// being listed may lack its header, and is then left out.
fn joined(fragments: Vec<Fragment>) -> Vec<Set> {
    let mut sets: Vec<Set> = Vec::new();
    for Fragment { name, header, entries, undecoded } in fragments {
        match (header, sets.last_mut()) {
            (Some(header), _) => sets.push(Set { header, entries, undecoded }),
            (None, Some(set)) if set.header.identity.name == name => {
                set.entries.extend(entries);
                set.undecoded += undecoded;
            }
            (None, _) => {}
        }
    }
    sets
}
