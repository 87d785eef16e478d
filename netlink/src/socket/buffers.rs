//! Sizes of a socket's buffers.

use std::os::fd::BorrowedFd;

use rustix::net::sockopt;

use crate::error::Error;

/// The receive buffer we ask for. The kernel doubles it for its own bookkeeping.
pub(super) const RECEIVE_BUFFER: usize = 4 << 20;
/// Most bytes of a send, and the send buffer we ask for, which must hold a send whole: its default
/// (`net.core.wmem_default`) was chosen for other things. The kernel doubles it.
pub(super) const BYTES_PER_SEND: usize = 128 << 10;
/// The kernel refuses a send of more than the buffer less these bytes (`netlink_sendmsg` in
/// net/netlink/af_netlink.c).
const SEND_BUFFER_RESERVE: usize = 32;

/// Returns the number of bytes a send of several requests has at most with a send buffer of this size.
pub(super) fn bytes_per_send(buffer: usize) -> usize {
    BYTES_PER_SEND.min(longest_send(buffer))
}

/// Returns the number of bytes that the kernel takes in one send with a send buffer of this size.
pub(super) fn longest_send(buffer: usize) -> usize {
    buffer.saturating_sub(SEND_BUFFER_RESERVE)
}

/// Returns how many bytes the kernel really grants.
pub(super) fn enlarge_send(socket: BorrowedFd<'_>) -> Result<usize, Error> {
    // As with the receive buffer, for the limit net.core.wmem_max.
    if sockopt::set_socket_send_buffer_size_force(socket, BYTES_PER_SEND).is_err() {
        sockopt::set_socket_send_buffer_size(socket, BYTES_PER_SEND)
            .map_err(|error| Error::system("enlarge a netlink socket's send buffer", error))?;
    }
    sockopt::socket_send_buffer_size(socket)
        .map_err(|error| Error::system("read a netlink socket's send buffer size", error))
}

/// Returns how many bytes the kernel really grants, its own bookkeeping included.
pub(super) fn enlarge_receive(socket: BorrowedFd<'_>) -> Result<usize, Error> {
    // The limit net.core.rmem_max may be passed with CAP_NET_ADMIN in the initial user namespace.
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)
            .map_err(|error| Error::system("enlarge a netlink socket's receive buffer", error))?;
    }
    sockopt::socket_recv_buffer_size(socket)
        .map_err(|error| Error::system("read a netlink socket's receive buffer size", error))
}
