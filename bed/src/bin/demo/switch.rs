//! A node changes its mode under traffic: from ipvs to iptables, and back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bed::load::Counts;
use bed::{
    Client, Cluster, Load, LoadReport, Manifests, Namespace, Protocol, Proxy, Server, Service,
    Traffic, eventually,
};

use crate::report::Report;

const WEB: ([u8; 4], u16) = ([10, 96, 0, 10], 80);
const DNS: ([u8; 4], u16) = ([10, 96, 0, 53], 53);
const NODE_PORT: u16 = 30_080;
/// Each Service's pods listen on a port of their own.
const PORTS: [(Protocol, u16); 3] =
    [(Protocol::Tcp, 8_080), (Protocol::Tcp, 8_081), (Protocol::Udp, 5_353)];
/// Streams of each of three clients, which are open during a change of the mode.
const STREAMS: usize = 20;
/// Number of answers that each client must have before and after a change.
const SOME: usize = 20;
const LIMIT: Duration = Duration::from_secs(60);
/// IPVS keeps a connection that has been closed for two minutes (`ip_vs_proto_tcp.c`, TIME_WAIT).
const LAST: Duration = Duration::from_secs(180);
/// Most datagrams of a flow that never pauses which are lost when its virtual server goes: IPVS drops
/// them until the kernel's next tick (`docs/modes.md`).
const LOST_WITH_A_VIRTUAL_SERVER: usize = 2;
/// IPVS adds up its counts every two seconds (`ip_vs_est.c`).
const COUNTED: Duration = Duration::from_secs(3);

/// The node's two modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Ipvs,
    Iptables,
}

/// Number of connections and flows that each mode has led since its rules or virtual servers were
/// written.
#[derive(Clone, Copy, Debug, Default)]
struct Led {
    ipvs: u64,
    iptables: u64,
}

/// The node with the program in it.
struct Node<'a> {
    namespace: &'a Namespace,
    program: &'a Path,
    manifests: &'a Manifests,
    configuration: PathBuf,
    proxy: Option<Proxy>,
}

/// Shows it all.
pub(crate) fn show(
    report: &mut Report,
    cluster: &Cluster,
    program: &Path,
    manifests: &Manifests,
) -> Result<()> {
    let _servers = cluster
        .pods()
        .map(|pod| Server::start(pod, &PORTS))
        .collect::<Result<Vec<_>>>()
        .context("starting the servers in the pods")?;
    for service in services(cluster) {
        manifests.apply(&service)?;
    }
    report.step("starting kube-ipvs on node1 in mode ipvs");
    let mut node = Node {
        namespace: &cluster.node(1)?.namespace,
        program,
        manifests,
        configuration: PathBuf::from(format!("{}.conf", manifests.path().display())),
        proxy: None,
    };
    node.start(Mode::Ipvs)?;
    report.step("short connections and datagrams from a client, a pod and the node, all the time");
    let load = Load::start(&steady(cluster)?)?;
    let shown = there_and_back(report, cluster, &mut node, &load);
    let total = load.stop();
    let log = node.proxy.as_ref().map(Proxy::log).transpose()?.unwrap_or_default();
    if shown.is_ok() {
        report.step("all that was asked beside the streams");
        print_counts(&total);
        let what =
            "no connection was refused, cut or slow, and no flow lost more than two datagrams";
        report.expect(what, require_unnoticed(&total));
    }
    if shown.is_err() || !report.all_held() {
        println!("\nkube-ipvs has logged:\n{}", log.trim_end());
    }
    shown
}

