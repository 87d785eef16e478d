//! Other programs delete and flush and add at random while Services change: soon after the last of
//! it, the state is exactly what it should be, and stays so.
//!
//! `cargo xtask soak` runs this with many more Services, for longer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bed::Proxy;

use crate::churn::{Churn, Random, State, amount, patience};
use crate::fixture::Bed;

/// Time for which the state is watched once it is right.
const QUIET: Duration = Duration::from_secs(5);
/// Number of attempts where there is nothing to disturb, each of something else. More than a
/// quarter always finds something.
const TRIES: u32 = 40;
/// Number of the program's last log lines that are shown when the state is not whole.
const LOG_LINES: usize = 200;
/// The longest pause between two things that happen.
const PAUSE: Duration = Duration::from_millis(60);

/// Virtual servers of another program, which must stay: `-t 192.0.2.7:81`.
#[derive(Default)]
struct Foreign(BTreeSet<String>);

/// Action of another program. It may fail, where what it is about is gone already.
struct Disturbance {
    program: &'static str,
    arguments: String,
}

impl Foreign {
    fn expected(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|frontend| format!("-A {frontend} -s rr"))
    }
}

impl Disturbance {
    fn new(program: &'static str, arguments: impl Into<String>) -> Self {
        Self { program, arguments: arguments.into() }
    }

    /// One at random, about what there is now. Notes what it does to foreign virtual servers.
    fn any(random: &mut Random, churn: &Churn, foreign: &mut Foreign) -> Option<Self> {
        let disturbance = match random.below(18) {
            0 => {
                foreign.0.clear();
                Self::new("ipvsadm", "-C")
            }
            1 | 2 => Self::new("ipvsadm", format!("-D {}", churn.frontend(random)?)),
            3 => {
                let frontend = churn.frontend(random)?;
                let six = frontend.contains('[');
                let real = if six { "[fd00:244:1::99]:8080" } else { "10.244.1.99:8080" };
                Self::new("ipvsadm", format!("-a {frontend} -r {real} -m -w 3"))
            }
            4 | 5 => Self::one_real_server(random, churn, "-d")?,
            6 => Self::one_real_server(random, churn, "-e")?,
            7 => Self::new("ipvsadm", format!("-E {} -s wlc", churn.frontend(random)?)),
            8 => {
                let frontend = format!("-t 192.0.2.7:{}", 1_000 + random.below(1_000));
                foreign.0.insert(frontend.clone());
                Self::new("ipvsadm", format!("-A {frontend} -s rr"))
            }
            9 => Self::new(
                "ipset",
                random.of(&[
                    "flush",
                    "flush KUBE-CLUSTER-IP",
                    "flush KUBE-6-LOOP-BACK",
                    "flush KUBE-IPVS-IPS",
                ]),
            ),
            10 => {
                let entry = churn.expected().entries;
                let entry = random.of(&entry.into_iter().collect::<Vec<_>>());
                Self::new("ipset", format!("del {entry}"))
            }
            11 => Self::new(
                "ipset",
                random.of(&[
                    "add KUBE-CLUSTER-IP 192.0.2.9,tcp:9",
                    "add KUBE-6-IPVS-IPS fd00:dead::1",
                    "add KUBE-NODE-PORT-TCP 31999",
                    // In use by a rule: the kernel refuses.
                    "destroy KUBE-CLUSTER-IP",
                ]),
            ),
            12 | 13 => Self::new(
                random.of(&["iptables", "ip6tables"]),
                random.of(&[
                    "-w 5 -t nat -F",
                    "-w 5 -t nat -F KUBE-SERVICES",
                    "-w 5 -t filter -F KUBE-IPVS-FILTER",
                    "-w 5 -t nat -D OUTPUT 1",
                    "-w 5 -t filter -F INPUT",
                    "-w 5 -t filter -A KUBE-FORWARD -j DROP",
                ]),
            ),
            14 | 15 => {
                let address = churn.address(random)?;
                let prefix = if address.is_ipv4() { 32 } else { 128 };
                Self::new("ip", format!("addr del {address}/{prefix} dev kube-ipvs0"))
            }
            16 => Self::new("ip", "addr add 10.96.255.1/32 dev kube-ipvs0"),
            _ => Self::new("ip", "link del kube-ipvs0"),
        };
        Some(disturbance)
    }

