//! Every scheduler of the kernel while one of two endpoints drains.

use std::net::IpAddr;
use std::ops::Range;

use bed::{Connection, Host, Protocol, Question, Service, Tally};
use plan::scheduler::SCHEDULERS;

use crate::fixture::{Bed, TARGET, annotated, ip};

/// Choices of a Service: a scheduler and its flags.
const CHOICES: [(&str, &str); 21] = [
    ("rr", ""),
    ("wrr", ""),
    ("lc", ""),
    ("wlc", ""),
    ("sed", ""),
    ("nq", ""),
    ("sh", ""),
    ("sh", "none"),
    ("sh", "sh-port"),
    ("sh", "sh-port,sh-fallback"),
    ("mh", ""),
    ("mh", "none"),
    ("mh", "mh-port"),
    ("mh", "mh-fallback"),
    // Linux 5.10 does not have it, and serves such a Service by the default scheduler.
    ("twos", ""),
    ("fo", ""),
    ("ovf", ""),
    ("dh", ""),
    ("lblc", ""),
    ("lblcr", ""),
    ("mh", "mh-port,mh-fallback"),
];

/// Number of clients that ask while an endpoint drains.
const CLIENTS: u16 = 12;

/// A Service that chooses, and a connection to the endpoint that will drain.
struct Chooser {
    service: Service,
    scheduler: &'static str,
    flags: &'static str,
    address: IpAddr,
    /// Ports of this client alone: the kernel takes two connections of one port to one endpoint for
    /// the same, whatever Services they are made to.
    ports: Range<u16>,
    connection: Option<Connection>,
    draining: String,
}

impl Chooser {
    /// The Service of this number, with and without session affinity by turns.
    fn new(number: u16, (scheduler, flags): (&'static str, &'static str)) -> Self {
        let address = ip(&format!("10.96.7.{}", number + 1));
        let mut service = Service::new(&format!("chooser-{number}"), address);
        service = service.port(Protocol::Tcp, 80, TARGET);
        service.affinity = (number % 2 == 1).then_some(600);
        let first = 20_000 + number * (CLIENTS + 1);
        let ports = first..first + CLIENTS + 1;
        let draining = String::new();
        Self { service, scheduler, flags, address, ports, connection: None, draining }
    }

    fn question(&mut self, bed: &Bed) -> Question {
        let client = bed.cluster.client(1).unwrap();
        Question::tcp((self.address, 80)).from_source((client.ipv4, self.ports.next().unwrap()))
    }

    fn apply<'a>(&self, bed: &Bed, pods: impl IntoIterator<Item = &'a Host>) {
        let annotations = format!(
            "kube-ipvs.io/scheduler: {}, kube-ipvs.io/scheduler-flags: '{}'",
            self.scheduler, self.flags
        );
        let yaml = annotated(&self.service.clone().pods(pods), &annotations);
        bed.manifests.write(&format!("{}.yaml", self.service.name), &yaml).unwrap();
    }
}

#[test]
fn while_an_endpoint_drains_no_client_is_refused_whatever_the_scheduler() {
    for scheduler in &SCHEDULERS {
        let is_chosen = CHOICES.iter().any(|(name, _)| *name == scheduler.name);
        assert!(is_chosen, "no Service chooses {}", scheduler.name);
    }
    let bed = Bed::new();
    let both = [bed.pod(1, 1), bed.pod(2, 1)];
    let of_each = (0..).zip(CHOICES.iter().flat_map(|choice| [*choice; 2]));
    let mut choosers: Vec<Chooser> = of_each.map(|(n, choice)| Chooser::new(n, choice)).collect();
    for chooser in &choosers {
        chooser.apply(&bed, both);
    }
    let _proxy = bed.start(&[]);
    for chooser in &mut choosers {
        let mut connection = Connection::open(bed.client(), chooser.question(&bed)).unwrap();
        chooser.draining = connection.say().unwrap().server;
        chooser.connection = Some(connection);
        chooser.apply(&bed, both.into_iter().filter(|pod| pod.name != chooser.draining));
    }
    let socket_of = |name: &str| {
        let pod = both.iter().find(|pod| pod.name == name).unwrap();
        format!("{}:{TARGET}", pod.ipv4)
    };
    bed.wait_until("all of them drain", || {
        let shown = bed.virtual_servers();
        choosers.iter().all(|chooser| takes_no_more(&shown, chooser, &socket_of(&chooser.draining)))
    });
    let mut failed = Vec::new();
    for chooser in &mut choosers {
        let mut tally = Tally::default();
        for _ in 0..CLIENTS {
            tally.add(bed::ask(bed.client(), chooser.question(&bed)));
        }
        let all_elsewhere = tally.refused() == 0 && !tally.servers().contains(&*chooser.draining);
        // It would go on choosing the one that drains, which is removed at once instead.
        let is_kept = chooser.scheduler == "dh" || chooser.connection.take().unwrap().say().is_ok();
        if !all_elsewhere || !is_kept {
            let Chooser { scheduler, flags, service, .. } = chooser;
            let affinity = service.affinity;
            failed.push(format!("{scheduler} {flags} {affinity:?}, kept {is_kept}: {tally}"));
        }
    }
    assert!(failed.is_empty(), "{}\n{}", failed.join("\n"), bed.virtual_servers());
}

/// True if `shown` has this real server of the Service with weight 0, or not at all.
fn takes_no_more(shown: &str, chooser: &Chooser, socket: &str) -> bool {
    let begins = format!("TCP  {}:80 ", chooser.address);
    let mut lines = shown.lines().skip_while(|line| !line.starts_with(&begins)).skip(1);
    let of_it = lines.by_ref().take_while(|line| line.starts_with("  ->"));
    let weights: Vec<(String, u32)> = of_it
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            Some((words.next()?.to_owned(), words.nth(1)?.parse().ok()?))
        })
        .collect();
    // The other one is there all the time.
    !weights.is_empty() && weights.iter().all(|(at, weight)| at != socket || *weight == 0)
}
