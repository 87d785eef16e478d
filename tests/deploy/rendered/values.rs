//! Values that the chart takes, and those that it refuses.

use super::{HELM, helm, helm_with, run, values_files};
use crate::{chart, read};

/// Wrong values, each with a word of the error.
const WRONG: [(&str, &str); 30] = [
    ("nodeSelectr: {}", "nodeSelectr"),
    ("image: {repo: a}", "repo"),
    ("image: {repository: 'registry.example/kube-ipvs:0.1.0'}", "repository"),
    ("image: {digest: 'sha256:12'}", "digest"),
    ("image: {pullPolicy: Sometimes}", "pullPolicy"),
    ("imagePullSecrets: [registry]", "imagePullSecrets"),
    ("apiServer: 192.0.2.10:6443", "apiServer"),
    ("apiServer: https://kubernetes.default.svc", "apiServer"),
    ("apiServer: ''", "apiServer is missing"),
    ("image: {repository: ''}", "image.repository is missing"),
    ("kubeconfig: 'kind: Config'", "leave apiServer out"),
    ("kubeProxyConfiguration: {schedular: lc}", "schedular"),
    ("kubeProxyConfiguration: {ipvs: {schedular: lc}}", "schedular"),
    ("kubeProxyConfiguration: {ipvs: {syncPeriod: 30}}", "syncPeriod"),
    ("kubeProxyConfiguration: {ipvs: {syncPeriod: 30 seconds}}", "syncPeriod"),
    ("kubeProxyConfiguration: {iptables: {masqueradeBit: 32}}", "masqueradeBit"),
    ("kubeProxyConfiguration: {nodePortAddresses: primary}", "nodePortAddresses"),
    ("kubeProxyConfiguration: {healthzBindAddress: '127.0.0.1:10256'}", "healthzBindAddress"),
    ("kubeIpvsConfiguration: {scheduler: rr}", "scheduler"),
    ("kubeIpvsConfiguration: {localhostNodePorts: 'yes'}", "localhostNodePorts"),
    ("extraArgs: '--v=2'", "extraArgs"),
    ("extraArgs: [--config=/other]", "extraArgs"),
    ("extraEnv: [{name: NODE_NAME, value: a}]", "extraEnv"),
    ("byLabel: 'true'", "byLabel"),
    ("tolerations: [{key: a, operator: Is}]", "tolerations"),
    ("updateStrategy: {type: Recreate}", "updateStrategy"),
    ("updateStrategy: {rollingUpdate: {maxUnavailable: 0}}", "maxUnavailable"),
    ("resources: {requests: {cpu: [1]}}", "cpu"),
    ("podLabels: {app.kubernetes.io/name: other}", "app.kubernetes.io/name"),
    ("prometheus: {podMonitor: true}", "metricsBindAddress"),
];

#[test]
fn wrong_values_are_refused() {
    for program in HELM {
        helm(program, "{}").unwrap();
        for (values, word) in WRONG {
            let error = helm(program, values).expect_err(values);
            assert!(error.contains(word), "{program}: {values}: {error}");
        }
    }
}

#[test]
fn helm_finds_nothing_wrong() {
    for program in HELM {
        for (name, file) in values_files() {
            let file = file.to_str().unwrap();
            let answer = run(program, &["lint", "--strict", chart::CHART, "--values", file]);
            let answer = answer.unwrap_or_else(|error| panic!("{program}, {name}: {error}"));
            let found: Vec<&str> = answer
                .lines()
                .filter(|line| line.starts_with('['))
                .filter(|line| !line.contains("icon is recommended"))
                .collect();
            assert!(found.is_empty(), "{program}, {name}: {found:?}");
        }
    }
}

#[test]
fn examples_on_the_page_are_taken() {
    let page = read("docs/install-with-helm.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 2, "{blocks:?}");
    for values in blocks {
        for program in HELM {
            helm(program, values).unwrap_or_else(|error| panic!("{program}: {values}: {error}"));
        }
    }
}

#[test]
fn the_notes_warn_of_pods_networks_that_are_missing() {
    let notes = |file: &str| {
        let arguments =
            ["install", "kube-ipvs", chart::CHART, "--dry-run=client", "--values", file];
        let answer = run("helm-4", &arguments).unwrap();
        answer.split_once("NOTES:").unwrap().1.to_owned()
    };
    let folder = tempfile::tempdir().unwrap();
    let least = folder.path().join("values.yaml");
    std::fs::write(&least, super::LEAST).unwrap();
    assert!(notes(least.to_str().unwrap()).contains("clusterCIDR is empty"));
    for (name, file) in values_files() {
        helm_with("helm-4", std::slice::from_ref(&file)).unwrap();
        let notes = notes(file.to_str().unwrap());
        assert!(notes.contains("rollout status daemonset/kube-ipvs"), "{name}: {notes}");
        assert!(!notes.contains("WARNING"), "{name}: {notes}");
    }
}
