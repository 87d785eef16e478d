//! A node whose IPVS and DNAT rules the test sets up by hand, and one Service on it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bed::{ClusterSpec, Connection, Host, Namespace, NodeSpec, Protocol, Question};

use crate::fixture::{Bed, TARGET, ip};

/// Port of the Service.
pub(super) const PORT: u16 = 80;
/// Time in which an answer would come if there were one.
pub(super) const SILENCE: Duration = Duration::from_millis(400);
/// Name of the chain that both modes call first.
const SERVICES: &str = "KUBE-SERVICES";

/// The rules that both modes have all the time, with the one of iptables mode that drops what
/// connection tracking does not know.
const BASE: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
";

/// The settings that kube-ipvs makes.
const SYSCTLS: [(&str, &str); 4] = [
    ("net/ipv4/vs/conntrack", "1"),
    ("net/ipv4/vs/expire_nodest_conn", "1"),
    ("net/ipv4/vs/expire_quiescent_template", "1"),
    ("net/ipv4/vs/conn_reuse_mode", "0"),
];

/// A cluster whose first node has IPVS and iptables, but no proxy.
pub(super) struct Ground {
    pub(super) bed: Bed,
}

/// The Service in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) ipv6: bool,
    pub(super) protocol: Protocol,
}

/// The Service's ways over TCP.
pub(super) const TCP: [Way; 2] =
    [Way { ipv6: false, protocol: Protocol::Tcp }, Way { ipv6: true, protocol: Protocol::Tcp }];
/// The Service's ways over UDP.
pub(super) const UDP: [Way; 2] =
    [Way { ipv6: false, protocol: Protocol::Udp }, Way { ipv6: true, protocol: Protocol::Udp }];

impl Way {
    /// The Service's address.
    pub(super) fn address(self) -> IpAddr {
        ip(if self.ipv6 { "fd00:96::10" } else { "10.96.0.10" })
    }

    /// The Service's address and port.
    pub(super) fn frontend(self) -> SocketAddr {
        (self.address(), PORT).into()
    }

    /// A question to the Service that waits no longer than needed to know that no answer comes.
    pub(super) fn question(self) -> Question {
        Question::new(self.protocol, self.frontend()).within(SILENCE)
    }

    /// A pod as an endpoint.
    pub(super) fn endpoint(self, pod: &Host) -> SocketAddr {
        let address = if self.ipv6 { pod.ipv6().unwrap().into() } else { IpAddr::V4(pod.ipv4) };
        (address, TARGET).into()
    }

    /// The name of an iptables program for the family.
    pub(super) fn program(self, name: &str) -> String {
        if self.ipv6 { name.replacen("ip", "ip6", 1) } else { name.to_owned() }
    }

    fn name(self) -> &'static str {
        if self.protocol == Protocol::Tcp { "tcp" } else { "udp" }
    }

    /// The option with which ipvsadm takes the Service.
    fn virtual_server(self) -> String {
        let option = if self.protocol == Protocol::Tcp { "-t" } else { "-u" };
        format!("{option} {}", self.frontend())
    }

    fn prefix(self) -> String {
        format!("{}/{}", self.address(), if self.ipv6 { 128 } else { 32 })
    }

    /// The match of packets to the Service.
    fn matches(self) -> String {
        format!("-d {} -p {} --dport {PORT}", self.prefix(), self.name())
    }

    /// The rule of both modes that has clients masqueraded that are no pods.
    pub(super) fn masquerade(self) -> String {
        let pods = if self.ipv6 { "fd00:244::/32" } else { "10.244.0.0/16" };
        format!("-A {SERVICES} ! -s {pods} {} -j KUBE-MARK-MASQ", self.matches())
    }

    /// The rules of iptables mode, which choose among these pods.
    pub(super) fn dispatch(self, pods: &[&Host]) -> Vec<String> {
        let matches = self.matches();
        let of_pod = |(place, pod): (usize, &&Host)| {
            let left = pods.len() - place;
            let chance = format!("-m statistic --mode nth --every {left} --packet 0 ");
            let chance = if left == 1 { String::new() } else { chance };
            let target = self.endpoint(pod);
            format!("-A {SERVICES} {matches} {chance}-j DNAT --to-destination {target}")
        };
        pods.iter().enumerate().map(of_pod).collect()
    }
}

impl Ground {
    /// With the rules that both modes have all the time.
    pub(super) fn new() -> Self {
        let ground = Self::bare();
        for way in TCP {
            ground.restore(way, BASE);
        }
        ground
    }

    /// Without any rule: three pods on the node, another one on the next.
    pub(super) fn bare() -> Self {
        let nodes = vec![NodeSpec { pods: 3 }, NodeSpec { pods: 1 }];
        let bed = Bed::with(&ClusterSpec { nodes, ..ClusterSpec::default() });
        let ground = Self { bed };
        ground.run("modprobe -a ip_vs ip_vs_rr");
        ground.bed.node().set_sysctls(&SYSCTLS).unwrap();
        ground.run("ip link add kube-ipvs0 type dummy");
        ground
    }

