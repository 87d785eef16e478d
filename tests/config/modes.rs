//! Modes: which there are, what a node falls back to, and which settings follow the mode.

use std::time::Duration;

use config::Configuration;
use config::mode::{Fallback, ModeChoice};
use config::words::OnReturn;
use forwarding::relay::PortRange;
use plan::mode::Mode;
use plan::settings::InternalFrontendNetworks;

use crate::{file, from_file, from_flags, load, load_file};

const OWN: &str = "---\napiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n";

const MINUTES: Duration = Duration::from_secs(300);

/// From a file with `kube_proxy` in its first document and `own` in the second.
fn from(kube_proxy: &str, own: &str) -> Configuration {
    from_file(&format!("{kube_proxy}{OWN}{own}"), &[])
}

fn fallback(retry: Duration, on_return: OnReturn) -> Option<Fallback> {
    Some(Fallback { mode: Mode::Iptables, retry, on_return })
}

#[test]
fn a_mode_is_tried_first_and_may_have_a_fallback() {
    let stay = fallback(MINUTES, OnReturn::Stay);
    for (kube_proxy, own, preferred, fallback) in [
        ("", "", Mode::Ipvs, None),
        ("mode: ''\n", "", Mode::Ipvs, None),
        ("mode: ipvs\n", "", Mode::Ipvs, None),
        ("mode: ipvs\n", "fallback: ''\n", Mode::Ipvs, None),
        ("mode: ipvs\n", "fallback: iptables\n", Mode::Ipvs, stay),
        ("", "fallback: iptables\n", Mode::Ipvs, stay),
        ("mode: auto\n", "", Mode::Ipvs, stay),
        (
            "mode: auto\n",
            "fallbackRetry: 90s\nfallbackReturn: restart\n",
            Mode::Ipvs,
            fallback(Duration::from_secs(90), OnReturn::Restart),
        ),
        (
            "mode: auto\n",
            "fallbackReturn: switch\n",
            Mode::Ipvs,
            fallback(MINUTES, OnReturn::Switch),
        ),
        ("mode: iptables\n", "", Mode::Iptables, None),
        ("mode: iptables\n", "fallback: iptables\n", Mode::Iptables, None),
        ("mode: userspace\n", "", Mode::Userspace, None),
    ] {
        let configuration = from(kube_proxy, own);
        let expected = ModeChoice { preferred, fallback };
        assert_eq!(configuration.modes, expected, "{kube_proxy}{own}");
        assert_eq!(configuration.settings.mode, preferred, "{kube_proxy}{own}");
    }
    assert_eq!(from_flags(&["--proxy-mode=iptables"]).settings.mode, Mode::Iptables);
    assert_eq!(from_flags(&["--fallback=iptables"]).modes.fallback, stay);
    assert_eq!(from_file("mode: ipvs\n", &["--fallback=iptables"]).modes.fallback, stay);
}

#[test]
fn what_a_fallback_cannot_be_is_said() {
    for (own, expected) in [
        ("fallback: userspace", "must be iptables, or empty for a node that does not fall back"),
        ("fallback: ipvs", "must be iptables, or empty for a node that does not fall back"),
        ("fallbackRetry: 9s", "must be from 10s to 24h [fallbackRetry]"),
        ("fallbackRetry: 24h1s", "must be from 10s to 24h [fallbackRetry]"),
        ("fallbackRetry: -1s", "must be from 10s to 24h [fallbackRetry]"),
        ("fallbackReturn: always", "must be one of never, restart, switch [fallbackReturn]"),
    ] {
        let said = load_file(&format!("{OWN}{own}\n"), &[]).unwrap_err().to_string();
        assert!(said.contains(expected), "{own}: {said}");
    }
    from("", "fallbackRetry: 10s\n");
    from("", "fallbackRetry: 24h\n");
}

#[test]
fn the_periods_are_those_of_the_modes_section() {
    let periods = "ipvs: {syncPeriod: 40s, minSyncPeriod: 4s}\n\
                   iptables: {syncPeriod: 50s, minSyncPeriod: 5s}\n";
    let seconds =
        |pace: reconcile::Pace| (pace.min_sync_period.as_secs(), pace.sync_period.as_secs());
    for (mode, expected) in
        [("ipvs", (4, 40)), ("iptables", (5, 50)), ("userspace", (5, 50)), ("auto", (4, 40))]
    {
        let configuration = from(&format!("mode: {mode}\n{periods}"), "");
        assert_eq!(seconds(configuration.pace), expected, "{mode}");
    }
    let fallen_back = from(&format!("mode: auto\n{periods}"), "").in_mode(Mode::Iptables);
    assert_eq!(seconds(fallen_back.pace), (5, 50));
    assert_eq!(seconds(from("mode: iptables\n", "").pace), (1, 30), "kube-proxy's defaults");
    let flags = ["--proxy-mode=iptables", "--iptables-sync-period=7s"];
    assert_eq!(seconds(from_flags(&flags).pace), (1, 7));
}

