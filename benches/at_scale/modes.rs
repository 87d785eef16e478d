//! Mode iptables beside mode ipvs, and beside the least that it can cost: `--modes`.
//!
//! The same cluster in both modes, one after the other, with each kind of iptables that works here:
//! the first sync, changes of one endpoint, and a restart. Then the text that mode iptables has left
//! goes through a bare `iptables-restore`.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bed::Namespace;
use kernel::Kernel as _;
use kernel::rules::Rules;
use plan::model::Family;

use crate::bare;
use crate::checker::Checker;
use crate::cluster::{Change, Size};
use crate::cost::Stopwatch;
use crate::kind::{Kind, MeasuredMode, MeasuredVariant};
use crate::node::{self, Node};
use crate::ours::{self, Extent};
use crate::schema::Line;
use crate::{Arguments, Stage, in_process_of_its_own, wait_until_quiet};

/// File in which the text that mode iptables has left is handed on.
const SAVED: &str = "/tmp/at-scale.rules";
/// The bare text goes in COMMITs as large as the program's. With nf_tables, where one for all takes
/// time that grows with the square of its chains, that is measured as well, up to so many chains: a
/// Service of two endpoints has three.
const MOST_CHAINS_IN_ONE: usize = 12_000;

/// One size with one kind of iptables.
struct Compared {
    size: Size,
    variant: MeasuredVariant,
    /// Empty on a kernel without IPVS.
    ipvs: Vec<Line>,
    iptables: Vec<Line>,
    bare: Vec<Line>,
}

/// Measures each size with each kind of iptables, and prints a table.
pub(crate) fn measure(arguments: &Arguments) -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    println!("Linux {release}\n\n{HEAD}");
    for size in &arguments.sizes {
        for variant in [MeasuredVariant::Nft, MeasuredVariant::Legacy] {
            let kind = Kind {
                mode: MeasuredMode::Iptables,
                variant,
                routes: false,
                tables: false,
                fast_path: false,
            };
            if let Some(reason) = unusable(kind)? {
                let reason: String = reason.chars().take(200).collect();
                eprintln!("at_scale: {} does not work here: {reason} …", variant.program());
                continue;
            }
            let began = Instant::now();
            let compared = compare(*size, kind, arguments)?;
            compared.print();
            eprintln!("at_scale: {size}, {}: {} s", variant.program(), began.elapsed().as_secs());
        }
    }
    Ok(())
}

/// Returns the reason for which a kind of iptables cannot be used; none if it can.
fn unusable(kind: Kind) -> Result<Option<String>> {
    let namespace = Namespace::create("usable")?;
    let tried = || -> Result<(), String> {
        let rules = Rules::open(Family::V4, kind.variant()).map_err(|error| error.to_string())?;
        // Loads the modules.
        node::open(kind).map_err(|error| error.to_string())?;
        rules.try_chains().map_err(|error| error.words)
    };
    Ok(namespace.enter(tried)?.err())
}

fn has_ipvs(kind: Kind) -> Result<bool> {
    let namespace = Namespace::create("has")?;
    let open = || node::open(kind).is_ok_and(|(_, mut kernel)| kernel.has_ipvs());
    namespace.enter(open)
}

fn compare(size: Size, kind: Kind, arguments: &Arguments) -> Result<Compared> {
    let Kind { variant, .. } = kind;
    let mut ipvs = Vec::new();
    let of_ipvs =
        Kind { mode: MeasuredMode::Ipvs, variant, routes: false, tables: false, fast_path: false };
    if has_ipvs(of_ipvs)? {
        let namespace = Namespace::create("ipvs")?;
        for stage in [Stage::First, Stage::Few] {
            wait_until_quiet();
            ipvs.extend(in_process_of_its_own(stage, size, of_ipvs, arguments, &namespace)?);
        }
    }
    let namespace = Namespace::create("iptables")?;
    let mut iptables = Vec::new();
    for stage in [Stage::First, Stage::Few] {
        wait_until_quiet();
        iptables.extend(in_process_of_its_own(stage, size, kind, arguments, &namespace)?);
    }
    let saved = namespace.enter(|| bare::save(variant))??;
    drop(namespace);
    fs::write(SAVED, &saved).with_context(|| format!("write {SAVED}"))?;
    let mut bare = Vec::new();
    let n_chains = saved.lines().filter(|line| line.starts_with(':')).count();
    let is_small = variant == MeasuredVariant::Nft && n_chains <= MOST_CHAINS_IN_ONE;
    let stages = [Stage::BareInOne].into_iter().filter(|_| is_small).chain([Stage::Bare]);
    for stage in stages {
        let namespace = Namespace::create("bare")?;
        wait_until_quiet();
        bare.extend(in_process_of_its_own(stage, size, kind, arguments, &namespace)?);
    }
    Ok(Compared { size, variant, ipvs, iptables, bare })
}

