//! Limits of what one Service may take of a node: what is served, what is left out, and how much is
//! said.

use std::net::IpAddr;
use std::time::Duration;

use bed::{Protocol, Question, Service};

use crate::fixture::{Bed, PATIENCE, TARGET, assert_shares, ip, web};

/// The virtual servers of TCP, in order.
fn served(bed: &Bed) -> Vec<String> {
    let shown = bed.virtual_servers();
    let lines = shown.lines().filter_map(|line| line.strip_prefix("TCP  "));
    let mut served: Vec<String> =
        lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    served.sort();
    served
}

/// A Service on a pod of the other node, of which nothing else is in any set.
fn elsewhere(
    bed: &Bed,
    name: &str,
    cluster: &str,
    ports: impl IntoIterator<Item = u16>,
) -> Service {
    let service = Service::new(name, ip(cluster)).pods([bed.pod(2, 1)]);
    ports.into_iter().fold(service, |service, port| service.port(Protocol::Tcp, port, TARGET))
}

#[test]
fn what_fits_a_services_limits_is_served_in_the_order_that_is_promised_and_the_rest_is_left_out() {
    let bed = Bed::new();
    let mut wide = elsewhere(&bed, "wide", "10.96.0.31", 80..84);
    wide.external = vec![ip("198.51.100.31"), ip("198.51.100.32")];
    let mut deep = elsewhere(&bed, "deep", "10.96.0.32", 80..82).pods([bed.pod(1, 1)]);
    deep.external = vec![ip("198.51.100.33")];
    let mut ranges = elsewhere(&bed, "ranges", "10.96.0.33", [80]);
    ranges.load_balancer = vec![ip("203.0.113.31"), ip("203.0.113.32")];
    ranges.more = vec!["loadBalancerSourceRanges: [192.168.0.100/32, 172.16.0.0/12]".into()];
    for service in [&wide, &deep, &ranges] {
        bed.manifests.apply(service).unwrap();
    }
    let limits = "limits: {frontends: 6, realServers: 7, setEntries: 3}";
    let proxy = bed.start(&["--config", &bed.configuration("limits", limits)]);

    // Cluster addresses, then the first ports of the others.
    let mut expected: Vec<String> = (80..84).map(|port| format!("10.96.0.31:{port}")).collect();
    let rest = ["10.96.0.32:80", "10.96.0.32:81", "10.96.0.33:80"];
    expected.extend(rest.map(str::to_owned));
    let outer = ["198.51.100.31:80", "198.51.100.32:80", "198.51.100.33:80", "203.0.113.31:80"];
    expected.extend(outer.map(str::to_owned));
    assert_eq!(served(&bed), expected);
    let is_bound = |address: &str| bed.bound().iter().any(|it| it.starts_with(address));
    assert!(is_bound("203.0.113.31/") && !is_bound("203.0.113.32/"), "{:?}", bed.bound());
    let entries = bed.entries();
    let of = |set: &str| {
        let mut found = Vec::new();
        found.extend(entries.iter().filter_map(|it| it.strip_prefix(&format!("{set} "))));
        found
    };
    assert_eq!(
        of("KUBE-EXTERNAL-IP"),
        ["198.51.100.31,tcp:80", "198.51.100.32,tcp:80", "198.51.100.33,tcp:80"]
    );
    assert_eq!(
        of("KUBE-LOAD-BALANCER-SOURCE-CIDR"),
        ["203.0.113.31,tcp:80,172.16.0.0/12", "203.0.113.31,tcp:80,192.168.0.100"]
    );
    for served in expected {
        let (address, port) = served.split_once(':').unwrap();
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), port.parse().unwrap()), 2);
        assert_eq!(tally.answered(), 2, "{served}: {tally}");
    }
    for left_out in [("198.51.100.31", 81), ("198.51.100.33", 81), ("203.0.113.32", 80)] {
        let question = Question::tcp((ip(left_out.0), left_out.1));
        let answer = bed::ask(bed.client(), question.within(Duration::from_millis(500)));
        assert!(answer.is_err(), "{left_out:?}: {answer:?}");
    }
    let log = proxy.stop().unwrap();
    for said in [
        "limits.frontends (6) is reached: 6 of this Service's addresses and ports",
        "limits.realServers (7) is reached: 1 of this Service's addresses and ports",
        "limits.setEntries (3) is reached: 1 of this Service's addresses and ports",
    ] {
        assert_eq!(log.matches(said).count(), 1, "{said}:\n{log}");
    }
}

