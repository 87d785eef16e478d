//! Bridges, the FORWARD policy, what keeps packets from IPVS, and the networks that are reserved for internal frontends and routes.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::IpNet;
use plan::settings::Settings;

use super::present::{Saved, kind};
use super::{Check, CheckState};
use crate::mode;
use config::Configuration;
use kernel::input_rules::{self, Obstacle};
use kernel::link::{Link, LinkAddress, Links};
use kernel::linux::bridges;
use syntax::counted::first_named;
use syntax::page;

pub(super) fn checks(
    configuration: &Configuration,
    saved: &[Saved],
    proc_sys: &Path,
) -> Vec<Check> {
    let mut checks = of_bridges(configuration, proc_sys)
        .unwrap_or_else(|error| vec![Check::unread("bridges", error)]);
    checks.extend(forward_policy(&configuration.settings, saved));
    if mode::of_settings(&configuration.settings).takes_at_input {
        checks.extend(obstacles(&configuration.settings, saved));
    }
    checks.extend(reserved(configuration));
    checks
}

fn of_bridges(
    configuration: &Configuration,
    proc_sys: &Path,
) -> Result<Vec<Check>, netlink::Error> {
    const NAME: &str = "bridges";
    let mut links = Links::open()?;
    let addresses = links.addresses()?;
    let mut hidden = bridges::hidden(proc_sys, &mut links, &addresses)?;
    hidden.retain(|it| configuration.settings.families.contains(&it.family));
    if hidden.is_empty() {
        return Ok(vec![Check::ok(NAME, "IPVS sees all answers of pods on bridges")]);
    }
    Ok(hidden.into_iter().map(|it| Check::warning(NAME, it.what, it.remedy)).collect())
}

/// Rules of INPUT, and routing rules before the table `local`, that keep Service traffic from IPVS.
fn obstacles(settings: &Settings, saved: &[Saved]) -> Vec<Check> {
    let texts = || saved.iter().filter_map(|it| Some((it.family, it.text.as_deref().ok()?)));
    let in_input = input_rules::in_input(settings, texts());
    let in_routing = input_rules::in_routing(settings);
    let check = |name: &str, found: Vec<Obstacle>, ok: &str| -> Vec<Check> {
        if found.is_empty() {
            return vec![Check::ok(name, ok)];
        }
        let warnings = found.into_iter();
        warnings.map(|Obstacle { what, remedy }| Check::warning(name, what, remedy)).collect()
    };
    let drops = texts().find_map(|(_, text)| input_rules::drops_input(text));
    let of_input = match drops {
        Some(how) if in_input.is_empty() => {
            format!(
                "{how}. A rule of kube-ipvs before it accepts new connections to Services \
                     (acceptServiceTraffic)"
            )
        }
        _ => "accepts Service traffic".to_owned(),
    };
    let mut checks = check("INPUT", in_input, &of_input);
    checks.extend(check("routing rules", in_routing, "the table local comes first"));
    checks
}

/// KUBE-FORWARD accepts answers, in every mode, but rules of ours in nf_tables accept nothing.
pub(super) fn forward_policy(settings: &Settings, saved: &[Saved]) -> Vec<Check> {
    const NAME: &str = "FORWARD policy";
    let drops = saved.iter().filter(|it| it.text.as_deref().is_ok_and(drops_forwarded));
    let mut checks: Vec<Check> = drops
        .map(|it| {
            let found = format!("{}, {}: DROP", it.family, kind(it.backend));
            if settings.has_tables() {
                return Check::warning(
                    NAME,
                    format!(
                        "{found}. In nf_tables, kube-ipvs cannot accept packets that another table \
                         drops: clients outside get no answer from a pod unless the network plugin \
                         accepts it"
                    ),
                    "make sure that the network plugin accepts pods' packets, set the policy to \
                     ACCEPT (iptables -P FORWARD ACCEPT), or set ruleBackend: iptables",
                );
            }
            if !mode::of_settings(settings).forwards_first_packets {
                let accepted = "KUBE-FORWARD accepts answers of Services";
                return Check::note(NAME, format!("{found}. {accepted}"));
            }
            Check::warning(
                NAME,
                format!(
                    "{found}. KUBE-FORWARD accepts answers and masqueraded connections only: a pod's \
                     first packet to an endpoint needs a rule of the network plugin"
                ),
                "make sure that the network plugin accepts pods' packets, or set the policy to \
                 ACCEPT (iptables -P FORWARD ACCEPT)",
            )
        })
        .collect();
    if checks.is_empty() {
        checks.push(Check::ok(NAME, "ACCEPT"));
    }
    checks
}

/// True if the table `filter` drops what is forwarded and no rule accepts.
fn drops_forwarded(saved: &str) -> bool {
    let mut table = "";
    saved.lines().any(|line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        table == "filter" && line.starts_with(":FORWARD DROP")
    })
}

/// Addresses and routes inside the networks that kube-ipvs takes for itself: it would lead away what
/// is sent there.
fn reserved(configuration: &Configuration) -> Vec<Check> {
    const NAME: &str = "reserved networks";
    let settings = &configuration.settings;
    let internal_frontends = settings
        .families
        .iter()
        .filter_map(|family| settings.internal_frontend_networks.of(*family));
    let internal_frontends = internal_frontends.map(|network| (network, "internalFrontend"));
    let routes = settings.service_routes.iter().map(|network| (*network, "serviceRoutes"));
    let networks: Vec<(IpNet, &str)> = internal_frontends.chain(routes).collect();
    if networks.is_empty() {
        return Vec::new();
    }
    match in_use() {
        Err(error) => vec![Check::unread(NAME, error)],
        Ok(used) => overlaps(&networks, &used),
    }
}

