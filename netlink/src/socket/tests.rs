//! Against this machine's own kernel: rtnetlink and the generic netlink controller are in every
//! kernel, and reading them needs no privilege.

use super::*;
use crate::generic;
use crate::option::tests::replace;

/// `RTM_GETLINK` (include/uapi/linux/rtnetlink.h).
const GET_LINK: u16 = 18;

fn any_link(message: &mut MessageWriter<'_>) {
    message.body().extend_from_slice(&[0; 16]); // struct ifinfomsg
}

fn link(index: i32, message: &mut MessageWriter<'_>) {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    message.body().extend_from_slice(&header);
}

fn index(body: &[u8]) -> Result<Option<i32>, DecodeError> {
    Ok(body.get(4..8).and_then(|bytes| bytes.first_chunk()).map(|b| i32::from_ne_bytes(*b)))
}

#[test]
fn a_listing_has_the_loopback_link() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let links = socket.dump(GET_LINK, any_link, index).unwrap();
    assert!(links.contains(&1), "{links:?}");
}

#[test]
fn a_request_returns_its_answer_or_the_refusal() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    batch.push(GET_LINK, 0, |message| link(1, message));
    assert_eq!(socket.request(&batch, index).unwrap(), [1]);
    batch.clear();
    batch.push(GET_LINK, 0, |message| link(0x7fff_fff0, message));
    let error = socket.request(&batch, index).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
}

/// A host may have another default, and a process without the right to go past the limit as well.
#[test]
fn a_send_is_no_longer_than_the_send_buffer() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    assert_eq!(socket.bytes_per_send, buffers::BYTES_PER_SEND);
    sockopt::set_socket_send_buffer_size(&socket, 2_304).unwrap();
    let granted = sockopt::socket_send_buffer_size(&socket).unwrap();
    let mut batch = Batch::new();
    for _ in 0..1_500 {
        batch.push(GET_LINK, 0, |message| link(1, message));
    }
    assert!(socket.send(&batch).is_err(), "{granted} bytes are enough");
    socket.bytes_per_send = buffers::bytes_per_send(granted);
    let results = socket.send(&batch).unwrap();
    assert!(results.len() == 1_500 && results.iter().all(Result::is_ok));
}

#[test]
fn each_of_many_requests_has_its_own_result() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    // More than fit into one send. Every seventh names a link that does not exist.
    for number in 0..1_500 {
        let wanted = if number % 7 == 0 { 0x7fff_fff0 } else { 1 };
        batch.push(GET_LINK, 0, |message| link(wanted, message));
    }
    let results = socket.send(&batch).unwrap();
    assert_eq!(results.len(), 1_500);
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), number % 7 == 0, "request {number}: {result:?}");
    }
    let traffic = socket.traffic();
    assert_eq!(traffic.requests, 1_500);
    assert!(traffic.sends < 20, "{traffic:?}");
    // Nothing of it is left over to confuse what comes next.
    assert!(socket.dump(GET_LINK, any_link, index).unwrap().contains(&1));
}

#[test]
fn each_of_many_questions_has_its_own_answer() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    for number in 0..1_500 {
        let wanted = if number % 7 == 0 { 0x7fff_fff0 } else { 1 };
        batch.push(GET_LINK, 0, |message| link(wanted, message));
    }
    batch.push(GET_LINK, 0, |message| message.attributes().bytes(1, &[0; 70_000]));
    let decode = |body: &[u8]| index(body)?.ok_or(DecodeError::new("index", "there is none"));
    let mut answers = socket.ask(&batch, decode).unwrap();
    assert!(answers.pop().unwrap().is_err(), "it is too long");
    assert_eq!(answers.len(), 1_500);
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Ok(index) => assert!(*index == 1 && number % 7 > 0, "question {number}: {index}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
                assert_eq!(number % 7, 0, "question {number}: {error}");
            }
        }
    }
    assert!(socket.traffic().sends < 20, "{:?}", socket.traffic());
    // Nothing of it is left over to confuse what comes next.
    assert!(socket.dump(GET_LINK, any_link, index).unwrap().contains(&1));
}

