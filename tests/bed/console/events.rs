//! `kube-ipvs events`, through a switch of the mode.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use bed::{Protocol, Service};

use super::run;
use crate::fixture::{Bed, TARGET, ip, web};
use crate::tenures::{switch, wait_for_mode};

#[test]
fn following_goes_on_through_a_switch_and_a_service_has_what_was_written_for_it() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let configuration = bed.configuration("events", "drainDeadline: 10m");
    let proxy = bed.start(&["--config", &configuration]);
    let path = std::env::temp_dir().join("followed");
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let mut command = Command::new(program);
    let file = File::create(&path).unwrap();
    command.args(["events", "--follow"]).stdout(file.try_clone().unwrap()).stderr(file);
    let following = bed.node().spawn(command).unwrap();
    let said = |text: &str| fs::read_to_string(&path).unwrap().contains(text);
    bed.wait_until("it follows", || said("serves in IPVS mode"));

    switch(&bed, &["--to=iptables", "--no-wait"]).unwrap();
    wait_for_mode(&bed, &proxy, "iptables");
    bed.wait_until("it goes on", || {
        said("now serves in iptables mode: requested by kube-ipvs switch")
    });
    let later = Service::new("later", ip("10.96.0.70")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&later.pods([bed.pod(1, 1)])).unwrap();
    bed.wait_until("the change is followed", || said("default/later"));
    drop(following);

    // What was before the switch is there as well.
    let all = run(&bed, &["events", "--limit", "5000", "-o", "json"]).json();
    let texts: Vec<&str> =
        all["events"].as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect();
    assert!(
        texts
            .iter()
            .any(|text| text.contains("add virtual server")
                || text.contains("create virtual server")),
        "{texts:?}"
    );
    let of_service = run(&bed, &["events", "--service", "web", "-o", "json"]).json();
    let of_service = of_service["events"].as_array().unwrap();
    let kinds: Vec<&str> = of_service.iter().map(|it| it["what"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"change") && kinds.contains(&"write"), "{of_service:?}");
    proxy.stop().unwrap();
}

#[test]
fn errors_of_the_configuration_are_among_the_last_errors() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let path = bed.configuration("errors", "drainDeadline: 10m");
    let proxy = bed.start(&["--config", &path]);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("mode: ipvs", "mode: nftables")).unwrap();
    proxy.wait_for_log("has changed and is not valid", Duration::from_secs(60)).unwrap();
    let said = run(&bed, &["status"]).out;
    assert!(said.contains("is not valid"), "{said}");
    let answer = run(&bed, &["status", "-o", "json"]).json();
    let errors = answer["errors"].as_array().unwrap();
    let is_it = |it: &serde_json::Value| it["what"] == "configuration" && it["isError"] == true;
    assert!(errors.iter().any(is_it), "{errors:?}");
    proxy.stop().unwrap();
}
