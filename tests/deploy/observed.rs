//! Rules, the dashboard and the runbook name metrics that there are.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::parser::{AggregateExpr, Expr, VectorSelector};
use promql_parser::util::visitor::{ExprVisitor, walk_expr};
use serde_json::Value;

use crate::{parse, read};

pub(super) const RULES: &str = "deploy/kustomize/components/prometheus/rules.yaml";
pub(super) const DASHBOARD: &str = "deploy/grafana/kube-ipvs.json";
const PAGE: &str = "docs/runbook.md";

/// Every series that is served at `/metrics`, by `docs/metrics.md`, with its labels.
fn labelled_series() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut known = BTreeMap::new();
    for row in rows {
        let (name, rest) = row.split_once("` | ").unwrap();
        let labels = rest.split(" | ").nth(1).unwrap_or_default();
        let mut labels: BTreeSet<String> =
            labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if rest.starts_with("histogram") {
            let others =
                ["_sum", "_count"].map(|suffix| (format!("{name}{suffix}"), labels.clone()));
            known.extend(others);
            labels.insert("le".to_owned());
            known.insert(format!("{name}_bucket"), labels);
        } else {
            known.insert(name.to_owned(), labels);
        }
    }
    known
}

/// Every series that is served at `/metrics`.
fn series() -> BTreeSet<String> {
    labelled_series().into_keys().collect()
}

/// Series that others serve, with the labels that rules use of them: Prometheus itself, and kube-state-metrics
/// (docs/metrics/workload/daemonset-metrics.md there).
const OF_OTHERS: [(&str, &[&str]); 3] = [
    ("up", &[]),
    ("kube_daemonset_status_desired_number_scheduled", &["namespace", "daemonset"]),
    ("kube_daemonset_status_number_ready", &["namespace", "daemonset"]),
];

/// Labels that a scraper gives every series.
const OF_TARGETS: [&str; 2] = ["job", "instance"];

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

/// Series and labels in an expression.
#[derive(Default)]
struct Used {
    series: Vec<(String, Vec<String>)>,
    grouped: Vec<String>,
}

impl Used {
    fn in_query(query: &str) -> Self {
        let mut used = Self::default();
        walk_expr(&mut used, &promql_parser::parser::parse(query).unwrap()).unwrap();
        used
    }

    fn select(&mut self, selector: &VectorSelector) {
        let labels = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
        self.series.push((selector.name.clone().unwrap(), labels.collect()));
    }
}

impl ExprVisitor for Used {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Self::Error> {
        match expr {
            Expr::VectorSelector(selector) => self.select(selector),
            Expr::MatrixSelector(matrix) => self.select(&matrix.vs),
            Expr::Aggregate(AggregateExpr { modifier: Some(modifier), .. }) => {
                self.grouped.extend(modifier.labels().labels.iter().cloned());
            }
            _ => {}
        }
        Ok(true)
    }
}

#[test]
fn series_and_labels_of_rules_are_there() {
    let mut known = labelled_series();
    known.extend(OF_OTHERS.map(|(name, labels)| {
        (name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())
    }));
    known.extend(recorded().into_iter().map(|name| (name, BTreeSet::new())));
    for rule in rules() {
        let query = rule["expr"].as_str().unwrap();
        let used = Used::in_query(query);
        assert!(!used.series.is_empty(), "{query}");
        let mut possible: BTreeSet<&str> = OF_TARGETS.into();
        for (name, labels) in &used.series {
            let of_series = known.get(name).unwrap_or_else(|| panic!("{query}: no series {name}"));
            possible.extend(of_series.iter().map(String::as_str));
            for label in labels {
                let is_there = of_series.contains(label) || OF_TARGETS.contains(&label.as_str());
                assert!(is_there, "{query}: {name} has no label {label}");
            }
        }
        // What is grouped by, and what texts name.
        let texts = rule["annotations"].to_string();
        let in_texts = texts.split("$labels.").skip(1).map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap()
        });
        for label in used.grouped.iter().map(String::as_str).chain(in_texts) {
            assert!(possible.contains(label), "{query}: no label {label}");
        }
    }
}

/// The addresses to which alerts lead.
pub(super) fn runbook_urls() -> Vec<String> {
    let rules = rules();
    let urls =
        rules.iter().filter_map(|rule| rule.get("annotations")?.get("runbook_url")?.as_str());
    urls.map(str::to_owned).collect()
}

#[test]
fn every_alert_has_what_an_operator_needs_and_a_place_in_the_runbook() {
    let page = read(PAGE);
    let mut bases = BTreeSet::new();
    for rule in rules() {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{alert}: {severity}");
        for text in ["summary", "description"] {
            assert!(
                rule["annotations"][text].as_str().is_some_and(|text| text.len() > 20),
                "{alert}"
            );
        }
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        let (base, anchor) = url.split_once('#').unwrap();
        bases.insert(base.to_owned());
        assert_eq!(anchor, alert.to_lowercase());
        // Its severity in the table, and its section, which begins with commands.
        assert!(page.contains(&format!("| [`{alert}`](#{anchor}) | {severity} |")), "{alert}");
        let (_, section) = page
            .split_once(&format!("\n### {alert}\n\n"))
            .unwrap_or_else(|| panic!("{PAGE} has no section {alert}"));
        assert!(section.starts_with("```sh\n"), "{alert}: commands come first");
    }
    assert_eq!(bases.len(), 1, "{bases:?}");
    let sections = page.lines().filter(|line| line.starts_with("### Kube")).count();
    let rows = page.lines().filter(|line| line.starts_with("| [`Kube")).count();
    assert_eq!((sections, rows), (runbook_urls().len(), runbook_urls().len()));
}

#[test]
fn commands_of_the_runbook_are_there() {
    let overview = console::commands::overview();
    let commands: BTreeSet<&str> =
        overview.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let page = read(PAGE);
    let used = page.split(" -- kube-ipvs ").skip(1);
    let used: BTreeSet<&str> = used
        .map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap())
        .collect();
    assert!(used.contains("status") && used.contains("support-bundle"), "{used:?}");
    assert!(used.is_subset(&commands), "{used:?}: {overview}");
}

#[test]
fn every_recorded_series_is_explained() {
    let page = read(PAGE);
    for record in recorded() {
        assert!(page.contains(&format!("`{record}`")), "{PAGE} has no {record}");
    }
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
