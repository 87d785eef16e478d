use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::time::UNIX_EPOCH;

use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{Family, Protocol};

use super::*;
use crate::metrics::Metrics;

const PERIOD: Duration = Duration::from_secs(15);

fn frontend(n: u8) -> Frontend {
    let address = IpAddr::V4(Ipv4Addr::new(10, 96, 0, n));
    Frontend { address, protocol: Protocol::Tcp, port: 80 }
}

fn bytes(bytes: u64) -> TrafficCounters {
    TrafficCounters {
        connections: bytes / 100,
        incoming_bytes: bytes,
        ..TrafficCounters::default()
    }
}

/// A reading of a frontend whose owner is `ns/NAME`, or which has none.
fn of(n: u8, owner: Option<&str>, counted: u64) -> FrontendTraffic {
    let owner = owner.map(|owner| {
        let (namespace, name) = owner.split_once('/').unwrap();
        ServiceName::new(namespace, name)
    });
    FrontendTraffic { frontend: frontend(n), owner, counters: bytes(counted) }
}

/// Returns the names of the Services to show, and their bytes.
fn shown(accounts: &Accounts, shown: &Shown) -> Vec<(String, u64)> {
    let services = shown.services.iter();
    let current = services.map(|(service, _)| (service.clone(), CurrentConnections::default()));
    let traffic = accounts.traffic(current);
    traffic.iter().map(|it| (it.service.to_string(), it.counted.bytes())).collect()
}

fn expected(services: &[(&str, u64)]) -> Vec<(String, u64)> {
    services.iter().map(|(service, bytes)| ((*service).to_owned(), *bytes)).collect()
}

#[test]
fn a_service_has_the_traffic_of_its_frontends_since_the_first_reading() {
    let mut accounts = Accounts::new(MeasuredServices::All);
    let first = accounts
        .add(vec![of(1, Some("a/web"), 5_000), of(2, Some("a/web"), 100), of(9, None, 7)], PERIOD);
    assert_eq!(shown(&accounts, &first), expected(&[("a/web", 0)]));
    assert_eq!(first.services[0].1, [frontend(1), frontend(2)]);
    // The third one is new: all that it has counted is since the last reading.
    let next = vec![
        of(1, Some("a/web"), 5_300),
        of(2, Some("a/web"), 100),
        of(3, Some("a/web"), 40),
        of(4, Some("b/dns"), 2),
    ];
    let second = accounts.add(next, PERIOD);
    assert_eq!(shown(&accounts, &second), expected(&[("a/web", 340), ("b/dns", 2)]));
    assert_eq!(second.n_omitted, 0);
}

#[test]
fn the_counters_of_a_service_never_go_back_while_it_has_a_frontend() {
    let mut accounts = Accounts::new(MeasuredServices::All);
    accounts.add(Vec::new(), PERIOD);
    let both = vec![of(1, Some("a/web"), 500), of(2, Some("a/web"), 100)];
    let found = accounts.add(both, PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 600)]));
    let found = accounts.add(vec![of(2, Some("a/web"), 130)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 630)]));
    // Made again, or zeroed, and then used.
    let found = accounts.add(vec![of(2, Some("a/web"), 20)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 650)]));
    let found = accounts.add(Vec::new(), PERIOD);
    assert_eq!(shown(&accounts, &found), []);
}

#[test]
fn what_drains_belongs_to_its_last_service() {
    let mut accounts = Accounts::new(MeasuredServices::All);
    accounts.add(vec![of(1, Some("a/web"), 0)], PERIOD);
    let found = accounts.add(vec![of(1, None, 60)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 60)]));
    let found = accounts.add(vec![of(1, None, 70)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 70)]));
    // Another Service has it now.
    let found = accounts.add(vec![of(1, Some("b/web"), 71)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("b/web", 1)]));
}

#[test]
fn only_selected_services_have_metrics() {
    let reading =
        || vec![of(1, Some("a/web"), 10), of(2, Some("b/web"), 30), of(3, Some("b/x"), 20)];
    let names = ["b".to_owned()].into();
    let mut accounts = Accounts::new(MeasuredServices::Namespaces(names));
    accounts.add(Vec::new(), PERIOD);
    let found = accounts.add(reading(), PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("b/web", 30), ("b/x", 20)]));
    assert_eq!(found.n_omitted, 0);

    let mut accounts = Accounts::new(MeasuredServices::Top(NonZeroUsize::new(2).unwrap()));
    let found = accounts.add(reading(), PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 0), ("b/web", 0)]), "by name");
    let mut busier = reading();
    busier[2] = of(3, Some("b/x"), 500);
    let found = accounts.add(busier, PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/web", 0), ("b/x", 480)]));
    assert_eq!(found.n_omitted, 1);
}

