//! State that a node has: nothing, a part of what a Service needs, or a whole proxy's state.

use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{Manifests, Protocol, Proxy, Service};
use clap::ValueEnum;
use ipvs::{Batch, Client, RealServer, Scheduler, VirtualServer, VirtualServerId};

use kernel::Kernel as _;
use kernel::linux::Linux;
use kernel::nftables::OwnTables;
use plan::capacity::SetSize;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family::{V4, V6};
use plan::op::Op;
use plan::rule_set::{LocalTraffic, RuleSet, RuleSetSettings};
use plan::sets::SetId;
use plan::settings::ShortCircuitNetworks;

use crate::ground::{Family, Ground, Measured, NODE_PORT, PORT, TARGET};
use crate::kube_proxy;

/// Interface of the addresses, with the name that kube-proxy has for it.
const INTERFACE: &str = "kube-ipvs0";
/// A chain that asks connection tracking, so that the namespace has it, of packets for the node alone.
const TRACKING: &str = "table inet tracking {
chain input { type filter hook input priority 300; ct state invalid counter; }
}
";
/// Number of virtual servers that are sent at once.
const AT_ONCE: usize = 1_000;

/// State of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Installed {
    /// Routes.
    Nothing,
    /// Connection tracking beside them.
    Tracking,
    /// IPVS beside routes, and no connection tracking.
    Ipvs,
    /// IPVS, and connection tracking that knows its connections.
    TrackedIpvs,
    /// The state of kube-proxy's mode ipvs.
    KubeProxyIpvs,
    /// The state of kube-proxy's mode nftables.
    KubeProxyNftables,
    /// The state of kube-ipvs.
    Ours,
    /// The same, with sets and rules in nf_tables.
    OursNftables,
}

impl Installed {
    pub(crate) const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Tracking,
        Self::Ipvs,
        Self::TrackedIpvs,
        Self::KubeProxyIpvs,
        Self::KubeProxyNftables,
        Self::Ours,
        Self::OursNftables,
    ];

    /// True if it answers at the addresses of Services.
    pub(crate) fn has_services(self) -> bool {
        !matches!(self, Self::Nothing | Self::Tracking)
    }

    /// True if what is masqueraded by a proxy is.
    pub(crate) fn masquerades(self) -> bool {
        !matches!(self, Self::Ipvs | Self::TrackedIpvs)
    }

    pub(crate) fn install(self, ground: &Ground, services: u32) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Tracking => track(ground),
            Self::Ipvs => serve(ground, services),
            Self::TrackedIpvs => {
                track(ground)?;
                serve(ground, services)?;
                ground.node()?.set_sysctl("net/ipv4/vs/conntrack", "1")
            }
            Self::KubeProxyIpvs => {
                serve(ground, services)?;
                ground.node()?.set_sysctl("net/ipv4/vs/conntrack", "1")?;
                let (sets, rules) = kube_proxy::ipvs(ground, services)?;
                ground.node()?.command_with_input("ipset", &["restore"], &sets)?;
                let restore = ground.family.choose("iptables-restore", "ip6tables-restore");
                ground.node()?.command_with_input(restore, &["--noflush"], &rules)?;
                Ok(())
            }
            Self::KubeProxyNftables => {
                let rules = kube_proxy::nftables(ground, services)?;
                ground.node()?.command_with_input("nft", &["-f", "-"], &rules)?;
                Ok(())
            }
            Self::Ours => ours(ground, services),
            Self::OursNftables => {
                ours(ground, services)?;
                to_nftables(ground)
            }
        }
    }
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Tracking => "connection tracking",
            Self::Ipvs => "bare IPVS",
            Self::TrackedIpvs => "IPVS with tracking",
            Self::KubeProxyIpvs => "kube-proxy, ipvs",
            Self::KubeProxyNftables => "kube-proxy, nftables",
            Self::Ours => "kube-ipvs",
            Self::OursNftables => "kube-ipvs, nftables",
        })
    }
}

/// Address of a Service that has no packets, by its number.
pub(crate) fn idle(family: Family, number: u32) -> Result<IpAddr> {
    let text = match family {
        Family::Ipv4 => format!("10.96.{}.{}", number / 250 + 16, number % 250 + 1),
        Family::Ipv6 => format!("fd00:96::{:x}", 0x1000 + number),
    };
    text.parse().with_context(|| format!("{text} is no address"))
}

