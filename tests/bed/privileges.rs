//! The program in a container as the shipped DaemonSet has it: two capabilities, and a `/proc/sys`
//! that cannot be written.

use std::fs;
use std::time::Duration;

use bed::{Connection, Protocol, Proxy, Question, Service};
use k8s_openapi::api::apps::v1::DaemonSet;

use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip, web};
use crate::tenures::{has_dummy, wait_for_mode};

const DAEMON_SET: &str = include_str!("../../deploy/kustomize/base/daemonset.yaml");

/// The capabilities of the container that balances. The bed's container is as the others of its
/// fields are expected here.
fn capabilities() -> Vec<String> {
    let daemon_set: DaemonSet = serde_saphyr::from_str(DAEMON_SET).unwrap();
    let pod = daemon_set.spec.template.spec.unwrap();
    let [container] = &pod.containers[..] else { panic!("one container") };
    let security = container.security_context.as_ref().unwrap();
    assert_eq!(security.privileged, None);
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.read_only_root_filesystem, Some(true));
    let capabilities = security.capabilities.as_ref().unwrap();
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    capabilities.add.clone().unwrap()
}

/// Asserts that the process has no more than the DaemonSet gives it.
fn assert_restricted(process: u32) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    // CAP_NET_ADMIN is 12, CAP_NET_RAW is 13 (include/uapi/linux/capability.h).
    for line in [
        "CapPrm:\t0000000000003000",
        "CapEff:\t0000000000003000",
        "CapBnd:\t0000000000003000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line}:\n{status}");
    }
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    for place in ["/", "/proc/sys", "/sys", "/usr/lib/modules"] {
        let mounted = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(place));
        let options = mounted.and_then(|line| line.split(' ').nth(5)).unwrap_or_default();
        assert!(options.split(',').any(|option| option == "ro"), "{place}:\n{mounts}");
    }
}

/// `web` with every protocol, on these pods.
fn service(bed: &Bed, pods: &[(u8, u8)]) -> Service {
    let service = web(pods.iter().map(|(node, pod)| bed.pod(*node, *pod)));
    service.port(Protocol::Udp, 80, TARGET).port(Protocol::Sctp, 80, TARGET)
}

fn assert_served(bed: &Bed, shares: &[(&str, usize)]) {
    for target in ["10.96.0.10", "fd00:96::10"] {
        for protocol in PROTOCOLS {
            for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
                let tally = bed.ask(from, protocol, (ip(target), 80), 2);
                assert_shares(&tally, shares);
            }
        }
    }
}

/// Runs it with these arguments in the container until it ends by itself.
fn ends(bed: &Bed, arguments: &[&str]) -> (bool, String) {
    let capabilities = capabilities();
    let ended =
        Proxy::run_to_its_end_in_container(bed.node(), &bed.manifests, &capabilities, arguments);
    let (status, log) = ended.unwrap();
    (status.success(), log)
}

/// Does what the init container does, which is privileged, with these arguments.
fn prepare(bed: &Bed, arguments: &[&str]) {
    let arguments = [&["--init-only"], arguments].concat();
    let ended = Proxy::run_to_its_end(bed.node(), &bed.manifests, &arguments);
    let (status, log) = ended.unwrap();
    assert!(status.success(), "{log}");
}

#[test]
fn with_the_daemon_sets_privileges_it_says_what_it_cannot_set() {
    let bed = Bed::new();
    let (well, log) = ends(&bed, &[]);
    assert!(!well);
    for said in ["sysctl -w net.ipv4.vs.conntrack=1", "Read-only file system"] {
        assert!(log.contains(said), "{said}:\n{log}");
    }
}

#[test]
fn with_the_daemon_sets_privileges_it_serves_repairs_drains_and_cleans_up() {
    let bed = Bed::new();
    bed.manifests.apply(&service(&bed, &[(1, 1), (2, 1)])).unwrap();
    prepare(&bed, &[]);
    let start = || {
        let arguments = ["--ipvs-sync-period", "1s"];
        let capabilities = capabilities();
        Proxy::start_in_container(bed.node(), &bed.manifests, &capabilities, &arguments).unwrap()
    };
    let mut proxy = start();
    assert_restricted(proxy.process());
    assert_served(&bed, &[("pod1-1", 1), ("pod2-1", 1)]);

    let state = || {
        let saved = bed.tool("ipvsadm", &["-Sn"]);
        (saved, bed.bound(), bed.entries(), bed.rules("iptables"), bed.rules("ip6tables"))
    };
    let before = state();
    bed.tool("ipvsadm", &["-C"]);
    bed.tool("ipset", &["flush"]);
    bed.tool("ip", &["link", "delete", "kube-ipvs0"]);
    bed.tool("iptables", &["-t", "nat", "-F"]);
    bed.tool("ip6tables", &["-t", "filter", "-F"]);
    bed.wait_until("everything is back", || state() == before);
    assert_served(&bed, &[("pod1-1", 1), ("pod2-1", 1)]);

    // It drains, and goes on so after a restart.
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut held: Vec<_> =
        (0..2).map(|_| Connection::open(bed.client(), question).unwrap()).collect();
    let servers = |held: &mut Vec<Connection>| -> Vec<String> {
        held.iter_mut().map(|connection| connection.say().unwrap().server).collect()
    };
    let chosen = servers(&mut held);
    bed.manifests.apply(&service(&bed, &[(1, 1)])).unwrap();
    let drains = || {
        let shown = bed.virtual_servers();
        shown
            .lines()
            .any(|line| line.split_whitespace().take(4).eq(["->", "10.244.2.11:8080", "Masq", "0"]))
    };
    bed.wait_until("pod2-1 drains", drains);
    proxy.stop().unwrap();
    let proxy = start();
    assert!(drains(), "{}", bed.virtual_servers());
    assert_eq!(servers(&mut held), chosen);
    assert_served(&bed, &[("pod1-1", 2)]);
    proxy.stop().unwrap();

    let (well, log) = ends(&bed, &["--cleanup"]);
    assert!(well, "{log}");
    assert!(!bed.virtual_servers().contains("10.244."), "{}", bed.virtual_servers());
    assert_eq!(bed.entries(), Vec::<String>::new());
    assert!(!bed.rules("iptables").contains("KUBE-"), "{}", bed.rules("iptables"));
}

