//! Our own document: what kube-proxy has no word for.

use std::num::NonZeroUsize;

use config::{Configuration, ServiceRoutes};
use ipnet::IpNet;
use kernel::estimators::Run;
use kernel::sysctl::ServiceAddressesArp;
use plan::capacity::Capacity;
use plan::mode::Mode;
use plan::scheduler::SchedulerName;
use plan::settings::{AcceptServiceTraffic, InternalFrontendNetworks, Limits};
use serve::listen::Readers;
use serve::metrics::services::MeasuredServices;
use source::FollowNodes;

use crate::{from_file, from_flags, load_file};

const OWN: &str = "---\napiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n";

/// From a file with `kube_proxy` in its first document and `own` in the second.
fn from(kube_proxy: &str, own: &str) -> Configuration {
    from_file(&format!("{kube_proxy}{OWN}{own}"), &[])
}

/// The one thing that is wrong with such a file.
fn problem(kube_proxy: &str, own: &str) -> String {
    let Err(error) = load_file(&format!("{kube_proxy}{OWN}{own}"), &[]) else {
        panic!("{kube_proxy}{own}: is taken");
    };
    let said = error.to_string();
    let (_, problem) = said.split_once("\n- ").unwrap_or_else(|| panic!("{said}"));
    assert!(!problem.contains("\n- "), "{kube_proxy}{own}: {said}");
    problem.to_owned()
}

#[test]
fn without_a_word_everything_is_as_kube_proxy_has_it() {
    for configuration in [from_flags(&[]), from("", ""), from("", "internalFrontend: {}\n")] {
        assert_eq!(configuration.follow_nodes, FollowNodes::Auto);
        let accepted = configuration.settings.accept_service_traffic;
        assert_eq!(accepted, AcceptServiceTraffic::Always);
        assert_eq!(configuration.settings.health_port, Some(10_256));
        assert!(!configuration.localhost_node_ports);
        assert_eq!(configuration.estimators, Run::Auto);
        assert_eq!(configuration.service_addresses_arp, ServiceAddressesArp::Answered);
        assert_eq!(
            configuration.settings.internal_frontend_networks,
            InternalFrontendNetworks::default()
        );
        assert!(configuration.settings.service_routes.is_empty());
        assert!(!configuration.settings.load_balancers_before_nodes);
        assert_eq!(configuration.settings.limits, Limits::default());
        assert_eq!(configuration.measured_services, MeasuredServices::Off);
        assert_eq!(configuration.served.console_page, None);
    }
}

#[test]
fn every_setting_is_read() {
    let configuration = from(
        "",
        "followNodes: never\nlocalhostNodePorts: true\nloadBalancersBeforeNodes: true\n\
         internalFrontend: {ipv4: 192.0.2.0/24, ipv6: ''}\n",
    );
    assert_eq!(configuration.follow_nodes, FollowNodes::Never);
    assert!(configuration.localhost_node_ports);
    assert!(configuration.settings.load_balancers_before_nodes);
    let networks = InternalFrontendNetworks { v4: "192.0.2.0/24".parse().ok(), v6: None };
    assert_eq!(configuration.settings.internal_frontend_networks, networks);
    let configuration = from("", "followNodes: always\nserviceAddressesArp: quiet\n");
    assert_eq!(configuration.follow_nodes, FollowNodes::Always);
    assert_eq!(configuration.service_addresses_arp, ServiceAddressesArp::Quiet);
    let routed = from("", "serviceRoutes: [10.96.0.0/12, 'fd00:96::/108']\n");
    let routes = routed.settings.service_routes.iter().map(ToString::to_string);
    assert_eq!(routes.collect::<Vec<_>>(), ["10.96.0.0/12", "fd00:96::/108"]);
    let off = from("", "internalFrontend: {ipv4: '', ipv6: ''}\nserviceRoutes: [10.96.0.0/12]\n");
    assert_eq!(off.settings.internal_frontend_networks, InternalFrontendNetworks::NONE);
    let text = off.to_yaml().unwrap();
    let (_, own) = text.split_once("---\n").unwrap();
    let own = own.lines().filter(|line| !line.starts_with("apiVersion:"));
    let own: String =
        own.filter(|line| !line.starts_with("kind:")).map(|l| format!("{l}\n")).collect();
    assert_eq!(from("", &own).own, off.own, "what is written says the same: {text}");
}

