//! Benchmarks of planning: `cargo bench -p kube-ipvs-plan`.
//!
//! The promise is that a change costs what it changes: one endpoint costs the same with 50,000
//! Services as with 1,000, but for the memory that is no longer in the processor's cache. The ratio
//! of the two is printed at the end. So is what the largest Services cost that anybody could write:
//! twice as much of anything takes twice the time.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion};
use ipnet::IpNet;
use plan::actual::Actual;
use plan::chains::{ActualChains, ChainScope};
use plan::comparison::Reading;
use plan::event::Event;
use plan::memory::MemoryKernel;
use plan::mode::Mode;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServiceKind,
    ServicePort, SlicePort, TrafficPolicy,
};
use plan::planner::{Planner, RoundLimit};
use plan::rule_set::Table;
use plan::settings::Settings;

const N_ENDPOINTS: u32 = 10;

fn name(number: u32) -> ObjectName {
    ObjectName::new("namespace", format!("service-{number}"))
}

fn service(number: u32) -> Event {
    Event::ServiceApplied(Box::new(Service {
        created: number.into(),
        cluster_v4: Some(Ipv4Addr::from_bits(0x0a60_0000 + number)),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: NonZeroU16::MIN,
            node_port: None,
        }],
        ..Service::new(name(number))
    }))
}

/// The Service's endpoints, the first of them ready or not.
fn slice(number: u32, first_ready: bool) -> Event {
    let endpoint = |index| Endpoint {
        address: Ipv4Addr::from_bits(0x0b00_0000 + number * N_ENDPOINTS + index).into(),
        conditions: Conditions { ready: index > 0 || first_ready, ..Conditions::default() },
        node: Some("another-node".into()),
        zone: None,
        hints: None,
    };
    Event::SliceApplied(Box::new(EndpointSlice {
        name: name(number),
        service: name(number),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: NonZeroU16::MIN,
        }],
        endpoints: (0..N_ENDPOINTS).map(endpoint).collect(),
    }))
}

/// A planner with this number of Services that has not planned yet.
fn mk_planner(n_services: u32) -> Planner {
    mk_planner_of(n_services, Mode::Ipvs)
}

fn mk_planner_of(n_services: u32, mode: Mode) -> Planner {
    let mut planner = Planner::new(Settings { mode, ..Settings::new("this-node") });
    for number in 0..n_services {
        planner.apply(service(number));
        planner.apply(slice(number, true));
    }
    planner
}