fn there_and_back(
    report: &mut Report,
    cluster: &Cluster,
    node: &mut Node<'_>,
    load: &Load,
) -> Result<()> {
    leads(report, node, load, Mode::Ipvs)?;
    for (from, to) in [(Mode::Ipvs, Mode::Iptables), (Mode::Iptables, Mode::Ipvs)] {
        report.step(&format!("{} streams are opened, and a flow of the node's own", 3 * STREAMS));
        let streams = Load::start(&long(cluster)?)?;
        streams.wait_for_answers(3, LIMIT)?;
        report.step(&format!("from {from:?} to {to:?}"));
        let began = Instant::now();
        let changed = node.change_mode(to);
        let what = format!("node1 serves in mode {to:?} ({} ms)", began.elapsed().as_millis());
        report.expect(&what, changed);
        leads(report, node, load, to)?;
        let live = streams.wait_for_answers(3, LIMIT);
        report.expect("the streams and the flow of before still answer", live);
        println!("      left of mode {from:?}: {}", left_of(node.namespace, from)?.join(", "));
        let ended = streams.stop();
        print_counts(&ended);
        let is_cut = ended.sum("").failed() > 0;
        let outcome = if is_cut { Err(anyhow::anyhow!("\n{ended}")) } else { Ok(()) };
        report.expect("no stream was cut, and no datagram lost", outcome);
        report.step(&format!("the streams have ended, and mode {from:?} with them"));
        let gone = eventually(LAST, "it to be gone", || {
            let left = left_of(node.namespace, from)?;
            ensure!(left.is_empty(), "there is still: {}", left.join(", "));
            Ok(())
        });
        report.expect(&format!("nothing of mode {from:?} is left"), gone);
        leads(report, node, load, to)?;
    }
    Ok(())
}

/// Shows which mode leads new connections now, in the kernel's own counts.
fn leads(report: &mut Report, node: &Node<'_>, load: &Load, mode: Mode) -> Result<()> {
    std::thread::sleep(COUNTED);
    let before = Led::read(node.namespace)?;
    load.wait_for_answers(SOME, LIMIT)?;
    std::thread::sleep(COUNTED);
    let after = Led::read(node.namespace)?;
    let ipvs = after.ipvs.saturating_sub(before.ipvs);
    let iptables = after.iptables.saturating_sub(before.iptables);
    let (leading, other) = match mode {
        Mode::Ipvs => (ipvs, iptables),
        Mode::Iptables => (iptables, ipvs),
    };
    let outcome = if leading == 0 || other > 0 {
        Err(anyhow::anyhow!("IPVS {ipvs}, rules {iptables}"))
    } else {
        Ok(())
    };
    let what = format!("{mode:?} leads what is new: IPVS {ipvs}, rules {iptables}");
    report.expect(&what, outcome);
    Ok(())
}

fn services(cluster: &Cluster) -> [Service; 3] {
    let pods: Vec<_> = cluster.pods().collect();
    let service = |name: &str, (address, port): ([u8; 4], u16), protocol, target| {
        let service = Service::new(name, address).port(protocol, port, target);
        service.pods(pods.iter().copied())
    };
    let node_port = Service::new("node-port", [10, 96, 0, 20]);
    [
        service("web", WEB, Protocol::Tcp, 8_080),
        service("dns", DNS, Protocol::Udp, 5_353),
        node_port.node_port(Protocol::Tcp, 80, 8_081, NODE_PORT).pods(pods.iter().copied()),
    ]
}

fn from_everywhere(cluster: &Cluster) -> Result<[(&'static str, &Namespace); 3]> {
    Ok([
        ("client", &cluster.client(1)?.namespace),
        ("pod", &cluster.pod(1, 1)?.namespace),
        ("node", &cluster.node(1)?.namespace),
    ])
}

/// Clients that go on all the time. The node's own flow of datagrams is not among them: the socket of
/// one that was opened in mode ipvs has a service address as its source, so that mode waits for it.
///
/// They connect twice a second. A client that connects so often that it uses a port again before IPVS is
/// shown copies of packets may be cut off (`docs/modes.md`).
fn steady(cluster: &Cluster) -> Result<Vec<Client<'_>>> {
    let node_port = (cluster.node(1)?.ipv4, NODE_PORT).into();
    let mut clients = Vec::new();
    for (who, from) in from_everywhere(cluster)? {
        for (kind, target, traffic, pause) in [
            ("connections to a cluster IP", WEB.into(), Traffic::Connections, 500),
            ("connections to a NodePort", node_port, Traffic::Connections, 500),
            ("datagrams to a cluster IP", DNS.into(), Traffic::Datagrams, 100),
        ] {
            if (who, traffic) == ("node", Traffic::Datagrams) {
                continue;
            }
            clients.push(Client {
                name: format!("{kind}, {who}"),
                from,
                target,
                traffic,
                interval: Duration::from_millis(pause),
                servers: [].into(),
            });
        }
    }
    Ok(clients)
}

