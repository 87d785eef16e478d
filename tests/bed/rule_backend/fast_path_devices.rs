//! Kinds of devices that carry the packets of the fast path.

use bed::{Connection, Namespace, Protocol, Question, Service};

use super::NFTABLES;
use super::fast_path::{CLUSTER, Forwarded, OFFLOAD, offloads, say};
use crate::fixture::{Bed, TARGET, ip};

/// A kind of tunnel between two nodes.
struct Tunnel {
    kind: &'static str,
    /// Words of `ip link add` behind the type.
    words: &'static str,
    has_ipv6: bool,
}

const TUNNELS: [Tunnel; 4] = [
    // As flannel lays it.
    Tunnel { kind: "vxlan", words: "id 1 dstport 8472 local OWN remote PEER", has_ipv6: true },
    Tunnel { kind: "geneve", words: "id 1 remote PEER", has_ipv6: true },
    Tunnel { kind: "ipip", words: "local OWN remote PEER", has_ipv6: false },
    Tunnel { kind: "wireguard", words: "", has_ipv6: true },
];

/// Modules of all kinds of devices, of IPsec and of traffic control.
const MODULES: [&str; 14] = [
    "8021q",
    "act_gact",
    "bonding",
    "cls_matchall",
    "esp4",
    "esp6",
    "gcm",
    "geneve",
    "ipip",
    "sch_ingress",
    "seqiv",
    "vxlan",
    "wireguard",
    "xfrm_user",
];

/// Private and public keys of two nodes, those of section 6.1 of RFC 7748.
const KEYS: [(&str, &str); 2] = [
    (
        "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=",
        "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=",
    ),
    (
        "XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=",
        "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=",
    ),
];

/// Key and salt of AES in Galois/Counter Mode.
const SECRET: &str = "0x000102030405060708090a0b0c0d0e0f10111213";

const ADDRESSES: [&str; 2] = ["10.96.0.30", "fd00:96::30"];

/// Packets of a measured part, in both directions.
const PACKETS: u64 = 40;

/// Packets of it that may meet hooks.
const FEW: u64 = 2;

/// The node, its neighbour, and what is measured.
struct Trial<'a> {
    bed: &'a Bed,
    forwarded: Forwarded<'a>,
    offloads: bool,
}