#[test]
fn a_request_that_is_too_long_harms_only_itself() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    batch.push(GET_LINK, 0, |message| link(1, message));
    batch.push(GET_LINK, 0, |message| message.attributes().bytes(1, &[0; 70_000]));
    batch.push(GET_LINK, 0, |message| link(1, message));
    let results = socket.send(&batch).unwrap();
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(
        results[1].as_ref().unwrap_err().to_string(),
        "the request is longer than a netlink message can be"
    );
}

#[test]
fn an_overrun_is_told_and_never_taken_for_success() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap(); // the kernel's minimum: 2,304 bytes
    let mut batch = Batch::new();
    for _ in 0..REQUESTS_PER_SEND {
        batch.push(GET_LINK, 0, |message| link(0x7fff_fff0, message));
    }
    socket.requests_per_send = REQUESTS_PER_SEND;
    let results = socket.send(&batch).unwrap();
    assert!(results.iter().all(Result::is_err), "every one of them fails");
    let lost = results.iter().flat_map(|r| r.as_ref().err()).filter(|e| e.is_answer_lost());
    let lost = lost.count();
    assert!(lost > 0 && lost < REQUESTS_PER_SEND, "{lost} lost");
    batch.clear();
    batch.push(GET_LINK, 0, |message| link(0x7fff_fff0, message));
    let again = socket.send(&batch).unwrap();
    assert!(!again[0].as_ref().unwrap_err().is_answer_lost(), "the socket is of use afterwards");
}

#[test]
fn a_family_has_a_number_or_does_not_exist() {
    let mut socket = Socket::open(Protocol::Generic).unwrap();
    assert_eq!(generic::family(&mut socket, "nlctrl").unwrap(), 0x10);
    let error = generic::family(&mut socket, "no-such-family").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

#[test]
fn the_current_namespace_can_be_opened() {
    let namespace = Namespace::current();
    assert!(namespace.is_ok(), "{namespace:?}");
    assert!(Namespace::at(std::path::Path::new("/run/netns/there-is-none")).is_err());
}

#[test]
fn a_socket_that_is_one_no_more_is_opened_again_at_its_next_use() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    for _ in 0..2 {
        replace(&socket, std::fs::File::open("/dev/null").unwrap());
        let mut batch = Batch::new();
        batch.push(GET_LINK, 0, |message| link(1, message));
        let error = socket.request(&batch, index).unwrap_err();
        assert!(error.is_socket_failure() && error.is_answer_lost(), "{error}");
        assert_eq!(socket.request(&batch, index).unwrap(), [1]);
        assert!(socket.dump(GET_LINK, any_link, index).unwrap().contains(&1));
    }
    replace(&socket, std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    // A listing is tried again by itself.
    assert!(socket.dump(GET_LINK, any_link, index).unwrap().contains(&1));
}

#[test]
fn groups_are_joined_again() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    socket.join(1).unwrap(); // RTNLGRP_LINK
    replace(&socket, std::fs::File::open("/dev/null").unwrap());
    assert!(socket.notifications(|_| {}).unwrap_err().is_socket_failure());
    socket.repair().unwrap();
    assert_eq!(groups(&socket), 1);
}

/// The groups that it is in, a bit each, as /proc/net/netlink has them. A listing lacks sockets if
/// others are opened or closed meanwhile (`rhashtable_walk_next` in lib/rhashtable.c), as other
/// tests do.
fn groups(socket: &Socket) -> u32 {
    let inode = rustix::fs::fstat(socket).unwrap().st_ino.to_string();
    let listed = || {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
        let mut fields = sockets.lines().map(|it| it.split_whitespace().collect::<Vec<_>>());
        let ours = fields.find(|fields| fields.last() == Some(&inode.as_str()))?;
        Some(u32::from_str_radix(ours[3], 16).unwrap())
    };
    std::iter::repeat_with(listed).take(100).flatten().next().unwrap()
}

#[test]
fn a_refusal_is_no_failure_of_the_socket() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut batch = Batch::new();
    batch.push(GET_LINK, 0, |message| link(0x7fff_fff0, message));
    assert!(!socket.request(&batch, index).unwrap_err().is_socket_failure());
    assert!(socket.failure.is_none());
}
