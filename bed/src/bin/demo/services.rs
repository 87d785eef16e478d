//! The example Services, each asked from outside and from a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use bed::{Cluster, Host, Protocol, Question, Tally, addresses, ask_many};

use crate::report::Report;

/// Divisible by 2, 3 and 4, so that pods in turn get equal shares.
const REQUESTS: usize = 12;

/// One Service, asked from one place.
struct Case<'a> {
    service: &'static str,
    protocol: Protocol,
    address: SocketAddr,
    asker: &'a Host,
    expected: Expected,
}

enum Expected {
    /// All of these pods, in turn.
    Turns(&'static [&'static str], Source),
    /// One of the Service's pods, always the same.
    OnePod(Source),
}

/// Source address that the pods see.
#[derive(Clone, Copy)]
enum Source {
    /// The node's, so that answers come back through it.
    Node,
    /// The asker's own; only a pod that happens to ask itself sees the node's.
    Asker,
}

/// Asks, prints a row for each, and checks.
pub(crate) fn ask_all(report: &mut Report, cluster: &Cluster) -> Result<()> {
    row("service", "address", "asked from", "who answered", "source seen by the pods");
    for case in cases(cluster)? {
        let question = Question::new(case.protocol, case.address);
        let tally = ask_many(&case.asker.namespace, question, REQUESTS);
        let address = format!("{} {}", case.protocol, case.address);
        row(case.service, &address, &case.asker.name, &answers(&tally), &sources(&tally));
        report.expect(&case.expected.to_string(), case.check(&tally));
    }
    Ok(())
}

/// The examples as they are in `deploy/examples`.
fn cases(cluster: &Cluster) -> Result<Vec<Case<'_>>> {
    const ALL: &[&str] = &["pod1-1", "pod1-2", "pod2-1", "pod2-2"];
    const FIRSTS: &[&str] = &["pod1-1", "pod2-1"];
    const SECONDS: &[&str] = &["pod1-2", "pod2-2"];
    use Expected::{OnePod, Turns};
    use Source::{Asker, Node};
    let (client, pod) = (cluster.client(1)?, cluster.pod(1, 1)?);
    let virtual_address = |last| Ipv4Addr::new(10, 96, 0, last);
    let web = (virtual_address(10), 80).into();
    let dns = (virtual_address(53), 53).into();
    let affinity = (virtual_address(40), 80).into();
    let ipv6 = SocketAddr::from(([0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10], 80));
    let node_port = (cluster.node(1)?.ipv4, 30080).into();
    let balancer = (Ipv4Addr::new(203, 0, 113, 30), 80).into();
    let case = |service, protocol, address, asker, expected| Case {
        service,
        protocol,
        address,
        asker,
        expected,
    };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    Ok(vec![
        case("web", tcp, web, client, Turns(ALL, Node)),
        case("web", tcp, web, pod, Turns(ALL, Asker)),
        case("web-ipv6", tcp, ipv6, client, Turns(ALL, Node)),
        case("web-ipv6", tcp, ipv6, pod, Turns(ALL, Asker)),
        case("node-port", tcp, node_port, client, Turns(FIRSTS, Node)),
        case("node-port", tcp, node_port, pod, Turns(FIRSTS, Node)),
        case("load-balancer", tcp, balancer, client, Turns(SECONDS, Node)),
        case("load-balancer", tcp, balancer, pod, Turns(SECONDS, Node)),
        case("dns", udp, dns, client, Turns(FIRSTS, Node)),
        case("dns", udp, dns, pod, Turns(FIRSTS, Asker)),
        case("affinity", tcp, affinity, client, OnePod(Node)),
        case("affinity", tcp, affinity, pod, OnePod(Asker)),
    ])
}

impl Case<'_> {
    fn check(&self, tally: &Tally) -> Result<()> {
        let source = match self.expected {
            Expected::Turns(pods, source) => {
                let share = REQUESTS / pods.len();
                let expected: BTreeMap<String, usize> =
                    pods.iter().map(|pod| ((*pod).to_owned(), share)).collect();
                if tally.by_server() != expected {
                    bail!("the shares are not equal: {tally}");
                }
                source
            }
            Expected::OnePod(source) => {
                if tally.servers().len() != 1 || tally.answered() != REQUESTS {
                    bail!("not always the same: {tally}");
                }
                source
            }
        };
        for server in tally.servers() {
            let (seen, expected) = (tally.sources_seen_by(server), self.source(server, source)?);
            if seen != BTreeSet::from([expected]) {
                bail!("{server} saw {seen:?} instead of {expected}");
            }
        }
        Ok(())
    }

    /// Returns the source that a pod is to see. node1 masquerades, with its address on the link
    /// towards the pod.
    fn source(&self, server: &str, source: Source) -> Result<IpAddr> {
        let ipv4 = self.address.is_ipv4();
        let pick = |v4: Ipv4Addr, v6| if ipv4 { IpAddr::V4(v4) } else { IpAddr::V6(v6) };
        if matches!(source, Source::Asker) && server != self.asker.name {
            return Ok(if ipv4 { self.asker.ipv4.into() } else { self.asker.ipv6()?.into() });
        }
        Ok(if server.starts_with("pod1-") {
            pick(addresses::bridge_ipv4(1), addresses::bridge_ipv6(1))
        } else {
            pick(addresses::node_ipv4(1), addresses::node_ipv6(1))
        })
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turns(pods, source) => {
                write!(formatter, "{} pods with equal shares, which see {source}", pods.len())
            }
            Self::OnePod(source) => {
                write!(formatter, "the same pod every time, which sees {source}")
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Node => "node1",
            Self::Asker => "who asked (itself excepted)",
        })
    }
}

fn row(service: &str, address: &str, asker: &str, answers: &str, sources: &str) {
    println!("  {service:13} {address:22} {asker:10} {answers:43} {sources}");
}

fn answers(tally: &Tally) -> String {
    let answers = tally.by_server().into_iter().map(|(server, count)| format!("{server} x{count}"));
    let refusals = tally.refusals().iter().map(|(refusal, count)| format!("{refusal} x{count}"));
    answers.chain(refusals).collect::<Vec<_>>().join(" ")
}

fn sources(tally: &Tally) -> String {
    tally.sources().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
