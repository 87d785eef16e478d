//! State that kube-proxy has for the same Services: its mode ipvs from what one left, its mode nftables
//! by the layout that pkg/proxy/nftables describes.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;

use crate::ground::{Family, Ground, Measured, NODE_PORT, PORT, TARGET};
use crate::installed::idle;

const SETS: &str = include_str!("../../tests/bed/left_by_kube_proxy/ipset");
const RULES: &str = include_str!("../../tests/bed/left_by_kube_proxy/iptables");
const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:244::/32"];
/// Rule that a Service with externalTrafficPolicy Local brings.
const LOCAL: &str = "-A KUBE-LOAD-BALANCER -m comment --comment \"Kubernetes service load balancer ip + \
    port with externalTrafficPolicy=local\" -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN\n";
/// Rules for NodePorts of UDP, as those for TCP.
const UDP: &str = "-A KUBE-NODE-PORT -p udp -m comment --comment \"Kubernetes nodeport UDP port for \
    masquerade purpose\" -m set --match-set KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ\n";

/// Input of `ipset restore` and of `iptables-restore`.
pub(crate) fn ipvs(ground: &Ground, services: u32) -> Result<(String, String)> {
    let mut entries = String::new();
    let mut add = |set: &str, address: &str| -> Result<()> {
        for protocol in ["tcp", "udp"] {
            writeln!(entries, "add {set} {address},{protocol}:{PORT}")?;
        }
        Ok(())
    };
    for measured in Measured::ALL {
        add("KUBE-CLUSTER-IP", measured.cluster(ground.family))?;
        if let Some(address) = measured.load_balancer(ground.family) {
            add("KUBE-LOAD-BALANCER", address)?;
            add("KUBE-LOAD-BALANCER-LOCAL", address)?;
        }
    }
    for number in 0..services {
        add("KUBE-CLUSTER-IP", &idle(ground.family, number)?.to_string())?;
    }
    for set in ["KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-UDP"] {
        writeln!(entries, "add {set} {NODE_PORT}")?;
    }
    let rules = RULES
        .replacen("-A KUBE-LOAD-BALANCER ", &format!("{LOCAL}-A KUBE-LOAD-BALANCER "), 1)
        .replacen("-A KUBE-POSTROUTING ", &format!("{UDP}-A KUBE-POSTROUTING "), 1);
    match ground.family {
        Family::Ipv4 => Ok((format!("{SETS}{entries}"), rules)),
        Family::Ipv6 => Ok((ipv6(&format!("{SETS}{entries}")), ipv6(&rules))),
    }
}

/// The same for IPv6: entries of IPv4 are left out, and sets have other names.
fn ipv6(text: &str) -> String {
    let is_ipv4 = |line: &&str| {
        let is_entry = line.starts_with("add ") || line.contains("203.0.113.");
        is_entry && ["10.", "192.", "203."].iter().any(|start| line.contains(&format!(" {start}")))
    };
    let lines = text.lines().filter(|line| !is_ipv4(line)).map(|line| {
        let line = line
            .replace("family inet ", "family inet6 ")
            .replace("127.0.0.0/8", "::1/128")
            .replace(PODS[0], PODS[1])
            .replace("--reject-with icmp-", "--reject-with icmp6-");
        let is_of_sets = line.starts_with("add ") || line.starts_with("create ");
        let named = |line: &str, before: &str| {
            line.replace(&format!("{before} KUBE-"), &format!("{before} KUBE-6-"))
        };
        let line = named(&line, if is_of_sets { "add" } else { "--match-set" });
        let line = if is_of_sets { named(&line, "create") } else { line };
        // A set's name has at most 31 bytes.
        line.replace("KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID")
            .replace("KUBE-6-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS")
    });
    lines.map(|line| line + "\n").collect()
}

