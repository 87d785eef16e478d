//! Receiving many datagrams in one system call.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::{io, ptr};

use rustix::io::Errno;

/// Most datagrams that one call receives.
const AT_ONCE: usize = 16;

/// Lengths of the datagrams that a call has received.
#[derive(Debug)]
pub(crate) struct Received {
    lengths: [usize; AT_ONCE],
    count: usize,
}

/// Behaviour while no datagram is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Wait for the first one.
    ForFirst,
    Not,
}

/// Receives up to [`AT_ONCE`] datagrams, each into a part of `buffer` of its own.
///
/// # Errors
/// The kernel's answer, such as `EAGAIN` after the socket's receive timeout. One that comes after the
/// first datagram is the next call's (recvmmsg(2)).
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: Wait,
) -> Result<Received, Errno> {
    let mut parts = buffer.chunks_exact_mut(size_of_part(buffer.len()));
    let mut vectors: [libc::iovec; AT_ONCE] = std::array::from_fn(|_| {
        let part = parts.next().unwrap_or_default();
        libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }
    });
    let mut headers = vectors.each_mut().map(|vector| {
        #[expect(unsafe_code, reason = "with some C libraries the structure has private fields")]
        // SAFETY: null pointers and zeros are valid in each field, and say that there is nothing.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (vector, 1);
        header
    });
    // With MSG_TRUNC, lengths are the datagrams' own.
    let flags = libc::MSG_TRUNC
        | match wait {
            Wait::ForFirst => libc::MSG_WAITFORONE,
            Wait::Not => libc::MSG_DONTWAIT,
        };
    #[expect(unsafe_code, reason = "no crate that we have has a safe form of recvmmsg")]
    // SAFETY: the descriptor is open as long as it is borrowed. There are AT_ONCE headers; each has one
    // vector, which is a part of `buffer` that no other vector has, and all of them outlive the call.
    // Any bytes are valid there. Without a timeout the pointer to it is null.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            AT_ONCE as _,
            flags as _,
            ptr::null_mut(),
        )
    };
    let Ok(count) = usize::try_from(received) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    Ok(Received { lengths: headers.map(|header| header.msg_len as usize), count })
}

const fn size_of_part(buffer: usize) -> usize {
    let part = buffer / AT_ONCE;
    if part > 0 { part } else { 1 }
}

impl Received {
    /// The parts of the buffer that was received into, each with its datagram's own length: a longer one
    /// was cut.
    pub(crate) fn parts(self, buffer: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
        buffer.chunks_exact(size_of_part(buffer.len())).zip(self.lengths).take(self.count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::*;

    #[test]
    fn those_that_are_there_come_at_once_and_say_how_long_they_are() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut buffer = [0; 4 * AT_ONCE];
        let mut read = || {
            let received = receive(receiver.as_fd(), &mut buffer, Wait::ForFirst)?;
            let parts = received.parts(&buffer);
            Ok::<_, Errno>(parts.map(|(part, length)| (part[0], length)).collect::<Vec<_>>())
        };
        let sent: Vec<(u8, usize)> =
            (0..20).map(|number| (number, number as usize % 9 + 1)).collect();
        for (first, length) in &sent {
            sender.send(&vec![*first; *length]).unwrap();
        }
        assert_eq!(
            read().unwrap(),
            sent[..AT_ONCE],
            "with their own lengths, even where they are cut"
        );
        assert_eq!(read().unwrap(), sent[AT_ONCE..]);
        assert_eq!(read().unwrap_err(), Errno::AGAIN);
    }
}
