//! Checks of kube-proxy's tests on the way from a Service to what is balanced.

use plan::event::Event;

use super::*;
use crate::convert::Converter;

/// A Service of this text, and the warnings.
fn convert(text: &str) -> (Option<Service>, Vec<String>) {
    let object: object::Service = serde_saphyr::from_str(text).unwrap();
    let converted = Converter::default().service(&object).unwrap();
    let warnings = converted.warnings.iter().map(|c| c.text.clone()).collect();
    match converted.event {
        Event::ServiceApplied(service) => (Some(*service), warnings),
        Event::ServiceRemoved(_) => (None, warnings),
        other => panic!("{other:?}"),
    }
}

fn convert_spec(spec: &str) -> (Option<Service>, Vec<String>) {
    convert(&format!("metadata: {{name: web, namespace: shop}}\nspec: {{{spec}}}"))
}

/// A Service that nothing is wrong with.
fn fine(spec: &str) -> Service {
    let (service, warnings) = convert_spec(spec);
    assert_eq!(warnings, Vec::<String>::new(), "{spec}");
    service.unwrap_or_else(|| panic!("not balanced: {spec}"))
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_with_the_label_service_proxy_name_is_another_proxys() {
    for value in ["''", "cilium", "kube-proxy", "kube-ipvs"] {
        let labels = format!("service.kubernetes.io/service-proxy-name: {value}");
        let text = |labels: &str| {
            format!(
                "metadata: {{name: web, namespace: shop, labels: {{{labels}}}}}\n\
                 spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}"
            )
        };
        assert_eq!(convert(&text(&labels)), (None, vec![]), "{value}");
        // As an annotation, or under another name, it means nothing.
        let other = format!("service.kubernetes.io/proxy-name: {value}");
        assert!(convert(&text(&other)).0.is_some());
        assert!(convert(&text(&labels).replace("labels", "annotations")).0.is_some());
    }
}

#[test]
fn a_headless_service_is_not_balanced() {
    for spec in [
        "clusterIP: None",
        "clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4, IPv6]",
        "clusterIP: None, type: ClusterIP, externalIPs: [192.0.2.1], ports: [{port: 80}]",
        "clusterIP: '', ports: [{port: 80}]",
    ] {
        assert_eq!(convert_spec(spec), (None, vec![]), "{spec}");
    }
}

#[test]
fn an_external_name_is_not_balanced_whatever_else_it_has() {
    for spec in [
        "type: ExternalName, externalName: example.org",
        "type: ExternalName, externalName: example.org, clusterIP: 10.96.0.1, \
         externalIPs: [192.0.2.1], ports: [{port: 80}]",
    ] {
        assert_eq!(convert_spec(spec), (None, vec![]), "{spec}");
    }
}

#[test]
fn an_ingress_is_an_address_here_in_mode_vip_and_without_a_mode() {
    for (mode, expected) in [
        ("", vec!["203.0.113.1"]),
        (", ipMode: ~", vec!["203.0.113.1"]),
        (", ipMode: VIP", vec!["203.0.113.1"]),
        (", ipMode: Proxy", vec![]),
        (", ipMode: Unknown", vec![]),
    ] {
        let (service, warnings) = convert(&format!(
            "metadata: {{name: web, namespace: shop}}\n\
             spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}\n\
             status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1{mode}}}]}}}}"
        ));
        assert_eq!(texts(&service.unwrap().load_balancer), expected, "{mode}");
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[test]
fn host_names_of_an_ingress_are_not_looked_up() {
    let (service, warnings) = convert(
        "metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{port: 80}]}
status:
  loadBalancer:
    ingress:
    - {hostname: lb.example.org}
    - {hostname: lb6.example.org, ip: ''}
    - {hostname: both.example.org, ip: 203.0.113.2, ports: [{port: 80, protocol: TCP}]}
",
    );
    assert_eq!(texts(&service.unwrap().load_balancer), ["203.0.113.2"]);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn dual_stack_addresses_have_the_families_that_ip_families_says() {
    let (v4, v6) = ("10.96.0.1", "fd00:96::1");
    for (ips, families) in [("v4, v6", "IPv4, IPv6"), ("v6, v4", "IPv6, IPv4")] {
        let ips = ips.replace("v4", v4).replace("v6", &format!("'{v6}'"));
        let primary = ips.split(", ").next().unwrap();
        let service = fine(&format!(
            "clusterIP: {primary}, clusterIPs: [{ips}], ipFamilies: [{families}], \
             ipFamilyPolicy: RequireDualStack, ports: [{{port: 80}}]"
        ));
        assert_eq!(service.cluster_v4, v4.parse().ok(), "{families}");
        assert_eq!(service.cluster_v6, v6.parse().ok(), "{families}");
    }
    // In the wrong order, neither is what it should be.
    let (service, warnings) = convert_spec(
        "clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00:96::1'], ipFamilies: [IPv6, IPv4]",
    );
    assert_eq!((service, warnings.len()), (None, 2), "{warnings:?}");
}

#[test]
fn a_service_of_ipv6_alone() {
    let service = fine(
        "clusterIP: 'fd00:96::1', clusterIPs: ['fd00:96::1'], ipFamilies: [IPv6], \
         ipFamilyPolicy: SingleStack, externalIPs: ['2001:db8::1'], ports: [{port: 80}], \
         loadBalancerSourceRanges: ['2001:db8:1::/48']",
    );
    assert_eq!((service.cluster_v4, service.cluster_v6), (None, "fd00:96::1".parse().ok()));
    assert_eq!(texts(&service.external), ["2001:db8::1"]);
    assert_eq!(texts(&service.source_ranges), ["2001:db8:1::/48"]);
}

#[test]
fn source_ranges_may_have_white_space_around_them() {
    let service =
        fine("clusterIP: 10.96.0.1, loadBalancerSourceRanges: [' 10.0.0.0/8', \"10.1.0.0/16\\t\"]");
    assert_eq!(texts(&service.source_ranges), ["10.0.0.0/8", "10.1.0.0/16"]);
}

#[test]
fn source_ranges_that_are_none_are_left_out_and_named() {
    for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "0.0.0.0/-1", "example.org", "''"] {
        let (service, warnings) = convert_spec(&format!(
            "clusterIP: 10.96.0.1, loadBalancerSourceRanges: [{text}, 192.0.2.0/24]"
        ));
        assert_eq!(texts(&service.unwrap().source_ranges), ["192.0.2.0/24"], "{text}");
        let [warning] = warnings.as_slice() else { panic!("{text}: {warnings:?}") };
        assert!(warning.starts_with("spec.loadBalancerSourceRanges[0]: "), "{warning}");
    }
}

#[test]
fn a_source_range_of_length_0_restricts_nothing_in_its_family() {
    for (ranges, expected) in [
        ("0.0.0.0/0", vec![]),
        ("0.0.0.0/0, 10.0.0.0/8", vec![]),
        ("10.1.2.3/0", vec![]),
        ("'::/0', 10.0.0.0/8", vec!["10.0.0.0/8"]),
        ("0.0.0.0/0, '2001:db8::/32'", vec!["2001:db8::/32"]),
        ("0.0.0.0/0, '::/0'", vec![]),
    ] {
        let service = fine(&format!("clusterIP: 10.96.0.1, loadBalancerSourceRanges: [{ranges}]"));
        assert_eq!(texts(&service.source_ranges), expected, "{ranges}");
    }
}

/// Counts comparisons.
#[derive(Debug, Clone, Copy)]
struct Counted<'a>(u32, &'a std::cell::Cell<usize>);

impl PartialEq for Counted<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.1.set(self.1.get() + 1);
        self.0 == other.0
    }
}

