//! Tables of nf_tables: kube-proxy's nftables mode has its own in each family, which is removed. Base
//! chains of others are read.
//!
//! Source: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h.

use netlink::{Batch, DecodeError, Error, MessageWriter, Protocol, Socket, attributes};
use plan::model::Family;
use rustix::io::Errno;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
pub(super) const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`
const BATCH_END: u16 = 0x11;
/// `NFT_MSG_GETTABLE`
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
/// `NFT_MSG_DELTABLE`
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
/// `NFT_MSG_GETCHAIN`
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
/// `NFTA_CHAIN_…`, `NFTA_HOOK_HOOKNUM`
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_LOCAL_IN`, `NF_DROP` (include/uapi/linux/netfilter.h)
const LOCAL_IN: u32 = 1;
const DROP: u32 = 0;
/// `NFPROTO_INET`
const INET: u8 = 1;
/// Tables of iptables-nft.
const OF_IPTABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];
/// `NFTA_TABLE_NAME`
const TABLE_NAME: u16 = 1;
/// `struct nfgenmsg`: family, version, subsystem (big-endian u16).
pub(super) const HEADER: usize = 4;
/// include/uapi/linux/netlink.h
const NLM_F_ACK: u16 = 4;

/// nf_tables, in the network namespace it was opened in.
#[derive(Debug)]
pub struct NftablesClient {
    socket: Socket,
}

/// A base chain of the hook `input`, of a table that is none of iptables'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputChain {
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// True if its policy is to drop.
    pub drops: bool,
}

// === impl NftablesClient ===

impl NftablesClient {
    /// Opens it in the calling thread's network namespace; none if the kernel has no netfilter
    /// netlink.
    ///
    /// # Errors
    /// When the socket cannot be opened for another reason.
    pub fn open() -> Result<Option<Self>, Error> {
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => Ok(Some(Self { socket })),
            Err(error) if is(&error, &[Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The families that have a table of this name.
    ///
    /// # Errors
    /// When the tables could not be listed. A kernel without nf_tables has none.
    pub fn families_with(&mut self, table: &str) -> Result<Vec<Family>, Error> {
        let listed = self.socket.dump(GET_TABLE, |message| write_header(message, 0, 0), decode);
        let tables = match listed {
            Ok(tables) => tables,
            Err(error) if lacks_nftables(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let has = |family: &Family| {
            let number = family_number(*family);
            tables.iter().any(|(of, name)| (*of, name.as_str()) == (number, table))
        };
        Ok(Family::BOTH.into_iter().filter(has).collect())
    }

    /// The base chains of the hook `input` outside of iptables' tables.
    ///
    /// # Errors
    /// When the chains could not be listed. A kernel without nf_tables has none.
    pub fn input_chains(&mut self) -> Result<Vec<InputChain>, Error> {
        let listed =
            self.socket.dump(GET_CHAIN, |message| write_header(message, 0, 0), decode_input_chain);
        match listed {
            Err(error) if lacks_nftables(&error) => Ok(Vec::new()),
            result => result,
        }
    }

    /// Removes a table with everything in it.
    ///
    /// # Errors
    /// The kernel's refusal, but for a table that is not there.
    pub fn remove(&mut self, family: Family, table: &str) -> Result<(), Error> {
        match self.socket.transact(&removal(family, table)) {
            Err(error) if is(&error, &[Errno::NOENT]) => Ok(()),
            result => result,
        }
    }
}

/// True if this is an answer of nfnetlink about a subsystem that it does not have
/// (`nfnetlink_rcv_msg` in net/netfilter/nfnetlink.c).
pub(super) fn lacks_nftables(error: &Error) -> bool {
    error.refusal().is_some() && is(error, &[Errno::INVAL, Errno::OPNOTSUPP])
}

fn removal(family: Family, table: &str) -> Batch {
    let mut batch = Batch::new();
    batch.push(BATCH_BEGIN, 0, |message| write_header(message, 0, SUBSYSTEM));
    batch.push(DELETE_TABLE, NLM_F_ACK, |message| {
        write_header(message, family_number(family), 0);
        message.attributes().string(TABLE_NAME, table);
    });
    batch.push(BATCH_END, 0, |message| write_header(message, 0, SUBSYSTEM));
    batch
}

pub(super) fn write_header(message: &mut MessageWriter<'_>, family: u8, subsystem: u16) {
    let [high, low] = subsystem.to_be_bytes();
    message.body().extend_from_slice(&[family, 0, high, low]);
}

/// `NFPROTO_IPV4` and `NFPROTO_IPV6` (include/uapi/linux/netfilter.h).
pub(super) const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// A table's family and name.
fn decode(body: &[u8]) -> Result<Option<(u8, String)>, DecodeError> {
    let [family, ..] = *body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("table", "shorter than struct nfgenmsg"))?;
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind == TABLE_NAME {
            return Ok(Some((family, attribute.string()?.to_owned())));
        }
    }
    Ok(None)
}

/// A base chain of the hook `input`; others are passed over.
fn decode_input_chain(body: &[u8]) -> Result<Option<InputChain>, DecodeError> {
    let [family, ..] = *body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("chain", "shorter than struct nfgenmsg"))?;
    let (mut table, mut name, mut hook, mut drops) = (String::new(), String::new(), None, false);
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            CHAIN_TABLE => attribute.string()?.clone_into(&mut table),
            CHAIN_NAME => attribute.string()?.clone_into(&mut name),
            CHAIN_POLICY => drops = attribute.u32_be()? == DROP,
            CHAIN_HOOK => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    if inner.kind == HOOK_NUMBER {
                        hook = Some(inner.u32_be()?);
                    }
                }
            }
            _ => {}
        }
    }
    let is_ip = family == INET || Family::BOTH.map(family_number).contains(&family);
    let is_of_iptables = family != INET && OF_IPTABLES.contains(&table.as_str());
    let is_it = is_ip && hook == Some(LOCAL_IN) && !is_of_iptables;
    Ok(is_it.then_some(InputChain { table, name, drops }))
}