    fn one_real_server(random: &mut Random, churn: &Churn, option: &str) -> Option<Self> {
        let servers = churn.expected().virtual_servers.into_iter();
        let servers: Vec<String> = servers.filter(|line| line.starts_with("-a ")).collect();
        let line = servers.get(usize::try_from(random.below(servers.len() as u64)).ok()?)?;
        let (server, _) = line.strip_prefix("-a ")?.split_once(" -m ")?;
        let arguments = match option {
            "-e" => format!("-e {server} -m -w 7"),
            option => format!("{option} {server}"),
        };
        Some(Self::new("ipvsadm", arguments))
    }

    /// Runs the other program. True if it succeeded.
    fn happen(&self, bed: &Bed) -> bool {
        let arguments: Vec<&str> = self.arguments.split(' ').collect();
        bed.node().command(self.program, &arguments).is_ok()
    }
}

/// Waits for the state to be exactly this, but for what drains.
fn require_soon(
    (bed, proxy): (&Bed, &Proxy),
    expected: &State,
    patience: Duration,
    what: &[String],
) {
    let last = Instant::now();
    loop {
        // What is found was so when it began to be read, or got so soon after.
        let begun = last.elapsed();
        let in_time = begun <= patience;
        let difference = expected.difference(&State::of(bed).without_draining());
        if difference.is_empty() {
            println!(
                "whole, as read from {begun:?} to {:?} after the last disturbance",
                last.elapsed()
            );
            return;
        }
        assert!(
            in_time,
            "not whole {patience:?} after the last of these:\n{}\n{}\n{}\n{}",
            what.join("\n"),
            difference.join("\n"),
            bed.cluster.dump(),
            last_lines(&proxy.log().unwrap()),
        );
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[test]
fn whatever_others_do_the_state_is_soon_exactly_as_it_should_be() {
    let bed = Bed::new();
    let mut random = Random::new();
    let mut churn = Churn::new(amount(50, 1_000), &mut random, &bed.manifests);
    let proxy = bed.start(&[]);
    let rules = State::of(&bed).rules;
    assert!(rules.iter().any(|rule| rule.contains("KUBE-SERVICES")), "{rules:?}");
    let patience = patience(&bed);
    let mut foreign = Foreign::default();
    let expected = |churn: &Churn, foreign: &Foreign| {
        let mut state = churn.expected();
        state.virtual_servers.extend(foreign.expected());
        state.rules.clone_from(&rules);
        state
    };
    require_soon((&bed, &proxy), &expected(&churn, &foreign), patience, &[]);
    for round in 0..amount(4, 100) {
        let mut happened = Vec::new();
        let mut succeeded = 0;
        let wanted = amount(15, 30);
        for _ in 0..wanted {
            for _ in 0..random.below(3) {
                churn.step(&mut random, &bed.manifests);
            }
            // After `ipvsadm -C` there is nothing to delete for a while: something else, then.
            for _ in 0..TRIES {
                let Some(disturbance) = Disturbance::any(&mut random, &churn, &mut foreign) else {
                    continue;
                };
                happened.push(format!("{} {}", disturbance.program, disturbance.arguments));
                if disturbance.happen(&bed) {
                    succeeded += 1;
                    break;
                }
            }
            random.rest(PAUSE);
        }
        println!("round {round}: {succeeded} of {} did something", happened.len());
        assert_eq!(succeeded, wanted, "too little of it did anything: {happened:?}");
        require_soon((&bed, &proxy), &expected(&churn, &foreign), patience, &happened);
    }
    let expected = expected(&churn, &foreign);
    bed.wait_until("nothing drains", || expected == State::of(&bed));
    expected.require_seen_by_us(&bed);
    let quiet = Instant::now();
    while quiet.elapsed() < QUIET {
        let found = State::of(&bed);
        assert_eq!(found, expected, "it does not stay so: {:?}", expected.difference(&found));
    }
    proxy.stop().unwrap();
}
