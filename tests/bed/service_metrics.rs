//! Metrics of single Services, beside what `ipvsadm` shows of the same virtual servers.

use std::time::Duration;

use bed::{Connection, Protocol, Question, Service, eventually};

use crate::cluster::{get, mk_web};
use crate::fixture::{Bed, TARGET, ip};

/// Readings are 15 seconds apart.
const TWO_READINGS: Duration = Duration::from_secs(60);

const COUNTERS: [&str; 5] = [
    "connections_total",
    "incoming_packets_total",
    "outgoing_packets_total",
    "incoming_bytes_total",
    "outgoing_bytes_total",
];

/// The value of a metric of a Service in the namespace `default`, if there is one.
fn value(metrics: &str, name: &str, service: &str) -> Option<u64> {
    let series =
        format!("kube_ipvs_service_{name}{{namespace=\"default\",service=\"{service}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)?.trim().parse().ok())
}

fn metrics(bed: &Bed) -> String {
    get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap()
}

/// The sums of the columns of `ipvsadm --stats` over all virtual servers: connections, packets in and
/// out, bytes in and out.
fn shown_by_ipvsadm(bed: &Bed) -> Vec<u64> {
    let text = bed.tool("ipvsadm", &["-Ln", "--stats", "--exact"]);
    let servers = text.lines().filter(|line| line.starts_with("TCP ") || line.starts_with("UDP "));
    let mut sums = vec![0; 5];
    for line in servers {
        let counts = line.split_whitespace().skip(2).map(|word| word.parse::<u64>().unwrap());
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

fn wait_for(bed: &Bed, what: &str, check: impl FnMut() -> anyhow::Result<()>) {
    let outcome = eventually(TWO_READINGS, what, check);
    outcome.unwrap_or_else(|error| {
        panic!("{error:#}\n{}\n{}", metrics(bed), bed.cluster.dump());
    });
}

#[test]
fn a_service_has_the_counters_and_connections_that_ipvsadm_shows() {
    let bed = Bed::new();
    bed.manifests.apply(&mk_web(&bed, &[(1, 1)])).unwrap();
    let proxy = bed.start(&["--service-metrics=namespaces:default"]);
    // The first reading was at the start. Everything after it counts.
    bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 4);
    bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 30_080), 3);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut open = Connection::open(bed.client(), question).unwrap();
    open.say().unwrap();
    wait_for(&bed, "the metrics are what ipvsadm shows", || {
        let found = metrics(&bed);
        let counted = COUNTERS.map(|name| value(&found, name, "web").unwrap_or_default());
        let expected = shown_by_ipvsadm(&bed);
        anyhow::ensure!(expected.iter().all(|count| *count >= 8), "{expected:?}");
        anyhow::ensure!(counted[..] == expected, "{counted:?}, ipvsadm: {expected:?}");
        anyhow::ensure!(value(&found, "active_connections", "web") == Some(1), "active");
        anyhow::ensure!(value(&found, "draining_connections", "web") == Some(0), "draining");
        anyhow::ensure!(found.contains("\nkube_ipvs_statistics_running 1\n"), "statistics");
        Ok(())
    });
    assert!(shown_by_ipvsadm(&bed)[0] >= 8);

    // Its endpoint goes, and drains with the connection that is open.
    bed.manifests.apply(&mk_web(&bed, &[(2, 1)])).unwrap();
    wait_for(&bed, "the connection is on a draining endpoint", || {
        let found = value(&metrics(&bed), "draining_connections", "web");
        anyhow::ensure!(found.is_some_and(|count| count >= 1), "{found:?}");
        Ok(())
    });
    open.say().unwrap();
    proxy.stop().unwrap();
}

#[test]
fn only_chosen_services_have_metrics_and_counters_that_stand_still_are_told() {
    let bed = Bed::new();
    bed.manifests.apply(&mk_web(&bed, &[(1, 1)])).unwrap();
    let quiet = Service::new("quiet", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&quiet.pods([bed.pod(1, 2)])).unwrap();
    let off = bed.configuration("metrics", "serviceMetrics: top:1\nestimators: {run: off}");
    let proxy = bed.start(&["--config", &off]);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut open = Connection::open(bed.client(), question).unwrap();
    open.say().unwrap();
    let has_sysctl = bed.node().has_sysctl("net/ipv4/vs/run_estimation").unwrap();
    wait_for(&bed, "one of two Services has metrics", || {
        let found = metrics(&bed);
        anyhow::ensure!(found.contains("\nkube_ipvs_service_metrics_omitted 1\n"), "omitted");
        // Without statistics the first one by name has them.
        let (shown, other) = if has_sysctl { ("quiet", "web") } else { ("web", "quiet") };
        anyhow::ensure!(value(&found, "connections_total", shown).is_some(), "{shown}");
        anyhow::ensure!(value(&found, "connections_total", other).is_none(), "{other}");
        let running = format!("\nkube_ipvs_statistics_running {}\n", u8::from(!has_sysctl));
        anyhow::ensure!(found.contains(&running), "{running}");
        Ok(())
    });
    proxy.stop().unwrap();

    let all = bed.configuration("all", "serviceMetrics: all\nestimators: {run: off}");
    let proxy = bed.start(&["--config", &all]);
    wait_for(&bed, "connections are read without statistics", || {
        let found = metrics(&bed);
        anyhow::ensure!(value(&found, "active_connections", "web") == Some(1), "active");
        anyhow::ensure!(value(&found, "connections_total", "web") == Some(0), "it was before");
        anyhow::ensure!(value(&found, "connections_total", "quiet") == Some(0), "quiet");
        Ok(())
    });
    open.say().unwrap();
    proxy.stop().unwrap();
}
