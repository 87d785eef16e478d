//! `kube-ipvs status` and `kube-ipvs events`.

use std::fs::File;

use bed::{Protocol, Proxy, Service, eventually};
use serde_json::Value;

use super::run;
use crate::cluster::{Cluster, HEALTH, mk_web, status};
use crate::fixture::{Bed, PATIENCE, TARGET, ip, web};

fn mk_bed() -> Bed {
    let bed = Bed::new();
    let service = Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed
}

#[test]
fn status_says_what_the_kernel_has_and_what_was_repaired() {
    let bed = mk_bed();
    let proxy = bed.start(&[]);
    let status = run(&bed, &["status", "-o", "json"]);
    assert_eq!(status.code, 0, "{status:?}");
    let answer = status.json();
    assert_eq!(answer["apiVersion"], "kube-ipvs.io/console/v1");
    assert_eq!((&answer["kind"], &answer["mode"]["served"]), (&"Status".into(), &"ipvs".into()));
    let servers = bed.virtual_servers();
    let count = |word: &str| servers.lines().filter(|line| line.trim().starts_with(word)).count();
    assert_eq!(answer["kernel"]["virtualServers"], count("TCP"));
    assert_eq!(answer["kernel"]["realServers"], count("->") - 1, "{servers}");
    let kernel = &answer["kernel"];
    assert_eq!((&kernel["driftRepaired"], &kernel["driftLastHour"]), (&0.into(), &0.into()));
    assert!(kernel["driftLast"].is_null(), "{answer:#}");
    let program = &answer["program"];
    let iptables = bed.tool("iptables", &["--version"]);
    let version = format!("v{} ", program["iptables"][0]["version"].as_str().unwrap());
    let variant = format!("({})", program["iptables"][0]["variant"].as_str().unwrap());
    assert!(iptables.contains(&version) && iptables.contains(&variant), "{iptables} {program:#}");
    let ipvs = format!("version {} ", program["ipvsVersion"].as_str().unwrap());
    assert!(servers.contains(&ipvs), "{ipvs}: {servers}");
    let ipset = bed.tool("ipset", &["version"]);
    let protocol = format!("protocol version: {}", program["ipsetProtocol"]);
    assert!(ipset.contains(&protocol), "{protocol}: {ipset}");
    bed.tool("ipvsadm", &["-C"]);
    let repaired = eventually(PATIENCE, "drift is repaired and told", || {
        let text = run(&bed, &["status"]).out;
        anyhow::ensure!(text.contains("repaired by "), "{text}");
        Ok(())
    });
    repaired.unwrap();
    let answer = run(&bed, &["status", "-o", "json"]).json();
    let kernel = &answer["kernel"];
    assert!(kernel["driftRepaired"].as_u64().is_some_and(|number| number > 0), "{kernel:#}");
    for lately in ["driftLastHour", "driftLastTenMinutes"] {
        assert_eq!(kernel[lately], kernel["driftRepaired"], "{kernel:#}");
    }
    assert!(kernel["driftLast"].as_str().is_some_and(|at| at.ends_with('Z')), "{kernel:#}");
    let events = run(&bed, &["events"]);
    assert!(events.out.contains("another program changed the kernel"), "{events:?}");
    assert!(events.out.contains("Service default/web"), "{events:?}");
    // Nothing decorated in a pipe.
    assert!(!events.out.contains('\u{1b}'), "{events:?}");
    proxy.stop().unwrap();
}

