//! Killed at random points, it leaves nothing wrong that the next start does not find, and cuts no
//! connection.
//!
//! `cargo xtask soak` runs this a hundred times.

use std::time::{Duration, Instant};

use bed::{Proxy, Question, Service, Stream, StreamPlan};

use crate::churn::{Churn, Random, State, amount};
use crate::fixture::{Bed, ip, web};

/// Longest time until it is killed after a start, or after it was found in sync.
const LIFE: Duration = Duration::from_millis(1_500);

/// Time limit of a start on an emulated machine that others use, too.
const START: Duration = Duration::from_secs(300);

/// Starts it with these further arguments, and does not wait.
pub(crate) fn launch(bed: &Bed, further: &[&str]) -> Proxy {
    let folder = bed.manifests.path().to_string_lossy().into_owned();
    let arguments = ["--manifests", &folder, "--hostname-override", "node1"];
    let local = format!(
        "--cluster-cidr={},{}",
        bed::addresses::POD_RANGE_IPV4,
        bed::addresses::POD_RANGE_IPV6
    );
    Proxy::start_with(bed.node(), &[&arguments[..], &[&local], further].concat()).unwrap()
}

/// Returns the state with what `web`, whose pods are on the first node, adds to what the others
/// need.
fn with_web(mut state: State, service: &Service) -> State {
    for address in &service.cluster {
        let (six, prefix) = if address.is_ipv4() { ("", 32) } else { ("6-", 128) };
        let frontend = format!("-t {}", std::net::SocketAddr::new(*address, 80));
        state.virtual_servers.insert(format!("-A {frontend} -s rr"));
        state.addresses.insert(format!("{address}/{prefix}"));
        state.entries.insert(format!("KUBE-{six}CLUSTER-IP {address},tcp:80"));
        state.entries.insert(format!("KUBE-{six}IPVS-IPS {address}"));
        for endpoint in &service.endpoints {
            let real = endpoint.address;
            if real.is_ipv4() != address.is_ipv4() {
                continue;
            }
            let server = std::net::SocketAddr::new(real, crate::fixture::TARGET);
            state.virtual_servers.insert(format!("-a {frontend} -r {server} -m -w 1"));
            state.entries.insert(format!("KUBE-{six}LOOP-BACK {real},tcp:8080,{real}"));
        }
    }
    state
}

#[test]
fn killed_at_random_points_it_finds_and_repairs_everything_and_cuts_no_connection() {
    let bed = Bed::new();
    let mut random = Random::new();
    let mut churn = Churn::new(amount(30, 300), &mut random, &bed.manifests);
    let service = web([bed.pod(1, 1), bed.pod(1, 2)]);
    bed.manifests.apply(&service).unwrap();
    let mut proxy = bed.start(&[]);
    let rules = State::of(&bed).rules;
    assert!(rules.iter().any(|rule| rule.contains("KUBE-SERVICES")), "{rules:?}");
    let plan = StreamPlan { interval: Duration::from_millis(200), askers: 1, kept_open: 4 };
    let question = Question::tcp((ip("10.96.0.10"), 80));
    bed.wait_until("it answers", || bed::ask(bed.client(), question).is_ok());
    let stream = Stream::start(bed.client(), question, plan).unwrap();
    for time in 0..amount(10, 100) {
        for _ in 0..=random.below(5) {
            churn.step(&mut random, &bed.manifests);
        }
        random.rest(LIFE);
        drop(proxy); // SIGKILL
        if random.below(2) == 0 {
            // It does not even come to its feet.
            let starting = launch(&bed, &[]);
            churn.step(&mut random, &bed.manifests);
            random.rest(LIFE);
            drop(starting);
        }
        let started = Instant::now();
        proxy = launch(&bed, &[]);
        proxy.wait_until_in_sync_within(START).unwrap();
        let mut expected = with_web(churn.expected(), &service);
        expected.rules.clone_from(&rules);
        let found = State::of(&bed).without_draining();
        let difference = expected.difference(&found);
        assert!(
            difference.is_empty(),
            "after kill {time}, in sync after {:?}:\n{}\n{}",
            started.elapsed(),
            difference.join("\n"),
            proxy.log().unwrap()
        );
    }
    let answered = stream.report().answered();
    stream.wait_for_answers(8, Duration::from_secs(30)).unwrap();
    stream.stop().require_no_failure(answered).unwrap();
    let mut expected = with_web(churn.expected(), &service);
    expected.rules = rules;
    bed.wait_until("nothing drains", || expected == State::of(&bed));
    expected.require_seen_by_us(&bed);
    proxy.stop().unwrap();
}