#[test]
fn tunnels_vlans_bonds_and_ipsec_carry_offloaded_connections() {
    let bed = Bed::new();
    let missing: Vec<&str> = MODULES
        .into_iter()
        .filter(|module| bed.node().command("modprobe", &[module]).is_err())
        .collect();
    assert_eq!(missing, [""; 0], "Debian's kernels have all of these modules");
    let mut service = Service::new("far", ip(ADDRESSES[0]));
    service.cluster.push(ip(ADDRESSES[1]));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        service = service.port(protocol, 80, TARGET);
    }
    bed.manifests.apply(&service.pods([bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let trial = Trial { bed: &bed, forwarded: Forwarded::begin(&bed), offloads: offloads(&bed) };
    TUNNELS.iter().for_each(|it| trial.between_nodes(it));
    trial.to_client("vlan");
    trial.to_client("bond");
    trial.encrypted();
    trial.shaped();
}

impl Trial<'_> {
    fn between_nodes(&self, tunnel: &Tunnel) {
        let nodes = [self.bed.node(), &self.bed.cluster.node(2).unwrap().namespace];
        for (place, node) in nodes.into_iter().enumerate() {
            let other = 1 - place;
            let (own, peer) =
                (format!("192.168.0.1{}", place + 1), format!("192.168.0.1{}", other + 1));
            let words = tunnel.words.replace("OWN", &own).replace("PEER", &peer);
            lines(node, &[format!("link add tunnel0 type {} {words}", tunnel.kind)]);
            if tunnel.kind == "wireguard" {
                let set = format!(
                    "wg set tunnel0 listen-port 51820 private-key /dev/stdin peer {} endpoint {peer}:51820 \
                     allowed-ips 0.0.0.0/0,::/0",
                    KEYS[other].1
                );
                node.command_with_input("sh", &["-c", &set], KEYS[place].0).unwrap();
            }
            let (own, peer) = (place + 1, other + 1);
            lines(
                node,
                &[
                    "link set tunnel0 up".to_owned(),
                    format!("addr add 10.250.0.{own}/24 dev tunnel0"),
                    format!("route replace 10.244.{peer}.0/24 via 10.250.0.{peer}"),
                ],
            );
            if tunnel.has_ipv6 {
                lines(
                    node,
                    &[
                        format!("addr add fd00:250::{own}/64 dev tunnel0 nodad"),
                        format!("route replace fd00:244:{peer}::/64 via fd00:250::{peer}"),
                    ],
                );
            }
        }
        self.wait_for("tunnel0");
        let addresses = if tunnel.has_ipv6 { &ADDRESSES[..] } else { &ADDRESSES[..1] };
        // The peer has no flow table: with Linux 7's, packets pass by the node's own device of a tunnel or a VLAN.
        let answered = || counter(nodes[1], "tunnel0", "tx_packets");
        let before = answered();
        for from in [self.bed.client(), &self.bed.pod(1, 2).namespace] {
            self.measure(tunnel.kind, from, addresses);
        }
        assert!(answered() - before >= PACKETS * addresses.len() as u64, "{}", tunnel.kind);
        for (place, node) in nodes.into_iter().enumerate() {
            let peer = 2 - place;
            lines(
                node,
                &[
                    "link del tunnel0".to_owned(),
                    format!("route replace 10.244.{peer}.0/24 via 192.168.0.1{peer}"),
                    format!("route replace fd00:244:{peer}::/64 via fd00:192::1{peer}"),
                ],
            );
        }
    }

    /// A device of this kind in the node, which leads to the client.
    fn to_client(&self, kind: &str) {
        let (node, client) = (self.bed.node(), self.bed.client());
        if kind == "bond" {
            let cable =
                |it| format!("link add {it} type veth peer name {it} netns {}", client.name());
            lines(node, &["cable0", "cable1"].map(cable));
        }
        for (namespace, last) in [(node, 11), (client, 100)] {
            if kind == "vlan" {
                lines(namespace, &["link add link eth0 name uplink0 type vlan id 7".to_owned()]);
            } else {
                let bond = [
                    "link add uplink0 type bond mode active-backup miimon 100",
                    "link set cable0 master uplink0",
                    "link set cable1 master uplink0",
                    "link set cable0 up",
                    "link set cable1 up",
                ];
                lines(namespace, &bond.map(str::to_owned));
            }
            lines(
                namespace,
                &[
                    "link set uplink0 up".to_owned(),
                    format!("addr add 172.16.7.{last}/24 dev uplink0"),
                    format!("addr add fd00:172::{last}/64 dev uplink0 nodad"),
                ],
            );
        }
        let routes = ["10.96.0.0/16 via 172.16.7.11", "fd00:96::/112 via fd00:172::11"];
        lines(client, &routes.map(|it| format!("route replace {it}")));
        self.wait_for("uplink0");
        let received = || counter(client, "uplink0", "rx_packets");
        let before = received();
        self.measure(kind, client, &ADDRESSES);
        assert!(received() - before >= PACKETS, "{kind}");
        for namespace in [node, client] {
            lines(namespace, &["link del uplink0".to_owned()]);
        }
        let routes = ["10.96.0.0/16 via 192.168.0.11", "fd00:96::/112 via fd00:192::11"];
        lines(client, &routes.map(|it| format!("route replace {it}")));
    }

    /// The same underlay, with policies that have packets of pods encrypted between the nodes.
    fn encrypted(&self) {
        let nodes = [self.bed.node(), &self.bed.cluster.node(2).unwrap().namespace];
        for (underlay, pods, any) in [
            ("192.168.0.1", "10.244.2.0/24", "0.0.0.0/0"),
            ("fd00:192::1", "fd00:244:2::/64", "::/0"),
        ] {
            let hosts = [1, 2].map(|number| format!("{underlay}{number}"));
            for (place, node) in nodes.into_iter().enumerate() {
                let (own, peer) = (&hosts[place], &hosts[1 - place]);
                let to = format!("tmpl src {own} dst {peer} proto esp reqid 1 mode tunnel");
                let from = format!("tmpl src {peer} dst {own} proto esp reqid 1 mode tunnel");
                let [there, back] =
                    [format!("src {any} dst {pods}"), format!("src {pods} dst {any}")];
                let (out, inward) = if place == 0 { (there, back) } else { (back, there) };
                let state = |src: &str, dst: &str, spi: usize| {
                    format!(
                        "xfrm state add src {src} dst {dst} proto esp spi {spi} reqid 1 mode tunnel \
                         aead rfc4106(gcm(aes)) {SECRET} 128"
                    )
                };
                lines(
                    node,
                    &[
                        state(own, peer, 0x100 + place),
                        state(peer, own, 0x101 - place),
                        format!("xfrm policy add {out} dir out {to}"),
                        format!("xfrm policy add {inward} dir fwd {from}"),
                        format!("xfrm policy add {inward} dir in {from}"),
                    ],
                );
            }
        }
        self.measure("IPsec", self.bed.client(), &ADDRESSES);
        // Beside a direction that is encrypted, the kernel does not look for a bridge's port: what a pod on a bridge sends
        // meets the hooks (`nft_flow_route` in net/netfilter/nft_flow_offload.c). Of TCP that includes its acknowledgements.
        let pod = &self.bed.pod(1, 2).namespace;
        for address in ADDRESSES {
            let passed = self.passed("IPsec", pod, address, Protocol::Udp);
            let is_so = if self.offloads { passed <= PACKETS / 2 + FEW } else { passed >= PACKETS };
            assert!(is_so, "IPsec, {address}: {passed} of {PACKETS}");
        }
        let states = nodes[0].command("ip", &["-s", "xfrm", "state"]).unwrap();
        let counts: Vec<u64> = states
            .split("(packets)")
            .filter_map(|text| text.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(counts.len() == 4 && counts.iter().all(|it| *it >= PACKETS), "{states}");
        for node in nodes {
            lines(node, &["xfrm state flush".to_owned(), "xfrm policy flush".to_owned()]);
        }
    }

    /// Filters of traffic control, by which plugins limit and count, see the packets in both directions.
    fn shaped(&self) {
        let node = self.bed.node();
        node.command("tc", &["qdisc", "add", "dev", "eth0", "clsact"]).unwrap();
        for direction in ["ingress", "egress"] {
            let filter = ["filter", "add", "dev", "eth0", direction, "matchall", "action", "pass"];
            node.command("tc", &filter).unwrap();
        }
        self.measure("tc", self.bed.client(), &ADDRESSES[..1]);
        for direction in ["ingress", "egress"] {
            let text =
                node.command("tc", &["-s", "filter", "show", "dev", "eth0", direction]).unwrap();
            let (_, seen) = text.split_once(" bytes ").unwrap();
            let seen: u64 = seen.split_once(" pkt").unwrap().0.parse().unwrap();
            assert!(seen >= PACKETS, "{direction}: {text}");
        }
        node.command("tc", &["qdisc", "del", "dev", "eth0", "clsact"]).unwrap();
    }

    /// Waits until the flow tables have a device.
    fn wait_for(&self, device: &str) {
        self.bed.wait_until(&format!("the flow tables have {device}"), || {
            let listed = self.bed.tool("nft", &["list", "flowtables"]);
            !self.offloads || listed.matches(device).count() == 2
        });
    }

    /// Sees that hardly a packet passes hooks.
    fn measure(&self, kind: &str, from: &Namespace, addresses: &[&str]) {
        for address in addresses {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let passed = self.passed(kind, from, address, protocol);
                let is_so = if self.offloads { passed <= FEW } else { passed >= PACKETS };
                assert!(is_so, "{kind}, {protocol:?} {address}: {passed} of {PACKETS}");
            }
        }
    }

    /// Counts the packets of a connection that pass hooks.
    fn passed(&self, kind: &str, from: &Namespace, address: &str, protocol: Protocol) -> u64 {
        let question = Question::new(protocol, (ip(address), 80));
        self.bed.wait_until(kind, || bed::ask(from, question).is_ok());
        let mut connection = Connection::open(from, question).unwrap();
        say(&mut connection, 4);
        let before = self.forwarded.count();
        say(&mut connection, usize::try_from(PACKETS / 2).unwrap());
        let passed = self.forwarded.count() - before;
        println!("{kind}, {question} from {}: {passed} of {PACKETS}", from.name());
        passed
    }
}

fn lines(namespace: &Namespace, lines: &[String]) {
    namespace.configure_links(lines).unwrap();
}

/// A counter of a device.
fn counter(namespace: &Namespace, device: &str, name: &str) -> u64 {
    let text = namespace.command("ip", &["-s", "-json", "link", "show", device]).unwrap();
    let (direction, _) = name.split_once('_').unwrap();
    let (_, text) = text.split_once(&format!("\"{direction}\":{{")).unwrap();
    let (_, text) = text.split_once("\"packets\":").unwrap();
    text.split(|it: char| !it.is_ascii_digit()).next().unwrap().parse().unwrap()
}
