//! Services that change at random, and what the kernel must show for them: worked out here, by
//! hand, and not by the program.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bed::manifest::Endpoint;
use bed::{Manifests, Protocol, Service};

use crate::fixture::{Bed, TARGET};

/// Time in which the kernel must be whole, on a machine that is not emulated.
const SOON: Duration = Duration::from_secs(2);
/// Time that `iptables-save` of one table takes there. It tells the machine's slowness, because
/// programs are what takes longest of what is to be done soon.
const ONE_PROGRAM: Duration = Duration::from_millis(10);
/// Endpoints that a Service can have: half of them on the first node.
const ENDPOINTS: u64 = 20;

/// Numbers that look random, the same ones for the same seed (splitmix64).
pub(crate) struct Random(u64);

/// The Services as they are in the folder of manifests.
pub(crate) struct Churn {
    /// By number: which endpoints it has. Never none.
    services: BTreeMap<u64, BTreeSet<u64>>,
    most: u64,
}

/// State of a node's kernel, as the usual tools print it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// `ipvsadm -Sn`
    pub(crate) virtual_servers: BTreeSet<String>,
    /// `ip addr`
    pub(crate) addresses: BTreeSet<String>,
    /// `ipset save`
    pub(crate) entries: BTreeSet<String>,
    /// `iptables-save` and `ip6tables-save`, without regard to the order: a jump that is put back
    /// stands before the others.
    pub(crate) rules: BTreeSet<String>,
}

// === the long form ===

/// Returns the amount of what there is to do: the short form's number, or the long form's when
/// `cargo xtask soak` asks for it.
pub(crate) fn amount(short: u64, long: u64) -> u64 {
    if std::env::var_os("KUBE_IPVS_SOAK").is_some() { long } else { short }
}

/// Returns the time in which the kernel must be whole: two seconds, as many times longer as this
/// machine is slower than one that is not emulated.
pub(crate) fn patience(bed: &Bed) -> Duration {
    const TRIES: u32 = 5;
    let begin = Instant::now();
    for _ in 0..TRIES {
        bed.tool("iptables-save", &["-t", "nat"]);
    }
    let took = begin.elapsed() / TRIES;
    let factor = (took.as_secs_f64() / ONE_PROGRAM.as_secs_f64()).max(1.0);
    println!("iptables-save takes {took:?}: {factor:.1} times {SOON:?} is soon");
    SOON.mul_f64(factor)
}

impl Random {
    /// From the environment variable `KUBE_IPVS_SEED`, or the clock. It is printed.
    pub(crate) fn new() -> Self {
        let given = std::env::var("KUBE_IPVS_SEED").ok();
        let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos()) ^ now.as_secs()
        });
        println!("to have the same again: KUBE_IPVS_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    pub(crate) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let place = self.below(choices.len() as u64);
        choices[usize::try_from(place).unwrap()].clone()
    }

    pub(crate) fn rest(&mut self, at_most: Duration) {
        let milliseconds = u64::try_from(at_most.as_millis()).unwrap();
        std::thread::sleep(Duration::from_millis(self.below(milliseconds + 1)));
    }
}

impl Churn {
    /// Makes so many Services, with one to three endpoints each, and writes them into the folder.
    pub(crate) fn new(most: u64, random: &mut Random, manifests: &Manifests) -> Self {
        let mut churn = Self { services: BTreeMap::new(), most };
        for number in 0..most {
            let count = 1 + random.below(3);
            let endpoints = (0..count).map(|_| random.below(ENDPOINTS)).collect();
            churn.services.insert(number, endpoints);
            churn.write(number, manifests);
        }
        churn
    }

    /// Changes one Service: an endpoint comes or goes, or the Service does.
    pub(crate) fn step(&mut self, random: &mut Random, manifests: &Manifests) {
        let number = random.below(self.most);
        let endpoint = random.below(ENDPOINTS);
        let Some(endpoints) = self.services.get_mut(&number) else {
            self.services.insert(number, BTreeSet::from([endpoint]));
            return self.write(number, manifests);
        };
        if random.below(10) == 0 {
            self.services.remove(&number);
            return manifests.remove(&name(number)).unwrap();
        }
        if endpoints.len() == 1 || !endpoints.remove(&endpoint) {
            endpoints.insert(endpoint);
        }
        self.write(number, manifests);
    }

    /// The frontend of a Service that there is, as ipvsadm takes it: `-t 10.96.1.1:80`.
    pub(crate) fn frontend(&self, random: &mut Random) -> Option<String> {
        let numbers: Vec<u64> = self.services.keys().copied().collect();
        (!numbers.is_empty()).then(|| frontend(random.of(&numbers)))
    }

    /// The cluster address of a Service that there is.
    pub(crate) fn address(&self, random: &mut Random) -> Option<IpAddr> {
        let numbers: Vec<u64> = self.services.keys().copied().collect();
        (!numbers.is_empty()).then(|| cluster_ip(random.of(&numbers)))
    }

    /// Returns what there must be, but for the rules.
    pub(crate) fn expected(&self) -> State {
        let mut state = State::default();
        for (number, endpoints) in &self.services {
            let (address, tcp) = (cluster_ip(*number), is_tcp(*number));
            let protocol = if tcp { "tcp" } else { "udp" };
            let (six, prefix) = if address.is_ipv4() { ("", 32) } else { ("6-", 128) };
            let frontend = frontend(*number);
            state.virtual_servers.insert(format!("-A {frontend} -s rr"));
            state.addresses.insert(format!("{address}/{prefix}"));
            state.entries.insert(format!("KUBE-{six}CLUSTER-IP {address},{protocol}:80"));
            state.entries.insert(format!("KUBE-{six}IPVS-IPS {address}"));
            for endpoint in endpoints {
                let real = endpoint_ip(*number, *endpoint);
                let server = socket(real, TARGET);
                state.virtual_servers.insert(format!("-a {frontend} -r {server} -m -w 1"));
                if is_here(*endpoint) {
                    let entry = format!("{real},{protocol}:{TARGET},{real}");
                    state.entries.insert(format!("KUBE-{six}LOOP-BACK {entry}"));
                }
            }
        }
        state
    }

