//! Reports changes of the node's own addresses, and removals of ours by other programs.
//!
//! A thread waits for rtnetlink's notifications. Of other interfaces it only says that something
//! changed: what the addresses are now is then read. Of `kube-ipvs0` it passes on the addresses
//! that were taken off it and not put back since. Our own changes there come by the thousand, so
//! those put on it are only looked at for that, and past a thousand that were taken none are named.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use netlink::{Notification, Protocol, Socket};
use plan::kernel::LINK;
use tokio::sync::Notify;

use super::link::{Link, LinkAddress, Links, decode_address, decode_link};
use super::route;

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR` (include/uapi/linux/rtnetlink.h).
const GROUPS: [u32; 3] = [1, 5, 9];
/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`.
const ROUTE_GROUPS: [u32; 2] = [7, 11];
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;
/// Limit of taken addresses that are named; of more, it is only said that there are more.
const MOST_TAKEN: usize = 1_024;
/// After more notifications than could be kept.
const BREATH: Duration = Duration::from_millis(200);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// Events since the receiver last asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Happened {
    /// The addresses of other interfaces have changed.
    pub others: bool,
    /// These were taken off `kube-ipvs0`, by whomever.
    pub taken: HashSet<IpAddr>,
    /// The interface or a local route of ours went, or more was taken off it than can be named, or
    /// notifications were lost.
    pub anything: bool,
}

/// Receiving end of the channel.
#[derive(Debug)]
pub struct Changes(Arc<Shared>);

/// Reporting end of the channel.
#[derive(Debug)]
pub struct Reporter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    happened: Happened,
    /// One of the two sides is gone.
    ended: bool,
}

/// Starts watching, in the calling thread's network namespace, until the receiver is dropped.
/// `routes`: whether there are local routes of ours to be missed. Others have routes come and go by
/// the thousand, of which there is nothing to be told otherwise.
///
/// # Errors
/// When rtnetlink's groups cannot be joined, or there can be no other thread.
pub fn start(routes: bool) -> Result<Changes, Box<dyn std::error::Error + Send + Sync>> {
    let mut socket = Socket::open(Protocol::Route)?;
    let of_routes = if routes { &ROUTE_GROUPS[..] } else { &[] };
    for group in GROUPS.iter().chain(of_routes).copied() {
        socket.join(group)?;
    }
    let mut links = Links::open()?;
    let mut ours = links.find()?.map(|link| link.index);
    let (reporter, changes) = channel();
    thread::Builder::new().name("addresses".into()).spawn(move || {
        while !reporter.is_abandoned() {
            let received = socket.notifications(|notification| {
                reporter.report(|happened| happened.note(&notification, &mut ours));
            });
            match received {
                Ok(()) => {}
                // What was lost may have been a change.
                Err(error) => {
                    if error.is_overrun() {
                        // A storm would be answered with another.
                        thread::sleep(BREATH);
                        socket.discard_notifications();
                    } else {
                        tracing::warn!(
                            "watching the node's addresses: {error}; it is tried again, and what \
                             changes meanwhile is looked at then"
                        );
                        thread::sleep(PAUSE);
                    }
                    reporter.report(|happened| {
                        (happened.others, happened.anything) = (true, true);
                    });
                    ours = links.find().ok().flatten().map(|link| link.index);
                }
            }
        }
    })?;
    Ok(changes)
}

/// The two ends, without anybody who watches.
#[must_use]
pub fn channel() -> (Reporter, Changes) {
    let shared = Arc::<Shared>::default();
    (Reporter(Arc::clone(&shared)), Changes(shared))
}

// === impl Changes ===

impl Changes {
    /// Waits for changes and returns all of them; none when the monitor has ended. Nothing is lost
    /// if the wait is given up.
    pub async fn next(&mut self) -> Option<Happened> {
        loop {
            {
                let mut state = self.0.lock();
                if state.happened.is_something() {
                    return Some(std::mem::take(&mut state.happened));
                }
                if state.ended {
                    return None;
                }
            }
            self.0.news.notified().await;
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.0.lock().ended = true;
    }
}

// === impl Reporter ===

impl Reporter {
    /// Adds to what has happened.
    pub fn report(&self, add: impl FnOnce(&mut Happened)) {
        let mut state = self.0.lock();
        add(&mut state.happened);
        if state.happened.is_something() {
            self.0.news.notify_one();
        }
    }

