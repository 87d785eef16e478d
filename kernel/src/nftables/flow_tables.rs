//! The flow table of each of our tables, which takes connections past all hooks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nftables::{Batch, Error, Family, Name, ParseError, TableId};
use plan::rule_set::nft;

use super::devices::{self, DeviceChanges, Devices};

/// Returns the place at the ingress hook of devices, behind other tables. The one of IPv4 is first: of two in the same
/// place, the later one would be, and each packet of IPv4 would pass that of IPv6 for nothing (`nf_hook_entries_grow` in
/// net/netfilter/core.c).
const fn priority(table: &TableId) -> i32 {
    match table.family {
        Family::Ipv6 => 1_001,
        _ => 1_000,
    }
}

/// Pause after a refusal, before all devices are tried again.
const PAUSE: Duration = Duration::from_secs(30);

/// Devices that one transaction adds or removes at most: its messages fit in any socket's buffer.
const AT_ONCE: usize = 256;

/// Follows the node's devices for all flow tables.
#[derive(Debug, Default)]
pub(super) struct FlowTables {
    devices: Option<Devices>,
    /// True if they had the node's devices at the last look.
    is_current: bool,
    /// Time before which nothing is tried, since something was refused.
    not_before: Option<Instant>,
}

/// Creates the flow table, without devices, or leaves it as it is.
pub(super) fn create(batch: &mut Batch, table: &TableId) -> Result<(), ParseError> {
    batch.create_flow_table(table, &Name::new(nft::FLOW_TABLE)?, priority(table), &[]);
    Ok(())
}

impl FlowTables {
    /// Has the devices of all flow tables compared again: one may be new.
    pub(super) fn forget(&mut self) {
        self.is_current = false;
        self.not_before = None;
    }

    /// Returns the names of the devices that flow tables should have, if some may have others.
    pub(super) fn wanted_devices(&mut self) -> Result<Option<BTreeSet<String>>, netlink::Error> {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        let devices = match &mut self.devices {
            Some(devices) => devices,
            none => none.insert(Devices::open()?),
        };
        let have_changed = devices.have_changed();
        if self.is_current && !have_changed {
            return Ok(None);
        }
        devices.names().map(Some)
    }

    /// Notes how it went. A refusal is logged, and tried again after a pause: it costs only speed.
    pub(super) fn note(&mut self, followed: Result<(), Box<dyn std::error::Error>>) {
        self.is_current = followed.is_ok();
        self.not_before = None;
        if let Err(error) = followed {
            tracing::warn!(
                "flow tables may lack devices of this node, whose packets then pass all hooks: \
                 {error}; next attempt in {} s",
                PAUSE.as_secs()
            );
            self.not_before = Some(Instant::now() + PAUSE);
        }
    }
}

/// Changes the devices of a flow table to those that it should have.
pub(super) fn change_devices(
    table: &TableId,
    found: &[String],
    wanted: &BTreeSet<String>,
    commit: &mut dyn FnMut(Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    let DeviceChanges { added, removed } = devices::changes(found, wanted);
    let removed = removed.iter().map(|name| (name.as_str(), false));
    let changes: Vec<_> = removed.chain(added.iter().map(|name| (name.as_str(), true))).collect();
    for changes in changes.chunks(AT_ONCE) {
        commit_those_that_are_there(table, changes.to_vec(), commit)?;
    }
    Ok(())
}

/// Adds devices to a flow table, those with true, and removes the others. One that is gone by now refuses the whole
/// transaction, which is tried again without it.
fn commit_those_that_are_there(
    table: &TableId,
    mut changes: Vec<(&str, bool)>,
    commit: &mut dyn FnMut(Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    // It is a name.
    let Ok(flow_table) = Name::new(nft::FLOW_TABLE) else { return Ok(()) };
    while !changes.is_empty() {
        let mut batch = Batch::new();
        for (device, is_there) in &changes {
            if *is_there {
                batch.create_flow_table(table, &flow_table, priority(table), &[device]);
            } else {
                batch.remove_flow_table_devices(table, &flow_table, priority(table), &[device]);
            }
        }
        let Err(error) = commit(batch) else { return Ok(()) };
        let mut refused: Vec<usize> = error.refusals().iter().filter_map(|it| it.place).collect();
        if refused.is_empty() || !error.is_not_found() {
            return Err(error);
        }
        refused.sort_unstable();
        let mut place = 0;
        changes.retain(|_| {
            let is_refused = refused.binary_search(&place).is_ok();
            place += 1;
            !is_refused
        });
    }
    Ok(())
}
