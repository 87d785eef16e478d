use std::collections::HashSet;
use std::time::Duration;

use plan::op::{Op, PartKind};
use plan::rule_set::Table;

use super::*;
use crate::metrics::ServedMode;
use kernel::KernelRead;
use kernel::RefusalClass;
use kernel::Stopwatch as _;
use reconcile::observer::{RoundKind, RuleCount};

fn both() -> Metrics {
    Metrics::new(Mode::Ipvs, &Family::BOTH).unwrap()
}

fn assert_says(metrics: &Metrics, lines: &[&str]) {
    let text = metrics.text().unwrap();
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_metric_of_kube_proxys_ipvs_mode_is_there_from_the_start() {
    let metrics = both();
    let families = metrics.gather();
    let found: Vec<&str> =
        families.iter().filter_map(|family| family.name().strip_prefix("kubeproxy_")).collect();
    assert_eq!(
        found,
        [
            "conntrack_reconciler_deleted_entries_total",
            "conntrack_reconciler_sync_duration_seconds",
            "network_programming_duration_seconds",
            "proxy_healthz_total",
            "proxy_livez_total",
            "sync_proxy_rules_duration_seconds",
            "sync_proxy_rules_endpoint_changes_pending",
            "sync_proxy_rules_endpoint_changes_total",
            "sync_proxy_rules_iptables_restore_failures_total",
            "sync_proxy_rules_last_queued_timestamp_seconds",
            "sync_proxy_rules_last_timestamp_seconds",
            "sync_proxy_rules_no_local_endpoints_total",
            "sync_proxy_rules_service_changes_pending",
            "sync_proxy_rules_service_changes_total",
        ]
    );
    let only = Metrics::new(Mode::Ipvs, &[Family::V6]).unwrap().text().unwrap();
    assert!(
        only.contains(r#"ip_family="IPv6""#) && !only.contains(r#"ip_family="IPv4""#),
        "{only}"
    );
    for family in ["IPv4", "IPv6"] {
        assert!(
            only.contains(&format!("kube_ipvs_family_served{{family=\"{family}\"}} 0")),
            "{only}"
        );
    }
}

#[test]
fn the_metrics_of_mode_iptables_are_there_in_that_mode_only() {
    let metrics = Metrics::new(Mode::Iptables, &Family::BOTH).unwrap();
    let ipvs: HashSet<String> = both().gather().iter().map(|f| f.name().to_owned()).collect();
    let families = metrics.gather();
    let added: Vec<&str> =
        families.iter().map(|family| family.name()).filter(|name| !ipvs.contains(*name)).collect();
    assert_eq!(
        added,
        [
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_iptables_last",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "kubeproxy_sync_proxy_rules_iptables_total",
        ]
    );
    let own = metrics.iptables.as_ref().unwrap();
    let millisecond = Duration::from_millis(1);
    own.round_took(Family::V4, RoundKind::Comparison, millisecond);
    own.round_took(Family::V6, RoundKind::Changes, millisecond);
    own.round_took(Family::V6, RoundKind::Retry, millisecond);
    own.partial_restore_failed(Family::V6);
    let (family, table) = (Family::V4, Table::Nat);
    own.set_rules(&RuleCount { family, table, total: 12, written: 3 });
    assert_says(
        &metrics,
        &[
            r#"kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.001"#,
            r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 0"#,
            r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1"#,
            r#"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 1"#,
            r#"kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 12"#,
            r#"kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"} 3"#,
            r#"kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv6",table="filter"} 0"#,
        ],
    );
}

#[test]
fn the_mode_is_in_labels() {
    let metrics = Metrics::new(Mode::Iptables, &Family::BOTH).unwrap();
    let (configured, effective) = ("auto".to_owned(), Mode::Iptables);
    metrics.own.set_mode(&ServedMode { configured, effective });
    assert_says(&metrics, &[r#"kube_ipvs_mode{configured="auto",effective="iptables"} 1"#]);
}

#[test]
fn buckets_are_kube_proxys() {
    let metrics = both();
    let families = metrics.gather();
    let buckets = |name: &str| -> Vec<f64> {
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let histogram = family.get_metric()[0].get_histogram();
        histogram.get_bucket().iter().map(|bucket| bucket.upper_bound()).collect()
    };
    let programming = buckets("kubeproxy_network_programming_duration_seconds");
    assert_eq!(programming.len(), 2 + 59 + 12 + 7);
    assert_eq!(programming[..4], [0.25, 0.5, 1.0, 2.0]);
    assert_eq!(programming[60..64], [59.0, 60.0, 65.0, 70.0]);
    assert_eq!(programming[71..], [110.0, 115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    let sync = buckets("kubeproxy_sync_proxy_rules_duration_seconds");
    assert_eq!((sync.len(), sync[0], sync[14]), (15, 0.001, 16.384));
    assert_eq!(sync, buckets("kubeproxy_conntrack_reconciler_sync_duration_seconds"));
}

#[test]
fn each_report_is_counted() {
    let metrics = both();
    let time = UNIX_EPOCH + Duration::from_millis(1_500);
    metrics.proxy.service_changed();
    metrics.proxy.queued(time);
    metrics.proxy.round_took(Family::V6, Duration::from_millis(3));
    metrics.proxy.synced(Family::V6, time);
    metrics.proxy.programmed(Family::V4, UNIX_EPOCH, time);
    metrics.proxy.programmed(Family::V4, time + Duration::from_secs(5), time);
    metrics.proxy.restore_failed(Family::V4);
    metrics.proxy.flows_reconciled(Family::V4, Duration::from_millis(1), 3);
    metrics.own.answered(&Op::CreateLink, None);
    metrics.own.answered(&Op::CreateLink, Some(RefusalClass::NotPermitted));
    metrics.own.drifted(&Op::WriteRuleSet(Family::V4));
    let pending = [(RefusalClass::Other, 2), (RefusalClass::NoScheduler, 1)];
    metrics.own.set_pending(pending.into_iter());
    metrics.own.stages.wrote(PartKind::VirtualServers, Duration::from_millis(2));
    metrics.own.stages.read(KernelRead::DriftCheck, Duration::from_millis(1));
    metrics.own.queues.watch(own::LOOP, Box::new(|| 3));
    assert_says(
        &metrics,
        &[
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            r#"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.5"#,
            r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 0"#,
            r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.5"#,
            r#"kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.003"#,
            r#"kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 1.5"#,
            r#"kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 2"#,
            r#"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 1"#,
            r#"kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 3"#,
            r#"kube_ipvs_operations_total{operation="create_link",result="done"} 1"#,
            r#"kube_ipvs_operations_total{operation="create_link",result="not_permitted"} 1"#,
            r#"kube_ipvs_drift_repaired_total{operation="write_rules"} 1"#,
            r#"kube_ipvs_pending_retries{class="other"} 2"#,
            r#"kube_ipvs_pending_retries{class="no_scheduler"} 1"#,
            r#"kube_ipvs_pending_retries{class="conflict"} 0"#,
            r#"kube_ipvs_drift_repaired_total{operation="drain_virtual_server"} 0"#,
            r#"kube_ipvs_kernel_write_duration_seconds_sum{part="virtual_servers"} 0.002"#,
            r#"kube_ipvs_kernel_read_duration_seconds_sum{what="drift_check"} 0.001"#,
            r#"kube_ipvs_queue_length{queue="loop"} 3"#,
            r#"kube_ipvs_queue_length{queue="source"} 0"#,
        ],
    );
    metrics.own.set_pending(std::iter::empty());
    assert_says(&metrics, &[r#"kube_ipvs_pending_retries{class="other"} 0"#]);
}

#[test]
fn the_build_has_metrics_with_the_labels_that_clusters_know() {
    let text = both().text().unwrap();
    let line = text.lines().find(|line| line.starts_with("kubernetes_build_info{")).unwrap();
    let version = format!("git_version=\"v{}\"", env!("CARGO_PKG_VERSION"));
    assert!(line.contains(&version) && line.ends_with("} 1"), "{line}");
    assert!(line.contains(r#"platform="linux/"#), "{line}");
}
