//! Clusters on disk, and a node that is told of them.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::LINK;
use plan::memory::{MemoryKernel, MemoryRefusal};
use plan::mode::Mode;
use plan::model::Family;
use plan::op::Op;
use plan::planner::Planner;
use plan::settings::{LocalDetection, Settings};
use serde_json::Value;
use source::Options;
use source::manifests::{FileChange, Folder};

use crate::saved::Saved;

/// `--hostname-override` and `--cluster-cidr` of the kube-proxy that was run.
pub(crate) const NODE_NAME: &str = "node1";
const CLUSTER_CIDR: [&str; 2] = ["10.128.0.0/9", "fd00:10::/64"];

/// A cluster at one time, with what kube-proxy left for it.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: PathBuf,
}

/// A node: the real reader of manifests, a planner, and a kernel in memory.
pub(crate) struct Node {
    folder: Folder,
    pub(crate) planner: Planner,
    pub(crate) kernel: MemoryKernel,
}

/// The clusters, each with its stages in their order.
pub(crate) fn clusters() -> Vec<Vec<Stage>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let stages = folders(&root).into_iter().map(|folder| stages(&folder));
    let clusters: Vec<_> = stages.filter(|stages| !stages.is_empty()).collect();
    assert!(!clusters.is_empty(), "no cluster in {}", root.display());
    clusters
}

fn stages(cluster: &Path) -> Vec<Stage> {
    let stages: Vec<_> =
        folders(cluster).into_iter().filter(|it| it.join("services.json").exists()).collect();
    stages.into_iter().map(|folder| Stage { folder }).collect()
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// The settings of the kube-proxy that was run.
pub(crate) fn settings(mode: Mode) -> Settings {
    let networks = CLUSTER_CIDR.map(|net| net.parse().unwrap());
    Settings {
        mode,
        local_detection: LocalDetection::ClusterCidr(networks.to_vec()),
        iptables_localhost_node_ports: true,
        nfacct: true,
        ..Settings::new(NODE_NAME)
    }
}

impl Stage {
    /// Its place, for messages.
    pub(crate) fn name(&self) -> String {
        let parts = self.folder.components().rev().take(2).map(|it| it.as_os_str().to_owned());
        let parts: Vec<_> = parts.map(|part| part.into_string().unwrap()).collect();
        parts.into_iter().rev().collect::<Vec<_>>().join("/")
    }

    /// A file of it.
    pub(crate) fn read(&self, file: &str) -> String {
        self.find(file).unwrap_or_else(|| panic!("{} has no {file}", self.name()))
    }

    /// A file that some stages do not have.
    pub(crate) fn find(&self, file: &str) -> Option<String> {
        let path = self.folder.join(file);
        path.exists().then(|| fs::read_to_string(path).unwrap())
    }

    /// The rules that kube-proxy left for a family.
    pub(crate) fn rules(&self, mode: &str, family: Family) -> Option<String> {
        self.find(&match family {
            Family::V4 => format!("{mode}/iptables-save"),
            Family::V6 => format!("{mode}/ip6tables-save"),
        })
    }

    /// The objects of a list.
    pub(crate) fn objects(&self, file: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.read(file)).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The addresses of the interfaces, but for those that kube-proxy bound.
    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        self.addresses(|interface| interface != LINK)
    }

    /// The addresses that kube-proxy bound.
    pub(crate) fn bound(&self) -> BTreeSet<IpAddr> {
        // The kernel gives the interface a link-local address by itself.
        let bound = self.addresses(|interface| interface == LINK).into_iter();
        bound.filter(|it| !matches!(it, IpAddr::V6(it) if it.is_unicast_link_local())).collect()
    }

    fn addresses(&self, of: impl Fn(&str) -> bool) -> Vec<IpAddr> {
        let text = self.read("ipvs/addresses");
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let lines = lines.filter(|words| of(words[0]));
        lines.map(|words| words[2].split('/').next().unwrap().parse().unwrap()).collect()
    }

    /// The addresses of all endpoints on this node.
    pub(crate) fn endpoints_here(&self) -> BTreeSet<IpAddr> {
        let slices = self.objects("slices.json");
        let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
        let here = endpoints.filter(|endpoint| endpoint["nodeName"] == NODE_NAME);
        let addresses = here.filter_map(|endpoint| endpoint["addresses"].as_array()).flatten();
        addresses.map(|address| address.as_str().unwrap().parse().unwrap()).collect()
    }
}

impl Node {
    /// A node that has been told nothing.
    pub(crate) fn new(settings: Settings) -> Self {
        let folder = Folder::new("corpus", &Options::new(NODE_NAME));
        let kernel = MemoryKernel::default().with_mode(settings.mode);
        Self { folder, planner: Planner::new(settings), kernel }
    }

    /// A node that has been told of one stage alone.
    pub(crate) fn at(stage: &Stage, settings: Settings) -> Self {
        let mut node = Self::new(settings);
        node.move_to(stage);
        node
    }

    /// A node with these addresses that has been told of these objects.
    pub(crate) fn with(settings: Settings, addresses: &[&str], objects: &str) -> Self {
        let mut node = Self::new(settings);
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        node.tell("objects", addresses, [("objects.yaml", objects.to_owned())]);
        node
    }

    /// Tells the node of the next stage, and carries out what follows from it.
    pub(crate) fn move_to(&mut self, stage: &Stage) {
        let files = ["nodes.json", "services.json", "slices.json"];
        let files = files.map(|file| (file, stage.read(file)));
        self.tell(&stage.name(), stage.node_addresses(), files);
    }

    fn tell<const N: usize>(
        &mut self,
        place: &str,
        addresses: Vec<IpAddr>,
        files: [(&str, String); N],
    ) {
        self.planner.apply(Event::LocalAddresses(addresses));
        let files = files.map(|(name, text)| (Arc::from(name), FileChange::Read(text.into())));
        let scan = self.folder.apply(files);
        assert_eq!(scan.warnings, [], "{place}");
        scan.events.into_iter().for_each(|event| self.planner.apply(event));
        let is_new = *self.kernel.actual() == Actual::default();
        let prerequisites = self.planner.prerequisites(self.kernel.actual());
        self.carry_out(place, &prerequisites);
        let planned = self.planner.plan().ops;
        self.carry_out(place, &planned);
        assert!(!self.planner.is_dirty(), "{place}");
        if is_new {
            // What no Service asks for, and the end of a takeover writes.
            let missing = self.planner.diff(self.kernel.actual());
            self.carry_out(place, &missing);
        }
        assert_eq!(self.planner.diff(self.kernel.actual()), [], "{place}");
    }

    /// The rules of a family in mode iptables, as `iptables-save` would print them.
    pub(crate) fn rules(&self, family: Family) -> Saved {
        let constant = self.planner.rule_set(family).unwrap();
        let mut saved = Saved::parse(&constant.first_input());
        let chains = self.kernel.actual().chains.iter().filter(|(id, _)| id.family == family);
        for (id, rules) in chains {
            let rules = rules.iter().map(ToString::to_string).collect();
            saved.chains.insert((id.table.name().into(), id.name.to_string()), rules);
        }
        saved
    }

    /// A virtual server without real servers is gone already when its Service goes.
    fn carry_out(&mut self, place: &str, ops: &[Op]) {
        for op in ops {
            match (op, self.kernel.apply(op)) {
                (_, Ok(())) | (Op::RemoveVirtualServer(_), Err(MemoryRefusal::NoVirtualServer)) => {
                }
                (_, Err(refusal)) => panic!("{place}: {op:?}: {refusal}"),
            }
        }
    }
}
