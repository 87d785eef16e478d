//! The page of all metrics.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use plan::mode::Mode;
use plan::model::{Family, ServiceName};
use prometheus::proto::{MetricFamily, MetricType};

use crate::app::counters::PacketCounters;
use crate::app::localhost::LocalhostMetrics;
use crate::app::relay::RelayMetrics;
use kernel::CurrentConnections;
use kernel::TrafficCounters;
use serve::metrics::Metrics;
use serve::metrics::ServedMode;
use serve::metrics::services::{ServiceReading, ServiceTraffic};
use source::kubernetes::ClientMetrics;

/// The page of all metrics, from what the registries say of themselves.
fn page(metrics: &Metrics) -> String {
    metrics.healthz_answered();
    let (configured, effective) = ("ipvs".to_owned(), Mode::Ipvs);
    metrics.own.set_mode(&ServedMode { configured, effective });
    metrics.add_features([("AllowServiceExternalIPs", "", true)].into_iter()).unwrap();
    metrics.add(ClientMetrics::new("192.0.2.1").unwrap()).unwrap();
    LocalhostMetrics::new().unwrap().add_to(metrics).unwrap();
    let mut page = String::from(
        "# Metrics\n\n\
         All metrics, by the path at which they are read. `cargo xtask docs` writes this page from the help\n\
         texts.\n\n\
         Names that begin with `kubeproxy_` have kube-proxy's meaning, labels and buckets; those \
         that begin\nwith `kube_ipvs_` are this program's own, and those of `rest_client_` client-go's. \
         All of them are there from\nthe start, at zero. The checks at `/metrics/slis` appear after \
         the first request to `/healthz` of the\nsame server.\n",
    );
    for (path, families) in
        [("/metrics", metrics.gather()), ("/metrics/slis", metrics.gather_slis())]
    {
        page += &table(path, families);
    }
    page += &of_services();
    page += &of_mode_iptables(metrics);
    page += &of_mode_userspace();
    page += NOT_HERE;
    page
}

/// Returns the section of those that there are with `serviceMetrics`.
fn of_services() -> String {
    let metrics = Metrics::new(Mode::Ipvs, &Family::BOTH).unwrap();
    let others: HashSet<String> =
        metrics.gather().iter().map(|family| family.name().to_owned()).collect();
    let service = ServiceName::new("default", "web");
    let (counted, current) = (TrafficCounters::default(), CurrentConnections::default());
    metrics.add_services().unwrap().set(ServiceReading {
        services: vec![ServiceTraffic { service, counted, current }],
        n_omitted: 0,
        statistics_running: true,
        took: Duration::ZERO,
        at: UNIX_EPOCH,
    });
    let mut families = metrics.gather();
    families.retain(|family| !others.contains(family.name()));
    let text = "In IPVS mode, kube-ipvs has these metrics if `serviceMetrics` is not `off` (`docs/config.md`). It reads \
                them from IPVS\nevery 15 seconds, or less often if that would take more than 2 % of a CPU, and never \
                delays a change for it. A Service\ncounts from the start of kube-ipvs on, with all of its frontends: \
                cluster IPs, NodePorts, external IPs and load balancer\nIPs. It has series as long as it has an \
                endpoint.\n\n\
                The counters do not advance while IPVS statistics are off (`docs/sizing.md`); \
                `kube_ipvs_statistics_running` is\nthen 0. `top:N` then shows the Services that come first by \
                name. Connections are counted in either case.\n";
    let heading = "/metrics with serviceMetrics";
    table(heading, families).replacen("\n\n", &format!("\n\n{text}\n"), 1)
}

/// Returns the section of those that there are in mode iptables only.
fn of_mode_iptables(of_ipvs: &Metrics) -> String {
    let known: HashSet<String> =
        of_ipvs.gather().iter().map(|family| family.name().to_owned()).collect();
    let metrics = Metrics::new(Mode::Iptables, &Family::BOTH).unwrap();
    let mut families = metrics.gather();
    families.retain(|family| !known.contains(family.name()));
    families.extend(PacketCounters::new().unwrap().all());
    let text = "In iptables mode, kube-ipvs also has these metrics. The two of `kubeproxy_iptables_*` are kernel counters \
                (nfacct),\nand missing if the kernel does not support them.\n";
    table("/metrics in iptables mode", families).replacen("\n\n", &format!("\n\n{text}\n"), 1)
}

/// Returns the section of those that there are once mode userspace has been served in.
fn of_mode_userspace() -> String {
    let metrics = Metrics::new(Mode::Userspace, &Family::BOTH).unwrap();
    let others: HashSet<String> =
        metrics.gather().iter().map(|family| family.name().to_owned()).collect();
    let relay = RelayMetrics::new().unwrap();
    relay.add_to(&metrics).unwrap();
    let mut families = metrics.gather();
    families.retain(|family| !others.contains(family.name()));
    let text = "In userspace mode, and after it until the process exits, kube-ipvs also has these metrics.\n";
    table("/metrics in userspace mode", families).replacen("\n\n", &format!("\n\n{text}\n"), 1)
}

fn table(heading: &str, families: Vec<MetricFamily>) -> String {
    let mut page = format!(
        "\n## {heading}\n\n| Name | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n"
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
        let (name, labels) = (family.name(), labels.join(", "));
        // Markdown would take it for a tag, and show nothing.
        let help = family.help().replace('<', "\\<");
        let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
    }
    page
}

/// Metrics of kube-proxy 1.36 in its mode ipvs that this program does not have.
const NOT_HERE: &str = "
## Metrics of kube-proxy that kube-ipvs lacks

kube-proxy 1.36 also has these:

| Names | Why not |
| --- | --- |
| `go_*`, `process_network_*_bytes_total`, `process_virtual_memory_max_bytes` | Go's runtime and its library for metrics; `process_threads` and `process_resident_memory_bytes` say what a panel of `go_goroutines` and `go_memstats_*` is for |
| `rest_client_rate_limiter_duration_seconds`, `rest_client_request_size_bytes`, `rest_client_response_size_bytes`, `rest_client_request_retries_total`, `rest_client_transport_*`, `rest_client_exec_plugin_*`, `rest_client_dns_resolution_duration_seconds` | parts of client-go that have no counterpart here, or that no dashboard was seen to chart |
| `registered_metrics_total`, `hidden_metrics_total`, `disabled_metrics_total`, `cardinality_enforcement_unexpected_categorizations_total` | of Kubernetes' framework for metrics |
| `apiserver_*`, `aggregator_*`, `workqueue_*` | of libraries for API servers and controllers that kube-proxy is linked with; they stay at zero there |

kube-proxy 1.37 has these of its nftables mode, for NodePorts on localhost (`nodePortAddresses` with `localhost`):

| kube-proxy | kube-ipvs |
| --- | --- |
| `kubeproxy_nftables_localhost_nodeport_listeners` | no count of listeners; `kube_ipvs_localhost_connections` has the connections |
| `kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total` | `kube_ipvs_localhost_listen_failures`: a gauge of those that fail now |
| `kubeproxy_nftables_localhost_nodeport_rejected_packets_total` | none: nothing listens for UDP and SCTP on localhost, and the kernel refuses |
";

/// `cargo xtask docs` writes it anew.
#[test]
fn the_page_of_metrics_is_what_is_measured() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = page(&Metrics::new(Mode::Ipvs, &Family::BOTH).unwrap());
    if std::env::var_os("KUBE_IPVS_WRITE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        page,
        "docs/metrics.md is stale: cargo xtask docs"
    );
}
