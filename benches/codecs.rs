//! Cost of writing and reading netlink messages: `cargo bench -p kube-ipvs --bench codecs`.
//!
//! Beside each, what it takes to copy the same bytes: the least that it could be. The kernel takes
//! 1.5 µs for a real server that it is given, and 0.3 µs for an entry. Nothing fails because of
//! a time.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use ipset::{Entry, Name};
use ipvs::codec::{Request, decode_real_server, decode_virtual_server};
use ipvs::{AddressFamily, RealServer, Scheduler, VirtualServer, VirtualServerId};
use netlink::{Batch, attributes};

/// Number of each that are written or read at a time.
const COUNT: u32 = 1_000;
/// A message type: which one it is does not matter here.
const MESSAGE: u16 = 0x22;
/// Number of times that each is done for the table of ratios.
const ROUNDS: u32 = 200;

// include/uapi/linux/netfilter/ipset/ip_set.h
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_ADT: u16 = 8;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_PORT: u16 = 4;
const IPSET_ATTR_PROTO: u16 = 7;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;

/// Something to measure, which has so many bytes a message.
struct Measurement {
    name: &'static str,
    bytes: usize,
    work: Box<dyn FnMut()>,
}

fn id(number: u32) -> VirtualServerId {
    VirtualServerId::tcp(Ipv4Addr::from_bits(0x0a60_0000 + number), 80)
}

fn virtual_servers() -> Batch {
    let mut batch = Batch::new();
    for number in 0..COUNT {
        let server = VirtualServer::new(id(number), Scheduler::ROUND_ROBIN);
        batch.push(MESSAGE, 0, |message| Request::NewService(&server).encode(message));
    }
    batch
}

fn write_real_servers(batch: &mut Batch) {
    let id = id(0);
    for number in 0..COUNT {
        let server = RealServer::new(Ipv4Addr::from_bits(0x0b00_0000 + number), 8_080);
        batch.push(MESSAGE, 0, |message| Request::NewDestination(&id, &server).encode(message));
    }
}

fn bodies(batch: &Batch) -> Vec<Vec<u8>> {
    (0..batch.len()).filter_map(|index| batch.body(index).map(<[u8]>::to_vec)).collect()
}

/// A listing of a set, as the kernel sends it: a hundred entries a message.
fn listing() -> Vec<Vec<u8>> {
    const EACH: u32 = 100;
    let mut batch = Batch::new();
    for first in (0..COUNT).step_by(EACH as usize) {
        batch.push(MESSAGE, 0, |message| {
            // struct nfgenmsg
            message.body().extend_from_slice(&[2, 0, 0, 0]);
            let mut attributes = message.attributes();
            attributes.u8(IPSET_ATTR_PROTOCOL, 7);
            attributes.string(IPSET_ATTR_SETNAME, "KUBE-CLUSTER-IP");
            attributes.nested(IPSET_ATTR_ADT, |entries| {
                for number in first..first + EACH {
                    entries.nested(IPSET_ATTR_DATA, |entry| {
                        entry.nested(IPSET_ATTR_IP, |address| {
                            let number = Ipv4Addr::from_bits(0x0a60_0000 + number);
                            address.address(IPSET_ATTR_IPADDR_IPV4, number.into());
                        });
                        entry.u16_be(IPSET_ATTR_PORT, 80);
                        entry.u8(IPSET_ATTR_PROTO, 6);
                    });
                }
            });
        });
    }
    bodies(&batch)
}

fn measurements() -> Vec<Measurement> {
    let mut real_servers = Batch::new();
    write_real_servers(&mut real_servers);
    let (virtual_servers, real_servers) = (bodies(&virtual_servers()), bodies(&real_servers));
    let entries = listing();
    let bytes = |bodies: &[Vec<u8>]| bodies.iter().map(Vec::len).sum::<usize>() / COUNT as usize;
    let (server, real, entry) = (bytes(&virtual_servers), bytes(&real_servers), bytes(&entries));
    let all_attributes = real_servers.clone();
    let mut batch = Batch::new();
    let name = Name::new("KUBE-CLUSTER-IP").unwrap_or_else(|error| unreachable!("{error}"));
    vec![
        Measurement {
            name: "write a real server",
            bytes: real,
            work: Box::new(move || {
                batch.clear();
                write_real_servers(&mut batch);
                black_box(&batch);
            }),
        },
        Measurement {
            name: "read the attributes of a real server",
            bytes: real,
            work: Box::new(move || {
                for body in &all_attributes {
                    for attribute in attributes(body.get(4..).unwrap_or_default()).flatten() {
                        black_box(attribute.nested().count());
                    }
                }
            }),
        },
        Measurement {
            name: "read a real server",
            bytes: real,
            work: Box::new(move || {
                for body in &real_servers {
                    let read = decode_real_server(body, AddressFamily::Ipv4);
                    assert!(black_box(read).is_ok(), "it cannot be read");
                }
            }),
        },
        Measurement {
            name: "read a virtual server",
            bytes: server,
            work: Box::new(move || {
                for body in &virtual_servers {
                    assert!(black_box(decode_virtual_server(body)).is_ok(), "it cannot be read");
                }
            }),
        },
        Measurement {
            name: "put an entry into a batch",
            bytes: entry,
            work: Box::new(move || {
                let mut batch = ipset::Batch::new();
                for number in 0..COUNT {
                    let address = Ipv4Addr::from_bits(0x0a60_0000 + number).into();
                    let protocol = ipset::Protocol::TCP;
                    batch.add(name, Entry::IpPort { address, protocol, port: 80 });
                }
                black_box(&batch);
            }),
        },
        Measurement {
            name: "read an entry",
            bytes: entry,
            work: Box::new(move || {
                for body in &entries {
                    let read = ipset::codec::decode_fragment(body);
                    assert!(black_box(read).is_ok_and(|read| read.entries.len() == 100), "entries");
                }
            }),
        },
    ]
}

/// Returns the time to copy [`COUNT`] messages of so many bytes, one by one.
fn copying(bytes: usize) -> Duration {
    let (from, mut to) = (vec![1_u8; bytes * COUNT as usize], Vec::new());
    median(|| {
        to.clear();
        for message in from.chunks(bytes) {
            to.extend_from_slice(black_box(message));
        }
        black_box(&to);
    })
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut samples: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    let middle = samples.len() / 2;
    *samples.select_nth_unstable(middle).1
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Vec::new();
    let mut group = criterion.benchmark_group("codecs");
    group.throughput(Throughput::Elements(COUNT.into()));
    for mut measurement in measurements() {
        group.bench_function(measurement.name, |bencher| bencher.iter(&mut measurement.work));
        let (took, copied) = (median(&mut measurement.work), copying(measurement.bytes));
        table.push((measurement.name, measurement.bytes, took, copied));
    }
    group.finish();
    criterion.final_summary();
    println!("{:<40} {:>7} {:>8} {:>16}", "", "bytes", "ns each", "times a copy");
    for (name, bytes, took, copied) in table {
        let each = took.as_nanos() as f64 / f64::from(COUNT);
        let ratio = took.as_secs_f64() / copied.as_secs_f64();
        println!("{name:<40} {bytes:>7} {each:>8.1} {ratio:>16.1}");
    }
}
