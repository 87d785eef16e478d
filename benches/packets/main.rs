//! Cost of a packet on its way through a node, in instructions: `cargo xtask bench --what packets`.
//!
//! A client, a node and endpoints in network namespaces of one kernel. One thread sends, receives and
//! answers, so that a packet's whole way is inside of a system call of it. In a guest whose clock counts
//! instructions (`cargo xtask vm run --accel counted`) a nanosecond is one instruction, and the same run
//! gives the same figures on every machine, however busy. Elsewhere the figures are nanoseconds, and with `--rate`
//! connections a second, one after the other, as TCP_CRR of netperf has them.
//!
//! In reading order: this (what is measured), `ground` (who sends to whom), `installed` (what the node
//! has), `unit` (what is sent and counted), `figures` (the tables).

mod figures;
mod ground;
mod installed;
mod kube_proxy;
mod unit;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use figures::{Figures, Row};
use ground::{Family, Ground, Way};
use installed::Installed;
use unit::{Extent, Unit};

/// Counts what packets cost on this kernel. Needs root, IPVS, ipset and iptables.
#[derive(Debug, Parser)]
struct Arguments {
    /// State of the node; without it, each.
    #[arg(long, value_enum, value_delimiter = ',')]
    installed: Vec<Installed>,
    /// Ways through the node; without it, all.
    #[arg(long, value_enum, value_delimiter = ',')]
    ways: Vec<Way>,
    /// Unit of traffic; without it, each.
    #[arg(long, value_enum, value_delimiter = ',')]
    units: Vec<Unit>,
    /// Address family.
    #[arg(long, value_enum, default_value_t)]
    family: Family,
    /// Numbers of Services beside those that are measured.
    #[arg(long, value_delimiter = ',', default_values_t = [60])]
    services: Vec<u32>,
    /// Shell text for the node, run before anything is counted: what changes is the cost of what it adds
    /// or takes away. Of several, each has a table of its own.
    #[arg(long, value_name = "SHELL", default_value = "")]
    also: Vec<String>,
    /// Print connections a second instead. That is of a machine and its load: compare the ratios, of one run.
    #[arg(long, conflicts_with = "units")]
    rate: bool,
    /// Few repetitions, of the plainest way: to see that it works.
    #[arg(long)]
    short: bool,
    /// Flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match measure(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("packets: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(mut arguments: Arguments) -> Result<()> {
    arguments.complete()?;
    let extent = match (arguments.short, arguments.rate) {
        (true, _) => Extent::SHORT,
        (false, true) => Extent::RATE,
        (false, false) => Extent::WHOLE,
    };
    let also = arguments.also.iter();
    let states = also.flat_map(|also| arguments.services.iter().map(move |n| (also, *n)));
    for (also, services) in states {
        let mut figures = Figures::new(arguments.rate);
        for installed in arguments.installed.iter().copied() {
            let rows = of_one(installed, services, also, &arguments, extent)
                .with_context(|| format!("{installed}, {services} Services"))?;
            figures.extend(rows);
        }
        println!("## {}, {services} Services\n", arguments.family);
        if !also.is_empty() {
            println!("After `{also}`:\n");
        }
        print!("{figures}");
        if arguments.short && !arguments.rate {
            figures.check()?;
        }
    }
    Ok(())
}

/// Measures one thing that a node may have, on fresh ground.
fn of_one(
    installed: Installed,
    services: u32,
    also: &str,
    arguments: &Arguments,
    extent: Extent,
) -> Result<Vec<Row>> {
    let ground = Ground::build(arguments.family)?;
    unit::use_ports_again();
    installed.install(&ground, services)?;
    if !also.is_empty() {
        ground.node()?.command("sh", &["-ec", also])?;
    }
    let mut rows = Vec::new();
    for way in arguments.ways.iter().copied() {
        let trip = if installed.has_services() { way.into() } else { way.without_service() };
        for unit in arguments.units.iter().copied() {
            let trial = ground.trial(trip, installed.masquerades())?;
            let repetitions = unit
                .measure(&trial, extent)
                .with_context(|| format!("{unit} on the way {trip}"))?;
            rows.push(Row { installed, way, unit, repetitions });
        }
    }
    ensure!(!rows.is_empty(), "nothing was measured");
    eprintln!("packets: {installed} is measured");
    Ok(rows)
}

impl Arguments {
    /// Takes everything where nothing was chosen.
    fn complete(&mut self) -> Result<()> {
        if self.installed.is_empty() {
            self.installed = match self.short {
                true => vec![Installed::Nothing, Installed::Ipvs, Installed::Ours],
                false => Installed::ALL.to_vec(),
            };
            // Debian's user-mode-linux has no nf_tables for IPv4.
            let processor =
                std::fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
            if processor.contains("User Mode Linux") {
                self.installed.retain(|installed| !installed.needs_nf_tables());
            }
        }
        if self.ways.is_empty() {
            self.ways = if self.short { vec![Way::Cluster] } else { Way::ALL.to_vec() };
        }
        if self.units.is_empty() {
            self.units = match (self.rate, self.short) {
                (true, _) => vec![Unit::Connection],
                (false, true) => vec![Unit::Datagram, Unit::Connection],
                (false, false) => Unit::ALL.to_vec(),
            };
        }
        Ok(())
    }
}
