//! Reports changes of the node's own addresses, and removals of ours by other programs.
//!
//! A thread waits for rtnetlink's notifications. For other interfaces it only reports that
//! something changed; the receiver then reads the addresses. For `kube-ipvs0` it reports the
//! addresses that were removed and not added back since. Our own changes there come by the
//! thousand, so additions only cancel removals, and beyond 1,024 removals the addresses are not
//! named.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlink::{Notification, Protocol, Socket};
use parking_lot::Mutex;
use plan::hash::HashSet;
use plan::kernel_objects::LINK;
use tokio::sync::Notify;

use super::link::{Link, LinkAddress, Links, decode_address, decode_link};
use super::{route, routing_rule};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR` (include/uapi/linux/rtnetlink.h).
const GROUPS: [u32; 3] = [1, 5, 9];
/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`, `RTNLGRP_IPV4_RULE`, `RTNLGRP_IPV6_RULE`.
const ROUTE_GROUPS: [u32; 4] = [7, 11, 8, 19];
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_DELROUTE: u16 = 25;
const RTM_DELRULE: u16 = 33;
/// Most removed addresses that are named. If there are more, the report only says so.
const MOST_TAKEN: usize = 1_024;
/// Pause after more notifications than the socket could keep.
const BREATH: Duration = Duration::from_millis(200);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// Events since the receiver last asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Happened {
    /// The addresses of other interfaces have changed.
    pub others: bool,
    /// Addresses that were removed from `kube-ipvs0`, by us or by another program.
    pub taken: HashSet<IpAddr>,
    /// The interface, a local route of ours or a routing rule that leads to it was removed, more
    /// addresses were removed than can be
    /// named, or notifications were lost.
    pub anything: bool,
}

/// Receiving end of the channel.
#[derive(Debug)]
pub struct AddressChanges(Arc<Channel>);

/// Reporting end of the channel.
#[derive(Debug)]
pub struct Reporter(Arc<Channel>);

#[derive(Debug, Default)]
struct Channel {
    state: Mutex<ChannelState>,
    news: Notify,
}

#[derive(Debug, Default)]
struct ChannelState {
    happened: Happened,
    /// One of the two sides is gone.
    ended: bool,
}

/// Starts it, as [`start`] does. None, with a warning, if that fails.
pub fn watch(routes: bool, link_local: bool) -> Option<AddressChanges> {
    start(routes, link_local)
        .inspect_err(|error| {
            tracing::warn!(
                "cannot watch the node's addresses by netlink: {error}; changes are seen when they are \
                 read periodically"
            );
        })
        .ok()
}

/// Starts watching, in the calling thread's network namespace, until the receiver is dropped.
/// `routes` is true if there are local routes of ours to watch; other programs may add and remove
/// routes by the thousand. `link_local` is true if IPv6 link-local addresses of other interfaces matter:
/// each pod that comes has one on the node's side.
///
/// # Errors
/// When rtnetlink's groups cannot be joined, or no thread can be started.
pub fn start(
    routes: bool,
    link_local: bool,
) -> Result<AddressChanges, Box<dyn std::error::Error + Send + Sync>> {
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
                reporter.report(|happened| happened.note(&notification, &mut ours, link_local));
            });
            match received {
                Ok(()) => {}
                // A lost notification may have been about any change.
                Err(error) => {
                    if error.is_overrun() {
                        // Reading at once would answer each storm with another.
                        thread::sleep(BREATH);
                        socket.discard_notifications();
                    } else {
                        tracing::warn!(
                            "cannot watch the node's addresses: {error}; next attempt in {} s, \
                             with a read of all addresses",
                            PAUSE.as_secs()
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

/// Returns the two ends of a channel, without a thread that watches.
#[must_use]
pub fn channel() -> (Reporter, AddressChanges) {
    let shared = Arc::<Channel>::default();
    (Reporter(Arc::clone(&shared)), AddressChanges(shared))
}

impl AddressChanges {
    /// Waits for changes and returns all of them; none when the monitor has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Happened> {
        loop {
            {
                let mut state = self.0.state.lock();
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

impl Drop for AddressChanges {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
    }
}

impl Reporter {
    /// Adds to what has happened.
    pub fn report(&self, add: impl FnOnce(&mut Happened)) {
        let mut state = self.0.state.lock();
        add(&mut state.happened);
        if state.happened.is_something() {
            self.0.news.notify_one();
        }
    }

    fn is_abandoned(&self) -> bool {
        self.0.state.lock().ended
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.news.notify_one();
    }
}

impl Happened {
    fn is_something(&self) -> bool {
        self.others || self.anything || !self.taken.is_empty()
    }

    /// Takes a notification in. Learns our interface's index.
    fn note(&mut self, notification: &Notification<'_>, ours: &mut Option<u32>, link_local: bool) {
        match notification.message_type {
            RTM_NEWADDR | RTM_DELADDR => {
                let Ok(Some(found)) = decode_address(notification.body) else { return };
                if Some(found.index) != *ours {
                    self.others |= link_local || !found.is_link_local_v6();
                } else if notification.message_type == RTM_NEWADDR {
                    self.taken.remove(&found.address);
                } else {
                    self.take(&found);
                }
            }
            RTM_DELROUTE => self.anything |= route::is_ours(notification.body),
            RTM_DELRULE => self.anything |= routing_rule::leads_to_ours(notification.body),
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
                // The kernel also notifies of each address of a removed interface.
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
    use super::super::link::{AddressBatch, AddressScope};
    use super::*;

    const OURS: u32 = 7;

    fn mk_address(index: u32, address: IpAddr) -> Vec<u8> {
        let mut batch = AddressBatch::new(index);
        batch.add(address, AddressScope::default());
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
        happened.note(&Notification::new(message_type, body), ours, false);
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
        let taken = HashSet::from_iter([address(2)]);
        assert_eq!(happened, Happened { taken, ..Happened::default() });
        for message_type in [RTM_NEWADDR, RTM_DELADDR] {
            note(&mut happened, &mut ours, message_type, &mk_address(OURS + 1, link_local));
        }
        assert!(!happened.others, "a pod's interface came and went");
        let body = mk_address(OURS + 1, link_local);
        let mut chosen = Happened::default();
        chosen.note(&Notification::new(RTM_NEWADDR, &body), &mut ours, true);
        assert!(chosen.others, "it may serve node ports");
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
    async fn what_happens_is_reported_once_and_all_at_once() {
        let (reporter, mut changes) = channel();
        reporter.report(|_| {});
        reporter.report(|happened| happened.others = true);
        reporter.report(|happened| happened.anything = true);
        let reported = changes.next().await.unwrap();
        assert!(reported.others && reported.anything);
        let later = async {
            tokio::task::yield_now().await;
            reporter.report(|happened| happened.others = true);
            drop(reporter);
        };
        let (reported, ()) = tokio::join!(changes.next(), later);
        assert_eq!(reported, Some(Happened { others: true, ..Happened::default() }));
        assert_eq!(changes.next().await, None, "the monitor has ended");
    }
}
