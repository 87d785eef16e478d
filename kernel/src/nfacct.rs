//! Packet counters by name (nfnetlink_acct), which rules of mode iptables count with.
//!
//! A rule that names a counter which does not exist is refused, with everything that is written
//! together with it. So counters are made before the rules.

use netlink::{Batch, DecodeError, Error, MessageWriter, Protocol, Socket, attributes};
use rustix::io::Errno;

/// `NFNL_SUBSYS_ACCT` is the upper byte of the message type (include/uapi/linux/netfilter/{nfnetlink,
/// nfnetlink_acct}.h).
const SUBSYSTEM: u16 = 7 << 8;
/// `NFNL_MSG_ACCT_NEW`
const NEW: u16 = SUBSYSTEM;
/// `NFNL_MSG_ACCT_GET`
const GET: u16 = SUBSYSTEM | 1;
/// `NFNL_MSG_ACCT_DEL`. Without a name it would remove all counters.
const DELETE: u16 = SUBSYSTEM | 3;
/// `NFACCT_NAME`
const NAME: u16 = 1;
/// `NFACCT_PKTS`
const PACKETS: u16 = 2;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
/// `struct nfgenmsg`: family, version (0), resource (0).
const HEADER: [u8; 4] = [0; 4];

/// The kernel's counters, in the network namespace this was opened in.
#[derive(Debug)]
pub struct NfacctClient(Socket);

impl NfacctClient {
    /// Opens a socket, which every kernel with netfilter has.
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(Self)
    }

    /// Makes a counter, at zero, unless it exists.
    ///
    /// # Errors
    /// When the kernel refuses: most of all if it has no such counters.
    pub fn ensure(&mut self, name: &str) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(NEW, NLM_F_CREATE | NLM_F_EXCL, |message| write(message, name));
        unless(self.tell(&batch), Errno::EXIST).map(drop)
    }

    /// Returns the number of packets that a counter has counted; none: there is no such counter.
    pub fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        let mut batch = Batch::new();
        batch.push(GET, 0, |message| write(message, name));
        let answer = unless(self.0.request(&batch, decode), Errno::NOENT)?;
        Ok(answer.and_then(|counts| counts.first().copied()))
    }

    /// Removes a counter, unless it is gone.
    ///
    /// # Errors
    /// When a rule names it, or the kernel refuses for another reason.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(DELETE, 0, |message| write(message, name));
        unless(self.tell(&batch), Errno::NOENT).map(drop)
    }

    fn tell(&mut self, batch: &Batch) -> Result<(), Error> {
        self.0.send(batch)?.into_iter().collect()
    }
}

fn write(message: &mut MessageWriter<'_>, name: &str) {
    message.body().extend(HEADER);
    message.attributes().string(NAME, name);
}

fn decode(body: &[u8]) -> Result<Option<u64>, DecodeError> {
    let Some(body) = body.get(HEADER.len()..) else {
        return Err(DecodeError::new("a counter", "it has no header"));
    };
    for attribute in attributes(body) {
        let attribute = attribute?;
        if attribute.kind == PACKETS {
            return attribute.array().map(u64::from_be_bytes).map(Some);
        }
    }
    Ok(None)
}

/// Returns none for a refusal that says that there is nothing to do.
fn unless<T>(result: Result<T, Error>, errno: Errno) -> Result<Option<T>, Error> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.refusal().is_some_and(|r| r.errno == errno.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_a_counter_are_big_endian() {
        let mut batch = Batch::new();
        batch.push(GET, 0, |message| {
            write(message, "some_counter");
            message.attributes().bytes(PACKETS, &7_u64.to_be_bytes());
        });
        assert_eq!(decode(batch.body(0).unwrap()), Ok(Some(7)));
        assert_eq!(decode(&HEADER), Ok(None));
        assert!(decode(&[]).is_err());
    }
}
