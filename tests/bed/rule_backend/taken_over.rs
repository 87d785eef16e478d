//! Takeover of kube-proxy's state in mode nftables, under traffic.

use std::net::{IpAddr, SocketAddr};

use bed::{Client, Host, Load};

use super::{NFTABLES, limit, require_unnoticed, some, wait_for};
use crate::fixture::{Bed, ip};
use crate::load::{ANY, Amount, LOCAL, LOCAL_NODE_PORT, Loaded, NODE_PORT, PORT, serving};

/// A Service as kube-proxy has it.
struct Known {
    name: &'static str,
    cluster: IpAddr,
    /// Its other address, and whether that is for endpoints of this node alone.
    outer: (IpAddr, bool),
    target: u16,
    node_port: u16,
}

/// Words of a family's table.
struct Words {
    /// Family of the table, and of addresses.
    ip: &'static str,
    kind: &'static str,
    pods: &'static str,
}

/// The parts of a table that depend on Services.
#[derive(Default)]
struct OfServices {
    chains: String,
    services: Vec<String>,
    node_ports: Vec<String>,
}

/// The Services of the load, but for that with affinity.
fn known(ipv6: bool) -> [Known; 2] {
    let pick = |four: &str, six: &str| ip(if ipv6 { six } else { four });
    [
        Known {
            name: "any",
            cluster: pick("10.96.0.11", "fd00:96::11"),
            outer: (pick("198.51.100.11", "fd00:203::11"), false),
            target: ANY,
            node_port: NODE_PORT,
        },
        Known {
            name: "local",
            cluster: pick("10.96.0.12", "fd00:96::12"),
            outer: (pick("203.0.113.12", "fd00:203::12"), true),
            target: LOCAL,
            node_port: LOCAL_NODE_PORT,
        },
    ]
}

impl OfServices {
    /// Adds a Service's port of a protocol. `endpoints`: addresses, those of this node first.
    fn add(&mut self, words: &Words, service: &Known, protocol: &str, endpoints: &[IpAddr]) {
        let Words { ip, pods, .. } = words;
        let name = format!("{}-{protocol}", service.name);
        for (number, address) in endpoints.iter().enumerate() {
            let to = SocketAddr::new(*address, service.target);
            self.chains += &format!(
                "chain {name}-{number} {{ {ip} saddr {address} jump mark-for-masquerade; \
                 meta l4proto {protocol} dnat to {to}; }}\n"
            );
        }
        let by_chance = |n: usize| {
            let ways: Vec<String> =
                (0..n).map(|number| format!("{number} : goto {name}-{number}")).collect();
            format!("numgen random mod {n} vmap {{ {} }};", ways.join(", "))
        };
        let (cluster, (outer, is_local)) = (service.cluster, service.outer);
        let all = by_chance(endpoints.len());
        self.chains += &format!(
            "chain {name} {{ {ip} daddr {cluster} {protocol} dport {PORT} {ip} saddr != {pods} \
             jump mark-for-masquerade; {all} }}\n"
        );
        let external = if is_local {
            format!(
                "{ip} saddr {pods} goto {name}; fib saddr type local jump mark-for-masquerade; \
                 fib saddr type local goto {name}; {}",
                by_chance(2)
            )
        } else {
            format!("jump mark-for-masquerade; goto {name};")
        };
        self.chains += &format!("chain {name}-external {{ {external} }}\n");
        self.services.push(format!("{cluster} . {protocol} . {PORT} : goto {name}"));
        self.services.push(format!("{outer} . {protocol} . {PORT} : goto {name}-external"));
        self.node_ports.push(format!("{protocol} . {} : goto {name}-external", service.node_port));
    }
}

/// Returns kube-proxy's table of a family, in the layout of pkg/proxy/nftables/proxier.go (`setupNFTables`,
/// `syncProxyRules`), with shorter names.
fn table(bed: &Bed, ipv6: bool) -> String {
    let words = if ipv6 {
        Words { ip: "ip6", kind: "ipv6_addr", pods: "fd00:244::/32" }
    } else {
        Words { ip: "ip", kind: "ipv4_addr", pods: "10.244.0.0/16" }
    };
    let address = |host: &Host| -> IpAddr {
        if ipv6 { host.ipv6().unwrap().into() } else { host.ipv4.into() }
    };
    let endpoints = serving(bed).map(address);
    let (known, mut of_services) = (known(ipv6), OfServices::default());
    for service in &known {
        for protocol in ["tcp", "udp"] {
            of_services.add(&words, service, protocol, &endpoints);
        }
    }
    let Words { ip, kind, .. } = words;
    let OfServices { chains, services, node_ports } = of_services;
    let (services, node_ports) = (services.join(", "), node_ports.join(", "));
    let cluster_ips = known.map(|service| service.cluster.to_string()).join(", ");
    let node = address(bed.cluster.node(1).unwrap());
    format!(
        "table {ip} kube-proxy {{
set cluster-ips {{ type {kind}; elements = {{ {cluster_ips} }}; }}
set nodeport-ips {{ type {kind}; elements = {{ {node} }}; }}
map no-endpoint-services {{ type {kind} . inet_proto . inet_service : verdict; }}
chain mark-for-masquerade {{ meta mark set meta mark | 0x4000; }}
chain masquerading {{ meta mark & 0x4000 == 0 return;
  meta mark set meta mark ^ 0x4000; masquerade fully-random; }}
{chains}
map service-ips {{ type {kind} . inet_proto . inet_service : verdict; elements = {{ {services} }}; }}
map service-nodeports {{ type inet_proto . inet_service : verdict; elements = {{ {node_ports} }}; }}
chain services {{ {ip} daddr . meta l4proto . th dport vmap @service-ips;
  {ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }}
chain service-endpoints-check {{ {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
chain cluster-ips-check {{ {ip} daddr @cluster-ips reject; }}
chain filter-input {{ type filter hook input priority -110; ct state new jump service-endpoints-check; }}
chain filter-forward {{ type filter hook forward priority -110; ct state new jump service-endpoints-check;
  ct state new jump cluster-ips-check; }}
chain filter-output {{ type filter hook output priority -110; ct state new jump service-endpoints-check; }}
chain filter-output-post-dnat {{ type filter hook output priority -90; ct state new jump cluster-ips-check; }}
chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
chain nat-output {{ type nat hook output priority -100; jump services; }}
chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
}}
"
    )
}

#[test]
fn what_kube_proxy_left_in_mode_nftables_is_taken_over_under_traffic() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let left = table(bed, false) + &table(bed, true);
    bed.node().command_with_input("nft", &["-f", "-"], &left).unwrap();
    let has_none = |client: &Client<'_>| !client.name.starts_with("affinity");
    let clients = loaded.clients(Amount::new(bed)).into_iter().filter(has_none);
    let load = Load::start(&clients.collect::<Vec<_>>()).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16,fd00:244::/32", NFTABLES]);
    bed.wait_for(limit(), "kube-proxy's tables are gone", || {
        !bed.tool("nft", &["list", "tables"]).contains("kube-proxy")
    });
    wait_for(bed, &["nf_tables"]);
    load.wait_for_answers(some(), limit()).unwrap();
    require_unnoticed(&load.stop(), 0);
}