    /// Runs a program in the node.
    pub(super) fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap();
        self.bed.tool(program, &words.collect::<Vec<_>>())
    }

    /// Binds the Service's address and makes these pods its real servers.
    pub(super) fn balance(&self, way: Way, pods: &[&Host]) {
        self.bind(way);
        self.run(&format!("ipvsadm -A {} -s rr", way.virtual_server()));
        for pod in pods {
            self.real_server("-a", way, pod, "-m -w 1");
        }
    }

    /// Adds (`-a`), edits (`-e`) or removes (`-d`) a real server.
    pub(super) fn real_server(&self, option: &str, way: Way, pod: &Host, more: &str) {
        let (service, endpoint) = (way.virtual_server(), way.endpoint(pod));
        self.run(&format!("ipvsadm {option} {service} -r {endpoint} {more}"));
    }

    /// Removes the Service's virtual server.
    pub(super) fn unbalance(&self, way: Way) {
        self.run(&format!("ipvsadm -D {}", way.virtual_server()));
    }

    pub(super) fn bind(&self, way: Way) {
        self.run(&format!("ip addr replace {} dev kube-ipvs0", way.prefix()));
    }

    pub(super) fn unbind(&self, way: Way) {
        self.run(&format!("ip addr del {} dev kube-ipvs0", way.prefix()));
    }

    /// Replaces the rules of the chain that both modes call first, in one commit.
    pub(super) fn services(&self, way: Way, rules: &[String]) {
        let text = rules.join("\n");
        self.restore(way, &format!("*nat\n:{SERVICES} - [0:0]\n{text}\nCOMMIT\n"));
    }

    /// From here on new connections go to these pods by DNAT.
    pub(super) fn to_iptables(&self, way: Way, pods: &[&Host]) {
        self.services(way, &[vec![way.masquerade()], way.dispatch(pods)].concat());
    }

    /// From here on new connections go to the virtual server.
    pub(super) fn to_ipvs(&self, way: Way) {
        self.services(way, &[way.masquerade()]);
    }

    /// Applies rules beside those that there are.
    pub(super) fn restore(&self, way: Way, text: &str) {
        let program = way.program("iptables-restore");
        self.bed.node().command_with_input(&program, &["--noflush"], text).unwrap();
    }

    /// The clients: outside, a pod of the node, and the node itself.
    pub(super) fn clients(&self) -> [&Namespace; 3] {
        [self.bed.client(), &self.pod(3).namespace, self.bed.node()]
    }

    /// A pod of the node.
    pub(super) fn pod(&self, number: u8) -> &Host {
        self.bed.pod(1, number)
    }

    /// Deletes what connection tracking knows of the Service.
    pub(super) fn forget(&self, way: Way) {
        let (family, name) = (if way.ipv6 { "ipv6" } else { "ipv4" }, way.name());
        self.run(&format!("conntrack -D -f {family} -p {name} --orig-dst {}", way.address()));
    }

    /// As [`Self::to_iptables`], for a proxy that does not know which clients are pods.
    pub(super) fn to_iptables_without_masquerade(&self, way: Way, pod: &Host) {
        self.services(way, &way.dispatch(&[pod]));
    }

    /// The match of packets whose address, `src` or `dst`, is the Service's: by a set, as ipvs mode
    /// has it.
    pub(super) fn bound_addresses(&self, way: Way) -> String {
        let (set, family) =
            if way.ipv6 { ("KUBE-6-IPVS-IPS", "inet6") } else { ("KUBE-IPVS-IPS", "inet") };
        self.run(&format!("ipset -exist create {set} hash:ip family {family}"));
        self.run(&format!("ipset -exist add {set} {}", way.address()));
        format!("-m set --match-set {set}")
    }

    /// This port of the client outside.
    pub(super) fn source(&self, way: Way, port: u16) -> SocketAddr {
        let client = self.bed.cluster.client(1).unwrap();
        let address =
            if way.ipv6 { client.ipv6().unwrap().into() } else { IpAddr::V4(client.ipv4) };
        (address, port).into()
    }

    /// Lines of IPVS's connection table about the Service.
    pub(super) fn balanced(&self, way: Way) -> Vec<String> {
        let table = self.run("ipvsadm -Lnc");
        let (kind, frontend) = (way.protocol.to_string(), format!(" {} ", way.frontend()));
        let of_service = |line: &&str| line.starts_with(&kind) && line.contains(&frontend);
        table.lines().filter(of_service).map(str::to_owned).collect()
    }
}

/// Opens a connection, and makes sure who answers.
#[track_caller]
pub(super) fn connect(from: &Namespace, way: Way, pod: &Host) -> Connection {
    let mut connection = Connection::open(from, way.question()).unwrap();
    answers(&mut connection, pod);
    connection
}

/// Makes sure that a connection is alive and who answers.
#[track_caller]
pub(super) fn answers(connection: &mut Connection, pod: &Host) {
    let answer = connection.say().map(|answer| answer.server);
    assert_eq!(answer.as_ref(), Ok(&pod.name));
}