#[test]
fn earlier_traffic_counts_less_for_the_order_and_whole_for_the_counters() {
    let mut accounts = Accounts::new(MeasuredServices::Top(NonZeroUsize::MIN));
    let long = Duration::from_secs(4 * 3_600);
    accounts.add(vec![of(1, Some("a/then"), 0), of(2, Some("a/now"), 0)], PERIOD);
    let found = accounts.add(vec![of(1, Some("a/then"), 900), of(2, Some("a/now"), 0)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/then", 900)]));
    let found = accounts.add(vec![of(1, Some("a/then"), 900), of(2, Some("a/now"), 90)], long);
    assert_eq!(shown(&accounts, &found), expected(&[("a/now", 90)]));
    let found = accounts.add(vec![of(1, Some("a/then"), 1_000), of(2, Some("a/now"), 90)], PERIOD);
    assert_eq!(shown(&accounts, &found), expected(&[("a/then", 1_000)]));
}

fn reading(services: Vec<ServiceTraffic>) -> ServiceReading {
    ServiceReading {
        services,
        n_omitted: 3,
        statistics_running: true,
        took: Duration::from_millis(20),
        at: UNIX_EPOCH + Duration::from_secs(9),
    }
}

#[test]
fn each_selected_service_has_a_series_of_each_metric() {
    let metrics = Metrics::new(Mode::Ipvs, &Family::BOTH).unwrap();
    let services = metrics.add_services().unwrap();
    let counted = TrafficCounters {
        connections: 1,
        incoming_packets: 2,
        outgoing_packets: 3,
        incoming_bytes: 4,
        outgoing_bytes: 5,
    };
    let current = CurrentConnections { active: 6, inactive: 7, draining: 8 };
    let service = ServiceName::new("a", "web");
    services.set(reading(vec![ServiceTraffic { service, counted, current }]));
    let text = metrics.text().unwrap();
    for line in [
        r#"kube_ipvs_service_connections_total{namespace="a",service="web"} 1"#,
        r#"kube_ipvs_service_incoming_packets_total{namespace="a",service="web"} 2"#,
        r#"kube_ipvs_service_outgoing_packets_total{namespace="a",service="web"} 3"#,
        r#"kube_ipvs_service_incoming_bytes_total{namespace="a",service="web"} 4"#,
        r#"kube_ipvs_service_outgoing_bytes_total{namespace="a",service="web"} 5"#,
        r#"kube_ipvs_service_active_connections{namespace="a",service="web"} 6"#,
        r#"kube_ipvs_service_inactive_connections{namespace="a",service="web"} 7"#,
        r#"kube_ipvs_service_draining_connections{namespace="a",service="web"} 8"#,
        "# TYPE kube_ipvs_service_connections_total counter",
        "# TYPE kube_ipvs_service_active_connections gauge",
        "kube_ipvs_service_metrics_omitted 3",
        "kube_ipvs_service_metrics_last_read_timestamp_seconds 9",
        "kube_ipvs_service_metrics_read_duration_seconds 0.02",
        "kube_ipvs_service_metrics_read_failures_total 0",
        "kube_ipvs_statistics_running 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    services.failed();
    services.set(ServiceReading { statistics_running: false, ..reading(Vec::new()) });
    let text = metrics.text().unwrap();
    assert!(!text.contains("service=\"web\""), "{text}");
    assert!(text.contains("\nkube_ipvs_statistics_running 0\n"), "{text}");
    assert!(text.contains("\nkube_ipvs_service_metrics_read_failures_total 1\n"), "{text}");
}

#[test]
fn without_a_choice_there_is_none_of_them() {
    let text = Metrics::new(Mode::Ipvs, &Family::BOTH).unwrap().text().unwrap();
    assert!(!text.contains("kube_ipvs_service_metrics"), "{text}");
    assert!(!text.contains("kube_ipvs_statistics_running"), "{text}");
}
