//! Rules, the dashboard and the page about alerts name metrics that there are.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{parse, read};

const RULES: &str = "deploy/kustomize/components/prometheus/rules.yaml";
const DASHBOARD: &str = "deploy/grafana/kube-ipvs.json";
const PAGE: &str = "docs/alerts.md";

/// Every series that is served at `/metrics`, by `docs/metrics.md`.
fn series() -> BTreeSet<String> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut known = BTreeSet::new();
    for row in rows {
        let (name, rest) = row.split_once("` | ").unwrap();
        if rest.starts_with("histogram") {
            known.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        } else {
            known.insert(name.to_owned());
        }
    }
    known
}

/// Returns the words of a text that look like one of our metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("kube_ipvs_") || word.starts_with("kubeproxy_");
    words.filter(ours).map(str::to_owned).collect()
}

#[test]
fn what_is_asked_for_is_served() {
    let known = series();
    assert!(known.contains("kube_ipvs_plan_duration_seconds_bucket"), "{known:?}");
    for file in [RULES, DASHBOARD, PAGE] {
        let named = named(&read(file));
        assert!(named.len() > 2, "{file}: {named:?}");
        let unknown: Vec<&String> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn every_alert_is_explained() {
    let rules: Value = parse(RULES).remove(0);
    let page = read(PAGE);
    let mut alerts = 0;
    for group in rules["spec"]["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let alert = rule["alert"].as_str().unwrap();
            assert!(page.contains(&format!("| `{alert}` |")), "{PAGE} has no {alert}");
            assert!(rule["annotations"]["summary"].is_string(), "{alert}");
            assert!(!named(rule["expr"].as_str().unwrap()).is_empty(), "{alert}");
            alerts += 1;
        }
    }
    assert_eq!(alerts, page.lines().filter(|line| line.starts_with("| `Kube")).count());
}

#[test]
fn no_two_panels_of_the_dashboard_are_the_same() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let titles: BTreeSet<&str> = panels.iter().map(|one| one["title"].as_str().unwrap()).collect();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!((titles.len(), ids.len()), (panels.len(), panels.len()));
}
