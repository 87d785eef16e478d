//! In which order and with which flags many addresses are best put on `kube-ipvs0` and taken off
//! it, on a real kernel: `cargo xtask bench --what addresses [-- NUMBERS…]`.
//!
//! Every way is measured in a fresh network namespace, several times in turns; the table has the
//! medians. Beside the addresses stands what a local route costs. What follows from the figures is
//! in docs/service-addresses.md. Nothing fails because of a time.

mod interface;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bed::Namespace;
use plan::model::Family;

use interface::{Flags, Interface, Scope};

const SIZES: [u32; 4] = [1_000, 5_000, 10_000, 20_000];
const ROUNDS: usize = 3;

/// One way to put addresses on the interface, and to take them off it.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    family: Family,
    up: bool,
    scope: Scope,
    flags: Flags,
    /// True if `IFA_ADDRESS` is sent beside `IFA_LOCAL`.
    twice: bool,
    /// Number of other addresses that are on the interface before.
    others: u32,
    what: What,
    added: Order,
    removed: Removal,
}

/// Means that makes an address local.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Address,
    /// A local route for each.
    Route,
    /// One local route for all.
    Range,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Ascending,
    Descending,
    Random,
}

/// Way in which the addresses are removed.
#[derive(Debug, Clone, Copy)]
enum Removal {
    /// In the order in which they came.
    OldestFirst,
    NewestFirst,
    InAnyOrder,
    /// With their interface.
    Whole,
}

/// Times that one way took.
#[derive(Debug, Clone, Copy)]
struct Took {
    added: Duration,
    removed: Duration,
}

/// Baseline from which the ways below differ.
const V4: Way = Way {
    name: "ascending",
    family: Family::V4,
    up: false,
    scope: Scope::Universe,
    flags: Flags::NONE,
    twice: true,
    others: 0,
    what: What::Address,
    added: Order::Ascending,
    removed: Removal::OldestFirst,
};
const V6: Way = Way { family: Family::V6, flags: Flags::NODAD, ..V4 };
const BARE: Flags = Flags::NODAD.union(Flags::NOPREFIXROUTE);

const WAYS: [Way; 20] = [
    V4,
    Way {
        name: "descending, newest first",
        added: Order::Descending,
        removed: Removal::NewestFirst,
        ..V4
    },
    Way { name: "random", added: Order::Random, removed: Removal::InAnyOrder, ..V4 },
    Way { name: "ascending, with the interface", removed: Removal::Whole, ..V4 },
    Way { name: "link up", up: true, ..V4 },
    Way { name: "link up, newest first", up: true, removed: Removal::NewestFirst, ..V4 },
    Way { name: "scope host", scope: Scope::Host, ..V4 },
    Way { name: "noprefixroute", flags: Flags::NOPREFIXROUTE, ..V4 },
    Way { name: "without IFA_ADDRESS", twice: false, ..V4 },
    Way { name: "after 1,000 others", others: 1_000, ..V4 },
    Way { name: "scope host after 1,000 others", others: 1_000, scope: Scope::Host, ..V4 },
    Way { name: "a local route each", what: What::Route, ..V4 },
    Way { name: "one local route", what: What::Range, ..V4 },
    V6,
    Way { name: "newest first", removed: Removal::NewestFirst, ..V6 },
    Way { name: "noprefixroute", flags: BARE, ..V6 },
    Way { name: "noprefixroute, newest first", flags: BARE, removed: Removal::NewestFirst, ..V6 },
    Way { name: "link up", up: true, ..V6 },
    Way {
        name: "noprefixroute, link up, newest first",
        up: true,
        flags: BARE,
        removed: Removal::NewestFirst,
        ..V6
    },
    Way { name: "one local route", what: What::Range, ..V6 },
];

fn main() -> ExitCode {
    let sizes: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    match sizes.into_iter().try_for_each(|size| measure(size).map(|rows| print(size, &rows))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("addresses: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The medians of each way.
fn measure(size: u32) -> Result<Vec<(Way, Took)>> {
    let mut all: Vec<(Way, Vec<Took>)> = WAYS.iter().map(|way| (*way, Vec::new())).collect();
    for _ in 0..ROUNDS {
        for (way, took) in &mut all {
            let measured = Namespace::create("addresses")?.enter(|| way.measure(size))?;
            took.push(measured.with_context(|| format!("{} {}", way.family, way.name))?);
        }
    }
    let median = |took: &[Took], part: fn(&Took) -> Duration| {
        let mut times: Vec<Duration> = took.iter().map(part).collect();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    Ok(all
        .into_iter()
        .map(|(way, took)| {
            let added = median(&took, |took| took.added);
            (way, Took { added, removed: median(&took, |took| took.removed) })
        })
        .collect())
}

fn print(size: u32, rows: &[(Way, Took)]) {
    println!("{size} addresses; medians of {ROUNDS} rounds, in milliseconds");
    println!("{:<46} {:>10} {:>10}", "", "added", "removed");
    for (way, took) in rows {
        let name = format!("{} {}", way.family, way.name);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
        let (added, removed) = (milliseconds(took.added), milliseconds(took.removed));
        println!("{name:<46} {added:>10.1} {removed:>10.1}");
    }
}

// === impl Way ===

impl Way {
    fn measure(&self, size: u32) -> Result<Took> {
        let mut interface = Interface::create(self.up)?;
        let others: Vec<u32> = (size..size + self.others).collect();
        interface.add(&others, self.family, Scope::Universe, self.flags, true)?;
        let added = self.added.of(size);
        let started = Instant::now();
        match self.what {
            What::Address => {
                interface.add(&added, self.family, self.scope, self.flags, self.twice)?;
                interface.wait_until_local(added.last().copied(), self.family)?;
            }
            What::Route => interface.add_routes(&added, self.family)?,
            What::Range => interface.add_range(self.family)?,
        }
        let taken = started.elapsed();
        let mut removed = added;
        match self.removed {
            Removal::OldestFirst | Removal::Whole => {}
            Removal::NewestFirst => removed.reverse(),
            Removal::InAnyOrder => removed.sort_by_key(|number| number.wrapping_mul(SCATTER)),
        }
        let started = Instant::now();
        match (self.removed, self.what) {
            (Removal::Whole, _) => {}
            (_, What::Address) => interface.remove(&removed, self.family)?,
            (_, What::Route) => interface.remove_routes(&removed, self.family)?,
            (_, What::Range) => interface.remove_range(self.family)?,
        }
        if !matches!(self.removed, Removal::Whole) {
            let took = Took { added: taken, removed: started.elapsed() };
            // Or the namespace would do it in the background of what is measured next.
            interface.delete()?;
            return Ok(took);
        }
        interface.delete()?;
        Ok(Took { added: taken, removed: started.elapsed() })
    }
}

// === impl Order ===

/// Knuth's multiplier: numbers in order become numbers without one, each still once.
const SCATTER: u32 = 2_654_435_761;

impl Order {
    fn of(self, size: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..size).collect();
        match self {
            Self::Ascending => {}
            Self::Descending => numbers.reverse(),
            // Another order than the one in which they are removed.
            Self::Random => numbers.sort_by_key(|number| (!number).wrapping_mul(SCATTER)),
        }
        numbers
    }
}