    fn is_abandoned(&self) -> bool {
        self.0.lock().ended
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.news.notify_one();
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Happened ===

impl Happened {
    fn is_something(&self) -> bool {
        self.others || self.anything || !self.taken.is_empty()
    }

    /// Takes a notification in. Learns our interface's index.
    fn note(&mut self, notification: &Notification<'_>, ours: &mut Option<u32>) {
        match notification.message_type {
            RTM_NEWADDR | RTM_DELADDR => {
                let Ok(Some(found)) = decode_address(notification.body) else { return };
                if Some(found.index) != *ours {
                    self.others = true;
                } else if notification.message_type == RTM_NEWADDR {
                    self.taken.remove(&found.address);
                } else {
                    self.take(&found);
                }
            }
            RTM_DELROUTE => self.anything |= route::is_ours(notification.body),
            RTM_NEWLINK | RTM_DELLINK => {
                let Ok(Some(Link { index, name, .. })) = decode_link(notification.body) else {
                    return;
                };
                let is_there = notification.message_type == RTM_NEWLINK && name == LINK;
                if is_there {
                    *ours = Some(index);
                } else if *ours == Some(index) {
                    // Deleted, or given another name.
                    *ours = None;
                    self.anything = true;
                }
                // An interface that goes takes its addresses along, and says so for each.
            }
            _ => {}
        }
    }

    fn take(&mut self, found: &LinkAddress) {
        if found.is_link_local_v6() {
            return;
        }
        if self.taken.len() < MOST_TAKEN {
            self.taken.insert(found.address);
        } else {
            self.taken.clear();
            self.anything = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::{AddressBatch, Scope};
    use super::*;

    const OURS: u32 = 7;

    fn mk_address(index: u32, address: IpAddr) -> Vec<u8> {
        let mut batch = AddressBatch::new(index);
        batch.add(address, Scope::default());
        batch.body(0).unwrap().to_vec()
    }

    fn mk_link(index: u32, name: &str) -> Vec<u8> {
        let mut batch = netlink::Batch::new();
        batch.push(RTM_NEWLINK, 0, |message| {
            let body = message.body();
            body.extend([0; 4]);
            body.extend(index.to_ne_bytes());
            body.extend([0; 8]);
            message.attributes().string(3, name);
        });
        batch.body(0).unwrap().to_vec()
    }

    fn note(happened: &mut Happened, ours: &mut Option<u32>, message_type: u16, body: &[u8]) {
        happened.note(&Notification::new(message_type, body), ours);
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a60_0000 + number).into()
    }

    #[test]
    fn addresses_of_ours_that_are_taken_are_named_and_others_are_not() {
        let (mut happened, mut ours) = (Happened::default(), Some(OURS));
        for number in 0..3 {
            note(&mut happened, &mut ours, RTM_NEWADDR, &mk_address(OURS, address(number)));
        }
        assert_eq!(happened, Happened::default(), "those that are put on are no news");
        note(&mut happened, &mut ours, RTM_DELADDR, &mk_address(OURS, address(1)));
        note(&mut happened, &mut ours, RTM_DELADDR, &mk_address(OURS, address(2)));
        note(&mut happened, &mut ours, RTM_NEWADDR, &mk_address(OURS, address(1)));
        let link_local = "fe80::1".parse().unwrap();
        note(&mut happened, &mut ours, RTM_DELADDR, &mk_address(OURS, link_local));
        let taken = HashSet::from([address(2)]);
        assert_eq!(happened, Happened { taken, ..Happened::default() });
        note(&mut happened, &mut ours, RTM_DELADDR, &mk_address(OURS + 1, address(1)));
        assert!(happened.others && happened.taken.len() == 1);
    }

    #[test]
    fn a_route_of_ours_that_goes_is_anything() {
        let (mut happened, mut ours) = (Happened::default(), Some(OURS));
        // struct rtmsg with protocol 107 or another, then RTA_DST.
        let route =
            |protocol| [2, 12, 0, 0, 255, protocol, 254, 2, 0, 0, 0, 0, 8, 0, 1, 0, 10, 96, 0, 0];
        note(&mut happened, &mut ours, RTM_DELROUTE, &route(2));
        assert_eq!(happened, Happened::default(), "others' routes are no news");
        note(&mut happened, &mut ours, RTM_DELROUTE, &route(107));
        assert_eq!(happened, Happened { anything: true, ..Happened::default() });
    }

    #[test]
    fn more_than_can_be_named_is_anything() {
        let (mut happened, mut ours) = (Happened::default(), Some(OURS));
        for number in 0..=u32::try_from(MOST_TAKEN).unwrap() {
            note(&mut happened, &mut ours, RTM_DELADDR, &mk_address(OURS, address(number)));
        }
        assert!(happened.anything && happened.taken.is_empty());
    }

    #[test]
    fn the_interface_that_goes_or_is_renamed_is_anything() {
        for (message_type, name) in [(RTM_DELLINK, LINK), (RTM_NEWLINK, "other0")] {
            let (mut happened, mut ours) = (Happened::default(), None);
            note(&mut happened, &mut ours, RTM_NEWLINK, &mk_link(OURS, LINK));
            assert_eq!((ours, happened.is_something()), (Some(OURS), false));
            note(&mut happened, &mut ours, RTM_NEWLINK, &mk_link(OURS + 1, "eth0"));
            note(&mut happened, &mut ours, RTM_DELLINK, &mk_link(OURS + 1, "eth0"));
            assert!(!happened.is_something());
            note(&mut happened, &mut ours, message_type, &mk_link(OURS, name));
            assert!(ours.is_none() && happened.anything, "{name}");
        }
    }

    #[tokio::test]
    async fn what_happens_is_told_once_and_all_at_once() {
        let (reporter, mut changes) = channel();
        reporter.report(|_| {});
        reporter.report(|happened| happened.others = true);
        reporter.report(|happened| happened.anything = true);
        let told = changes.next().await.unwrap();
        assert!(told.others && told.anything);
        let later = async {
            tokio::task::yield_now().await;
            reporter.report(|happened| happened.others = true);
            drop(reporter);
        };
        let (told, ()) = tokio::join!(changes.next(), later);
        assert_eq!(told, Some(Happened { others: true, ..Happened::default() }));
        assert_eq!(changes.next().await, None, "nobody watches any more");
    }
}