#[test]
fn service_traffic_is_let_in_unless_the_operator_leaves_it_to_the_host() {
    let accepted = |word: &str| {
        from("", &format!("acceptServiceTraffic: {word}\n")).settings.accept_service_traffic
    };
    assert_eq!(accepted("always"), AcceptServiceTraffic::Always);
    assert_eq!(accepted("never"), AcceptServiceTraffic::Never);
}

#[test]
fn the_health_port_is_at_service_addresses_if_it_is_at_all_addresses() {
    for (address, expected) in [
        ("0.0.0.0:10256", Some(10_256)),
        ("'[::]:8080'", Some(8080)),
        ("127.0.0.1:10256", None),
        ("'[::1]:10256'", None),
        ("192.168.0.11:10256", None),
    ] {
        let read = from(&format!("healthzBindAddress: {address}\n"), "");
        assert_eq!(read.settings.health_port, expected, "{address}");
    }
}

#[test]
fn limits_are_read_each_by_itself() {
    let limits = |text: &str| from("", &format!("limits: {text}\n")).settings.limits;
    assert_eq!(limits("{}"), Limits::default());
    assert_eq!(limits("{frontends: 7}"), Limits { frontends: 7, ..Limits::default() });
    let schedulers = ["rr", "mh"].map(|name| SchedulerName::new(name).unwrap()).to_vec();
    assert_eq!(
        limits("{realServers: 8, setEntries: 9, setSize: 65536, schedulers: [rr, mh]}"),
        Limits {
            real_servers: 8,
            set_entries: 9,
            set_size: Capacity::new(65_536),
            schedulers,
            ..Limits::default()
        }
    );
}

#[test]
fn the_limit_of_real_servers_is_lower_where_rules_lead_unless_it_is_set() {
    for (mode, default) in [("ipvs", 1_000_000), ("iptables", 50_000), ("userspace", 50_000)] {
        let limit = |own: &str| from(&format!("mode: {mode}\n"), own).settings.limits.real_servers;
        assert_eq!(limit(""), default, "{mode}");
        assert_eq!(limit("limits: {realServers: 70000}\n"), 70_000, "{mode}");
    }
    let fallen_back = from("", "fallback: iptables\n").in_mode(Mode::Iptables);
    assert_eq!(fallen_back.settings.limits.real_servers, 50_000);
}

#[test]
fn words_that_mean_nothing_are_refused() {
    for (own, expected) in [
        ("followNodes: sometimes", "[followNodes]"),
        ("acceptServiceTraffic: maybe", "must be one of always, never [acceptServiceTraffic]"),
        ("estimators: {run: sometimes}", "must be one of auto, on, off [estimators.run]"),
        ("serviceAddressesArp: loud", "must be one of compatible, quiet [serviceAddressesArp]"),
        ("limits: {frontends: 0}", "within the range [1, 1000000] [limits.frontends]"),
        ("limits: {realServers: 0}", "within the range [1, 100000000] [limits.realServers]"),
        ("limits: {setEntries: 0}", "within the range [1, 10000000] [limits.setEntries]"),
        ("limits: {setSize: 1024}", "within the range [65536, 2147483648] [limits.setSize]"),
        ("limits: {schedulers: [best]}", "fo, ovf, mh, twos [limits.schedulers]"),
        ("consolePage: everyone", "must be one of off, loopback, network [consolePage]"),
        ("serviceMetrics: top", "must be off, top:N, all or namespaces:NAME,… [serviceMetrics]"),
        ("serviceMetrics: top:0", "takes a number from 1 to 10000 [serviceMetrics]"),
        ("serviceMetrics: top:10001", "takes a number from 1 to 10000 [serviceMetrics]"),
        ("serviceMetrics: 'namespaces:web,,db'", "\"\" is not a namespace name [serviceMetrics]"),
        ("serviceMetrics: namespaces:Web", "\"Web\" is not a namespace name [serviceMetrics]"),
        ("iptablesVariant: new", "must be one of auto, nft, legacy [iptablesVariant]"),
    ] {
        let problem = problem("", own);
        assert!(problem.ends_with(expected), "{problem}");
    }
}

