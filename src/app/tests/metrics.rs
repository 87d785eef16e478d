//! The page of all metrics.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plan::model::Family;
use prometheus::proto::MetricType;

use crate::serve::metrics::Metrics;
use crate::source::kubernetes::ClientMetrics;

/// The page of all metrics, from what the registries say of themselves.
fn page(metrics: &Metrics) -> String {
    metrics.healthz_answered();
    metrics.add_features([("AllowServiceExternalIPs", "", true)].into_iter()).unwrap();
    metrics.add(ClientMetrics::new("192.0.2.1").unwrap()).unwrap();
    let mut page = String::from(
        "# Metrics\n\n\
         All that is measured, by the path at which it is read. This page is written by a test in\n\
         `src/app/tests/metrics.rs`, which says how.\n\n\
         Names that begin with `kubeproxy_` have kube-proxy's meaning, labels and buckets; those \
         that begin\nwith `kube_ipvs_` are this program's own, and those of `rest_client_` client-go's. Those are there from the start, at \
         zero; the checks at\n`/metrics/slis` are once the same server's `/healthz` was asked \
         for.\n",
    );
    for (path, families) in
        [("/metrics", metrics.gather()), ("/metrics/slis", metrics.gather_slis())]
    {
        let _ = write!(
            page,
            "\n## {path}\n\n| Name | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n"
        );
        for family in families {
            let kind = match family.get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::GAUGE => "gauge",
                MetricType::HISTOGRAM => "histogram",
                other => panic!("{}: {other:?}", family.name()),
            };
            let labels: Vec<String> = family.get_metric()[0]
                .get_label()
                .iter()
                .map(|label| format!("`{}`", label.name()))
                .collect();
            let (name, labels, help) = (family.name(), labels.join(", "), family.help());
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
        }
    }
    page
}

/// `WRITE_PAGES=1 cargo test -p kube-ipvs --lib the_page_of_metrics` writes it anew.
#[test]
fn the_page_of_metrics_is_what_is_measured() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = page(&Metrics::new(&Family::BOTH).unwrap());
    if std::env::var_os("WRITE_PAGES").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), page, "see how to write it anew above");
}
