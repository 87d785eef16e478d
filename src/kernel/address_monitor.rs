//! Tells when the node's own addresses change.
//!
//! A thread waits for rtnetlink's notifications and only says "something changed": what the
//! addresses are now is then read. Changes on `kube-ipvs0`, which are our own and come by the
//! thousand, are passed over by their interface index.

use std::thread;

use netlink::{Notification, Protocol, Socket};
use plan::kernel::LINK;
use tokio::sync::watch;

use super::link::{Link, decode_address, decode_link};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR` (include/uapi/linux/rtnetlink.h).
const GROUPS: [u32; 3] = [1, 5, 9];
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;

/// What the receiver sees: a count that grows with each change.
pub type Changes = watch::Receiver<u64>;

/// Starts watching, in the calling thread's network namespace, until the receiver is dropped.
///
/// # Errors
/// When rtnetlink's groups cannot be joined, or there can be no other thread.
pub fn start() -> Result<Changes, Box<dyn std::error::Error + Send + Sync>> {
    let mut socket = Socket::open(Protocol::Route)?;
    for group in GROUPS {
        socket.join(group)?;
    }
    let (sender, receiver) = watch::channel(0);
    let mut ours = super::link::Links::open()?.find()?.map(|link| link.index);
    thread::Builder::new().name("addresses".into()).spawn(move || {
        while !sender.is_closed() {
            let mut changed = false;
            let received = socket.notifications(|notification| {
                changed |= concerns_others(&notification, &mut ours);
            });
            match received {
                Ok(()) => {}
                // What was lost may have been a change.
                Err(error) if error.is_overrun() => changed = true,
                Err(error) => {
                    tracing::error!(
                        "watching the node's addresses: {error}; \
                         changes are found at the next verification instead"
                    );
                    return;
                }
            }
            if changed {
                sender.send_modify(|count| *count += 1);
            }
        }
    })?;
    Ok(receiver)
}

/// Whether an address of another interface than ours came or went. Learns our interface's index.
fn concerns_others(notification: &Notification<'_>, ours: &mut Option<u32>) -> bool {
    match notification.message_type {
        RTM_NEWADDR | RTM_DELADDR => decode_address(notification.body)
            .ok()
            .flatten()
            .is_some_and(|address| Some(address.index) != *ours),
        RTM_NEWLINK | RTM_DELLINK => {
            if let Ok(Some(Link { index, name, .. })) = decode_link(notification.body)
                && name == LINK
            {
                *ours = (notification.message_type == RTM_NEWLINK).then_some(index);
            }
            // An interface that goes takes its addresses along, and says so for each.
            false
        }
        _ => false,
    }
}