#[test]
fn the_periods_of_every_possible_mode_are_checked() {
    for (text, n_problems) in [
        ("mode: iptables\niptables: {syncPeriod: -1s}\n", 2),
        ("mode: iptables\nipvs: {syncPeriod: -1s}\n", 0),
        ("mode: ipvs\niptables: {syncPeriod: -1s}\n", 0),
        ("mode: auto\niptables: {syncPeriod: 1s, minSyncPeriod: 2s}\n", 1),
        ("mode: auto\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}\n", 1),
    ] {
        let said = load_file(text, &[]).map_or_else(|error| error.to_string(), |_| String::new());
        assert_eq!(said.matches("\n- ").count(), n_problems, "{text}: {said}");
        assert_eq!(
            said.contains("[iptables.syncPeriod]"),
            text.contains("iptables: {") && n_problems > 0
        );
    }
}

#[test]
fn localhost_node_ports_of_mode_iptables_are_kube_proxys() {
    for (text, expected) in [
        ("mode: iptables\n", true),
        ("mode: ipvs\n", false),
        ("mode: iptables\niptables: {localhostNodePorts: false}\n", false),
        ("mode: iptables\nnodePortAddresses: [127.0.0.0/8]\n", true),
        ("mode: iptables\nnodePortAddresses: [127.1.2.3/32]\n", true),
        ("mode: iptables\nnodePortAddresses: [0.0.0.0/0]\n", true),
        ("mode: iptables\nnodePortAddresses: [192.0.2.0/24]\n", false),
        // No network of IPv4 is named: all addresses of IPv4 serve node ports.
        ("mode: iptables\nnodePortAddresses: ['::1/128']\n", true),
        ("mode: iptables\nnodePortAddresses: [primary]\n", false),
        ("mode: iptables\nnodePortAddresses: [primary, localhost]\n", true),
        ("mode: iptables\nnodePortAddresses: [all]\n", true),
    ] {
        let settings = from(text, "").settings;
        assert_eq!(settings.iptables_localhost_node_ports, expected, "{text}");
    }
    let flags = ["--proxy-mode=iptables", "--iptables-localhost-nodeports=false"];
    assert!(!from_flags(&flags).settings.iptables_localhost_node_ports);
    let fallen_back = from("mode: auto\n", "").in_mode(Mode::Iptables);
    assert!(fallen_back.settings.iptables_localhost_node_ports);
}

#[test]
fn what_only_ipvs_has_is_off_in_another_mode() {
    let routes = "serviceRoutes: [10.96.0.0/12]\n";
    let ipvs = from("mode: auto\n", routes);
    assert_eq!(ipvs.settings.service_routes.len(), 1);
    assert_eq!(ipvs.settings.internal_frontend_networks, InternalFrontendNetworks::default());
    let iptables = ipvs.in_mode(Mode::Iptables);
    assert_eq!(iptables.settings.mode, Mode::Iptables);
    assert!(iptables.settings.service_routes.is_empty());
    assert_eq!(iptables.settings.internal_frontend_networks, InternalFrontendNetworks::NONE);
    let of_ipvs = iptables.settings.ipvs_internal_frontend_networks;
    assert_eq!(of_ipvs, ipvs.settings.internal_frontend_networks, "to know what mode ipvs left");
    assert_eq!(iptables.in_mode(Mode::Ipvs), ipvs, "and back");
}

#[test]
fn settings_of_a_mode_that_the_node_cannot_be_in_are_said_to_have_no_effect() {
    let belongs = |name: &str, mode| format!("{name} has no effect: it belongs to mode {mode}");
    let configuration = from(
        "mode: iptables\nipvs: {scheduler: sh, strictARP: true, tcpTimeout: 1m, \
         excludeCIDRs: [10.0.0.0/8], syncPeriod: 30s}\niptables: {syncPeriod: 20s}\n",
        "drainDeadline: 1m\nestimators: {run: off}\nserviceRoutes: [10.96.0.0/12]\n\
         internalFrontend: {ipv4: ''}\nserviceAddressesArp: compatible\nfallback: iptables\n",
    );
    let expected = [
        "ipvs.scheduler",
        "ipvs.strictARP",
        "ipvs.tcpTimeout",
        "estimators.run",
        "fallback",
        "internalFrontend.ipv4",
        "serviceRoutes",
    ];
    let of_modes = |name: &str| belongs(name, "ipvs");
    assert_eq!(configuration.notes, expected.map(of_modes));

    let flags = ["--proxy-mode=iptables", "--ipvs-scheduler=sh", "--drain-deadline=1m"];
    assert_eq!(from_flags(&flags).notes, [of_modes("--ipvs-scheduler")]);

    let in_ipvs = from("iptables: {localhostNodePorts: false, minSyncPeriod: 1s}\n", "");
    assert_eq!(in_ipvs.notes, [belongs("iptables.localhostNodePorts", "iptables")]);
    let in_either = "iptables: {localhostNodePorts: false}\nipvs: {scheduler: sh}\n";
    assert!(from(&format!("mode: auto\n{in_either}"), "").notes.is_empty());
    assert!(from(in_either, "fallback: iptables\n").notes.is_empty());
}

