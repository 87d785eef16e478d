//! Runs commands, and prints every message that passed between them and IPVS.
//!
//! Reads commands from standard input, one a line, and gives each to `sh`. Prints the command, then
//! a line for each netlink datagram, in hex: `>` to the kernel, `<` from it. Made for the files in
//! `tests/captures`, and good for looking at what another program does.
//!
//! Needs root, and an `nlmon` device that is up; best in a network namespace of its own, because
//! everything on any of its devices is looked at.

use std::error::Error;
use std::io::BufRead as _;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, socket_with};

/// `ETH_P_ALL` (include/uapi/linux/if_ether.h).
const EVERY_PROTOCOL: u16 = 3;
/// For everything that one command causes.
const RECEIVE_BUFFER: usize = 64 << 20;
/// `NLM_F_REQUEST` (include/uapi/linux/netlink.h).
const REQUEST: u16 = 1;
/// `NLMSG_ERROR` (include/uapi/linux/netlink.h).
const ERROR: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let family = family()?;
    let protocol = NonZeroU32::new(u32::from(EVERY_PROTOCOL.to_be())).map(Protocol::from_raw);
    let socket =
        socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    // A listing's datagram counts as 32 KiB or more, however little is in it.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    println!("# Linux {}", kernel.trim());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // What is printed here is the messages'.
        let output = Command::new("sh").arg("-c").arg(&line).output()?;
        println!("\n$ {line}");
        if !output.status.success() {
            println!("# {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "));
        }
        for datagram in waiting(&socket)? {
            if let Some(direction) = direction(&datagram, family) {
                println!("{direction} {}", hex(&datagram));
            }
        }
    }
    Ok(())
}

fn family() -> Result<u16, netlink::Error> {
    let mut socket = netlink::Socket::open(netlink::Protocol::Generic)?;
    netlink::generic::family(&mut socket, "IPVS")
}

/// The kernel answers before a command ends, so that everything is in the buffer by then.
fn waiting(socket: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let (mut buffer, mut datagrams) = (vec![0; 128 << 10], Vec::new());
    loop {
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((datagram, _)) => datagrams.extend(buffer.get(..datagram).map(<[u8]>::to_vec)),
            Err(Errno::AGAIN) => return Ok(datagrams),
            Err(error) => return Err(error),
        }
    }
}

/// The family's messages, and refusals of them; neither acknowledgements nor what is other
/// families'.
fn direction(datagram: &[u8], family: u16) -> Option<char> {
    let header = datagram.first_chunk::<16>()?;
    match message_type(header) {
        message_type if message_type == family => {
            let [_, _, _, _, _, _, f0, f1, ..] = *header;
            Some(if u16::from_ne_bytes([f0, f1]) & REQUEST == 0 { '<' } else { '>' })
        }
        // An error number, then the refused message.
        ERROR => {
            let (errno, refused) = datagram.get(16..)?.split_first_chunk::<4>()?;
            (*errno != [0; 4] && message_type(refused.first_chunk::<16>()?) == family)
                .then_some('<')
        }
        _ => None,
    }
}

/// The second field of `struct nlmsghdr`.
fn message_type(header: &[u8; 16]) -> u16 {
    let [_, _, _, _, t0, t1, ..] = *header;
    u16::from_ne_bytes([t0, t1])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