/// Clients with streams, and the node's own flow of datagrams.
fn long(cluster: &Cluster) -> Result<Vec<Client<'_>>> {
    let client = |(who, from)| Client {
        name: format!("streams, {who}"),
        from,
        target: WEB.into(),
        traffic: Traffic::Streams(STREAMS),
        interval: Duration::from_millis(250),
        servers: [].into(),
    };
    let mut clients: Vec<Client<'_>> = from_everywhere(cluster)?.map(client).into();
    clients.push(Client {
        name: "datagrams, node".to_owned(),
        from: &cluster.node(1)?.namespace,
        target: DNS.into(),
        traffic: Traffic::Datagrams,
        interval: Duration::from_millis(100),
        servers: [].into(),
    });
    Ok(clients)
}

fn print_counts(report: &LoadReport) {
    let Counts { established, answers, resets, refused, timeouts, lost, slow, .. } = report.sum("");
    println!(
        "      {established} connections and flows, {answers} answers; {refused} refused, {resets} \
         reset, {timeouts} without an answer, {lost} datagrams lost, {slow} slow"
    );
}

fn require_unnoticed(report: &LoadReport) -> Result<()> {
    for (name, counts) in &report.clients {
        let most_lost = if name.starts_with("datagrams") { LOST_WITH_A_VIRTUAL_SERVER } else { 0 };
        let is_noticed =
            counts.failed() > counts.lost || counts.lost > most_lost || counts.slow > 0;
        ensure!(!is_noticed && counts.answers > 0, "{name}:\n{report}");
    }
    Ok(())
}

/// Returns what the node has of a mode.
fn left_of(node: &Namespace, mode: Mode) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let mut add = |number: usize, what: &str| {
        if number > 0 {
            left.push(format!("{number} {what}"));
        }
    };
    match mode {
        Mode::Ipvs => {
            let servers = node.command("ipvsadm", &["-Ln"])?;
            let is_server = |line: &&str| line.starts_with("TCP ") || line.starts_with("UDP ");
            add(servers.lines().filter(is_server).count(), "virtual servers");
            let links = node.command("ip", &["-oneline", "link"])?;
            add(links.matches("kube-ipvs0").count(), "interface kube-ipvs0");
            let sets = node.command("ipset", &["list", "-name"])?;
            add(sets.lines().filter(|name| name.starts_with("KUBE-")).count(), "sets");
        }
        Mode::Iptables => {
            let saved = node.command("iptables-save", &["-t", "nat"])?;
            let kinds = ["SVC-", "SVL-", "SEP-", "EXT-", "FW-"];
            let is_of_service = |line: &&str| {
                let name = line.strip_prefix(":KUBE-");
                name.is_some_and(|name| kinds.iter().any(|kind| name.starts_with(kind)))
            };
            add(saved.lines().filter(is_of_service).count(), "chains of Services");
        }
    }
    Ok(left)
}

impl Led {
    fn read(node: &Namespace) -> Result<Self> {
        let servers = node.command("ipvsadm", &["-Ln", "--stats", "--exact"])?;
        let rules = node.command("iptables-save", &["-c", "-t", "nat"])?;
        Ok(Self { ipvs: connections_in(&servers)?, iptables: led_in(&rules)? })
    }
}