impl Eq for Counted<'_> {}

impl Hash for Counted<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn the_first_of_each_stays_and_that_takes_no_comparison_of_all_with_all() {
    let comparisons = std::cell::Cell::new(0);
    let mut items: Vec<_> = (0..20_000).map(|n| Counted(n % 10_000, &comparisons)).collect();
    keep_first(&mut items);
    assert!(items.iter().map(|item| item.0).eq(0..10_000));
    assert!(comparisons.get() < 40_000, "{comparisons:?}");
}

#[test]
fn of_ports_with_the_name_or_the_number_of_another_the_first_ones_stay() {
    let (service, warnings) = convert_spec(
        "clusterIP: 10.96.0.1, ports: [{name: a, port: 1}, {name: b, port: 2}, \
         {name: b, port: 1}, {name: c, port: 2}, {name: a, port: 1, protocol: UDP}]",
    );
    let ports = service.unwrap().ports;
    let ports: Vec<String> =
        ports.iter().map(|port| format!("{} {} {}", port.name, port.port, port.protocol)).collect();
    assert_eq!(ports, ["a 1 TCP", "b 2 TCP", "a 1 UDP"]);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("(TCP 1 \"a\")"), "{warnings:?}");
    assert!(warnings[1].contains("(TCP 2 \"b\")"), "{warnings:?}");
}
