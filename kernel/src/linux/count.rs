//! Number of virtual servers, without listing them.
//!
//! The kernel counts those of IPv4, including those by firewall mark. Those of IPv6 are in the
//! reference count of its module, among other users: a program that lists virtual servers is in it
//! until the listing ends, which may take seconds. So the numbers are compared with those at the
//! last listing, and a few more users are no reason to list again at once.

use std::sync::Arc;

use ipvs::Counter;
use plan::actual::ListedVirtualServer;
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::op::Op;

use super::Listing;
use crate::translate;

/// After this number of counts in a row with more users than before, the virtual servers are
/// listed.
const MOST_RISEN: u32 = 5;

/// Counts virtual servers as a listing of frontends would show them.
#[derive(Debug)]
pub(super) struct VirtualServerCount {
    /// None: the kernel does not count.
    counter: Option<Counter>,
    listed: Option<LastListing>,
    /// The kernel's order, as the last listing had it that had most of them.
    order: Arc<[Frontend]>,
}

/// Counts at the last listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastListing {
    /// Number of virtual servers of IPv4 by firewall mark, which have no frontend.
    hidden: u32,
    /// Number of virtual servers of IPv6, with what we have added and removed since.
    v6: u32,
    /// Users of the module that are neither.
    other_users: Option<u32>,
    /// Number of counts in a row with more of those users; `more` is how many more the last time.
    risen: u32,
    more: i32,
}

/// Number of virtual servers, as far as it is known without a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// The number that the counts give.
    Known(u32),
    /// Only a listing can determine it.
    Unknown,
    /// The kernel does not count.
    Uncounted,
}

impl VirtualServerCount {
    /// Opens the counter in the calling thread's network namespace, if it is used.
    pub(super) fn open(is_used: bool) -> Self {
        if !is_used {
            return Self { counter: None, listed: None, order: Arc::default() };
        }
        let counter = Counter::open().and_then(|counter| counter.count().map(|_| counter));
        let counter = counter
            .map_err(|error| {
                tracing::info!("{error}; only the audit notices deleted virtual servers");
            })
            .ok();
        Self { counter, listed: None, order: Arc::default() }
    }

    pub(super) fn number(&mut self) -> Number {
        let Some(now) = self.now() else { return Number::Uncounted };
        self.listed.as_mut().map_or(Number::Unknown, |listed| listed.number(now))
    }

    /// Lists virtual servers, by `list` unless all are of IPv4, and learns from it.
    pub(super) fn learn<E>(
        &mut self,
        list: impl FnOnce() -> Result<Vec<ListedVirtualServer>, E>,
    ) -> Result<Listing, E> {
        let before = self.now();
        let virtual_servers = match self.only_ipv4() {
            Some(found) => found,
            None => list()?,
        };
        let frontends: Vec<Frontend> = virtual_servers.iter().map(|it| it.frontend).collect();
        self.listed = before
            .zip(self.now())
            .and_then(|(before, after)| undisturbed(before, after))
            .map(|count| LastListing::new(count, &frontends));
        // What a flush left does not tell the order of what it removed.
        if frontends.len() >= self.order.len() / 2 {
            self.order = frontends.into();
        }
        Ok(Listing { virtual_servers, order: Arc::clone(&self.order) })
    }