/// Returns the networks and addresses that this host uses, but for those of our own interface.
fn in_use() -> Result<Vec<IpNet>, netlink::Error> {
    let mut links = Links::open()?;
    let ours = links.find()?.map(|link: Link| link.index);
    let addresses = links.addresses()?.into_iter();
    let addresses = addresses.filter(|it: &LinkAddress| Some(it.index) != ours);
    let mut used: Vec<IpNet> = addresses.map(|it| IpNet::from(it.address)).collect();
    used.extend(routes(&fs::read_to_string("/proc/net/route").unwrap_or_default(), route_v4));
    used.extend(routes(&fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default(), route_v6));
    Ok(used)
}

pub(super) fn overlaps(networks: &[(IpNet, &str)], used: &[IpNet]) -> Vec<Check> {
    const NAME: &str = "reserved networks";
    let mut checks = Vec::new();
    for (network, setting) in networks {
        let inside: Vec<&IpNet> = used.iter().filter(|it| network.contains(*it)).collect();
        if inside.is_empty() {
            continue;
        }
        let named = first_named(inside.iter());
        checks.push(Check::warning(
            NAME,
            format!("{network} ({setting}) is in use on this host: {named}"),
            format!("choose another network for {setting}; see {}", page!("config")),
        ));
    }
    if checks.is_empty() {
        let networks: Vec<String> = networks.iter().map(|(it, _)| it.to_string()).collect();
        let found = format!("{}: not in use on this host", networks.join(", "));
        checks.push(Check::new(NAME, CheckState::Ok, found));
    }
    checks
}

/// Returns the networks of a table of routes, but for the default route, unspecified and multicast.
fn routes(text: &str, read: fn(&[&str]) -> Option<IpNet>) -> Vec<IpNet> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let networks = lines.filter_map(|words| read(&words));
    networks.filter(|net| net.prefix_len() > 0 && !net.addr().is_multicast()).collect()
}

/// Reads a line of /proc/net/route: interface, destination, …, mask, in the processor's byte order.
fn route_v4(words: &[&str]) -> Option<IpNet> {
    let number = |word: &str| u32::from_str_radix(word, 16).ok();
    let address = Ipv4Addr::from(number(words.get(1)?)?.to_ne_bytes());
    let mask = Ipv4Addr::from(number(words.get(7)?)?.to_ne_bytes());
    IpNet::with_netmask(address.into(), mask.into()).ok().map(|net| net.trunc())
}

/// Reads a line of /proc/net/ipv6_route: destination, prefix length, …, interface.
fn route_v6(words: &[&str]) -> Option<IpNet> {
    let address = u128::from_str_radix(words.first()?, 16).ok()?;
    let prefix = u8::from_str_radix(words.get(1)?, 16).ok()?;
    let is_ours = words.last() == Some(&plan::kernel_objects::LINK);
    let net = IpNet::new(IpAddr::V6(Ipv6Addr::from(address)), prefix).ok()?;
    (!is_ours).then(|| net.trunc())
}

#[cfg(test)]
mod tests {
    use plan::model::Family;

    use plan::mode::Mode;

    use super::*;
    use kernel::rules::Backend;

    fn saved(text: &str) -> Vec<Saved> {
        let (family, backend) = (Family::V4, Backend::Nft);
        vec![Saved { family, backend, text: Ok(text.to_owned()) }]
    }

    fn states(checks: &[Check]) -> Vec<CheckState> {
        checks.iter().map(|check| check.state).collect()
    }

    #[test]
    fn a_policy_of_drop_matters_where_first_packets_are_forwarded() {
        let drops = saved("*mangle\n:FORWARD ACCEPT [0:0]\n*filter\n:FORWARD DROP [1:2]\nCOMMIT\n");
        let of = |mode| Settings { mode, ..Settings::new("") };
        assert_eq!(states(&forward_policy(&of(Mode::Iptables), &drops)), [CheckState::Warning]);
        assert_eq!(states(&forward_policy(&of(Mode::Ipvs), &drops)), [CheckState::Note]);
        let accepts =
            saved("*mangle\n:FORWARD DROP [0:0]\n*filter\n:FORWARD ACCEPT [1:2]\nCOMMIT\n");
        assert_eq!(states(&forward_policy(&of(Mode::Iptables), &accepts)), [CheckState::Ok]);
    }

    #[test]
    fn what_the_host_uses_inside_a_reserved_network_is_named() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                  eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n\
                  wg0\t000001F0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
        let of_v4 = routes(v4, route_v4);
        if cfg!(target_endian = "little") {
            assert_eq!(of_v4, ["240.1.0.0/24".parse::<IpNet>().unwrap()]);
        }
        let v6 = "fd001234000000000000000000000000 40 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000100 00000001 00000000 00000001 wg0\n\
                  fd001234000000000000000000000001 80 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000100 00000001 00000000 00000001 kube-ipvs0\n";
        let of_v6 = routes(v6, route_v6);
        assert_eq!(of_v6, ["fd00:1234::/64".parse::<IpNet>().unwrap()]);
        let networks = [("240.0.0.0/4".parse().unwrap(), "internalFrontend")];
        let used = ["240.1.0.0/24".parse().unwrap(), "192.0.2.1/32".parse().unwrap()];
        let checks = overlaps(&networks, &used);
        assert_eq!(states(&checks), [CheckState::Warning]);
        assert!(checks[0].found.contains("240.1.0.0/24"), "{}", checks[0].found);
        assert_eq!(states(&overlaps(&networks, &used[1..])), [CheckState::Ok]);
    }
}