#[test]
fn estimators_are_read_however_yaml_takes_them() {
    for (written, expected) in [
        ("{run: on}", Run::On),
        ("{run: off}", Run::Off),
        // What is left of them where YAML 1.1 was spoken on the way.
        ("{run: true}", Run::On),
        ("{run: false}", Run::Off),
        ("{}", Run::Auto),
    ] {
        let configuration = from("", &format!("estimators: {written}\n"));
        assert_eq!(configuration.estimators, expected, "{written}");
        let text = configuration.to_yaml().unwrap();
        let (_, own) = text.split_once("---\n").unwrap();
        let again = load_file(&format!("---\n{own}"), &[]).unwrap();
        assert_eq!(again.own, configuration.own, "what is written says the same: {text}");
    }
    let list = load_file(&format!("{OWN}estimators: {{run: [on]}}\n"), &[]);
    assert!(list.is_err_and(|error| error.to_string().contains("neither a word nor a number")));
}

#[test]
fn pages_are_for_those_who_were_chosen() {
    for (written, expected) in [
        ("off", None),
        ("false", None),
        ("loopback", Some(Readers::Loopback)),
        ("network", Some(Readers::Network)),
    ] {
        let configuration = from("", &format!("consolePage: {written}\n"));
        assert_eq!(configuration.served.console_page, expected, "{written}");
    }
    let flag = from_flags(&["--console-page=loopback"]);
    assert_eq!(flag.served.console_page, Some(Readers::Loopback));
}

#[test]
fn services_with_metrics_are_read_however_yaml_takes_them() {
    let namespaces = ["db", "web-2"].map(str::to_owned).into();
    for (written, expected) in [
        ("off", MeasuredServices::Off),
        // What is left of it where YAML 1.1 was spoken on the way.
        ("false", MeasuredServices::Off),
        ("all", MeasuredServices::All),
        ("top:50", MeasuredServices::Top(NonZeroUsize::new(50).unwrap())),
        ("namespaces:web-2,db", MeasuredServices::Namespaces(namespaces)),
    ] {
        let configuration = from("", &format!("serviceMetrics: {written}\n"));
        assert_eq!(configuration.measured_services, expected, "{written}");
        if written != "false" {
            let flag = from_flags(&[&format!("--service-metrics={written}")]);
            assert_eq!(flag.measured_services, expected, "{written}");
        }
        let again: MeasuredServices = expected.to_string().parse().unwrap();
        assert_eq!(again, expected);
    }
    let beside = load_file(&format!("{OWN}serviceMetrics: all\n"), &["--service-metrics=off"]);
    assert_eq!(beside.unwrap().measured_services, MeasuredServices::Off);
}

#[test]
fn quiet_does_not_go_with_strict_arp() {
    let quiet = "serviceAddressesArp: quiet\n";
    let said = problem("ipvs: {strictARP: true}\n", quiet);
    assert!(said.contains("leave strictARP out"), "{said}");
    let strict = from("ipvs: {strictARP: true}\n", "serviceAddressesArp: compatible\n");
    assert_eq!(strict.service_addresses_arp, ServiceAddressesArp::Strict);
}

#[test]
fn an_internal_frontend_is_a_network_of_its_family() {
    for (family, text) in [
        ("ipv4", "240.0.0.1/4"),
        ("ipv4", "0.0.0.0/0"),
        ("ipv4", "198.51.100.0/25"),
        ("ipv4", "240.0.0.0"),
        ("ipv4", "feff::/16"),
        ("ipv6", "240.0.0.0/4"),
        ("ipv6", "2001:db8::/97"),
        ("ipv6", "::/0"),
        ("ipv6", "2001:db8::1/64"),
        ("ipv6", "nonsense"),
    ] {
        let said = problem("", &format!("internalFrontend: {{{family}: '{text}'}}\n"));
        assert!(said.contains("network of 1 to"), "{text}: {said}");
        assert!(said.ends_with(&format!("[internalFrontend.{family}]")), "{said}");
    }
}

