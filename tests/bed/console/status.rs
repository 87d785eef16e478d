//! `kube-ipvs status` and `kube-ipvs events`.

use bed::{Protocol, Service, eventually};

use super::run;
use crate::fixture::{Bed, PATIENCE, TARGET, ip};

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
    assert_eq!(answer["kernel"]["driftRepaired"], 0);
    bed.tool("ipvsadm", &["-C"]);
    let repaired = eventually(PATIENCE, "drift is repaired and told", || {
        let text = run(&bed, &["status"]).out;
        anyhow::ensure!(text.contains("repaired what other programs had changed"), "{text}");
        Ok(())
    });
    repaired.unwrap();
    let events = run(&bed, &["events"]);
    assert!(events.out.contains("another program changed the kernel"), "{events:?}");
    assert!(events.out.contains("Service default/web"), "{events:?}");
    // Nothing decorated in a pipe.
    assert!(!events.out.contains('\u{1b}'), "{events:?}");
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