    fn write(&self, number: u64, manifests: &Manifests) {
        let protocol = if is_tcp(number) { Protocol::Tcp } else { Protocol::Udp };
        let mut service =
            Service::new(&name(number), cluster_ip(number)).port(protocol, 80, TARGET);
        let endpoints = self.services.get(&number).into_iter().flatten();
        service.endpoints.extend(endpoints.map(|endpoint| Endpoint {
            pod: None,
            address: endpoint_ip(number, *endpoint),
            node: if is_here(*endpoint) { "node1" } else { "node2" }.to_owned(),
            ready: true,
            terminating: false,
            serving: true,
            hints: None,
        }));
        manifests.apply(&service).unwrap();
    }
}

fn name(number: u64) -> String {
    format!("churn-{number}")
}

/// Every third is UDP, whose real servers do not drain.
fn is_tcp(number: u64) -> bool {
    !number.is_multiple_of(3)
}

/// Every other Service is of IPv6.
fn cluster_ip(number: u64) -> IpAddr {
    let number = u16::try_from(number).unwrap();
    if number.is_multiple_of(2) {
        Ipv4Addr::from(0x0a60_1000 + u32::from(number)).into()
    } else {
        Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x1000 + number).into()
    }
}

fn is_here(endpoint: u64) -> bool {
    endpoint.is_multiple_of(2)
}

/// Address of an endpoint where no process answers.
fn endpoint_ip(number: u64, endpoint: u64) -> IpAddr {
    let node: u8 = if is_here(endpoint) { 1 } else { 2 };
    let host = 100 + u8::try_from(endpoint).unwrap();
    if number.is_multiple_of(2) {
        Ipv4Addr::new(10, 244, node, host).into()
    } else {
        Ipv6Addr::new(0xfd00, 0x244, node.into(), 0, 0, 0, 0, host.into()).into()
    }
}

fn socket(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

fn frontend(number: u64) -> String {
    let option = if is_tcp(number) { "-t" } else { "-u" };
    format!("{option} {}", socket(cluster_ip(number), 80))
}

impl State {
    /// Reads the state of the first node, by the usual tools.
    pub(crate) fn of(bed: &Bed) -> Self {
        let saved = bed.tool("ipvsadm", &["-Sn"]);
        let rules = bed.rules("iptables") + "\n" + &bed.rules("ip6tables");
        Self {
            virtual_servers: saved.lines().map(|line| line.trim().to_owned()).collect(),
            addresses: bound(bed),
            entries: bed.entries().into_iter().collect(),
            rules: rules.lines().map(str::to_owned).collect(),
        }
    }

    /// Without real servers that only keep the connections that they have.
    pub(crate) fn without_draining(mut self) -> Self {
        self.virtual_servers.retain(|line| !line.ends_with(" -w 0"));
        self
    }

    /// Returns what `found` lacks, and has in excess; a few lines of it.
    pub(crate) fn difference(&self, found: &Self) -> Vec<String> {
        let parts = [
            (&self.virtual_servers, &found.virtual_servers),
            (&self.addresses, &found.addresses),
            (&self.entries, &found.entries),
            (&self.rules, &found.rules),
        ];
        let lacking = parts.iter().flat_map(|(wanted, found)| wanted.difference(found));
        let excess = parts.iter().flat_map(|(wanted, found)| found.difference(wanted));
        let lacking = lacking.map(|line| format!("lacks {line}"));
        lacking.chain(excess.map(|line| format!("has {line}"))).take(20).collect()
    }

    /// Fails if our own libraries see anything else than the tools do.
    pub(crate) fn require_seen_by_us(&self, bed: &Bed) {
        let namespace = netlink::Namespace::at(&bed.node().path()).unwrap();
        let listings = ipvs::Client::open_in(&namespace).unwrap().list_all().unwrap();
        let mut seen = BTreeSet::new();
        for listing in listings {
            let ipvs::VirtualServerId::Address { protocol, address, port } =
                listing.virtual_server.server.id
            else {
                panic!("no program made one by firewall mark: {listing:?}");
            };
            let option = if protocol == ipvs::Protocol::TCP { "-t" } else { "-u" };
            let frontend = format!("{option} {}", socket(address, port));
            for real in listing.real_servers {
                let real = real.server;
                let server = socket(real.address, real.port);
                seen.insert(format!("-a {frontend} -r {server} -m -w {}", real.weight));
            }
            seen.insert(format!("-A {frontend} -s rr"));
        }
        assert_eq!(seen, self.virtual_servers);
        let mut ipset = ipset::Client::open_in(&namespace).unwrap();
        let headers = ipset.list_headers().unwrap();
        let n_entries: u32 = headers.iter().filter_map(|header| header.elements).sum();
        assert_eq!(n_entries as usize, self.entries.len());
    }
}

/// The addresses on the interface, if it is there.
fn bound(bed: &Bed) -> BTreeSet<String> {
    let text = bed.tool("ip", &["-oneline", "addr", "show"]);
    let lines = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("kube-ipvs0"));
    lines
        .filter_map(|line| line.split_whitespace().nth(3))
        .filter(|address| !address.starts_with("fe80:"))
        .map(str::to_owned)
        .collect()
}