/// A restart on the complete state, and changes of one endpoint.
pub(crate) fn few(size: Size, extent: Extent, kind: Kind) -> Result<Vec<Line>> {
    let node = Node::start(size, extent.sync_period, kind)?;
    let restart = ours::restart(&node)?;
    let mut checker = Checker::start(size, kind)?;
    checker.wait_exact("the restart")?;
    let usual = size.usual();
    let mut lines = vec![restart];
    for (name, which) in
        [("endpoint_added", usual.start..usual.end + 1), ("endpoint_removed", usual)]
    {
        let (watch, mut each) = (Stopwatch::start(node.seen().counts)?, Vec::new());
        for service in 0..size.services.min(extent.few) {
            let change = Change::Endpoints { service, which: which.clone() };
            each.push(node.change_and_wait(&change)?);
            checker.applied(&change)?;
        }
        let line = watch.stop(name, Instant::now(), node.seen().counts)?;
        checker.wait_exact(name)?;
        lines.push(line.of_each(each));
    }
    node.stop()?;
    Ok(lines)
}

/// The text of mode iptables, from a bare `iptables-restore`.
pub(crate) fn bare(extent: Extent, kind: Kind, in_one: bool) -> Result<Vec<Line>> {
    let saved = fs::read_to_string(SAVED).with_context(|| format!("read {SAVED}"))?;
    let changes = usize::try_from(extent.few)?;
    bare::measure(kind.variant, &saved, changes, in_one)
}

const HEAD: &str = "\
| Services | iptables | What | mode ipvs | mode iptables | programs in it | bare iptables | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- |";

impl Compared {
    fn print(&self) {
        let rows = [
            ("first sync", "first_sync", "first_sync"),
            ("first sync, in one COMMIT", "", "first_sync_in_one"),
            ("an endpoint added", "endpoint_added", "one_change"),
            ("an endpoint removed", "endpoint_removed", "one_change"),
            ("an empty restore", "", "empty_restore"),
            ("restart", "restart", "restart"),
        ];
        for (what, ours, bare) in rows {
            let [ipvs, iptables] = [&self.ipvs, &self.iptables].map(|lines| typical(lines, ours));
            let bare = typical(&self.bare, bare);
            let ratio = iptables.zip(bare).map(|(ours, bare)| ours / bare);
            println!(
                "| {} | {} | {what} | {} | {} | {} | {} | {} |",
                self.size,
                self.variant.program(),
                shown(ipvs, "ms"),
                shown(iptables, "ms"),
                programs(&self.iptables, ours),
                shown(bare, "ms"),
                shown(ratio, "")
            );
        }
    }
}

/// Time of a line: the median where there are many.
fn typical(lines: &[Line], name: &str) -> Option<f64> {
    let line = lines.iter().find(|line| line.name == name)?;
    Some(line.median_ms.unwrap_or(line.wall_ms))
}

/// Number of programs that something ran, each time, and the time that they took.
fn programs(lines: &[Line], name: &str) -> String {
    let Some(line) = lines.iter().find(|line| line.name == name) else { return "–".to_owned() };
    let each = |total: f64| total / f64::from(line.count.max(1));
    let number = each(line.programs as f64);
    format!("{number:.0}: {}", shown(Some(each(line.programs_wall_ms)), "ms"))
}

fn shown(value: Option<f64>, unit: &str) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.2} {unit}").trim_end().to_owned(),
        Some(value) => format!("{value:.0} {unit}").trim_end().to_owned(),
    }
}
