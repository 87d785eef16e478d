//! Messages that the kernel sends back, cut out of its datagrams.

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NLMSG_OVERRUN,
};

use crate::attribute::{DecodeError, attributes};
use crate::batch::MESSAGE_HEADER_LENGTH;
use crate::error::Refusal;

/// `NLMSGERR_ATTR_MSG`: the text of an extended acknowledgement.
const EXPLANATION: u16 = 1;

/// One message from the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) sequence: u32,
    /// The listing was disturbed by a change (`NLM_F_DUMP_INTR`).
    pub(crate) interrupted: bool,
    pub(crate) content: Content<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// A message of the subsystem's own.
    Message { message_type: u16, body: &'a [u8] },
    /// The request with this sequence number was carried out.
    Acknowledged,
    /// It was not.
    Refused(Refusal),
    /// A listing is complete.
    Done,
    /// Nothing to do (`NLMSG_NOOP`).
    Nothing,
    /// The kernel lost messages (`NLMSG_OVERRUN`).
    Overrun,
}

/// Cuts a datagram into messages. Ends, with an error, at the first that does not fit.
pub(crate) fn replies(datagram: &[u8]) -> impl Iterator<Item = Result<Reply<'_>, DecodeError>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = cut(rest);
        rest = cut.as_ref().map_or(&[], |(_, after)| after);
        Some(cut.map(|(reply, _)| reply))
    })
}

fn cut(bytes: &[u8]) -> Result<(Reply<'_>, &[u8]), DecodeError> {
    let broken = |problem: &str| DecodeError::new("netlink message", problem);
    let header = bytes
        .first_chunk::<MESSAGE_HEADER_LENGTH>()
        .ok_or_else(|| broken("shorter than its header"))?;
    let [l0, l1, l2, l3, t0, t1, f0, f1, s0, s1, s2, s3, ..] = *header;
    let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
    let flags = u16::from_ne_bytes([f0, f1]);
    let body = bytes
        .get(MESSAGE_HEADER_LENGTH..length)
        .ok_or_else(|| broken("its length does not fit the datagram"))?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    let reply = Reply {
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        interrupted: flags & NLM_F_DUMP_INTR != 0,
        content: content(u16::from_ne_bytes([t0, t1]), flags, body)?,
    };
    Ok((reply, after))
}

fn content(message_type: u16, flags: u16, body: &[u8]) -> Result<Content<'_>, DecodeError> {
    Ok(match message_type {
        NLMSG_NOOP => Content::Nothing,
        NLMSG_OVERRUN => Content::Overrun,
        NLMSG_DONE => match errno(body).unwrap_or(0) {
            0 => Content::Done,
            // A listing that fails half-way ends with the error number in its last message.
            errno => Content::Refused(Refusal {
                errno,
                explanation: explanation(flags, body.get(4..).unwrap_or_default()),
                request: Vec::new(),
            }),
        },
        NLMSG_ERROR => match errno(body) {
            None => return Err(DecodeError::new("error message", "without an error number")),
            Some(0) => Content::Acknowledged,
            Some(errno) => Content::Refused(refusal(errno, flags, body)),
        },
        message_type => Content::Message { message_type, body },
    })
}

/// The kernel's number is negative; zero means success.
fn errno(body: &[u8]) -> Option<i32> {
    body.first_chunk::<4>().map(|bytes| i32::from_ne_bytes(*bytes).saturating_neg())
}

/// `struct nlmsgerr`: error number, the request's header, the request's body unless the answer is
/// capped, then the extended acknowledgement's attributes.
fn refusal(errno: i32, flags: u16, body: &[u8]) -> Refusal {
    let echo = body.get(4..).unwrap_or_default();
    let length = match echo.first_chunk::<4>() {
        Some(_) if flags & NLM_F_CAPPED != 0 => MESSAGE_HEADER_LENGTH,
        Some(length) => u32::from_ne_bytes(*length) as usize,
        None => 0,
    };
    Refusal {
        errno,
        explanation: explanation(flags, echo.get(length.next_multiple_of(4)..).unwrap_or_default()),
        request: echo.get(..length).unwrap_or(echo).to_vec(),
    }
}

fn explanation(flags: u16, bytes: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    attributes(bytes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind == EXPLANATION)
        .map(|attribute| String::from_utf8_lossy(attribute.value).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(message_type: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(message_type.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn only(bytes: &[u8]) -> Content<'_> {
        let mut all = replies(bytes);
        let first = all.next().unwrap().unwrap();
        assert!(all.next().is_none());
        assert_eq!(first.sequence, 7);
        first.content
    }

    #[test]
    fn an_acknowledgement_is_an_error_message_with_zero() {
        assert_eq!(only(&message(NLMSG_ERROR, 0, &[0; 20])), Content::Acknowledged);
    }

    #[test]
    fn a_refusal_keeps_the_number_the_text_and_the_request() {
        // -EINVAL, the request's header (capped), then NLMSGERR_ATTR_MSG "no such thing".
        let mut body = (-22_i32).to_ne_bytes().to_vec();
        body.extend(message(0x22, 5, &[1, 2, 3, 4])[..16].iter());
        body.extend([18, 0, 1, 0]);
        body.extend(b"no such thing\0\0\0");
        let bytes = message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &body);
        let Content::Refused(refusal) = only(&bytes) else { panic!("not a refusal") };
        assert_eq!(refusal.errno, 22);
        assert_eq!(refusal.explanation.as_deref(), Some("no such thing"));
        assert_eq!(refusal.request.len(), 16);
        assert_eq!(refusal.to_string(), "Invalid argument (os error 22): no such thing");
    }

    #[test]
    fn the_end_of_a_listing_may_be_an_error() {
        assert_eq!(only(&message(NLMSG_DONE, 2, &[0; 4])), Content::Done);
        assert_eq!(only(&message(NLMSG_DONE, 2, &[])), Content::Done);
        let bytes = message(NLMSG_DONE, 2, &(-11_i32).to_ne_bytes());
        assert!(matches!(only(&bytes), Content::Refused(refusal) if refusal.errno == 11));
    }

    #[test]
    fn a_broken_length_is_one_error_and_the_end() {
        let mut bytes = message(40, 0, &[1, 2, 3, 4]);
        bytes.extend(message(41, 0, &[]));
        bytes[20] = 200;
        let all: Vec<_> = replies(&bytes).collect();
        assert_eq!(all.len(), 2);
        assert!(all[0].is_ok() && all[1].is_err());
        assert!(replies(&[16, 0, 0]).next().unwrap().is_err());
        let all: Vec<_> = replies(&[0; 16]).collect();
        assert!(all.len() == 1 && all[0].is_err(), "a length of zero must not go round for ever");
    }

    proptest::proptest! {
        /// Reading ends, and without a panic, whatever arrives.
        #[test]
        fn any_datagram_is_read_to_its_end(
            datagram in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            message_type in 0_u16..5,
            flags in proptest::prelude::any::<u16>(),
        ) {
            assert!(replies(&datagram).count() <= 1 + datagram.len() / 16);
            assert!(attributes(&datagram).count() <= 1 + datagram.len() / 4);
            let framed = message(message_type, flags, &datagram);
            let _any = replies(&framed).collect::<Vec<_>>();
        }
    }
}
