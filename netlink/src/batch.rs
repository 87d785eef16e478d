//! Requests waiting to be sent together.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

use crate::attribute::{AttributeWriter, pad};

/// `struct nlmsghdr` in bytes (include/uapi/linux/netlink.h).
pub(crate) const MESSAGE_HEADER_LENGTH: usize = 16;

/// Requests in the order in which the kernel is to work through them.
///
/// A batch may be as long as memory allows: [`Socket::send`](crate::Socket::send) cuts it into
/// sends of a size that the kernel takes and can answer.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

/// Requests of a batch that go out in one send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Request that is acknowledged though it did not fail: its place among those of this part.
    pub(crate) acknowledged: Option<usize>,
    /// Message type of all, in place of their own.
    pub(crate) message_type: Option<u16>,
}

/// Writes one message's body: a subsystem's fixed header, then attributes.
#[derive(Debug)]
pub struct MessageWriter<'a> {
    bytes: &'a mut Vec<u8>,
    too_long: bool,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    end: usize,
    length: u32,
    message_type: u16,
    flags: u16,
    too_long: bool,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a request and returns its place in the batch, which is its place among the results.
    ///
    /// `flags` come in addition to `NLM_F_REQUEST`; whether to acknowledge is the socket's affair.
    pub fn push(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; MESSAGE_HEADER_LENGTH]);
        let mut writer = MessageWriter { bytes: &mut self.bytes, too_long: false };
        write(&mut writer);
        let mut too_long = writer.too_long;
        let length = u32::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            too_long = true;
            0
        });
        pad(&mut self.bytes);
        let (end, flags) = (self.bytes.len(), flags | NLM_F_REQUEST);
        self.requests.push(Request { end, length, message_type, flags, too_long });
        self.requests.len() - 1
    }

    /// Returns the number of requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True if no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the number of bytes of all requests together.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets every request and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.requests.clear();
    }

    /// The message at `index` without its header: for tests, and for looking at what is sent.
    #[must_use]
    pub fn body(&self, index: usize) -> Option<&[u8]> {
        self.bytes.get(self.start(index) + MESSAGE_HEADER_LENGTH..self.requests.get(index)?.end)
    }

    pub(crate) fn is_too_long(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|request| request.too_long)
    }

    /// The requests from `first` on that together stay within `most` requests and `bytes`; at
    /// least one, and none of them too long unless it is the only one.
    pub(crate) fn span(&self, first: usize, most: usize, bytes: usize) -> usize {
        let start = self.start(first);
        let mut count = 0;
        for request in self.requests.iter().skip(first).take(most) {
            if count > 0 && (request.end - start > bytes || request.too_long) {
                break;
            }
            count += 1;
            if request.too_long {
                break;
            }
        }
        count
    }

    /// Copies the requests of a part to `bytes`, numbered from `sequence`.
    pub(crate) fn copy_numbered(&self, part: Part, mut sequence: u32, bytes: &mut Vec<u8>) {
        bytes.clear();
        let mut start = self.start(part.first);
        let end = part.first + part.count;
        let acknowledged = part.acknowledged.map(|place| part.first + place);
        for (index, request) in self.requests.iter().enumerate().take(end).skip(part.first) {
            let more_flags = if acknowledged == Some(index) { NLM_F_ACK } else { 0 };
            bytes.extend_from_slice(
                &Request {
                    flags: request.flags | more_flags,
                    message_type: part.message_type.unwrap_or(request.message_type),
                    ..*request
                }
                .header(sequence),
            );
            let body = self.bytes.get(start + MESSAGE_HEADER_LENGTH..request.end);
            bytes.extend_from_slice(body.unwrap_or_default());
            sequence = sequence.wrapping_add(1);
            start = request.end;
        }
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).and_then(|before| self.requests.get(before)).map_or(0, |r| r.end)
    }
}

impl Part {
    /// `count` requests from `first` on, as they are.
    pub(crate) fn new(first: usize, count: usize) -> Self {
        Self { first, count, acknowledged: None, message_type: None }
    }
}

impl Request {
    /// `struct nlmsghdr`; the sender's port is the kernel's to fill in.
    fn header(&self, sequence: u32) -> [u8; MESSAGE_HEADER_LENGTH] {
        let mut header = [0; MESSAGE_HEADER_LENGTH];
        let fields = (self.length.to_ne_bytes().into_iter())
            .chain(self.message_type.to_ne_bytes())
            .chain(self.flags.to_ne_bytes())
            .chain(sequence.to_ne_bytes());
        header.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        header
    }
}

impl MessageWriter<'_> {
    /// The message so far, for a subsystem's fixed header. Appending is all that makes sense.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.bytes
    }

    /// Appends attributes.
    pub fn attributes(&mut self) -> AttributeWriter<'_> {
        AttributeWriter::new(self.bytes, &mut self.too_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(sizes: &[usize]) -> Batch {
        let mut batch = Batch::new();
        for size in sizes {
            batch.push(3, 0, |message| message.attributes().bytes(1, &vec![0; *size]));
        }
        batch
    }

    #[test]
    fn messages_are_numbered_and_only_the_last_is_acknowledged() {
        let batch = batch_of(&[1, 2, 3]);
        let part = Part { first: 1, count: 2, acknowledged: Some(1), message_type: None };
        let mut bytes = vec![9; 99];
        batch.copy_numbered(part, 70, &mut bytes);
        assert_eq!(bytes.len(), 2 * 24);
        assert_eq!(bytes[..16], [24, 0, 0, 0, 3, 0, 1, 0, 70, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], *batch.body(1).unwrap());
        assert_eq!(bytes[24..40], [24, 0, 0, 0, 3, 0, 5, 0, 71, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[40..], *batch.body(2).unwrap());
        let part = Part { message_type: Some(34), ..part };
        batch.copy_numbered(part, 70, &mut bytes);
        assert_eq!((bytes[4], bytes[28]), (34, 34));
    }

    #[test]
    fn a_span_ends_at_the_count_the_bytes_or_a_message_that_is_too_long() {
        let batch = batch_of(&[10, 10, 10, 10]);
        assert_eq!(batch.span(0, 3, 10_000), 3);
        assert_eq!(batch.span(0, 9, 70), 2);
        assert_eq!(batch.span(0, 9, 1), 1, "one message always goes");
        assert_eq!(batch.span(3, 9, 10_000), 1);
        let batch = batch_of(&[10, 70_000, 10]);
        assert_eq!((batch.span(0, 9, 1 << 20), batch.span(1, 9, 1 << 20)), (1, 1));
        assert!(batch.is_too_long(1) && !batch.is_too_long(2));
    }
}