fn is(error: &Error, numbers: &[Errno]) -> bool {
    numbers.iter().any(|number| error.raw_os_error() == Some(number.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_a_transaction_of_the_subsystem() {
        let batch = removal(Family::V6, "kube-proxy");
        assert_eq!(batch.len(), 3);
        assert_eq!(batch.body(0).unwrap(), [0, 0, 0, 10]);
        assert_eq!(batch.body(2).unwrap(), [0, 0, 0, 10]);
        assert_eq!(
            batch.body(1).unwrap(),
            [&[10, 0, 0, 0, 15, 0, 1, 0][..], b"kube-proxy\0\0"].concat()
        );
    }

    #[test]
    fn a_table_is_read() {
        let batch = removal(Family::V4, "kube-proxy");
        let read = decode(batch.body(1).unwrap()).unwrap();
        assert_eq!(read, Some((2, "kube-proxy".to_owned())));
        assert_eq!(decode(&[2, 0, 0, 0]).unwrap(), None);
        assert!(decode(&[2, 0]).is_err());
    }

    #[test]
    fn a_base_chain_of_input_is_read_unless_it_is_of_iptables() {
        let chain = |family: u8, table: &str, hook: u32, policy: u32| {
            let mut batch = Batch::new();
            batch.push(GET_CHAIN, 0, |message| {
                write_header(message, family, 0);
                let mut attributes = message.attributes();
                attributes.string(CHAIN_TABLE, table);
                attributes.string(CHAIN_NAME, "in");
                attributes.nested(CHAIN_HOOK, |inner| inner.u32_be(HOOK_NUMBER, hook));
                attributes.u32_be(CHAIN_POLICY, policy);
            });
            decode_input_chain(batch.body(0).unwrap()).unwrap()
        };
        let expected =
            |table: &str, drops| Some(InputChain { table: table.into(), name: "in".into(), drops });
        assert_eq!(chain(INET, "filter", LOCAL_IN, DROP), expected("filter", true));
        assert_eq!(chain(2, "mine", LOCAL_IN, 1), expected("mine", false));
        assert_eq!(chain(2, "filter", LOCAL_IN, DROP), None, "of iptables");
        assert_eq!(chain(INET, "mine", 2, DROP), None, "of the hook forward");
        assert_eq!(chain(7, "mine", LOCAL_IN, DROP), None, "of bridges");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = decode(&body);
            let _any = decode_input_chain(&body);
        }
    }
}
