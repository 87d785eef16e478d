//! The program, as it is started there, and what it asks of the API.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use config::{Action, Configuration};
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kernel::sysctl::ServiceAddressesArp;
use serde_json::Value;

use super::{BASE, chart, containers, daemon_set, parse, read, root};

/// Configuration that kubeadm writes into the ConfigMap `kube-proxy` for a cluster in IPVS mode
/// (the file `config.conf`; the values are those of Kubernetes 1.30).
pub(super) const KUBEADM: &str = include_str!("../kubeadm/config.conf");

/// Returns what the program makes of a command line whose `--config` is this file. Asserts that
/// nothing in the file is without effect.
pub(super) fn understood(command: &[String], file: &Path) -> Configuration {
    let shown = file.display();
    let words = command.iter().map(|word| match word.strip_prefix("--config=") {
        Some(_) => format!("--config={shown}"),
        // The kubelet puts the node's name there.
        None => word.replace("$(NODE_NAME)", "Node-1"),
    });
    let arguments = config::cli::parse(words.map(OsString::from))
        .unwrap_or_else(|answer| panic!("{shown}: {answer:?}"));
    let configuration =
        Configuration::load(&arguments).unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(configuration.notes.is_empty(), "{shown}: {:?}", configuration.notes);
    assert_eq!(&*configuration.settings.node_name, "node-1", "{shown}");
    configuration
}

#[test]
fn the_program_understands_what_it_is_started_with() {
    let daemon_set = daemon_set();
    let ports: Vec<u16> = containers(&daemon_set)[1]
        .ports
        .iter()
        .flatten()
        .map(|port| port.container_port.try_into().unwrap())
        .collect();
    let overlays = chart::overlays().into_iter().map(|name| format!("{}/{name}", chart::OVERLAYS));
    let folders: Vec<String> =
        overlays.chain([BASE, "vagrant/overlay"].map(str::to_owned)).collect();
    assert!(folders.len() >= 7, "{folders:?}");
    for folder in folders {
        let file = root().join(&folder).join("config.yaml");
        let of = |container: &Container| understood(container.command.as_ref().unwrap(), &file);
        let [prepares, runs] = &containers(&daemon_set)[..] else { panic!("two containers") };
        assert_eq!(of(prepares).action, Action::InitOnly);
        let configuration = of(runs);
        assert_eq!(configuration.action, Action::Run);
        // Where the DaemonSet has the ConfigMap, and which ports it declares and probes.
        let kubeconfig = Path::new("/etc/kube-ipvs/kubeconfig.yaml");
        assert_eq!(configuration.api_server.kubeconfig.as_deref(), Some(kubeconfig), "{folder}");
        let healthz = configuration.served.healthz.unwrap();
        assert!(healthz.ip().is_unspecified(), "{folder}: the kubelet asks the node's address");
        assert_eq!(ports, [healthz.port(), configuration.served.metrics.port()], "{folder}");
    }
}

#[test]
fn the_program_understands_what_kubeadm_starts_kube_proxy_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.conf");
    fs::write(&file, KUBEADM.replace("strictARP: false", "strictARP: true")).unwrap();
    let command = [
        "/usr/local/bin/kube-proxy",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=$(NODE_NAME)",
    ];
    let configuration = understood(&command.map(str::to_owned), &file);
    assert_eq!(configuration.action, Action::Run);
    assert_eq!(configuration.service_addresses_arp, ServiceAddressesArp::Strict);
    let kubeconfig = Path::new("/var/lib/kube-proxy/kubeconfig.conf");
    assert_eq!(configuration.api_server.kubeconfig.as_deref(), Some(kubeconfig));
}

#[test]
fn the_role_allows_what_the_program_asks_for() {
    let documents = parse::<Value>("deploy/kustomize/components/cluster-role/cluster-role.yaml");
    let role: ClusterRole = serde_json::from_value(documents[0].clone()).unwrap();
    let rules = role.rules.unwrap();
    let allows = |group: &str, resource: &str, verb: &str| {
        let has = |words: &Option<Vec<String>>, word| words.iter().flatten().any(|one| one == word);
        rules.iter().any(|rule| {
            has(&rule.api_groups, group)
                && has(&rule.resources, resource)
                && rule.verbs.iter().any(|one| one == verb)
        })
    };
    // Where the program follows objects, every path is in this file.
    let source = read("source/src/kubernetes/kind.rs");
    let paths: Vec<&str> = source.split('"').filter(|text| text.starts_with("/api")).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (group, resource) = match parts[..] {
            ["api", "v1", resource] => ("", resource),
            ["apis", group, _, resource] => (group, resource),
            _ => panic!("{path} is no path of a list"),
        };
        for verb in ["list", "watch"] {
            assert!(allows(group, resource, verb), "{verb} {path}");
        }
    }
    assert!(allows("events.k8s.io", "events", "create"));
    assert!(allows("networking.k8s.io", "servicecidrs", "list"), "serviceRoutes: auto asks");
}