    /// Counts an operation that was carried out.
    pub(super) fn done(&mut self, op: &Op) {
        let Some(listed) = &mut self.listed else { return };
        match op {
            Op::CreateVirtualServer(frontend, _) if is_v6(frontend) => {
                listed.v6 = listed.v6.saturating_add(1);
            }
            Op::RemoveVirtualServer(frontend) if is_v6(frontend) => {
                listed.v6 = listed.v6.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// Drops the counts: an operation may or may not have been carried out.
    pub(super) fn forget(&mut self) {
        self.listed = None;
    }

    fn only_ipv4(&self) -> Option<Vec<ListedVirtualServer>> {
        let found = self.counter.as_ref()?.list_only_ipv4();
        let found =
            found.inspect_err(|error| tracing::debug!("{error}; netlink is asked")).ok()??;
        Some(found.iter().filter_map(translate::listed).collect())
    }

    fn now(&self) -> Option<ipvs::Count> {
        self.counter.as_ref()?.count().ok()
    }
}

impl LastListing {
    fn new(count: ipvs::Count, frontends: &[Frontend]) -> Self {
        let v6 = frontends.iter().filter(|frontend| is_v6(frontend)).count();
        let v4 = u32::try_from(frontends.len() - v6).unwrap_or(u32::MAX);
        let v6 = u32::try_from(v6).unwrap_or(u32::MAX);
        let servers = count.ipv4.saturating_add(v6);
        Self {
            hidden: count.ipv4.saturating_sub(v4),
            v6,
            other_users: count.users.map(|users| users.wrapping_sub(servers)),
            risen: 0,
            more: 0,
        }
    }

    fn number(&mut self, now: ipvs::Count) -> Number {
        let servers = now.ipv4.saturating_add(self.v6);
        let number = Number::Known(servers.saturating_sub(self.hidden));
        let other_users = now.users.map(|users| users.wrapping_sub(servers));
        let more = match (other_users, self.other_users) {
            (Some(now), Some(before)) => now.wrapping_sub(before).cast_signed(),
            (None, None) => 0,
            _ => return Number::Unknown,
        };
        // Another namespace's virtual servers and a scheduler that was loaded are users, too, so a
        // difference only says that it is time to look. With fewer than before, one of IPv6 may be
        // gone. More may be programs that list. The next comparison finds anything else, also one
        // that goes just when a user comes: there are as many as before.
        let has_fallen = more < std::mem::replace(&mut self.more, more) && more != 0;
        self.risen = if more == 0 { 0 } else { self.risen + 1 };
        if has_fallen || more < 0 || self.risen >= MOST_RISEN { Number::Unknown } else { number }
    }
}

/// Returns the count from before a listing, if what was listed seems to be what was counted. A new
/// user is one that lists; a virtual server of IPv6 stays a user, and is seen after some looks.
fn undisturbed(before: ipvs::Count, after: ipvs::Count) -> Option<ipvs::Count> {
    (before.ipv4 == after.ipv4 && before.users <= after.users).then_some(before)
}

fn is_v6(frontend: &Frontend) -> bool {
    Family::of(frontend.address) == Family::V6
}

#[cfg(test)]
mod tests {
    use plan::model::Protocol;

    use super::*;

    fn mk_frontends(v4: usize, v6: usize) -> Vec<Frontend> {
        let of = |address: &str| Frontend {
            address: address.parse().unwrap(),
            port: 80,
            protocol: Protocol::Tcp,
        };
        [vec![of("10.0.0.1"); v4], vec![of("fd00::1"); v6]].concat()
    }

    fn mk_count(ipv4: u32, users: u32) -> ipvs::Count {
        ipvs::Count::new(ipv4, Some(users))
    }

    #[test]
    fn it_is_what_a_listing_would_show() {
        // Of ten of IPv4, two are by firewall mark. The module has four more users.
        let mut listed = LastListing::new(mk_count(10, 10 + 3 + 4), &mk_frontends(8, 3));
        for (now, number) in [
            (mk_count(10, 17), Number::Known(11)),
            (mk_count(9, 16), Number::Known(10)),
            (mk_count(0, 7), Number::Known(1)),
            (mk_count(10, 16), Number::Unknown),
            (mk_count(10, 18), Number::Known(11)),
        ] {
            assert_eq!(listed.number(now), number, "{now:?}");
        }
        let mut v6 = LastListing { v6: 4, ..listed };
        assert_eq!(v6.number(mk_count(10, 18)), Number::Known(12));
    }

    #[test]
    fn a_program_that_lists_now_and_then_is_no_reason_to_list() {
        let mut listed = LastListing::new(mk_count(10, 17), &mk_frontends(8, 3));
        for _ in 0..5 {
            for _ in 1..MOST_RISEN {
                assert_eq!(listed.number(mk_count(10, 19)), Number::Known(11));
            }
            assert_eq!(listed.number(mk_count(10, 17)), Number::Known(11));
        }
        for _ in 1..MOST_RISEN {
            assert_eq!(listed.number(mk_count(10, 18)), Number::Known(11));
        }
        assert_eq!(listed.number(mk_count(10, 18)), Number::Unknown, "it stays");
    }

    #[test]
    fn one_of_ipv6_that_goes_after_a_scheduler_was_loaded_is_seen() {
        let mut listed = LastListing::new(mk_count(10, 17), &mk_frontends(8, 3));
        assert_eq!(listed.number(mk_count(10, 19)), Number::Known(11));
        assert_eq!(listed.number(mk_count(10, 18)), Number::Unknown);
        assert_eq!(listed.number(ipvs::Count::new(10, None)), Number::Unknown);
    }

    #[test]
    fn a_listing_beside_another_one_is_learned_from() {
        assert_eq!(undisturbed(mk_count(10, 18), mk_count(10, 19)), Some(mk_count(10, 18)));
        assert_eq!(undisturbed(mk_count(10, 18), mk_count(11, 19)), None, "another program wrote");
        assert_eq!(undisturbed(mk_count(10, 19), mk_count(10, 18)), None, "maybe of IPv6");
    }

    #[test]
    fn without_a_module_those_of_ipv6_are_as_listed() {
        let mut listed = LastListing::new(ipvs::Count::new(5, None), &mk_frontends(5, 3));
        assert_eq!(listed.number(ipvs::Count::new(4, None)), Number::Known(7));
    }
}