#[test]
fn status_answers_while_a_write_waits_for_another_program() {
    let bed = mk_bed();
    if !bed.tool("iptables", &["--version"]).contains("legacy") {
        return; // nf_tables has no lock.
    }
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    bed.wait_until("it is whole", || run(&bed, &["status"]).code == 0);
    let lock = File::options().append(true).create(true).open("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    let late = Service::new("late", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&late.pods([bed.pod(1, 1)])).unwrap();
    bed.wait_until("it is no longer whole", || run(&bed, &["status"]).code == 1);
    // Some ask while the loop waits for the lock itself, and others between two attempts.
    for _ in 0..4 {
        let status = run(&bed, &["status"]);
        assert_eq!(status.code, 1, "{status:?}");
        let words = ["PENDING WRITE", "the event loop does not answer"];
        assert!(words.iter().any(|word| status.out.contains(word)), "{status:?}");
    }
    drop(lock);
    bed.wait_until("it is whole again", || run(&bed, &["status"]).code == 0);
    proxy.stop().unwrap();
}

#[test]
fn without_a_program_commands_say_where_they_looked() {
    let bed = mk_bed();
    let nobody = run(&bed, &["status"]);
    assert_eq!(nobody.code, 3, "{nobody:?}");
    assert!(nobody.err.contains("no kube-ipvs runs in this network namespace"), "{nobody:?}");
    let wrong = run(&bed, &["status", "--no-such-option"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let proxy = bed.start(&["--console-socket="]);
    let none = run(&bed, &["status"]);
    assert_eq!(none.code, 3, "{none:?}");
    assert!(none.err.contains("consoleSocket is empty"), "{none:?}");
    // An order of another mode goes by the console, too.
    let switch = run(&bed, &["switch", "--to=iptables"]);
    assert_ne!(switch.code, 0, "{switch:?}");
    let words = ["consoleSocket is empty", "change the mode in the configuration"];
    let said = format!("{}{}", switch.out, switch.err);
    assert!(words.iter().all(|word| said.contains(word)), "{switch:?}");
    proxy.stop().unwrap();
}

#[test]
fn who_is_not_root_is_told_who_may_ask() {
    let bed = mk_bed();
    let proxy = bed.start(&["--console-socket=/run/kube-ipvs-test/console.sock"]);
    let path = "/run/kube-ipvs-test/console.sock";
    // The folder lets others pass, the socket does not.
    bed.tool("chmod", &["755", "/run/kube-ipvs-test"]);
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let user =
        ["--reuid=65534", "--regid=65534", "--clear-groups", &program, "status", "--socket", path];
    let refused = bed.node().command("setpriv", &user).unwrap_err();
    assert!(format!("{refused:#}").contains("only root and the user"), "{refused:#}");
    proxy.stop().unwrap();
    assert!(!std::path::Path::new(path).exists());
}

#[test]
fn a_write_that_the_kernel_refuses_is_pending_with_the_reason_until_it_succeeds() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    bed.wait_until("it is whole", || run(&bed, &["status"]).code == 0);
    // The interface loses its IPv6 addresses with that, and takes none.
    // An MTU that IPv6 cannot have does it: `ipv6_add_dev` in net/ipv6/addrconf.c.
    let set_mtu = |mtu| bed.tool("ip", &["link", "set", "kube-ipvs0", "mtu", mtu]);
    set_mtu("1000");
    let mut answer = Value::Null;
    let outcome = eventually(PATIENCE, "a write is pending", || {
        let status = run(&bed, &["status", "-o", "json"]);
        answer = status.json();
        let is_pending = answer["kernel"]["pending"].as_u64() > Some(0);
        anyhow::ensure!(status.code == 1 && is_pending, "{status:?}");
        Ok(())
    });
    outcome.unwrap();
    let [pending] = &answer["kernel"]["pendingFirst"].as_array().unwrap()[..] else {
        panic!("{answer:#}")
    };
    assert_eq!(pending["operation"], "add address fd00:96::10 to kube-ipvs0", "{pending:#}");
    assert!(pending["reason"].as_str().is_some_and(|it| !it.is_empty()), "{pending:#}");
    assert!(pending["attempts"].as_u64() > Some(0), "{pending:#}");
    assert!(!answer["errors"].as_array().unwrap().is_empty(), "{answer:#}");
    let text = run(&bed, &["status"]).out;
    let words = ["PENDING WRITE", "REFUSED BECAUSE", "fd00:96::10 to kube-ipvs0", "LAST ERRORS"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    set_mtu("1500");
    bed.wait_until("a retry succeeds", || {
        bed.bound().contains(&"fd00:96::10/128".to_owned()) && run(&bed, &["status"]).code == 0
    });
    // Sets have the entries that they should, and room for more.
    let mut service = web([bed.pod(1, 1), bed.pod(2, 1)]);
    service.external = (1..=9).map(|last| ip(&format!("198.51.100.{last}"))).collect();
    bed.manifests.apply(&service).unwrap();
    bed.wait_until("entries are there", || {
        bed.entries().iter().filter(|it| it.starts_with("KUBE-EXTERNAL-IP 198")).count() == 9
    });
    let answer = run(&bed, &["status", "-o", "json"]).json();
    let sets = answer["sets"].as_array().unwrap();
    let set = sets.iter().find(|it| it["name"] == "KUBE-EXTERNAL-IP").unwrap();
    assert_eq!((&set["entries"], &set["capacity"]), (&9.into(), &65_536.into()), "{set:#}");
    proxy.stop().unwrap();
}

#[test]
fn a_set_of_another_type_under_our_name_is_among_the_last_errors_and_the_rest_is_served() {
    let bed = mk_bed();
    bed.tool("modprobe", &["-a", "ip_set", "ip_set_hash_ip", "xt_set"]);
    bed.tool("ipset", &["create", "KUBE-EXTERNAL-IP", "hash:ip"]);
    let rule = ["INPUT", "-m", "set", "--match-set", "KUBE-EXTERNAL-IP", "src", "-j", "ACCEPT"];
    bed.tool("iptables", &[&["-w", "-A"], &rule[..]].concat());
    let manifests = bed.manifests.path().to_str().unwrap();
    let flags = ["--manifests", manifests, "--hostname-override=node1"];
    let proxy = Proxy::start_with(bed.node(), &flags).unwrap();
    let outcome = eventually(PATIENCE, "the set is named", || {
        let status = run(&bed, &["status"]);
        let words = ["LAST ERRORS", "KUBE-EXTERNAL-IP", "hash:ip"];
        anyhow::ensure!(status.code == 1, "{status:?}");
        anyhow::ensure!(words.iter().all(|word| status.out.contains(word)), "{status:?}");
        Ok(())
    });
    outcome.unwrap();
    bed.wait_until("the rest is served", || bed.bound().contains(&"10.96.0.10/32".to_owned()));
    assert!(bed.virtual_servers().contains("10.96.0.10:80"), "{}", bed.virtual_servers());
    // A rollout goes on: the set may stay for ever.
    bed.wait_until("it is ready", || status(bed.node(), HEALTH, "/readyz") == "200");
    let foreign = bed.tool("ipset", &["list", "KUBE-EXTERNAL-IP"]);
    assert!(foreign.contains("Number of entries: 0"), "{foreign}");
    // Rules of kube-ipvs match it too, so the set gives way without these and the other program's only.
    proxy.stop().unwrap();
    bed.tool("iptables", &[&["-w", "-D"], &rule[..]].concat());
    Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--cleanup"]).unwrap();
    bed.tool("ipset", &["destroy", "KUBE-EXTERNAL-IP"]);
    let proxy = Proxy::start_with(bed.node(), &flags).unwrap();
    bed.wait_until("it is whole", || run(&bed, &["status"]).code == 0);
    proxy.stop().unwrap();
}

#[test]
fn a_node_that_does_not_follow_the_api_server_says_since_when_and_exits_with_1() {
    let cluster = Cluster::new();
    cluster.apply_service(&mk_web(&cluster.bed, &[(1, 1)]));
    let proxy = cluster.start(1);
    let bed = &cluster.bed;
    let kinds = || {
        let status = run(bed, &["status", "-o", "json"]);
        let answer = status.json();
        let kinds = answer["source"]["kinds"].as_array().unwrap().clone();
        (status.code, kinds, answer)
    };
    // A watch is believed after some seconds, and the node is whole before.
    bed.wait_until("it follows", || {
        let (code, kinds, _) = kinds();
        code == 0 && kinds.iter().all(|it| it["isFollowing"] == true)
    });
    let (_, following, answer) = kinds();
    assert_eq!(answer["source"]["server"], cluster.api.address().to_string());
    let names: Vec<&str> = following.iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
    assert_eq!(names, ["Service", "EndpointSlice", "Node"]);
    for kind in &following {
        assert_eq!((&kind["isFollowing"], &kind["lists"]["start"]), (&true.into(), &1.into()));
        let [seconds, lag] = ["seconds", "lagSeconds"].map(|field| kind[field].as_f64().unwrap());
        assert!((0.0..120.0).contains(&seconds) && (0.0..120.0).contains(&lag), "{kind:#}");
    }
    let since = |kinds: &[Value]| kinds[0]["since"].as_str().unwrap().to_owned();
    cluster.api.close();
    bed.wait_until("it no longer follows", || {
        kinds().1.iter().all(|it| it["isFollowing"] == false)
    });
    let (code, lost, answer) = kinds();
    assert_eq!(code, 1, "{answer:#}");
    assert!(since(&lost) > since(&following), "{answer:#}");
    let text = run(bed, &["status"]).out;
    assert!(text.contains("EndpointSlice: NOT following for "), "{text}");
    let host = bed.cluster.client(2).unwrap();
    host.namespace.enter(|| cluster.api.reopen()).unwrap().unwrap();
    bed.wait_until("it follows again", || kinds().0 == 0);
    proxy.stop().unwrap();
}

/// The console's commands invite typing the program's bare name.
#[test]
fn the_bare_name_beside_a_running_program_is_refused_and_changes_nothing() {
    let bed = mk_bed();
    let _proxy = bed.start(&[]);
    let state = || (bed.virtual_servers(), bed.bound(), bed.entries(), bed.rules("iptables"));
    let before = state();
    let bare = run(&bed, &[]);
    assert_eq!(bare.code, 1, "{bare:?}");
    assert!(bare.err.contains("kube-ipvs already serves in this network namespace"), "{bare:?}");
    assert_eq!(state(), before);
}
