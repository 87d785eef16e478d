//! Messages that the kernel sends unasked.

/// A message that the kernel sent unasked, to a group that was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification<'a> {
    /// The subsystem's message type.
    pub message_type: u16,
    /// The subsystem's header and attributes.
    pub body: &'a [u8],
}

// === impl Notification ===

impl<'a> Notification<'a> {
    /// A message of this type.
    #[must_use]
    pub fn new(message_type: u16, body: &'a [u8]) -> Self {
        Self { message_type, body }
    }
}