#[test]
fn a_written_configuration_keeps_the_periods_of_the_possible_modes() {
    let periods = "iptables: {syncPeriod: 20s}\nipvs: {syncPeriod: 40s}\n";
    for (mode, ipvs, iptables) in
        [("ipvs", "40s", "0s"), ("iptables", "0s", "20s"), ("auto", "40s", "20s")]
    {
        let configuration = from(&format!("mode: {mode}\n{periods}"), "");
        let document = &configuration.document;
        assert_eq!(document.mode.to_string(), mode);
        assert_eq!(document.ipvs.sync_period.to_string(), ipvs, "{mode}");
        assert_eq!(document.iptables.sync_period.to_string(), iptables, "{mode}");
        let text = configuration.to_yaml().unwrap();
        let file = file(&text);
        let again = load(&["--config", file.path().to_str().unwrap()]).unwrap();
        assert_eq!((again.document, again.modes), (configuration.document, configuration.modes));
    }
}

#[test]
fn the_same_configuration_is_put_together_for_another_mode() {
    let text = format!(
        "mode: auto\nipvs: {{syncPeriod: 10s}}\niptables: {{syncPeriod: 20s}}\n{OWN}\
         fallbackReturn: switch\n"
    );
    let path = file(&format!("{}{text}", crate::HEAD));
    let words = ["--config", path.path().to_str().unwrap()];
    let configured = load(&words).unwrap();
    // The file is not read again.
    std::fs::write(path.path(), "mode: nonsense").unwrap();
    for (mode, seconds) in [(Mode::Iptables, 20), (Mode::Ipvs, 10)] {
        let other = configured.for_mode(&crate::arguments(&words), mode).unwrap();
        assert_eq!(other.modes, ModeChoice { preferred: mode, fallback: None });
        assert_eq!(other.settings.mode, mode);
        assert_eq!(other.pace.sync_period, Duration::from_secs(seconds));
        assert_eq!(other.configured_mode, "auto");
        assert_eq!(other.file, configured.file);
    }
}

#[test]
fn a_running_program_takes_on_a_new_mode_and_nothing_that_concerns_the_log() {
    let served = from("mode: ipvs\n", "");
    for (kube_proxy, own, is_taken_on) in [
        ("mode: ipvs\n", "", false),
        ("mode: iptables\n", "", true),
        ("mode: auto\n", "", true),
        ("mode: ipvs\n", "fallback: iptables\n", true),
        ("mode: ipvs\nipvs: {scheduler: lc}\n", "", false),
        ("mode: iptables\nipvs: {scheduler: lc}\n", "drainDeadline: 1m\n", true),
        ("mode: iptables\nlogging: {verbosity: 4}\n", "", false),
    ] {
        let new = from(kube_proxy, own);
        assert_eq!(served.can_become(&new), is_taken_on, "{kube_proxy}{own}");
    }
    assert_eq!(served.configured_mode, "ipvs");
    assert_eq!(from("", "").configured_mode, "ipvs");
}

#[test]
fn the_relays_settings_are_those_of_kube_proxys_mode_userspace() {
    let range = |text| PortRange::parse(text).unwrap();
    let seconds = Duration::from_secs;
    for (configuration, ports, udp_idle) in [
        (from("mode: userspace\n", ""), None, seconds(30)),
        (
            from("mode: userspace\nportRange: 40000-40999\n", "udpIdleTimeout: 5s\n"),
            range("40000-40999"),
            seconds(5),
        ),
        (
            from_flags(&[
                "--proxy-mode=userspace",
                "--proxy-port-range=40000+9",
                "--udp-timeout=250ms",
            ]),
            range("40000-40009"),
            Duration::from_millis(250),
        ),
    ] {
        assert_eq!(
            (configuration.relayed.ports, configuration.relayed.udp_idle),
            (ports, udp_idle)
        );
        assert_eq!(configuration.notes, Vec::<String>::new());
    }
    for (kube_proxy, own, expected) in [
        ("portRange: 5-4\n", "", "is no range of ports"),
        ("", "udpIdleTimeout: 0s\n", "must be greater than 0 [udpIdleTimeout]"),
    ] {
        let text = format!("mode: userspace\n{kube_proxy}{OWN}{own}");
        let said = load_file(&text, &[]).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    // What belongs to another mode is no reason not to start.
    let notes = from("portRange: nonsense\n", "udpIdleTimeout: 5s\n").notes;
    let expected = ["portRange", "udpIdleTimeout"]
        .map(|name| format!("{name} has no effect: it belongs to mode userspace"));
    assert_eq!(notes, expected);
}
