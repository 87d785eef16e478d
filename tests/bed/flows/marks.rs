//! The marks on packets: those of a network plugin stay, those of Kubernetes mean what they mean.

use bed::{Namespace, Protocol, Question, Refusal, Service, Tally};

use super::trial::SILENCE;
use super::world::PROTOCOLS;
use crate::fixture::{Bed, TARGET, assert_shares, ip};

/// Mark that a plugin puts on the packets of its pods; bits that Kubernetes leaves alone.
const MARK: &str = "0xabcd0000/0xffff0000";
/// Families, each with the program, the client, the cluster's pods, and the frontends.
const FAMILIES: [(&str, &str, &str, [&str; 3]); 2] = [
    ("iptables", "10.244.1.12", "10.244.0.0/16", ["10.96.0.10", "198.51.100.10", "198.51.100.11"]),
    (
        "ip6tables",
        "fd00:244:1::12",
        "fd00:244::/32",
        ["fd00:96::10", "fd00:203::10", "fd00:203::11"],
    ),
];
/// A cluster address; an external one, whose clients are masqueraded; and an external one for local
/// endpoints, which pods have other endpoints of than outsiders.
fn services(bed: &Bed) -> Vec<Service> {
    let mk = |name: &str, cluster: [&str; 2], external: [&str; 2]| {
        let mut service = Service::new(name, ip(cluster[0]));
        service.cluster.push(ip(cluster[1]));
        service.external = external.map(ip).into();
        for protocol in PROTOCOLS {
            service = service.port(protocol, 80, TARGET);
        }
        service.pods([bed.pod(1, 1), bed.pod(2, 1)])
    };
    let plain = mk("plain", ["10.96.0.10", "fd00:96::10"], ["198.51.100.10", "fd00:203::10"]);
    let mut local = mk("local", ["10.96.0.11", "fd00:96::11"], ["198.51.100.11", "fd00:203::11"]);
    local.more = vec!["externalTrafficPolicy: Local".to_owned()];
    vec![plain, local]
}

fn bed() -> Bed {
    let bed = Bed::new();
    for service in services(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    bed
}

/// Rules of ours in the first node. They go when dropped.
struct Rules<'a> {
    bed: &'a Bed,
    program: &'static str,
    added: Vec<Vec<String>>,
}

fn ask(from: &Namespace, protocol: Protocol, target: &str) -> Tally {
    let tally = bed::ask_many(from, Question::new(protocol, (ip(target), 80)), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    tally
}

#[test]
fn a_network_plugins_mark_stays_on_every_packet_from_the_first_on() {
    let bed = bed();
    let pod = &bed.pod(1, 2).namespace;
    let _proxy = bed.start(&[]);
    for (program, asks, pods, frontends) in FAMILIES {
        // Plugins mark what comes from a pod where it enters, or where IPVS will take it.
        for marking in ["-t mangle -I PREROUTING", "-t filter -I INPUT"] {
            let mut rules = Rules::new(&bed, program);
            rules.add(marking, &["-s", asks, "-j", "MARK", "--set-xmark", MARK]);
            // IPVS sends what it has scheduled through OUTPUT.
            for hook in ["-t filter -A OUTPUT", "-t mangle -A POSTROUTING"] {
                let first = ["-s", asks, "-d", pods, "-m", "conntrack", "--ctstate", "NEW"];
                let all = ["-m", "comment", "--comment", "all"];
                rules.add(hook, &[&first[..], &["-m", "mark", "--mark", MARK]].concat());
                rules.add(hook, &[&first[..], &all].concat());
            }
            for (protocol, target) in each_protocol(&frontends) {
                ask(pod, protocol, target);
            }
            let saved = bed.tool(&format!("{program}-save"), &["-c"]);
            let counted = |chain: &str, word: &str| {
                let mut counts = saved
                    .lines()
                    .filter(|line| line.contains(&format!("-A {chain} ")) && line.contains(word));
                let line = counts.next().unwrap();
                line.strip_prefix('[').unwrap().split(':').next().unwrap().parse::<u64>().unwrap()
            };
            for chain in ["OUTPUT", "POSTROUTING"] {
                let all = counted(chain, "--comment all");
                assert!(all >= 24, "{chain}, {marking}: {saved}");
                assert_eq!(counted(chain, "--mark 0xabcd"), all, "{chain}, {marking}: {saved}");
            }
        }
    }
}

#[test]
fn packets_with_kubernetes_marks_are_masqueraded_and_dropped() {
    let bed = bed();
    let pod = &bed.pod(1, 2).namespace;
    let _proxy = bed.start(&[]);
    for (program, asks, _, frontends) in FAMILIES {
        let marked = |mark: &str| {
            let mut rules = Rules::new(&bed, program);
            let words = ["-s", asks, "-j", "MARK", "--set-xmark", mark];
            rules.add("-t mangle -I PREROUTING", &words);
            rules
        };
        for protocol in PROTOCOLS {
            let itself = ask(pod, protocol, frontends[0]);
            assert!(itself.sources().iter().eq([&ip(asks)]), "{itself}");
            let rules = marked("0x4000/0x4000");
            let masqueraded = ask(pod, protocol, frontends[0]);
            assert!(!masqueraded.sources().contains(&ip(asks)), "{masqueraded}");
            drop(rules);
        }
        let mut rules = marked("0x8000/0x8000");
        // As the kubelet's.
        rules.add("-t filter -I OUTPUT", &["-m", "mark", "--mark", "0x8000/0x8000", "-j", "DROP"]);
        // All at once: each waits for an answer that does not come.
        std::thread::scope(|scope| {
            let asked: Vec<_> = each_protocol(&frontends)
                .map(|(protocol, target)| {
                    let question = Question::new(protocol, (ip(target), 80)).within(SILENCE);
                    (question, scope.spawn(move || bed::ask(pod, question)))
                })
                .collect();
            for (question, asker) in asked {
                assert_eq!(asker.join().unwrap(), Err(Refusal::Timeout), "{question}");
            }
        });
        drop(rules);
        for (protocol, target) in each_protocol(&frontends) {
            ask(pod, protocol, target);
        }
    }
}

fn each_protocol(frontends: &[&'static str; 3]) -> impl Iterator<Item = (Protocol, &'static str)> {
    PROTOCOLS.into_iter().flat_map(|protocol| frontends.map(|frontend| (protocol, frontend)))
}

impl<'a> Rules<'a> {
    fn new(bed: &'a Bed, program: &'static str) -> Self {
        Self { bed, program, added: Vec::new() }
    }

    /// Adds a rule at a place such as `-t filter -A OUTPUT`.
    fn add(&mut self, place: &str, rest: &[&str]) {
        let words: Vec<&str> = place.split(' ').chain(rest.iter().copied()).collect();
        self.bed.tool(self.program, &words);
        let undo = words.into_iter().map(|word| match word {
            "-A" | "-I" => "-D".to_owned(),
            word => word.to_owned(),
        });
        self.added.push(undo.collect());
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        for undo in &self.added {
            let words: Vec<&str> = undo.iter().map(String::as_str).collect();
            // A panic while another goes on would end the whole program.
            if let Err(error) = self.bed.node().command(self.program, &words) {
                eprintln!("cannot remove a rule: {error:#}");
            }
        }
    }
}
