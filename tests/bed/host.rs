//! Conditions of the node around the proxy: its own ports, IPv6 switched off, missing privileges.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use bed::{ClusterSpec, Protocol, Proxy, Question, Refusal, Server, Service};

use crate::fixture::{Bed, PATIENCE, TARGET, assert_shares, echoes, ip, web};

#[test]
fn a_host_port_is_not_reachable_through_a_service_address() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let sockets: [SocketAddr; 2] = [(ip("0.0.0.0"), 2222).into(), (ip("::"), 2222).into()];
    let listening = sockets.map(|socket| (Protocol::Tcp, socket));
    let _daemon = Server::bind(bed.node(), "sshd", &listening).unwrap();
    let _proxy = bed.start(&[]);
    let clients = [bed.client(), &bed.pod(1, 2).namespace, &bed.pod(1, 1).namespace];
    for (node, service) in [("192.168.0.11", "10.96.0.10"), ("fd00:192::11", "fd00:96::10")] {
        for from in clients {
            let tally = bed.ask(from, Protocol::Tcp, (ip(node), 2222), 1);
            assert_shares(&tally, &[("sshd", 1)]);
            let through_service = bed::ask(from, Question::tcp((ip(service), 2222)));
            assert_eq!(through_service, Err(Refusal::Refused), "{service}");
        }
        // Nor does the node answer in a Service's place: not even to an echo request.
        assert_eq!(echoes(&clients, &[node]).len(), clients.len(), "{node}");
        assert_eq!(echoes(&clients, &[service]), Vec::<String>::new());
        assert_shares(
            &bed.ask(bed.client(), Protocol::Tcp, (ip(service), 80), 1),
            &[("pod1-1", 1)],
        );
    }
}

#[test]
fn a_service_without_endpoints_refuses_at_once() {
    let bed = Bed::new();
    bed.manifests.apply(&web([])).unwrap();
    let _proxy = bed.start(&[]);
    for target in ["10.96.0.10", "fd00:96::10"] {
        let outcome = bed::ask(bed.client(), Question::tcp((ip(target), 80)));
        assert_eq!(outcome, Err(Refusal::Refused), "{target}");
    }
}

#[test]
fn without_ipv6_there_is_ipv4() {
    let bed = Bed::with(&ClusterSpec { ipv6: false, ..ClusterSpec::default() });
    let service = Service::new("web", ip("10.96.0.10"))
        .port(Protocol::Tcp, 80, TARGET)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests.apply(&service).unwrap();
    let proxy = bed.start(&[]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    assert!(!bed.tool("ipset", &["list", "-n"]).contains("KUBE-6-"));
    let log = proxy.stop().unwrap();
    assert!(log.contains("IPv6"), "it says so:\n{log}");
}

#[test]
fn node_ports_follow_the_nodes_addresses() {
    let bed = Bed::new();
    let service = Service::new("ports", ip("10.96.0.60"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_200)
        .pods([bed.pod(1, 1)]);
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    let extra = "192.168.0.77";
    assert!(!bed.virtual_servers().contains(extra));
    bed.tool("ip", &["addr", "add", "192.168.0.77/24", "dev", "eth0"]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(extra), 30_200), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    bed.tool("ip", &["addr", "del", "192.168.0.77/24", "dev", "eth0"]);
    bed.wait_until("its node port is gone", || !bed.virtual_servers().contains(extra));
}

#[test]
fn sysctls_that_others_change_are_put_back() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&["--ipvs-tcp-timeout", "20m", "--ipvs-sync-period", "5s"]);
    let sysctls = [("net/ipv4/vs/conntrack", "0"), ("net/ipv4/ip_forward", "0")];
    bed.node().set_sysctls(&sysctls).unwrap();
    for (sysctl, _) in sysctls {
        bed.wait_until(sysctl, || bed.node().sysctl(sysctl).unwrap() == "1");
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 1);
    assert_shares(&tally, &[("pod2-1", 1)]);
    // A module that is unloaded forgets them, and what was chosen of IPVS beside them. The network
    // namespace of a test that has ended may live on for a while, with its virtual servers.
    let unload = "for n in $(seq 500); do ipvsadm -C; rmmod $(lsmod | grep -o '^ip_vs_[a-z]*'); \
                  rmmod ip_vs && exit 0; sleep 0.1; done 2>/dev/null; lsmod >&2; exit 1";
    bed.tool("sh", &["-c", unload]);
    bed.wait_until("as before", || {
        let has = |switch: &str| bed.node().sysctl(switch).is_ok_and(|value| value == "1");
        has("net/ipv4/vs/conntrack") && has("net/ipv4/vs/expire_nodest_conn")
    });
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 1);
    assert_shares(&tally, &[("pod2-1", 1)]);
    let timeouts = bed.tool("ipvsadm", &["-L", "--timeout"]);
    assert!(timeouts.contains(": 1200 "), "{timeouts}");
    let log = proxy.stop().unwrap();
    for switch in ["net.ipv4.vs.conntrack=1 (it was 0)", "net.ipv4.ip_forward=1 (it was 0)"] {
        let line = format!("another program changed a sysctl; kube-ipvs sets it again: {switch}");
        assert!(log.contains(&line), "{log}");
    }
}

