//! Tables of nf_tables: kube-proxy's nftables mode has its own in each family, which is removed. Base
//! chains of others are read.
//!
//! Source: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h.

mod input;

use netlink::{Batch, DecodeError, Error, MessageWriter, Protocol, Socket, attributes};
use plan::model::Family;
use rustix::io::Errno;

pub(crate) use input::{Closing, InputChain};

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
pub(super) const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
/// `NFT_MSG_GETRULE`
pub(super) const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
/// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`
pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
/// `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`
pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`
pub(super) const EXPRESSION_NAME: u16 = 1;
pub(super) const EXPRESSION_DATA: u16 = 2;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`
pub(super) const IMMEDIATE_DATA: u16 = 2;
pub(super) const DATA_VERDICT: u16 = 2;
/// `NFTA_VERDICT_CODE`, `NFTA_VERDICT_CHAIN`
const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;
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

/// Returns the attributes of a message.
pub(super) fn after_header(body: &[u8]) -> &[u8] {
    body.get(HEADER..).unwrap_or_default()
}

/// Returns the value of the first attribute of this kind.
pub(super) fn find(bytes: &[u8], kind: u16) -> Result<Option<&[u8]>, DecodeError> {
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute.value));
        }
    }
    Ok(None)
}

/// Returns the value of an attribute in an attribute, as deep as there are kinds.
pub(super) fn find_inside<'a>(
    bytes: &'a [u8],
    kinds: &[u16],
) -> Result<Option<&'a [u8]>, DecodeError> {
    let mut value = bytes;
    for kind in kinds {
        let Some(inner) = find(value, *kind)? else { return Ok(None) };
        value = inner;
    }
    Ok(Some(value))
}

/// True if this is the name of an expression of a rule.
pub(super) fn is_called(expression: &[u8], name: &str) -> Result<bool, DecodeError> {
    let found = find(expression, EXPRESSION_NAME)?.unwrap_or_default();
    Ok(found.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
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

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = decode(&body);
        }
    }
}