/// Input of `nft -f`.
pub(crate) fn nftables(ground: &Ground, services: u32) -> Result<String> {
    let family = ground.family;
    let (mut chains, mut elements, mut addresses) = (String::new(), Vec::new(), Vec::new());
    let mut add = |name: &str, address: &str, ways: &[(&str, bool)], endpoint: IpAddr| {
        let ip = family.choose("ip", "ip6");
        let pods = family.choose(PODS[0], PODS[1]);
        for protocol in ["tcp", "udp"] {
            let (service, sep) =
                (format!("{name}-{protocol}"), format!("{name}-{protocol}-endpoint"));
            let socket = std::net::SocketAddr::from((endpoint, TARGET));
            let _ = writeln!(
                chains,
                "chain {sep} {{ {ip} saddr {endpoint} jump mark-for-masquerade; \
                 meta l4proto {protocol} dnat to {socket}; }}"
            );
            let _ = writeln!(
                chains,
                "chain {service} {{ {ip} daddr {address} {protocol} dport {PORT} {ip} saddr != {pods} \
                 jump mark-for-masquerade; numgen random mod 1 vmap {{ 0 : goto {sep} }}; }}"
            );
            elements.push(format!("{address} . {protocol} . {PORT} : goto {service}"));
            for (way, is_local) in ways {
                let mark = if *is_local { "" } else { "jump mark-for-masquerade;" };
                let _ = writeln!(chains, "chain {service}-external {{ {mark} goto {service}; }}");
                if !way.is_empty() {
                    elements.push(format!("{way} . {protocol} . {PORT} : goto {service}-external"));
                }
            }
        }
        addresses.push(address.to_owned());
    };
    for measured in Measured::ALL {
        let load_balancer = measured.load_balancer(family).map(|address| (address, true));
        let node_port = (measured == Measured::Near).then_some(("", false));
        let ways: Vec<_> = load_balancer.into_iter().chain(node_port).collect();
        add(measured.name(), measured.cluster(family), &ways, measured.endpoint(ground));
    }
    let near = Measured::Near.endpoint(ground);
    for number in 0..services {
        add(&format!("idle-{number}"), &idle(family, number)?.to_string(), &[], near);
    }
    let table = table(family, &ground.node_address()?.to_string());
    let (elements, addresses) = (elements.join(", "), addresses.join(", "));
    let filled = table
        .replace("CHAINS", &chains)
        .replace("SERVICE_ELEMENTS", &elements)
        .replace("CLUSTER_ADDRESSES", &addresses);
    Ok(filled)
}

/// The table with its base chains, as kube-proxy 1.33 has them.
fn table(family: Family, node: &str) -> String {
    let (ip, kind) = (family.choose("ip", "ip6"), family.choose("ipv4_addr", "ipv6_addr"));
    format!(
        "table {ip} kube-proxy {{
set cluster-ips {{ type {kind}; elements = {{ CLUSTER_ADDRESSES }}; }}
set nodeport-ips {{ type {kind}; elements = {{ {node} }}; }}
map no-endpoint-services {{ type {kind} . inet_proto . inet_service : verdict; }}
map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
map firewall-ips {{ type {kind} . inet_proto . inet_service : verdict; }}
chain mark-for-masquerade {{ meta mark set meta mark | 0x4000; }}
chain masquerading {{ meta mark & 0x4000 == 0 return;
  meta mark set meta mark ^ 0x4000; masquerade fully-random; }}
CHAINS
map service-ips {{ type {kind} . inet_proto . inet_service : verdict; elements = {{ SERVICE_ELEMENTS }}; }}
map service-nodeports {{ type inet_proto . inet_service : verdict;
  elements = {{ tcp . {NODE_PORT} : goto near-tcp-external, udp . {NODE_PORT} : goto near-udp-external }}; }}
chain services {{ {ip} daddr . meta l4proto . th dport vmap @service-ips;
  {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }}
chain service-endpoints-check {{ {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
chain nodeport-endpoints-check {{ {ip} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
chain firewall-check {{ {ip} daddr . meta l4proto . th dport vmap @firewall-ips; }}
chain cluster-ips-check {{ {ip} daddr @cluster-ips reject; }}
chain filter-prerouting {{ type filter hook prerouting priority -110; ct state new jump firewall-check; }}
chain filter-input {{ type filter hook input priority -110; ct state new jump nodeport-endpoints-check;
  ct state new jump service-endpoints-check; }}
chain filter-forward {{ type filter hook forward priority -110; ct state new jump service-endpoints-check;
  ct state new jump cluster-ips-check; }}
chain filter-output {{ type filter hook output priority -110; ct state new jump service-endpoints-check;
  ct state new jump firewall-check; }}
chain filter-output-post-dnat {{ type filter hook output priority -90; ct state new jump cluster-ips-check; }}
chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
chain nat-output {{ type nat hook output priority -100; jump services; }}
chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
}}
"
    )
}
