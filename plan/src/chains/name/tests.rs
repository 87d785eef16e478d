use super::*;

/// Service ports of kube-proxy's own tests, of articles that quote real nodes, and computed ones.
const PORTS: [(&str, &str, &str, Protocol, &str); 14] = [
    ("kube-system", "kube-dns", "dns", Protocol::Udp, "TCOU7JCQXEZGVUNU"),
    ("kube-system", "kube-dns", "dns-tcp", Protocol::Tcp, "ERIFXISQEP7F7OF4"),
    ("kube-system", "kube-dns", "metrics", Protocol::Tcp, "JD5MR3NA4I4DYORP"),
    ("default", "kubernetes", "https", Protocol::Tcp, "NPX46M4PTMTKRN6Y"),
    ("default", "nginx", "", Protocol::Tcp, "2CMXP7HKUVJN7L6M"),
    ("default", "nginx", "", Protocol::Udp, "YCQ6VRYU63HO7L7Q"),
    ("default", "nginx", "", Protocol::Sctp, "K3OWUEE3MLCE7DZQ"),
    ("default", "mysql-service", "", Protocol::Tcp, "G4UYIH746YNNDBV2"),
    ("default", "hello-world-service", "", Protocol::Tcp, "I6CTHWSTJGL5RHWT"),
    ("ns1", "svc1", "p80", Protocol::Tcp, "XPGD46QRK7WJZT7O"),
    ("ns2", "svc2", "p80", Protocol::Tcp, "GNZBNJ2PO5MGZ6GT"),
    ("ns3", "svc3", "p80", Protocol::Tcp, "X27LE4BHSL4DOUIK"),
    ("ns4", "svc4", "p80", Protocol::Tcp, "4SW47YFZTEDKD3PK"),
    ("ns5", "svc5", "p80", Protocol::Tcp, "NUKIZ6OKUXPJNT4C"),
];

const ENDPOINTS: [(&str, &str, &str, Protocol, &str, &str); 9] = [
    ("kube-system", "kube-dns", "dns", Protocol::Udp, "10.244.0.3:53", "6E7XQMQ4RAYOWTTM"),
    ("kube-system", "kube-dns", "dns", Protocol::Udp, "10.244.0.4:53", "WXWGHGKZOCNYRYI7"),
    ("kube-system", "kube-dns", "dns-tcp", Protocol::Tcp, "10.244.0.3:53", "ZXMNUKOKXUTL2MK2"),
    ("kube-system", "kube-dns", "metrics", Protocol::Tcp, "10.244.0.3:9153", "ZP3FB6NMPNCO4VBJ"),
    ("default", "kubernetes", "https", Protocol::Tcp, "172.18.0.3:6443", "QKX4QX54UKWK6JIY"),
    ("ns4", "svc4", "p80", Protocol::Tcp, "10.180.0.4:80", "UKSFD7AGPMPPLUHC"),
    ("ns4", "svc4", "p80", Protocol::Tcp, "10.180.0.5:80", "C6EBXVWJJZMIWKLZ"),
    ("default", "nginx", "", Protocol::Tcp, "10.244.3.4:80", "GN2DZZPH2ZAUKMAT"),
    ("default", "nginx", "", Protocol::Tcp, "[fd00:10:244::1]:80", "GT3BC7YCVEFBHYHA"),
];

fn mk_port(namespace: &str, name: &str, port: &str) -> ServicePortName {
    ServicePortName::new(&ServiceName::new(namespace, name), port)
}

#[test]
fn chains_have_the_names_that_kube_proxy_gives_them() {
    for (namespace, name, port, protocol, hash) in PORTS {
        let port = mk_port(namespace, name, port);
        assert_eq!(ChainHash::of_port(&port, protocol).to_string(), hash, "{port} {protocol}");
    }
    for (namespace, name, port, protocol, endpoint, hash) in ENDPOINTS {
        let (port, endpoint) = (mk_port(namespace, name, port), endpoint.parse().unwrap());
        let found = ChainHash::of_endpoint(&port, protocol, endpoint);
        assert_eq!(found.to_string(), hash, "{port} {protocol} {endpoint}");
    }
}

#[test]
fn names_are_read_back() {
    let hash = ChainHash::of_port(&mk_port("default", "nginx", ""), Protocol::Tcp);
    let own = PortChain::ALL.map(|kind| ChainId::of_port(Family::V4, kind, hash));
    let modes = Mode::ALL.into_iter();
    let shared = modes.flat_map(|mode| ChainId::all_shared(mode, Family::V4));
    for chain in shared.chain(own) {
        let name = chain.name.to_string();
        assert!(name.len() <= 28, "{name}");
        assert_eq!(ChainName::parse(chain.table, &name), Some(chain.name), "{name}");
    }
}

#[test]
fn modes_share_the_chains_that_refuse_and_no_others() {
    let of = |mode| ChainId::all_shared(mode, Family::V4).collect::<Vec<_>>();
    assert_eq!(of(Mode::Ipvs), []);
    let both: Vec<_> =
        of(Mode::Iptables).into_iter().filter(|chain| chain.is_of(Mode::Userspace)).collect();
    let names: Vec<String> = both.iter().map(|chain| chain.name.to_string()).collect();
    let refusing =
        ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"];
    assert_eq!(names, refusing);
    assert!(both.iter().all(|chain| chain.table == Table::Filter));
    let portals: Vec<String> = of(Mode::Userspace)
        .iter()
        .filter(|chain| !both.contains(chain))
        .map(|chain| format!("{} {}", chain.table, chain.name))
        .collect();
    let expected = PortalChain::ALL.map(|chain| format!("{} {chain}", chain.table()));
    assert_eq!(portals, expected);
}

#[test]
fn no_other_chain_is_taken_for_ours() {
    for (table, name) in [
        (Table::Nat, "KUBE-EXTERNAL-SERVICES"),
        (Table::Filter, "KUBE-SVC-2CMXP7HKUVJN7L6M"),
        (Table::Mangle, "KUBE-SERVICES"),
        (Table::Nat, "KUBE-SVC-2CMXP7HKUVJN7L6"),
        (Table::Nat, "KUBE-SVC-2CMXP7HKUVJN7L6MM"),
        (Table::Nat, "KUBE-SVC-2cmxp7hkuvjn7l6m"),
        (Table::Nat, "KUBE-SVC-2CMXP7HKUVJN7L61"),
        (Table::Nat, "KUBE-POSTROUTING"),
        (Table::Nat, "KUBE-SERVICES-X"),
        (Table::Nat, ""),
    ] {
        assert_eq!(ChainName::parse(table, name), None, "{table} {name}");
    }
}
