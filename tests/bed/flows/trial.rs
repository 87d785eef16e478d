//! Tries the rows of the table with packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bed::{Answer, Namespace, Protocol, Question, Refusal, ask};
use plan::mode::Mode;
use plan::settings::RuleForm;

use super::row::{Client, Frontend, Given, Outcome, Row};
use super::traced::Foretold;
use super::world::{PROTOCOLS, World};
use super::{mistaken, table};

/// Frontends that are tried at once, or groups of those that share their turns. Most of them wait for
/// answers that do not come.
const AT_ONCE: usize = 24;
/// Time limit of an answer that should come: with this many frontends at once on an emulated
/// processor, a datagram has taken more than three seconds.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit of an answer that should not come. A second request is sent after one second.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);
/// A flow whose answer IPVS takes for another one's is tried so often.
const TRIES: u32 = 3;
/// A refusal that comes later may be one of a second request, which is sent after one second, or up to a tick earlier.
const AT_ONCE_IS: Duration = Duration::from_millis(980);
/// Failures that are shown with what the nodes hold.
const SHOWN: usize = 12;

/// One frontend as the kernel knows it. Its clients ask in turn, so that the endpoints
/// answer in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) given: Given,
    pub(super) protocol: Protocol,
    pub(super) ipv4: bool,
    pub(super) frontend: Frontend,
}

/// Outcomes that are expected of each client at each place.
pub(super) type Trials = BTreeMap<Place, BTreeMap<Client, Outcome>>;

/// One cell that is not as the table says.
struct Failure {
    place: Place,
    client: Client,
    expected: Outcome,
    seen: String,
}