#[test]
fn without_the_capability_it_says_which_and_ends() {
    let bed = Bed::new();
    let program = std::env::var("KUBE_IPVS").unwrap();
    let mut command = Command::new(program);
    command
        .arg("--manifests")
        .arg(bed.manifests.path())
        .uid(65_534)
        .gid(65_534)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = bed.node().enter(|| command.output().unwrap()).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("CAP_NET_ADMIN"), "{text}");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_in_words() {
    let bed = Bed::new();
    let folder = bed.manifests.path().to_owned();
    std::fs::remove_dir(&folder).unwrap();
    let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &[]).unwrap();
    assert!(!status.success());
    assert!(log.contains(&folder.display().to_string()), "{log}");
}

#[test]
fn a_bridge_whose_packets_ipvs_does_not_see_is_warned_of() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let switch = "net/bridge/bridge-nf-call-iptables";
    bed.node().set_sysctl(switch, "0").unwrap();
    let proxy = bed.start(&["--cluster-cidr=10.244.0.0/16,fd00:244::/32"]);
    let beside = &bed.pod(1, 2).namespace;
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let waiting = question.within(Duration::from_millis(1500));
    assert_eq!(bed::ask(beside, waiting), Err(Refusal::Timeout));
    let warning = "net.bridge.bridge-nf-call-iptables is not 1: ";
    proxy.wait_for_log(warning, PATIENCE).unwrap();
    bed.node().set_sysctl(switch, "1").unwrap();
    bed.wait_until("it answers", || bed::ask(beside, question).is_ok());
    let log = proxy.stop().unwrap();
    assert_eq!(log.matches(warning).count(), 1, "{log}");
    assert!(!log.contains("bridge-nf-call-ip6tables"), "{log}");
}

/// Programs that the first start on a node and a restart run, with iptables for nf_tables, and for x_tables,
/// which has modules of its own.
const PROGRAMS: [(&str, [u32; 2]); 2] = [("nf_tables", [10, 4]), ("legacy", [11, 4])];

#[test]
fn a_start_runs_few_programs_and_a_restart_fewer() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let version = bed.tool("iptables", &["--version"]);
    let limits = PROGRAMS.iter().find(|(kind, _)| version.contains(kind)).unwrap().1;
    for limit in limits {
        let proxy = bed.start(&["-v=4"]);
        proxy.wait_for_log("programs run so far", Duration::from_secs(60)).unwrap();
        let log = proxy.stop().unwrap();
        let (_, said) = log.split_once("programs run so far: ").unwrap();
        let n_programs: u32 = said.split_once(',').unwrap().0.parse().unwrap();
        assert!(n_programs <= limit, "{n_programs} programs, {limit} at most:\n{log}");
        eprintln!("{version}: {n_programs} programs");
    }
}