/// Lines of virtual servers are `TCP ADDRESS:PORT CONNECTIONS …`.
fn connections_in(listing: &str) -> Result<u64> {
    let is_server = |line: &&str| line.starts_with("TCP ") || line.starts_with("UDP ");
    let count = |line: &str| {
        let number = line.split_whitespace().nth(2).and_then(|number| number.parse::<u64>().ok());
        number.with_context(|| format!("no number of connections in {line:?}"))
    };
    listing.lines().filter(is_server).map(count).sum()
}

/// The first packet of each connection meets a rule `[PACKETS:BYTES] -A KUBE-SEP-… -j DNAT …`.
fn led_in(saved: &str) -> Result<u64> {
    let leads = |line: &&str| line.contains("-A KUBE-SEP-") && line.contains("-j DNAT");
    let count = |line: &str| {
        let packets = line.strip_prefix('[').and_then(|line| line.split_once(':'));
        let number = packets.and_then(|(packets, _)| packets.parse::<u64>().ok());
        number.with_context(|| format!("no number of packets in {line:?}"))
    };
    saved.lines().filter(leads).map(count).sum()
}

impl Node<'_> {
    fn start(&mut self, mode: Mode) -> Result<()> {
        self.configure(mode)?;
        let config = format!("--config={}", self.configuration.display());
        let proxy = Proxy::start_program(self.program, self.namespace, self.manifests, &[&config])?;
        self.proxy = Some(proxy);
        Ok(())
    }

    fn configure(&self, mode: Mode) -> Result<()> {
        let mode = match mode {
            Mode::Ipvs => "ipvs",
            Mode::Iptables => "iptables",
        };
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             clusterCIDR: 10.244.0.0/16,fd00:244::/32\nmode: {mode}\n"
        );
        let beside = self.configuration.with_extension("new");
        fs::write(&beside, text)?;
        fs::rename(&beside, &self.configuration)?;
        Ok(())
    }

    /// Changes the mode in the configuration, and waits until the program has taken the node over in
    /// it. If the program ends for it, starts it again, as a supervisor does.
    fn change_mode(&mut self, mode: Mode) -> Result<()> {
        let mut proxy = self.proxy.take().context("it does not run")?;
        let times_in_sync = |proxy: &Proxy| -> Result<usize> {
            Ok(proxy.log()?.matches("in sync with the kernel").count())
        };
        let before = times_in_sync(&proxy)?;
        self.configure(mode)?;
        let goes_on = eventually(LIMIT, "the change of the mode", || {
            if !proxy.is_running()? {
                return Ok(false);
            }
            ensure!(times_in_sync(&proxy)? > before, "not yet:\n{}", proxy.log()?);
            Ok(true)
        })?;
        if !goes_on {
            return self.start(mode);
        }
        self.proxy = Some(proxy);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_virtual_server() {
        let listing = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port               \
                       Conns   InPkts  OutPkts  InBytes OutBytes\n  -> RemoteAddress:Port\n\
                       TCP  10.96.0.10:80                       7       70       60     7000     6000\n\
                       \x20 -> 10.244.1.11:8080                 4       40       30     4000     3000\n\
                       UDP  10.96.0.53:53                       2        9        9      900      900\n";
        assert_eq!(connections_in(listing).unwrap(), 9);
        assert!(connections_in("TCP  10.96.0.10:80 many").is_err());
    }

    #[test]
    fn what_rules_led_is_counted_where_they_choose_an_endpoint() {
        let saved = "*nat\n:KUBE-SEP-A - [0:0]\n[5:300] -A KUBE-SEP-A -p tcp -j DNAT --to-destination \
                     10.244.1.11:8080\n[5:300] -A KUBE-SVC-B -j KUBE-SEP-A\n[2:120] -A KUBE-SEP-A -s \
                     10.244.1.11/32 -j KUBE-MARK-MASQ\nCOMMIT\n";
        assert_eq!(led_in(saved).unwrap(), 5);
        assert!(led_in("-A KUBE-SEP-A -j DNAT --to-destination 10.0.0.1:1").is_err());
    }
}