/// Tries them all: endpoints see the sources that were foretold. Returns how many flows that were.
pub(super) fn try_all(world: &World, trials: &Trials, foretold: &Foretold) -> usize {
    let places: Vec<_> = trials.iter().collect();
    let groups = places.chunk_by(|(one, _), (other, _)| one.takes_turns_with(other, world.mode));
    let groups: Vec<_> = groups.collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for (place, clients) in *group {
                        let found = clients.iter().filter_map(|(client, expected)| {
                            attempt(world, foretold, **place, *client, *expected)
                        });
                        let found: Vec<Failure> = found.collect();
                        failures.lock().unwrap().extend(found);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let flows = trials.values().map(BTreeMap::len).sum();
    assert!(failures.is_empty(), "{}", report(world, &failures, flows));
    flows
}

/// The rows, spread out.
pub(super) fn trials(rows: &[&[Row]], mode: Mode) -> Trials {
    let mut trials = Trials::new();
    for row in rows.iter().copied().flatten() {
        for (given, frontend) in
            row.givens().flat_map(|given| row.frontends.iter().map(move |f| (given, *f)))
        {
            for (protocol, ipv4) in PROTOCOLS.into_iter().flat_map(|p| [(p, true), (p, false)]) {
                let at_place = trials.entry(Place { given, frontend, protocol, ipv4 }).or_default();
                for client in row.clients {
                    let outcome = match mode {
                        Mode::Ipvs => Some(row.outcome),
                        Mode::Iptables => {
                            table::in_mode_iptables(*client, frontend, given, row.outcome)
                        }
                        Mode::Userspace => table::in_mode_userspace(
                            *client,
                            frontend,
                            given,
                            protocol,
                            row.outcome,
                        ),
                    };
                    let Some(outcome) = outcome else { continue };
                    let said_before = at_place.insert(*client, outcome);
                    assert_eq!(said_before, None, "{client:?}, {frontend:?}, {given}: two rows");
                }
            }
        }
    }
    trials
}

fn attempt(
    world: &World,
    foretold: &Foretold,
    place: Place,
    client: Client,
    expected: Outcome,
) -> Option<Failure> {
    let target = world.target(place.given, place.frontend, place.ipv4);
    let question = Question::new(place.protocol, target);
    let from = &world.host(client).namespace;
    let seen = match expected {
        Outcome::Answer(servers, _) => {
            let expected = &foretold[&(place, client)];
            assert!(
                expected.keys().map(String::as_str).eq(servers.iter().copied()),
                "{expected:?}"
            );
            let attempt = || {
                answers(from, question.within(ANSWER), servers.len(), world.mode).and_then(
                    |answers| {
                        let names: BTreeSet<&str> =
                            answers.iter().map(|answer| answer.server.as_str()).collect();
                        let is_foretold = |answer: &Answer| {
                            expected.get(&*answer.server) == Some(&answer.seen_source.ip())
                        };
                        let right = names == servers.iter().copied().collect()
                            && answers.iter().all(is_foretold);
                        let seen = || format!("{}; foretold {expected:?}", describe(&answers));
                        if right { Ok(()) } else { Err(seen()) }
                    },
                )
            };
            let mut seen = attempt();
            for _ in 1..TRIES {
                let Some(mistaken) = seen
                    .as_ref()
                    .err()
                    .and_then(|_| mistaken::find(world, place.protocol, target.0))
                else {
                    break;
                };
                println!("{mistaken}");
                seen = attempt();
            }
            seen
        }
        Outcome::Refused if is_refused_in_output(world, place, client) => {
            is_own_datagram_refused(ask(from, question))
        }
        Outcome::Refused => refusal(from, question),
        Outcome::Dropped | Outcome::Unanswered(_) => silence(from, question.within(SILENCE)),
        // On a busy machine the second SYN, and the answer to it, may be late.
        Outcome::Rejected => rejection(from, question.within(ANSWER), place, client),
        Outcome::PassedOn => match ask(from, question.within(SILENCE)) {
            Err(Refusal::Timeout | Refusal::Unreachable) => Ok(()),
            Err(refusal) => Err(refusal.to_string()),
            Ok(answer) => Err(describe(&[answer])),
        },
    };
    seen.err().map(|seen| Failure { place, client, expected, seen })
}

/// Returns answers of as many servers. Endpoints answer in turn in IPVS mode, so each answers twice;
/// otherwise they are asked until each has answered, or one of two would have been passed over by
/// chance once in a thousand million.
fn answers(
    from: &Namespace,
    question: Question,
    endpoints: usize,
    mode: Mode,
) -> Result<Vec<Answer>, String> {
    let n_questions = if mode == Mode::Ipvs || endpoints == 1 { 2 * endpoints } else { 30 };
    let mut answers: Vec<Answer> = Vec::new();
    while answers.len() < n_questions {
        match ask(from, question) {
            Ok(answer) => answers.push(answer),
            Err(refusal) if answers.is_empty() => return Err(refusal.to_string()),
            Err(refusal) => return Err(format!("{}; {refusal}", describe(&answers))),
        }
        let servers: BTreeSet<&str> = answers.iter().map(|it| it.server.as_str()).collect();
        if mode != Mode::Ipvs && answers.len() > endpoints && servers.len() == endpoints {
            break;
        }
    }
    Ok(answers)
}

fn refusal(from: &Namespace, question: Question) -> Result<(), String> {
    for _ in 0..2 {
        let asked = Instant::now();
        match ask(from, question) {
            Err(Refusal::Refused) if asked.elapsed() < AT_ONCE_IS => {}
            Err(refusal) => return Err(format!("{refusal} after {:?}", asked.elapsed())),
            Ok(answer) => return Err(describe(&[answer])),
        }
    }
    Ok(())
}

/// Asks where rules refuse with an ICMP message. A socket of TCP over IPv6 may hear of it with its second
/// SYN. A node's own rules drop a datagram before it has left: the socket gets an error.
fn rejection(
    from: &Namespace,
    question: Question,
    place: Place,
    client: Client,
) -> Result<(), String> {
    let is_own = matches!(client, Client::ThisNode | Client::OtherNode);
    let is_in_output = is_own && place.frontend == Frontend::Cluster;
    match (ask(from, question), place.protocol) {
        (refused, Protocol::Udp) if is_in_output => is_own_datagram_refused(refused),
        (Err(Refusal::Refused), _) => Ok(()),
        (Err(refusal), _) => Err(refusal.to_string()),
        (Ok(answer), _) => Err(describe(&[answer])),
    }
}

/// True where the sender's own rules refuse in nf_tables: for a frontend at the node's addresses, those of OUTPUT come
/// first, and a NodePort of the other node is refused there.
fn is_refused_in_output(world: &World, place: Place, client: Client) -> bool {
    let at_other = match client {
        Client::ThisNode => Frontend::PortElsewhere,
        Client::OtherNode => Frontend::NodePort,
        _ => return false,
    };
    let is_udp = place.protocol == Protocol::Udp;
    world.form == RuleForm::Nftables && is_udp && place.frontend != at_other
}

/// A node's own rules drop a datagram before it has left: the socket gets an error.
fn is_own_datagram_refused(asked: Result<Answer, Refusal>) -> Result<(), String> {
    match asked {
        Err(Refusal::Other(error)) if error.contains("not permitted") => Ok(()),
        Err(Refusal::Refused) => Err("an ICMP message".to_owned()),
        Err(refusal) => Err(refusal.to_string()),
        Ok(answer) => Err(describe(&[answer])),
    }
}

fn silence(from: &Namespace, question: Question) -> Result<(), String> {
    match ask(from, question) {
        Err(Refusal::Timeout) => Ok(()),
        // On a node, its own rules drop a packet before it has left: the socket gets an error.
        Err(Refusal::Other(error)) if error.contains("not permitted") => Ok(()),
        Err(refusal) => Err(refusal.to_string()),
        Ok(answer) => Err(describe(&[answer])),
    }
}

fn describe(answers: &[Answer]) -> String {
    let answers =
        answers.iter().map(|answer| format!("{} saw {}", answer.server, answer.seen_source.ip()));
    answers.collect::<Vec<_>>().join(", ")
}

/// Every failure in a line; the first ones with what both nodes hold of the address; the rules.
fn report(world: &World, failures: &[Failure], flows: usize) -> String {
    let mut text = format!("{} of {flows} flows are not as the table says:\n", failures.len());
    let mut lines: Vec<String> = failures.iter().map(|failure| failure.line(world)).collect();
    lines.sort();
    for line in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    let mut addresses = BTreeSet::new();
    for failure in failures {
        let (address, port) = failure.target(world);
        if addresses.insert(address) && addresses.len() <= SHOWN {
            let _ = writeln!(text, "\n{}", failure.line(world));
            for node in world.bed.cluster.nodes() {
                text.push_str(&held(&node.namespace, &address.to_string(), port));
            }
        }
    }
    for proxy in &world.proxies {
        let log = proxy.log().unwrap_or_else(|error| format!("{error:#}"));
        log.lines().filter(|line| !line.contains(" INFO ")).for_each(|line| {
            let _ = writeln!(text, "{line}");
        });
    }
    for program in ["iptables-save", "ip6tables-save"] {
        let _ = writeln!(text, "\n{}", world.bed.tool(program, &[]));
    }
    text
}

/// Returns what a node holds that mentions an address and a port: a virtual server with its real
/// servers, entries of sets, connections.
fn held(node: &Namespace, address: &str, port: u16) -> String {
    let mut text = format!("--- {}\n", node.name());
    let commands: [(&str, &[&str]); 4] = [
        ("ipvsadm", &["-Sn"]),
        ("ipset", &["save"]),
        ("ipvsadm", &["-Lnc"]),
        ("conntrack", &["-L"]),
    ];
    for (program, arguments) in commands {
        let said = node
            .command(program, arguments)
            .unwrap_or_else(|error| format!("{address} {port}: {error:#}"));
        let of_address = said.lines().filter(|line| {
            let rest = line.split(address).nth(1);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_hexdigit()))
        });
        let of_port = of_address.filter(|line| line.contains(&port.to_string()));
        for line in of_port.take(40) {
            let _ = writeln!(text, "{program}: {line}");
        }
    }
    text
}

impl Place {
    /// True if clients of both take turns at the same endpoints, and so must not ask at the same time. In
    /// mode userspace all frontends of a Service port lead to one proxy port. Two clients in step get
    /// every other turn each: as long as both ask, each hears only one of two endpoints.
    fn takes_turns_with(&self, other: &Self, mode: Mode) -> bool {
        let of_port = |place: &Self| (place.given, place.protocol, place.ipv4);
        mode == Mode::Userspace && of_port(self) == of_port(other)
    }
}

impl Failure {
    fn target(&self, world: &World) -> (std::net::IpAddr, u16) {
        world.target(self.place.given, self.place.frontend, self.place.ipv4)
    }

    fn line(&self, world: &World) -> String {
        let Self { place, client, expected, seen } = self;
        let (address, port) = self.target(world);
        format!(
            "{client:?} asks {:?} {address} port {port} of {} by {}: expected {expected}, seen: \
             {seen}",
            place.frontend, place.given, place.protocol
        )
    }
}
