//! A whole cluster: an API server, two nodes, each with a kube-ipvs started as a DaemonSet for
//! kube-proxy starts it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use apiserver::{Credentials, Options, Resource, Server as ApiServer};
use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{ClusterSpec, Namespace, NodeSpec, Protocol, Proxy, Service, eventually};
use serde_json::{Value, json};

use crate::fixture::{Bed, TARGET, ip};

/// Configuration that kubeadm writes into the ConfigMap of kube-proxy.
const KUBEADM: &str = include_str!("../kubeadm/config.conf");

/// Two nodes with pods, a client outside, and an API server on a host of its own.
pub(crate) struct Cluster {
    pub(crate) bed: Bed,
    pub(crate) api: ApiServer,
    pub(crate) folder: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self::reached_by(false)
    }

    /// The same with an API server that is reached by IPv6, or by IPv4.
    pub(crate) fn reached_by(is_ipv6: bool) -> Self {
        Self::with(is_ipv6, Options::default().history)
    }

    /// The same with an API server that remembers so many changes: who is further behind has to list again.
    pub(crate) fn remembering(history: usize) -> Self {
        Self::with(false, history)
    }

    fn with(is_ipv6: bool, history: usize) -> Self {
        let spec =
            ClusterSpec { nodes: vec![NodeSpec { pods: 2 }; 2], clients: 2, ..Default::default() };
        let bed = Bed::with(&spec);
        let host = bed.cluster.client(2).unwrap();
        let address = host.ipv6.filter(|_| is_ipv6).map_or(IpAddr::V4(host.ipv4), IpAddr::V6);
        let listen = SocketAddr::from((address, 6443));
        let options = Options {
            listen,
            tokens: vec!["secret".into()],
            managed_fields: true,
            history,
            ..Options::default()
        };
        let api = host.namespace.enter(|| ApiServer::start(options)).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig(&Credentials::Token("secret".into()))).unwrap();
        let configuration = KUBEADM
            .replace("/var/lib/kube-proxy/kubeconfig.conf", kubeconfig.to_str().unwrap())
            .replace("10.244.0.0/16", &format!("{POD_RANGE_IPV4},{POD_RANGE_IPV6}"));
        fs::write(folder.path().join("config.conf"), configuration).unwrap();
        let cluster = Self { bed, api, folder };
        for number in [1, 2] {
            cluster.apply(&cluster.node_object(number));
        }
        cluster
    }

    /// A cluster with one Service, and a mode in the configuration file beside these fields of our own
    /// document.
    pub(crate) fn in_mode(mode: &str, own: &str) -> Self {
        let cluster = Self::new();
        cluster.configure("mode: ipvs", &format!("mode: {mode}"));
        let text = fs::read_to_string(cluster.configuration()).unwrap();
        let own = format!("apiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n{own}");
        fs::write(cluster.configuration(), format!("{text}---\n{own}")).unwrap();
        cluster.apply_service(&mk_web(&cluster.bed, &[(1, 1)]));
        cluster
    }

    /// Waits for an Event about the first node.
    pub(crate) fn event(&self, reason: &str) -> Value {
        eventually(Duration::from_secs(60), reason, || {
            let events = self.api.events();
            let mut named = events.iter().filter(|event| event["reason"] == reason);
            match named.find(|event| event["regarding"]["name"] == "node1") {
                Some(event) => Ok(event.clone()),
                None => anyhow::bail!("it is not among {events:?}"),
            }
        })
        .unwrap()
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.api.apply(object.clone()).unwrap();
    }

    pub(crate) fn apply_service(&self, service: &Service) {
        for document in service.to_yaml().split("---\n") {
            self.apply(&serde_saphyr::from_str(document).unwrap());
        }
    }

    pub(crate) fn node_object(&self, number: u8) -> Value {
        let host = self.bed.cluster.node(number).unwrap();
        let addresses: Vec<Value> = host
            .addresses()
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address}))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": host.name},
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
            "status": {"addresses": addresses},
        })
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.path().join("config.conf")
    }

    /// Changes the configuration file.
    pub(crate) fn configure(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.configuration()).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} in\n{text}");
        fs::write(self.configuration(), text.replace(from, to)).unwrap();
    }

    /// Starts kube-ipvs on a node with the arguments of kubeadm's DaemonSet.
    pub(crate) fn launch(&self, number: u8) -> Proxy {
        let config = format!("--config={}", self.configuration().display());
        let name = format!("--hostname-override=node{number}");
        Proxy::start_with(self.namespace(number), &[&config, &name]).unwrap()
    }

    pub(crate) fn start(&self, number: u8) -> Proxy {
        let mut proxy = self.launch(number);
        proxy.wait_until_in_sync().unwrap();
        proxy
    }

    pub(crate) fn namespace(&self, number: u8) -> &Namespace {
        &self.bed.cluster.node(number).unwrap().namespace
    }

    /// Waits until both sides of the API know nothing that the other does not.
    pub(crate) fn wait_for_watches(&self, count: usize) {
        self.bed.wait_until("the watches are back", || {
            [Resource::Services, Resource::EndpointSlices, Resource::Nodes]
                .into_iter()
                .all(|resource| self.api.watches(resource) >= count)
        });
    }
}

/// Returns the answer of an HTTP server to a request made inside a namespace: status line and all.
pub(crate) fn get(from: &Namespace, address: &str, path: &str) -> anyhow::Result<String> {
    from.enter(|| -> anyhow::Result<String> {
        let address: SocketAddr = address.parse()?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?
}

/// Health server of the first node.
pub(crate) const HEALTH: &str = "192.168.0.11:10256";

pub(crate) fn status(from: &Namespace, address: &str, path: &str) -> String {
    let answer = get(from, address, path).unwrap_or_else(|error| error.to_string());
    answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

pub(crate) fn mk_web(bed: &Bed, pods: &[(u8, u8)]) -> Service {
    let mut service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    service.cluster.push(ip("fd00:96::10"));
    service.pods(pods.iter().map(|(node, pod)| bed.pod(*node, *pod)))
}
