//! Values that the chart takes, and those that it refuses.

use config::reference::{FIELDS, OWN_FIELDS};
use config::setting::Setting;

use super::{HELM, helm, helm_with, run, understood, values_files};
use crate::{chart, read, root};

/// Wrong values, each with a word of the error.
const WRONG: [(&str, &str); 42] = [
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
    ("podMonitor: {enabled: true}", "metricsBindAddress"),
    ("podMonitor: {interval: often}", "interval"),
    ("podMonitor: {additionalLabels: {helm.sh/chart: a}}", "helm.sh/chart"),
    ("prometheusRule: {runbookUrl: 'https://wiki.example/#runbook'}", "runbookUrl"),
    ("serviceAccount: {create: false}", "serviceAccount.name is missing"),
    ("livenessProbe: {httpGet: {path: /healthz}}", "httpGet"),
    ("extraVolumes: [{name: config}]", "extraVolumes"),
    ("commonLabels: {app.kubernetes.io/name: other}", "app.kubernetes.io/name"),
    ("grafanaDashboard: {labels: {helm.sh/chart: a}}", "helm.sh/chart"),
    ("serviceAccount: {automount: 'no'}", "automount"),
    ("hostAliases: [{ip: 192.0.2.10}]", "hostnames"),
    ("dnsConfig: {search: [example]}", "search"),
    ("fullnameOverride: proxy", "fullnameOverride"),
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
            let found: Vec<&str> = answer.lines().filter(|line| line.starts_with('[')).collect();
            assert!(found.is_empty(), "{program}, {name}: {found:?}");
        }
    }
}

/// Pages of the documents, by path.
fn pages() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root().join("docs")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
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

/// Documents of both kinds in the YAML of a page, as values of the chart.
fn documents_in(page: &str) -> Vec<String> {
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut found = Vec::new();
    for text in blocks.flat_map(|block| block.split("---\n")) {
        for (kind, value) in [
            ("kind: KubeProxyConfiguration", "kubeProxyConfiguration"),
            ("kind: KubeIpvsConfiguration", "kubeIpvsConfiguration"),
        ] {
            if text.lines().any(|line| line == kind) {
                found.push(format!("{value}:\n  {}", text.replace('\n', "\n  ")));
            }
        }
    }
    found
}

#[test]
fn every_configuration_that_a_document_shows_is_a_value() {
    let shown: Vec<(String, String)> = pages()
        .into_iter()
        .flat_map(|(name, page)| documents_in(&page).into_iter().map(move |it| (name.clone(), it)))
        .collect();
    assert!(shown.len() > 3, "{shown:?}");
    for (name, values) in shown {
        helm("helm-4", &values).unwrap_or_else(|error| panic!("{name}: {values}: {error}"));
    }
}

/// Settings of a document that a page writes in backticks as `name: value`, as values of the chart.
fn settings_in(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let of = |fields: &[Setting], name: &str| -> Option<&'static str> {
        let ends = |path: &str| path == name || path.ends_with(&format!(".{name}"));
        let mut paths = fields.iter().map(|field| field.path).filter(|path| ends(path));
        paths.next().filter(|_| paths.next().is_none())
    };
    for (number, text) in page.split('`').enumerate() {
        let Some((name, value)) = text.split_once(": ").filter(|_| number % 2 == 1) else {
            continue;
        };
        for (document, fields) in
            [("kubeProxyConfiguration", &*FIELDS), ("kubeIpvsConfiguration", &*OWN_FIELDS)]
        {
            let is_word = !value.is_empty() && !value.contains(['\n', '…', '<']);
            if let Some(path) = of(fields, name).filter(|path| is_word && !path.contains("[]")) {
                let names: Vec<&str> = path.split('.').collect();
                let open: String = names.iter().map(|name| format!("{{{name}: ")).collect();
                found.push(format!("{document}: {open}{value}{}", "}".repeat(names.len())));
            }
        }
    }
    found
}

#[test]
fn every_setting_that_a_document_names_is_a_value() {
    let mut settings: Vec<String> =
        pages().iter().flat_map(|(_, page)| settings_in(page)).collect();
    settings.extend(words());
    settings.sort_unstable();
    settings.dedup();
    let has = |text: &str| settings.iter().any(|setting| setting.contains(text));
    for text in [
        "{serviceRoutes: auto}",
        "{estimators: {run: off}}",
        "{consolePage: off}",
        "{fastPath: auto}",
    ] {
        assert!(has(text), "{text}: {settings:#?}");
    }
    for values in &settings {
        helm("helm-4", values).unwrap_or_else(|error| panic!("{values}: {error}"));
    }
}

#[test]
fn a_word_that_yaml_takes_for_a_truth_value_is_understood() {
    for program in HELM {
        let values = "kubeIpvsConfiguration: {estimators: {run: off}, consolePage: off, serviceMetrics: off}";
        let objects = helm(program, values).unwrap();
        let estimators = understood(&objects)[0].to_yaml().unwrap();
        assert!(
            estimators.contains("run: \"off\"") || estimators.contains("run: off"),
            "{estimators}"
        );
    }
}

/// Every word that a setting may have, as YAML has it without quotes.
fn words() -> Vec<String> {
    let mut found = Vec::new();
    for (document, fields) in
        [("kubeProxyConfiguration", &*FIELDS), ("kubeIpvsConfiguration", &*OWN_FIELDS)]
    {
        for field in fields.iter().filter(|field| !field.path.contains("[]")) {
            let names: Vec<&str> = field.path.split('.').collect();
            let open: String = names.iter().map(|name| format!("{{{name}: ")).collect();
            let close = "}".repeat(names.len());
            found.extend(
                field.words.iter().map(|(word, _)| format!("{document}: {open}{word}{close}")),
            );
        }
    }
    found.push("kubeIpvsConfiguration: {serviceRoutes: auto}".to_owned());
    found.push("kubeIpvsConfiguration: {serviceRoutes: [auto, 10.96.0.0/12]}".to_owned());
    found.push("kubeIpvsConfiguration: {serviceMetrics: off}".to_owned());
    found.push("kubeIpvsConfiguration: {serviceMetrics: 'top:20'}".to_owned());
    found
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