#[test]
fn internal_frontends_are_elsewhere_where_their_default_is_in_use() {
    for (kube_proxy, expected) in [
        ("clusterCIDR: 240.10.0.0/16\n", ["0.0.0.0/8", "feff::/16"]),
        ("clusterCIDR: '240.10.0.0/16,feff:10::/32'\n", ["0.0.0.0/8", "fefe::/16"]),
        ("nodePortAddresses: ['feff:1::/32']\n", ["240.0.0.0/4", "fefe::/16"]),
        ("nodePortAddresses: [240.1.0.0/16, 0.1.0.0/16]\n", ["", "feff::/16"]),
    ] {
        let configuration = from(kube_proxy, "");
        let networks = configuration.settings.internal_frontend_networks;
        let text = |network: Option<String>| network.unwrap_or_default();
        let chosen = [
            text(networks.v4.map(|it| it.to_string())),
            text(networks.v6.map(|it| it.to_string())),
        ];
        assert_eq!(chosen, expected, "{kube_proxy}");
        let notes = configuration.notes.join("\n");
        assert!(notes.contains("is in use"), "{kube_proxy}: {notes}");
    }
    let iptables = from("mode: iptables\nclusterCIDR: 240.10.0.0/16\n", "");
    assert_eq!(iptables.notes, [""; 0], "it has none");
}

#[test]
fn an_internal_frontend_is_a_network_that_nobody_uses() {
    for (kube_proxy, own, what) in [
        ("", "ipv4: 127.0.0.0/16", "127.0.0.0/8 is the loopback addresses"),
        ("", "ipv4: 224.0.0.0/3", "224.0.0.0/4 is the multicast addresses"),
        ("", "ipv4: 169.254.1.0/24", "169.254.0.0/16 is the link-local addresses"),
        ("", "ipv6: '::/96'", "::1/128 is the loopback address"),
        ("", "ipv6: 'fe80::/16'", "fe80::/10 is the link-local addresses"),
        ("", "ipv6: 'ff0e::/16'", "ff00::/8 is the multicast addresses"),
        ("clusterCIDR: 240.16.0.0/12\n", "ipv4: 240.0.0.0/4", "240.16.0.0/12 is of clusterCIDR"),
        ("clusterCIDR: 10.0.0.0/8\n", "ipv4: 10.244.0.0/16", "10.0.0.0/8 is of clusterCIDR"),
        ("nodePortAddresses: [192.0.2.9/24]\n", "ipv4: 192.0.2.0/24", "is of nodePortAddresses"),
        (
            "nodePortAddresses: ['feff:1::/32']\n",
            "ipv6: 'feff::/16'",
            "feff:1::/32 is of nodePortAddresses",
        ),
    ] {
        let said = problem(kube_proxy, &format!("internalFrontend: {{{own}}}\n"));
        assert!(said.contains(what), "{kube_proxy}{own}: {said}");
        assert!(said.contains("choose another one, or \"\" to do without"), "{said}");
    }
    // A network of length 0 is everything, and says nothing of what is in use.
    from("nodePortAddresses: [0.0.0.0/0, '::/0']\n", "");
    from("clusterCIDR: 240.0.0.0/8\n", "internalFrontend: {ipv4: 100.64.0.0/10}\n");
}

