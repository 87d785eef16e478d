//! Alerts fire when they should, by Prometheus' own test program, and what they say.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::{helm, only, run};
use crate::read;

/// Cases of `promtool test rules`.
const CASES: &str = "tests/deploy/alerts.yaml";

/// The alert about kube-proxy in kubernetes-mixin (alerts/kube_proxy.libsonnet), which a migrated cluster must not raise.
fn kube_proxy_down() -> Value {
    json!({"name": "kubernetes-mixin", "rules": [{
        "alert": "KubeProxyDown",
        "expr": "absent(up{job=\"kube-proxy\"} == 1)",
        "for": "15m",
        "labels": {"severity": "critical"},
        "annotations": {"summary": "Target disappeared from Prometheus target discovery."},
    }]})
}

/// The rules that the chart renders, with nothing but their summaries.
fn rules() -> Value {
    let objects = helm("helm-4", "prometheusRule: {enabled: true}").unwrap();
    let mut rules = only(&objects, "PrometheusRule")["spec"].clone();
    let groups = rules["groups"].as_array_mut().unwrap();
    for rule in groups.iter_mut().flat_map(|group| group["rules"].as_array_mut().unwrap()) {
        if let Some(annotations) = rule["annotations"].as_object_mut() {
            annotations.retain(|name, _| name == "summary");
        }
    }
    groups.push(kube_proxy_down());
    rules
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    write("rules.yaml", rules().to_string());
    let cases = read(CASES);
    run("promtool", &["test", "rules", &write("cases.yaml", cases.clone())]).unwrap();
    // The program does find what is wrong.
    let wrong = cases.replace("5x5 9x5 60x10", "5x5 9x5 9x10");
    assert_ne!(wrong, cases);
    let error = run("promtool", &["test", "rules", &write("cases.yaml", wrong)]).unwrap_err();
    assert!(error.contains("KubeIpvsProgrammingDelayed"), "{error}");
}

#[test]
fn every_alert_is_seen_to_fire_and_not_to_fire() {
    let cases: Value = serde_saphyr::from_str(&read(CASES)).unwrap();
    let mut seen = BTreeMap::<String, [usize; 2]>::new();
    for case in cases["tests"].as_array().unwrap() {
        for tested in case["alert_rule_test"].as_array().unwrap() {
            let fires = !tested["exp_alerts"].as_array().unwrap().is_empty();
            let name = tested["alertname"].as_str().unwrap().to_owned();
            seen.entry(name).or_default()[usize::from(fires)] += 1;
        }
    }
    let rules = rules();
    let groups = rules["groups"].as_array().unwrap();
    let all = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: Vec<&str> = all.filter_map(|rule| rule["alert"].as_str()).collect();
    for alert in &alerts {
        let found = seen.get(*alert).copied().unwrap_or_default();
        assert!(found.iter().all(|count| *count > 0), "{alert}: {found:?}");
    }
    assert_eq!(seen.len(), alerts.len(), "{seen:?}");
}
