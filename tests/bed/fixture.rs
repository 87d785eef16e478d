//! A cluster of two nodes with two pods each and a client outside, kube-ipvs in the first node.

use std::net::IpAddr;
use std::sync::Once;
use std::time::Duration;

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{
    Cluster, ClusterSpec, Host, Manifests, Namespace, PodCables, Protocol, Proxy, Question, Server,
};
use bed::{Service, Tally, ask_many, eventually};

/// Port that every pod listens on, with each protocol.
pub(crate) const TARGET: u16 = 8080;
/// Longest time until packets notice a saved change, on an emulated machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

static MODULES: Once = Once::new();

/// The cluster, with servers in all pods, and a folder of manifests.
pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    pub(crate) manifests: Manifests,
    _servers: Vec<Server>,
}

/// Loads what a node's other software has loaded already.
fn load_once() {
    MODULES.call_once(|| {
        let mut command = std::process::Command::new("modprobe");
        let modules = ["sctp", "nf_conntrack"].iter().chain(PodCables::of_host().modules());
        let status = command.arg("-a").args(modules).status().unwrap();
        assert!(status.success(), "modprobe: {status}");
    });
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(&ClusterSpec::default())
    }

    pub(crate) fn with(spec: &ClusterSpec) -> Self {
        load_once();
        let cluster = Cluster::build(spec).unwrap();
        let ports = PROTOCOLS.map(|protocol| (protocol, TARGET));
        let servers = cluster.pods().map(|pod| Server::start(pod, &ports).unwrap()).collect();
        Self { cluster, manifests: Manifests::new().unwrap(), _servers: servers }
    }

    pub(crate) fn node(&self) -> &Namespace {
        &self.cluster.node(1).unwrap().namespace
    }

    pub(crate) fn client(&self) -> &Namespace {
        &self.cluster.client(1).unwrap().namespace
    }

    pub(crate) fn pod(&self, node: u8, pod: u8) -> &Host {
        self.cluster.pod(node, pod).unwrap()
    }

    /// Starts kube-ipvs in the first node, and waits until it is in sync.
    pub(crate) fn start(&self, arguments: &[&str]) -> Proxy {
        Proxy::start(self.node(), &self.manifests, arguments).unwrap()
    }

    /// The path of a configuration file with this in our own document.
    pub(crate) fn configuration(&self, name: &str, own: &str) -> String {
        let path = format!("{}-{name}.conf", self.manifests.path().display());
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             clusterCIDR: {POD_RANGE_IPV4},{POD_RANGE_IPV6}\nmode: ipvs\n\
             ipvs: {{syncPeriod: 10m}}\n---\n\
             apiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n{own}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns the output of a tool in the first node.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> String {
        self.node().command(program, arguments).unwrap()
    }

    /// `ipvsadm -Ln` of the first node.
    pub(crate) fn virtual_servers(&self) -> String {
        self.tool("ipvsadm", &["-Ln"])
    }

    /// The addresses on kube-ipvs0.
    pub(crate) fn bound(&self) -> Vec<String> {
        let text = self.tool("ip", &["-oneline", "addr", "show", "dev", "kube-ipvs0"]);
        let words = text.lines().filter_map(|line| line.split_whitespace().nth(3));
        let mut bound: Vec<String> =
            words.filter(|address| !address.starts_with("fe80:")).map(str::to_owned).collect();
        bound.sort();
        bound
    }

    /// The entries of all sets of ours, as `SET ENTRY`.
    pub(crate) fn entries(&self) -> Vec<String> {
        let text = self.tool("ipset", &["save"]);
        let lines = text.lines().filter_map(|line| line.strip_prefix("add "));
        let mut entries: Vec<String> =
            lines.filter(|line| line.starts_with("KUBE-")).map(str::to_owned).collect();
        entries.sort();
        entries
    }

    /// The rules of a family without counters and comments.
    ///
    /// The tool asks for the name of each set after it has read the rules. When rule and set were
    /// removed between, it fails, and is run again.
    pub(crate) fn rules(&self, family: &str) -> String {
        let program = format!("{family}-save");
        let text = eventually(PATIENCE, "rules whose sets are there", || {
            match self.node().command(&program, &[]) {
                Err(error) if format!("{error:#}").contains("Set with index") => Err(error),
                ended => Ok(ended),
            }
        });
        let text = text.unwrap().unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(" [").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the target answers one question, then asks `count` times.
    pub(crate) fn ask(
        &self,
        from: &Namespace,
        protocol: Protocol,
        target: (IpAddr, u16),
        count: usize,
    ) -> Tally {
        let question = Question::new(protocol, target);
        self.wait_until(&format!("{protocol:?} {target:?} answers"), || {
            bed::ask(from, question).is_ok()
        });
        ask_many(from, question, count)
    }

    /// Waits for something to become so, and shows the whole state if it does not.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.wait_for(PATIENCE, what, is_so);
    }

    /// Waits for something that may take this long.
    pub(crate) fn wait_for(&self, patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
        let outcome = eventually(patience, what, || {
            if is_so() { Ok(()) } else { anyhow::bail!("it is not so") }
        });
        if let Err(error) = outcome {
            panic!("{error:#}\n{}", self.cluster.dump());
        }
    }
}

/// An address from its text.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A Service `web` with a cluster address of each family, port 80 of TCP to the pods' port.
pub(crate) fn web<'a>(pods: impl IntoIterator<Item = &'a Host>) -> Service {
    let mut service = Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    service.cluster.push(ip("fd00:96::10"));
    service.pods(pods)
}

/// A Service's manifest with these annotations.
pub(crate) fn annotated(service: &Service, annotations: &str) -> String {
    let plain = "  namespace: default\nspec:";
    let yaml = service.to_yaml();
    assert!(yaml.contains(plain), "{yaml}");
    yaml.replace(plain, &format!("  namespace: default\n  annotations: {{{annotations}}}\nspec:"))
}

/// The echo requests that are answered, as `CLIENT ADDRESS`. All clients ask all addresses at once: each
/// request without an answer takes two seconds.
pub(crate) fn echoes(clients: &[&Namespace], addresses: &[&str]) -> Vec<String> {
    let is_answered = |from: &Namespace, address: &str| {
        from.command("ping", &["-c", "1", "-W", "2", address]).is_ok()
    };
    std::thread::scope(|scope| {
        let pairs = clients.iter().flat_map(|from| addresses.iter().map(move |to| (*from, *to)));
        let asked: Vec<_> = pairs
            .map(|(from, to)| {
                let asker = scope.spawn(move || is_answered(from, to));
                (format!("{} {to}", from.name()), asker)
            })
            .collect();
        let answered =
            asked.into_iter().filter_map(|(pair, asker)| asker.join().unwrap().then_some(pair));
        answered.collect()
    })
}

/// Shows the tally when the servers' shares are not these.
#[track_caller]
pub(crate) fn assert_shares(tally: &Tally, expected: &[(&str, usize)]) {
    let expected = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(tally.by_server(), expected, "{tally}");
    assert_eq!(tally.refused(), 0, "{tally}");
}