#[test]
fn service_routes_may_depend_on_the_number_of_services() {
    let network: IpNet = "10.96.0.0/12".parse().unwrap();
    for (text, named) in [
        ("", vec![]),
        ("serviceRoutes:\n", vec![]),
        ("serviceRoutes: auto\n", vec![]),
        ("serviceRoutes: [auto, 10.96.0.0/12]\n", vec![network]),
    ] {
        let configuration = from("", text);
        let ServiceRoutes { is_automatic, named: found, chosen } = &configuration.service_routes;
        assert_eq!((is_automatic, found, chosen), (&true, &named, &None));
        assert!(configuration.settings.service_routes.is_empty(), "until it is chosen");
        let routed = configuration.clone().with_routes(vec![network]);
        assert_eq!(routed.settings.service_routes, [network]);
        let other = routed.in_mode(Mode::Iptables);
        assert!(other.settings.service_routes.is_empty());
        assert_eq!(other.in_mode(Mode::Ipvs).settings.service_routes, [network]);
        // What is written is what is read.
        let written = configuration.to_yaml().unwrap();
        assert!(written.contains("- auto\n"), "{written}");
    }
    for none in ["[]", "''"] {
        let configuration = from("", &format!("serviceRoutes: {none}\n"));
        assert!(!configuration.chooses_routes(), "an address each, however many Services");
        let written = configuration.to_yaml().unwrap();
        assert!(written.contains("serviceRoutes: []\n"), "{written}");
    }
    let fixed = from("", "serviceRoutes: [10.96.0.0/12]\n");
    assert!(
        fixed.with_routes(Vec::new()).settings.service_routes == [network],
        "nothing to choose"
    );
    let said = problem("", "serviceRoutes: many\n");
    assert!(said.contains("must be a network of 8 to 32 bits of IPv4"), "{said}");
}

#[test]
fn of_a_clusters_networks_those_that_others_use_are_left_out() {
    let nets = |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect::<Vec<IpNet>>();
    let configuration = from("clusterCIDR: 10.244.0.0/16\n", "serviceRoutes: auto\n");
    let (usable, problems) =
        configuration.routable(&nets(&["10.96.0.0/12", "10.244.0.0/20", "fd00:96::/112"]));
    assert_eq!(usable, nets(&["10.96.0.0/12", "fd00:96::/112"]));
    let problem = "10.244.0.0/20 must be a network that only Services use, and 10.244.0.0/16 is of clusterCIDR";
    assert_eq!(problems, [problem]);
}

#[test]
fn service_routes_are_networks() {
    for text in ["10.96.0.1/12", "0.0.0.0/0", "10.0.0.0/7", "10.96.0.0", "fd00::/63", "nonsense"] {
        let said = problem("", &format!("serviceRoutes: ['{text}']\n"));
        assert!(said.contains("must be a network of 8 to 32 bits of IPv4"), "{text}: {said}");
        assert!(said.ends_with("[serviceRoutes]"), "{said}");
    }
    from("", "serviceRoutes: [10.0.0.0/8, 192.0.2.1/32, 'fd00::/64', '2001:db8::1/128']\n");
}

#[test]
fn service_routes_are_networks_that_only_services_use() {
    for (kube_proxy, own, what) in [
        ("", "[127.0.0.0/8]", "127.0.0.0/8 is the loopback addresses"),
        ("", "['fe80::/64']", "fe80::/10 is the link-local addresses"),
        ("clusterCIDR: 10.244.0.0/16\n", "[10.0.0.0/8]", "10.244.0.0/16 is of clusterCIDR"),
        ("clusterCIDR: 10.0.0.0/8\n", "[10.96.0.0/12]", "10.0.0.0/8 is of clusterCIDR"),
        (
            "",
            "[240.96.0.0/12]\ninternalFrontend: {ipv4: 240.0.0.0/4}",
            "240.0.0.0/4 is of internalFrontend",
        ),
        ("nodePortAddresses: [10.97.0.0/16]\n", "[10.96.0.0/12]", "is of nodePortAddresses"),
        ("", "[10.96.0.0/12, 10.100.0.0/16]", "10.96.0.0/12 is in the list already"),
    ] {
        let said = problem(kube_proxy, &format!("serviceRoutes: {own}\n"));
        assert!(said.contains(what), "{kube_proxy}{own}: {said}");
    }
    // Around it may be the nodes' network: that does not say where in it they are.
    from("nodePortAddresses: [10.0.0.0/8]\n", "serviceRoutes: [10.96.0.0/12]\n");
    from("clusterCIDR: 0.0.0.0/0\n", "serviceRoutes: [10.96.0.0/12]\n");
    // A default gives way.
    from("", "serviceRoutes: [240.96.0.0/12]\n");
}