/// The size and the number of entries of the set of source ranges.
fn set_of_ranges(bed: &Bed) -> [usize; 2] {
    let text = bed.tool("ipset", &["list", "-terse", "KUBE-LOAD-BALANCER-SOURCE-CIDR"]);
    ["maxelem ", "Number of entries: "].map(|before| {
        let (_, after) = text.split_once(before).unwrap_or_else(|| panic!("{text}"));
        after.split_whitespace().next().unwrap().parse().unwrap()
    })
}

#[test]
fn a_set_grows_no_further_than_its_limit_and_takes_entries_again_when_a_service_goes() {
    const PORTS: u16 = 64;
    const RANGES: u16 = 560;
    let bed = Bed::new();
    let restricted = |name: &str, cluster: &str, balancer: &str| {
        let mut service = elsewhere(&bed, name, cluster, 1_000..1_000 + PORTS);
        service.load_balancer = vec![ip(balancer)];
        let others =
            (1..RANGES).map(|number| format!(", 10.{}.{}.0/24", number / 256, number % 256));
        let ranges: String = others.collect();
        service.more = vec![format!("loadBalancerSourceRanges: [192.168.0.100/32{ranges}]")];
        service
    };
    bed.manifests.apply(&restricted("first", "10.96.0.41", "203.0.113.41")).unwrap();
    let proxy = bed.start(&["--config", &bed.configuration("limits", "limits: {setSize: 65536}")]);
    let of_one = usize::from(PORTS) * usize::from(RANGES);
    assert_eq!(set_of_ranges(&bed), [65_536, of_one]);

    bed.manifests.apply(&restricted("second", "10.96.0.42", "203.0.113.42")).unwrap();
    // How many it should have is said when they become too many, which is before all are known.
    let said = "limits.setSize (65536) is reached: set KUBE-LOAD-BALANCER-SOURCE-CIDR needs ";
    proxy.wait_for_log(said, PATIENCE).unwrap();
    // The kernel counts for each region of the set's table (net/netfilter/ipset/ip_set_hash_gen.h,
    // `mtype_add`), and so takes some more or less than what it was asked for.
    bed.wait_until("the set is full", || {
        let [capacity, entries] = set_of_ranges(&bed);
        capacity == 65_536 && (60_000..2 * of_one).contains(&entries)
    });
    proxy
        .wait_for_log(" more operations failed in the same way (kube-ipvs reads the set", PATIENCE)
        .unwrap();
    // Who came first has all that is its own, and others have sets of their own.
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    for (address, port) in [("203.0.113.41", 1_000), ("203.0.113.41", 1_063), ("10.96.0.10", 80)] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), port), 2);
        assert_eq!(tally.answered(), 2, "{address} {port}: {tally}");
    }

    bed.manifests.remove("first").unwrap();
    bed.wait_until("the second one has all that is its own", || {
        set_of_ranges(&bed) == [65_536, of_one]
    });
    for port in [1_000, 1_063] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("203.0.113.42"), port), 2);
        assert_shares(&tally, &[("pod2-1", 2)]);
    }
}

#[test]
fn of_forty_thousand_bad_addresses_ten_are_reported_and_the_rest_is_counted() {
    const BAD: usize = 40_000;
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&[]);
    // One has addresses that no Service can have, the other has what is no address.
    let bytes = |number: usize| (number / 250 + 1, number % 250 + 1);
    let mut impossible = elsewhere(&bed, "impossible", "10.96.0.51", [80]);
    impossible.external = (0..BAD)
        .map(bytes)
        .map(|(high, low)| -> IpAddr { ip(&format!("127.0.{high}.{low}")) })
        .collect();
    let mut unreadable = elsewhere(&bed, "unreadable", "10.96.0.52", [80]);
    let texts: Vec<String> =
        (0..BAD).map(bytes).map(|(high, low)| format!("10.256.{high}.{low}")).collect();
    unreadable.more = vec![format!("externalIPs: [{}]", texts.join(", "))];
    for service in [&impossible, &unreadable] {
        bed.manifests.apply(service).unwrap();
    }
    for address in ["10.96.0.51", "10.96.0.52"] {
        // An ICMP redirect may lead a client that asks sooner to another host.
        bed.wait_until(address, || bed.bound().contains(&format!("{address}/32")));
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), 80), 2);
        assert_shares(&tally, &[("pod2-1", 2)]);
    }
    let log = proxy.stop().unwrap();
    for (name, more) in [
        ("default/impossible", "39990 more problems of this Service are not listed"),
        ("default/unreadable", "and 39990 more problems"),
    ] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(name)).collect();
        assert_eq!(lines.len(), 11, "{name}:\n{log}");
        assert!(lines[10].contains(more), "{name}:\n{log}");
    }
    assert!(log.lines().count() < 100, "{log}");
}
