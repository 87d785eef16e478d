//! Remainder of a Service's limits while it is compiled.

use std::collections::BTreeMap;

use crate::problem::Problem;
use crate::sets::SetId;
use crate::settings::{Limit, Limits};

/// Amounts that one Service may still take. What does not fit is counted, and what comes after it
/// may fit.
#[derive(Debug, Clone)]
pub(crate) struct Budget<'a> {
    limits: &'a Limits,
    frontends: usize,
    real_servers: usize,
    /// Endpoints of all service ports, chosen or not, and their rules for source ranges.
    endpoints: usize,
    set_entries: BTreeMap<SetId, usize>,
    /// Number of frontends that are left out, by the limit that they met.
    left_out: BTreeMap<Limit, usize>,
}

impl<'a> Budget<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Self {
        Self {
            limits,
            frontends: limits.frontends,
            real_servers: limits.real_servers,
            endpoints: limits.real_servers,
            set_entries: BTreeMap::new(),
            left_out: BTreeMap::new(),
        }
    }

    /// Number of `wanted` frontends that are to be looked at. The others are left out, at once: a
    /// Service may have as many as its ports times its addresses.
    pub(crate) fn frontends(&mut self, wanted: usize) -> usize {
        self.leave_out(Limit::Frontends, wanted.saturating_sub(self.frontends));
        wanted.min(self.frontends)
    }

    /// True if there is room for so many frontends with so many real servers.
    pub(crate) fn has_room(&self, n_frontends: usize, n_real_servers: usize) -> bool {
        self.frontends >= n_frontends && self.real_servers >= n_real_servers
    }

    /// Takes a frontend, and its internal frontend's if it has one, each with so many real servers, and
    /// with so many entries of a set for the source ranges of each.
    pub(crate) fn take_frontend(
        &mut self,
        n_frontends: usize,
        n_real_servers: usize,
        ranges: (SetId, usize),
    ) -> bool {
        // One that meets another limit counts here all the same, so that looking at them ends.
        if !take(&mut self.frontends, n_frontends) {
            self.leave_out(Limit::Frontends, 1);
            return false;
        }
        if !take(&mut self.real_servers, n_real_servers) {
            self.leave_out(Limit::RealServers, 1);
            return false;
        }
        let (set, n_ranges) = ranges;
        if !self.take_entries(set, n_ranges * n_frontends) {
            self.leave_out(Limit::SetEntries, 1);
            return false;
        }
        true
    }

    /// Takes a frontend whose endpoints count with its port.
    pub(crate) fn take_counted_frontend(&mut self) -> bool {
        let fits = take(&mut self.frontends, 1);
        if !fits {
            self.leave_out(Limit::Frontends, 1);
        }
        fits
    }

    /// Takes a service port with so many endpoints and rules for source ranges, by which so many
    /// frontends would be served.
    pub(crate) fn take_port(&mut self, n_counted: usize, n_frontends: usize) -> bool {
        let fits = take(&mut self.endpoints, n_counted);
        if !fits {
            self.leave_out(Limit::RealServers, n_frontends);
        }
        fits
    }

    /// Takes what a service port has in a set beside its frontends, of which there are so many.
    pub(crate) fn take_port_entries(
        &mut self,
        set: SetId,
        n_entries: usize,
        n_frontends: usize,
    ) -> bool {
        let fits = self.take_entries(set, n_entries);
        if !fits {
            self.leave_out(Limit::SetEntries, n_frontends);
        }
        fits
    }

    /// Returns a problem for each limit that was met, with the number of frontends left out.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.left_out.iter().map(|(limit, left_out)| Problem::LimitReached {
            limit: *limit,
            most: self.limits.of(*limit),
            left_out: *left_out,
        })
    }

    fn take_entries(&mut self, set: SetId, count: usize) -> bool {
        if count == 0 {
            return true;
        }
        take(self.set_entries.entry(set).or_insert(self.limits.set_entries), count)
    }

    fn leave_out(&mut self, limit: Limit, n_frontends: usize) {
        if n_frontends > 0 {
            *self.left_out.entry(limit).or_insert(0) += n_frontends;
        }
    }
}

fn take(rest: &mut usize, count: usize) -> bool {
    let left = rest.checked_sub(count);
    *rest = left.unwrap_or(*rest);
    left.is_some()
}