fn track(ground: &Ground) -> Result<()> {
    ground.node()?.command_with_input("nft", &["-f", "-"], TRACKING).map(drop)
}

/// Adds virtual servers and addresses.
fn serve(ground: &Ground, services: u32) -> Result<()> {
    let mut frontends: Vec<(IpAddr, u16, IpAddr)> = Vec::new();
    for measured in Measured::ALL {
        let endpoint = measured.endpoint(ground);
        frontends.push((measured.cluster(ground.family).parse()?, PORT, endpoint));
        if let Some(address) = measured.load_balancer(ground.family) {
            frontends.push((address.parse()?, PORT, endpoint));
        }
    }
    for number in 0..services {
        let endpoint = Measured::Near.endpoint(ground);
        frontends.push((idle(ground.family, number)?, PORT, endpoint));
    }
    let mut lines = vec![format!("link add {INTERFACE} type dummy")];
    // An address that is being looked for on the network answers nothing for a second.
    let (length, nodad) = ground.family.choose(("32", ""), ("128", "nodad"));
    lines.extend(
        frontends
            .iter()
            .map(|(address, ..)| format!("addr add {address}/{length} dev {INTERFACE} {nodad}")),
    );
    ground.node()?.configure_links(&lines)?;
    frontends.push((ground.node_address()?, NODE_PORT, Measured::Near.endpoint(ground)));
    ground.node()?.enter(|| -> Result<()> {
        let mut client = Client::open()?;
        for some in frontends.chunks(AT_ONCE) {
            let mut batch = Batch::new();
            for (address, port, endpoint) in some {
                for id in
                    [VirtualServerId::tcp(*address, *port), VirtualServerId::udp(*address, *port)]
                {
                    batch.new_service(&VirtualServer::new(id, Scheduler::ROUND_ROBIN));
                    batch.new_destination(&id, &RealServer::new(*endpoint, TARGET));
                }
            }
            for outcome in client.send(&batch)? {
                outcome?;
            }
        }
        Ok(())
    })?
}

/// Has the program write its state, and ends it: what it leaves goes on.
fn ours(ground: &Ground, services: u32) -> Result<()> {
    let manifests = Manifests::new()?;
    for measured in Measured::ALL {
        manifests.apply(&measured.service(ground)?)?;
    }
    let mut idle_ones = String::new();
    for number in 0..services {
        let service = Service::new(&format!("idle-{number}"), idle(ground.family, number)?)
            .port(Protocol::Tcp, PORT, TARGET)
            .port(Protocol::Udp, PORT, TARGET);
        let mut service = service;
        service.endpoints = Measured::Near.service(ground)?.endpoints;
        writeln!(idle_ones, "{}---", service.to_yaml())?;
    }
    manifests.write("idle.yaml", &idle_ones)?;
    Proxy::start(ground.node()?, &manifests, &[])?.stop().map(drop)
}

/// Has tables of nf_tables in the place of the program's sets and of its rules.
fn to_nftables(ground: &Ground) -> Result<()> {
    let (family, pods) = ground.family.choose((V4, POD_RANGE_IPV4), (V6, POD_RANGE_IPV6));
    let local = LocalTraffic::ClusterCidr { cluster: pods.parse()?, node: None };
    let settings = RuleSetSettings::new(false, 14, local, true)?
        .with_short_circuit_network(ShortCircuitNetworks::default().of(family));
    ground.node()?.enter(|| -> Result<()> {
        let mut linux = Linux::open_to_read(HashMap::default(), Mode::Ipvs)?;
        let mut tables = OwnTables::open(&[family])?;
        let mut ops: Vec<Op> = Vec::new();
        for set in SetId::all(family) {
            let found = linux.read_set(set)?.with_context(|| format!("there is no set {set}"))?;
            let size = SetSize { capacity: found.capacity, expected: found.entries.len() };
            ops.push(Op::CreateSet(set, size));
            ops.extend(found.entries.into_iter().map(|entry| Op::AddEntry(set, entry)));
        }
        for result in tables.apply(&ops) {
            result.map_err(anyhow::Error::msg)?;
        }
        tables.desire(RuleSet::new(family, &settings));
        tables.write_rules(family).map_err(anyhow::Error::msg)
    })??;
    for table in ["nat", "mangle", "filter"] {
        let of = ground.family.choose("ip", "ip6");
        ground.node()?.command("nft", &["delete", "table", of, table])?;
    }
    Ok(())
}
