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

/// The rules of all groups.
fn rules() -> Vec<Value> {
    let rules: Value = parse(RULES).remove(0);
    let groups = rules.pointer("/spec/groups").and_then(Value::as_array).unwrap().iter();
    let rules = groups.flat_map(|group| group.get("rules").and_then(Value::as_array).unwrap());
    rules.cloned().collect()
}

/// Every series that a rule records.
fn recorded() -> BTreeSet<String> {
    let rules = rules();
    let names = rules.iter().filter_map(|rule| rule.get("record")?.as_str());
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    assert!(names.iter().all(|name| name.contains(':')), "{names:?}");
    names
}

/// Returns the words of a text that look like one of our metrics, or like a recorded series, which has
/// colons inside.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let words = words.map(|word| word.trim_end_matches(':'));
    let ours = ["kube_ipvs_", "kubeproxy_"];
    let is_ours = |word: &&str| {
        ours.iter().any(|prefix| word.rsplit(':').any(|part| part.starts_with(prefix)))
    };
    words.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn what_is_asked_for_is_served() {
    let mut known = series();
    known.extend(recorded());
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
    let page = read(PAGE);
    let mut alerts = 0;
    for rule in rules() {
        let Some(alert) = rule["alert"].as_str() else {
            let record = rule["record"].as_str().unwrap();
            assert!(page.contains(&format!("`{record}`")), "{PAGE} has no {record}");
            continue;
        };
        assert!(page.contains(&format!("| `{alert}` |")), "{PAGE} has no {alert}");
        assert!(rule["annotations"]["summary"].is_string(), "{alert}");
        assert!(!named(rule["expr"].as_str().unwrap()).is_empty(), "{alert}");
        alerts += 1;
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

/// Units of Grafana that the panels use.
const UNITS: [&str; 10] =
    ["short", "s", "percentunit", "ops", "reqps", "cps", "Bps", "pps", "bytes", "none"];

/// The names of variables in a query: `$name` and `${name}`.
fn variables(query: &str) -> BTreeSet<&str> {
    let named = query.split('$').skip(1).map(|rest| rest.trim_start_matches('{'));
    let end = |name: &str| name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    named.map(|name| name.split_at(end(name).unwrap_or(name.len())).0).collect()
}

#[test]
fn a_dashboard_is_what_grafana_takes() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let mut defined: BTreeSet<&str> =
        list.iter().map(|one| one["name"].as_str().unwrap()).collect();
    defined.extend(["__rate_interval", "__range"]);
    for query in list.iter().filter_map(|one| one["query"].as_str()) {
        assert!(variables(query).is_subset(&defined), "{query}");
    }
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
        for (x, y) in (0..place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
            assert!(taken.insert((place("x") + x, place("y") + y)), "{title} is over another one");
        }
        let kind = panel["type"].as_str().unwrap();
        if kind == "row" {
            assert_eq!(panel["panels"].as_array().map(Vec::len), Some(0), "{title}");
            continue;
        }
        assert!(["timeseries", "stat", "table"].contains(&kind), "{title}: {kind}");
        assert!(panel["description"].is_string(), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
        assert!(UNITS.contains(&unit), "{title}: {unit}");
        let targets = panel["targets"].as_array().unwrap();
        for (target, reference) in targets.iter().zip('A'..) {
            assert_eq!(target["refId"], reference.to_string(), "{title}");
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("instance=~\"$instance\""), "{title}: {query}");
            assert!(variables(query).is_subset(&defined), "{title}: {query}");
            assert_parses(query, title);
        }
        assert!(!targets.is_empty(), "{title}");
    }
}

/// Parses a query as Prometheus does, which also tells its types: `rate` of no range is an error.
#[track_caller]
fn assert_parses(query: &str, of: &str) {
    // Grafana puts a duration there; within texts its names stay.
    let query = query.replace("[$__rate_interval]", "[5m]").replace("[$__range]", "[3h]");
    if let Err(error) = promql_parser::parser::parse(&query) {
        panic!("{of}: {query}: {error}");
    }
}

#[test]
fn prometheus_takes_every_rule() {
    for rule in rules() {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
        assert_parses(rule["expr"].as_str().unwrap(), name);
    }
    for wrong in
        ["rate(kube_ipvs_operations_total)", "sum by (x (y)", "a{b=\"c}", "sum(a) b sum(c)"]
    {
        let parsed = promql_parser::parser::parse(wrong);
        assert!(parsed.is_err(), "{wrong}: {parsed:?}");
    }
}

#[test]
fn the_dashboard_shows_nodes_services_and_the_api_server() {
    let shown = named(&read(DASHBOARD));
    let series = series();
    let of = |prefix: &str| series.iter().filter(|name| name.starts_with(prefix)).count();
    assert!(of("kube_ipvs_service_") > 8 && of("kube_ipvs_api_") == 3, "{series:?}");
    let single = series
        .iter()
        .filter(|name| name.starts_with("kube_ipvs_service_") && !name.contains("health_check"));
    let wanted = single.chain(series.iter().filter(|name| name.starts_with("kube_ipvs_api_")));
    let missing: Vec<&String> = wanted
        .filter(|name| !name.contains("service_metrics_") && !shown.contains(*name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
