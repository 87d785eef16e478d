//! What a cluster's whole state costs on a real kernel: `cargo xtask bench [-- SERVICES ENDPOINTS]`.
//!
//! Measured in the same run, each in fresh network namespaces: the least it can cost (the same
//! state from plain batches), and what it costs kube-ipvs. Times are of the machine it runs on;
//! the ratios and the counts are what to compare. Nothing fails because of a time, only because
//! the kernel refused something, or a second comparison found something left to do.

mod cost;
mod ours;
mod raw;
mod state;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use bed::Namespace;
use kube_ipvs::kernel::modules;
use kube_ipvs::kernel::rules::{Rules, Variant};
use plan::model::Family;
use plan::settings::SchedulerName;

use cost::Cost;
use ours::Ours;
use raw::Raw;
use state::Size;

/// Raw and ours take turns so often; the table has the medians. The first turn of each also pays
/// for what the kernel makes once.
const ROUNDS: usize = 3;
/// How many changes of one endpoint are measured each round.
const CHANGES: u32 = 50;

fn main() -> ExitCode {
    match run() {
        Ok(exit_code) => exit_code,
        Err(error) => {
            eprintln!("at_scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let size = size(std::env::args().skip(1))?;
    let backend = Rules::open(Family::V4, Variant::Auto)?.backend();
    let needed = modules::needed(&SchedulerName::default(), &[backend]);
    if let Err(note) = modules::load(Path::new(modules::LOADED), &needed) {
        eprintln!("at_scale: {note}");
    }
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        raw.push(Namespace::create("raw")?.enter(|| raw::measure(size, CHANGES))??);
        ours.push(Namespace::create("ours")?.enter(|| ours::measure(size, CHANGES))??);
    }
    print(size, &raw, &ours);
    let left: Vec<&String> = ours.iter().flat_map(|ours| &ours.left_to_do).collect();
    if left.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("at_scale: the second comparisons found {} operations left to do:", left.len());
    for op in left.iter().take(20) {
        eprintln!("  {op}");
    }
    Ok(ExitCode::FAILURE)
}

/// The numbers of services and of endpoints of each. Cargo adds options of its own.
fn size(arguments: impl Iterator<Item = String>) -> Result<Size> {
    let mut numbers = Vec::new();
    for argument in arguments.filter(|argument| !argument.starts_with("--")) {
        let number: u32 =
            argument.parse().with_context(|| format!("{argument:?} is not a number"))?;
        numbers.push(number);
    }
    ensure!(numbers.len() <= 2, "it takes two numbers: of services, and of endpoints of each");
    let size = Size {
        services: numbers.first().copied().unwrap_or(1_000),
        endpoints: numbers.get(1).copied().unwrap_or(10),
    };
    ensure!(
        (1..=65_536).contains(&size.services),
        "1 to 65536 services: a set has no more entries"
    );
    ensure!((1..=200).contains(&size.endpoints), "1 to 200 endpoints: it is a node's memory");
    Ok(size)
}

fn print(size: Size, raw: &[Raw], ours: &[Ours]) {
    let of_ours = |part: fn(&Ours) -> Cost| Cost::median(ours.iter().map(part).collect());
    let whole = |ours: &Ours| ours.plan + ours.first_reading + ours.first_comparison + ours.writing;
    let raw_all = Cost::median(raw.iter().map(|raw| raw.everything).collect());
    let raw_change = Cost::median(raw.iter().flat_map(|raw| raw.changes.clone()).collect());
    let our_change = Cost::median(ours.iter().flat_map(|ours| ours.changes.clone()).collect());
    println!(
        "{} services of {} endpoints; medians of {ROUNDS} rounds",
        size.services, size.endpoints
    );
    println!("{:<44} {:>10} {:>9} {:>7}", "", "ms", "requests", "sends");
    row("raw: everything", raw_all);
    row("ours: take in the input and plan it", of_ours(|ours| ours.plan));
    row("ours: read the empty kernel", of_ours(|ours| ours.first_reading));
    row("ours: compare it", of_ours(|ours| ours.first_comparison));
    row("ours: write everything but the rules", of_ours(|ours| ours.writing));
    row("ours: all of this", of_ours(whole));
    row("ours: write the rules (by iptables)", of_ours(|ours| ours.rules));
    row("raw: replace one endpoint", raw_change);
    row("ours: replace one endpoint, plan and write", our_change);
    row("ours: read the complete kernel", of_ours(|ours| ours.second_reading));
    row("ours: compare it", of_ours(|ours| ours.second_comparison));
    let left: usize = ours.iter().map(|ours| ours.left_to_do.len()).sum();
    println!("operations left to do: {left}");
    ratio("write everything but the rules", of_ours(|ours| ours.writing), raw_all);
    ratio("plan, read, compare and write", of_ours(whole), raw_all);
    ratio("replace one endpoint", our_change, raw_change);
}

fn row(what: &str, cost: Cost) {
    println!("{what:<44} {:>10.2} {:>9} {:>7}", cost.milliseconds(), cost.requests, cost.sends);
}

fn ratio(what: &str, ours: Cost, raw: Cost) {
    println!("ours/raw, {what}: {:.2}", ours.milliseconds() / raw.milliseconds());
}
