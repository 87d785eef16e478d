//! What it costs kube-ipvs: planning, reading, comparing, writing.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, bail};
use kube_ipvs::kernel::Kernel as _;
use kube_ipvs::kernel::linux::Linux;
use kube_ipvs::kernel::rules::{Rules, Variant};
use plan::event::Event;
use plan::model::Family;
use plan::op::Op;
use plan::planner::Planner;
use plan::settings::Settings;

use crate::cost::Cost;
use crate::state::Size;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Ours {
    /// Taking the events in, and planning.
    pub(crate) plan: Cost,
    /// Reading the empty kernel.
    pub(crate) first_reading: Cost,
    /// Comparing it, which finds everything to do.
    pub(crate) first_comparison: Cost,
    /// Writing everything but the rules.
    pub(crate) writing: Cost,
    /// Writing the rules, which is iptables' work and the same for any number of services.
    pub(crate) rules: Cost,
    /// Planning and writing, each change.
    pub(crate) changes: Vec<Cost>,
    /// Reading the complete kernel.
    pub(crate) second_reading: Cost,
    /// Comparing it.
    pub(crate) second_comparison: Cost,
    /// What the second comparison wants done, although all is done.
    pub(crate) left_to_do: Vec<String>,
}

struct Node {
    planner: Planner,
    kernel: Linux,
}

/// Measures in the calling thread's network namespace, which has nothing yet, and leaves no
/// virtual server behind.
pub(crate) fn measure(size: Size, changes: u32) -> Result<Ours> {
    let events = size.events();
    let mut node = Node::open()?;
    let ((), plan) = node.timed(|node| {
        for event in events {
            node.planner.apply(event);
        }
        node.planner.plan();
        Ok(())
    })?;
    let (actual, first_reading) = node.timed(|node| Ok(node.kernel.read()?))?;
    let (ops, first_comparison) = node.timed(|node| {
        let local = actual.local_addresses.iter().copied().collect();
        node.planner.apply(Event::LocalAddresses(local));
        node.planner.plan();
        Ok(node.planner.diff(&actual))
    })?;
    let (mut writing, mut rules) = (Cost::default(), Cost::default());
    let is_rules = |op: &Op| matches!(op, Op::WriteLayer(_));
    for ops in ops.chunk_by(|one, next| is_rules(one) == is_rules(next)) {
        let ((), cost) = node.timed(|node| node.write(ops))?;
        let part = if ops.iter().any(is_rules) { &mut rules } else { &mut writing };
        *part = *part + cost;
    }
    let changes = node.changes(size, changes)?;
    let (actual, second_reading) = node.timed(|node| Ok(node.kernel.read()?))?;
    let (left, second_comparison) = node.timed(|node| Ok(node.planner.diff(&actual)))?;
    ipvs::Client::open()?.flush()?;
    Ok(Ours {
        plan,
        first_reading,
        first_comparison,
        writing,
        rules,
        changes,
        second_reading,
        second_comparison,
        left_to_do: left.iter().map(ToString::to_string).collect(),
    })
}

// === impl Node ===

impl Node {
    fn open() -> Result<Self> {
        let mut rules = HashMap::new();
        for family in Family::BOTH {
            rules.insert(family, Rules::open(family, Variant::Auto)?);
        }
        let settings = Settings {
            random_fully: rules.values().all(Rules::random_fully),
            ..Settings::new("this-node")
        };
        let mut node = Self { planner: Planner::new(settings), kernel: Linux::open(rules)? };
        for family in Family::BOTH {
            node.kernel.prescribe(node.planner.layer(family)?);
        }
        Ok(node)
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Cost)> {
        let before = self.kernel.traffic();
        let started = Instant::now();
        let done = work(self)?;
        Ok((done, Cost::since(started, before, self.kernel.traffic())))
    }

    fn write(&mut self, ops: &[Op]) -> Result<()> {
        let results = self.kernel.apply(ops);
        for (op, result) in ops.iter().zip(results) {
            if let Err(refusal) = result {
                bail!("cannot {op}: {refusal}");
            }
        }
        Ok(())
    }

    fn changes(&mut self, size: Size, count: u32) -> Result<Vec<Cost>> {
        let mut costs = Vec::new();
        for change in size.changes(count) {
            let event = size.event(change);
            let ((), cost) = self.timed(|node| {
                node.planner.apply(event);
                let plan = node.planner.plan();
                node.write(&plan.ops)
            })?;
            if cost.requests == 0 {
                bail!("changing an endpoint of service {} changed nothing", change.service);
            }
            costs.push(cost);
        }
        Ok(costs)
    }
}