fn first_plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("first plan");
    group.sample_size(10);
    group.bench_function("10,000 services of 10 endpoints", |bencher| {
        bencher.iter_batched(
            || mk_planner(10_000),
            |mut planner| {
                let plan = planner.plan();
                (planner, plan)
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn one_endpoint(criterion: &mut Criterion, mode: Mode, numbers: [u32; 2]) {
    let mut group = criterion.benchmark_group(format!("one endpoint changes in mode {mode}"));
    let mut medians = Vec::new();
    for n_services in numbers {
        let mut planner = mk_planner_of(n_services, mode);
        planner.plan();
        let mut turn = 0_u32;
        let change = move |planner: &mut Planner, event: Event| {
            planner.apply(event);
            black_box(planner.plan())
        };
        // Every Service in turn, so that nothing is in a cache that would not be otherwise.
        let mut next = move || {
            turn += 1;
            (turn.wrapping_mul(7_919) % n_services, turn / n_services % 2 == 1)
        };
        group.bench_function(format!("of {n_services} services"), |bencher| {
            bencher.iter_batched(
                || {
                    let (number, ready) = next();
                    slice(number, ready)
                },
                |event| change(&mut planner, event),
                BatchSize::SmallInput,
            );
        });
        medians.push(median_of(|| {
            let (number, ready) = next();
            let event = slice(number, ready);
            let started = Instant::now();
            change(&mut planner, event);
            started.elapsed()
        }));
    }
    group.finish();
    if let [few, many] = medians[..] {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        let [fewer, more] = numbers;
        println!(
            "one endpoint in mode {mode}: {few:?} of {fewer} services, {many:?} of {more}: ratio \
             {ratio:.2}"
        );
    }
}

fn median_of(mut sample: impl FnMut() -> Duration) -> Duration {
    let mut samples: Vec<Duration> = (0..10_001).map(|_| sample()).collect();
    let middle = samples.len() / 2;
    *samples.select_nth_unstable(middle).1
}

fn nothing_to_do(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("comparison that finds nothing");
    group.sample_size(10);
    let mut planner = mk_planner(10_000);
    planner.plan();
    let mut kernel = MemoryKernel::default();
    for op in planner.diff(kernel.actual()) {
        assert_eq!(kernel.apply(&op), Ok(()), "{op}");
    }
    group.bench_function("10,000 services of 10 endpoints", |bencher| {
        bencher.iter(|| {
            let ops = planner.diff(kernel.actual());
            assert!(ops.is_empty(), "there is something to do");
        });
    });
    group.finish();
}

/// Reading chains and comparing them, which finds nothing.
fn chains_found(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("chains of 10,000 services of 10 endpoints");
    group.sample_size(10);
    let mut planner = mk_planner_of(10_000, Mode::Iptables);
    planner.plan();
    let mut kernel = MemoryKernel::default().with_mode(Mode::Iptables);
    for op in planner.diff(kernel.actual()) {
        assert_eq!(kernel.apply(&op), Ok(()), "{op}");
    }
    let mut saved = String::from("*nat\n");
    for (chain, rules) in kernel.actual().chains.iter().filter(|(it, _)| it.table == Table::Nat) {
        saved.push_str(&format!(":{} - [0:0]\n", chain.name));
        rules.iter().for_each(|rule| saved.push_str(&format!("-A {} {rule}\n", chain.name)));
    }
    group.bench_function("read", |bencher| {
        bencher.iter(|| ActualChains::parse(Mode::Iptables, Family::V4, &saved));
    });
    let chains = &kernel.actual().chains;
    let found = Arc::new(ActualChains::of(Mode::Iptables, Family::V4, chains));
    let reading = Reading::Chains(Family::V4, found, ChainScope::All);
    group.bench_function("compared", |bencher| {
        bencher.iter(|| {
            assert!(planner.compare(&reading).is_empty());
        });
    });
    group.finish();
}

/// Memory that planning adds to the process, without Events and operations. Call it first: memory that was freed
/// before would be used again, and not counted.
fn memory_of_chains() {
    let n_services = 25_000;
    let mut planner = mk_planner_of(n_services, Mode::Iptables);
    let before = resident_bytes();
    while planner.is_dirty() {
        black_box(planner.plan_round(ROUND));
    }
    let more = resident_bytes().saturating_sub(before);
    let n_endpoints = u64::from(n_services * N_ENDPOINTS);
    println!(
        "{n_services} services of {N_ENDPOINTS} endpoints planned in mode iptables: {} bytes for \
         each endpoint, its part of the Service included",
        more / n_endpoints
    );
}

/// Memory that the process has in use, by the kernel's count of pages.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4_096
}

fn everything_to_do(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("comparison that finds everything to do");
    group.sample_size(10);
    let mut planner = mk_planner(10_000);
    planner.plan();
    let kernel = MemoryKernel::default();
    group.bench_function("10,000 services of 10 endpoints", |bencher| {
        bencher.iter(|| {
            let ops = planner.diff(kernel.actual());
            assert!(ops.len() > 100_000, "only {} operations", ops.len());
            ops
        });
    });
    group.finish();
}

/// A UDP Service for this node's endpoints, with so many ports, and reached from outside by so many
/// addresses, which all of these Services claim.
fn huge(number: u32, n_ports: u16, n_addresses: u32) -> Event {
    let Event::ServiceApplied(mut service) = service(number) else { unreachable!() };
    service.external_policy = TrafficPolicy::Local;
    service.external =
        (0..n_addresses).map(|n| Ipv4Addr::from_bits(0xc633_6400 + n).into()).collect();
    service.ports = (0..n_ports)
        .map(|n| ServicePort {
            name: format!("port-{n}").into(),
            protocol: Protocol::Udp,
            port: NonZeroU16::MIN.saturating_add(n),
            node_port: None,
        })
        .collect();
    Event::ServiceApplied(service)
}

/// Its endpoints, the first of them ready or not.
fn huge_slice(number: u32, n_ports: u16, first_ready: bool) -> Event {
    let Event::SliceApplied(mut slice) = slice(number, first_ready) else { unreachable!() };
    slice.endpoints.truncate(2);
    for endpoint in &mut slice.endpoints {
        endpoint.node = Some("this-node".into());
    }
    slice.ports = (0..n_ports)
        .map(|n| SlicePort {
            name: format!("port-{n}").into(),
            protocol: Protocol::Udp,
            port: NonZeroU16::MIN.saturating_add(n),
        })
        .collect();
    Event::SliceApplied(slice)
}

/// A UDP Service with so many source ranges at one load balancer's address.
fn restricted(number: u32, n_ranges: u32) -> Event {
    let Event::ServiceApplied(mut service) = huge(number, 1, 0) else { unreachable!() };
    service.kind = ServiceKind::LoadBalancer;
    service.load_balancer = vec![Ipv4Addr::from_bits(0xcb00_7100).into()];
    let ranges = (0..n_ranges).map(|n| IpAddr::from(Ipv4Addr::from_bits(0x0c00_0000 + n)));
    service.source_ranges = ranges.map(IpNet::from).collect();
    Event::ServiceApplied(service)
}

/// Limits of the event loop's rounds.
const ROUND: RoundLimit =
    RoundLimit { services: 256, operations: 8_192, operations_per_service: 8_192 };

/// Time that planning takes.
struct Times {
    /// All Services, as they come.
    all: Duration,
    /// One endpoint of the last one after that, at once.
    one: Duration,
    /// Finding out which of them contend, when the kernel is taken over.
    sorting: Duration,
    /// The longest round when the kernel is taken over, all of them, and their number.
    longest: Duration,
    total: Duration,
    rounds: u32,
}

/// Plans so many Services, each with so many ports and two endpoints.
fn times(n_services: u32, n_ports: u16, mk_service: impl Fn(u32) -> Event) -> Times {
    let mk_planner = || {
        let mut planner = Planner::new(Settings::new("this-node"));
        for number in 0..n_services {
            planner.apply(mk_service(number));
            planner.apply(huge_slice(number, n_ports, true));
        }
        planner
    };
    let mut planner = mk_planner();
    let started = Instant::now();
    while planner.is_dirty() {
        black_box(planner.plan_round(RoundLimit { services: 1, ..RoundLimit::NONE }));
    }
    let all = started.elapsed();
    planner.apply(huge_slice(n_services - 1, n_ports, false));
    let started = Instant::now();
    black_box(planner.plan());
    let one = started.elapsed();
    let mut planner = mk_planner();
    let started = Instant::now();
    drop(planner.take_over(Actual::default(), Vec::new()));
    let sorting = started.elapsed();
    let (mut longest, mut total, mut rounds) = (Duration::ZERO, Duration::ZERO, 0);
    while planner.is_dirty() {
        let started = Instant::now();
        black_box(planner.plan_round(ROUND));
        let took = started.elapsed();
        longest = longest.max(took);
        total += took;
        rounds += 1;
    }
    Times { all, one, sorting, longest, total, rounds }
}

/// Once each: a change that takes seconds cannot be repeated as often as criterion wants.
fn huge_ones() {
    let tell = |what: String, times: &Times| {
        let Times { all, one, sorting, longest, total, rounds } = times;
        println!(
            "{what}: all planned in {all:.2?}, one endpoint in {one:.2?}; at the start sorted in \
             {sorting:.2?}, then {rounds} rounds of {longest:.2?} at most, {total:.2?} together"
        );
    };
    for (services, ports, addresses) in [
        (1, 1_000, 4),
        (1, 2_000, 4),
        (1, 4_000, 4),
        (1, 8_000, 4),
        (100, 1, 2_000),
        (200, 1, 2_000),
    ] {
        let what = format!(
            "{services} Services of {ports} ports at the same {addresses} external addresses"
        );
        tell(what, &times(services, ports, |number| huge(number, ports, addresses)));
    }
    for ranges in [20_000, 40_000] {
        let what = format!("a Service with {ranges} source ranges");
        tell(what, &times(1, 1, |number| restricted(number, ranges)));
    }
}

fn main() {
    memory_of_chains();
    let mut criterion = Criterion::default().configure_from_args();
    first_plan(&mut criterion);
    everything_to_do(&mut criterion);
    one_endpoint(&mut criterion, Mode::Ipvs, [1_000, 50_000]);
    one_endpoint(&mut criterion, Mode::Iptables, [1_000, 10_000]);
    chains_found(&mut criterion);
    nothing_to_do(&mut criterion);
    huge_ones();
    criterion.final_summary();
}