/// The init container has run for IPVS mode, so `route_localnet` is 0, and the container cannot set it:
/// rules would have the kernel drop what is sent to NodePorts at 127.0.0.1.
#[test]
fn node_ports_on_localhost_survive_a_switch_to_iptables_mode_and_back() {
    const PORT: u16 = 30_700;
    const SETTING: &str = "net/ipv4/conf/all/route_localnet";
    let bed = Bed::new();
    let mut service = Service::new("registry", ip("10.96.0.70"))
        .node_port(Protocol::Tcp, 80, TARGET, PORT)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.cluster.push(ip("fd00:96::70"));
    bed.manifests.apply(&service).unwrap();
    let path = bed.configuration("localhost", "localhostNodePorts: true");
    let arguments = ["--config", path.as_str()];
    prepare(&bed, &arguments);
    let started =
        Proxy::start_in_container(bed.node(), &bed.manifests, &capabilities(), &arguments);
    let mut proxy = started.unwrap();
    let process = proxy.process();
    assert_restricted(process);
    let assert_served = || {
        assert_eq!(bed.node().sysctl(SETTING).unwrap(), "0");
        for address in ["127.0.0.1", "::1", "192.168.0.11"] {
            let tally = bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 4);
            assert_eq!(tally.refused(), 0, "{address}: {tally}");
        }
    };
    assert_served();
    let text = fs::read_to_string(&path).unwrap();
    for mode in ["iptables", "ipvs"] {
        fs::write(&path, text.replace("mode: ipvs", &format!("mode: {mode}"))).unwrap();
        wait_for_mode(&bed, &proxy, mode);
        // Until then, what the mode before left may still lead.
        let is_alone = || match mode {
            "iptables" => !has_dummy(&bed),
            _ => !bed.rules("iptables").contains("KUBE-SVC-"),
        };
        bed.wait_for(Duration::from_secs(60), "the mode is alone", is_alone);
        assert_served();
    }
    assert_eq!(proxy.process(), process);
    let log = proxy.stop().unwrap();
    let said =
        "rules cannot serve NodePorts on localhost: net.ipv4.conf.all.route_localnet is not 1";
    assert!(log.contains(said) && log.contains("kube-ipvs keeps listening there"), "{log}");
}

/// Where `route_localnet` cannot be set, a start goes without the rules for NodePorts at 127.0.0.1, and `diff`
/// foresees that.
#[test]
fn rules_that_a_start_goes_without_are_foreseen_like_that() {
    const READ_ONLY: &str =
        "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\"";
    let bed = Bed::new();
    let service = Service::new("registry", ip("10.96.0.70"));
    let service = service.node_port(Protocol::Tcp, 80, TARGET, 30_700).pods([bed.pod(1, 1)]);
    bed.manifests.apply(&service).unwrap();
    let path = bed.configuration("foreseen", "");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("mode: ipvs", "mode: iptables")).unwrap();
    let arguments = ["--config", path.as_str()];
    prepare(&bed, &arguments);
    bed.node().set_sysctl("net/ipv4/conf/all/route_localnet", "0").unwrap();
    let started =
        Proxy::start_in_container(bed.node(), &bed.manifests, &capabilities(), &arguments);
    let log = started.unwrap().stop().unwrap();
    assert!(log.contains("rules cannot serve NodePorts on localhost"), "{log}");
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let manifests = format!("--manifests={}", bed.manifests.path().display());
    let flags = ["--config", &path, &manifests, "--hostname-override=node1"];
    let diff = [&["--mount", "sh", "-c", READ_ONLY, "sh", &program, "diff", "--"], &flags[..]];
    assert_eq!(bed.tool("unshare", &diff.concat()), "");
}
