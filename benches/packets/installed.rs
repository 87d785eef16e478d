//! State that a node has: nothing, a part of what a Service needs, or a whole proxy's state.

use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use bed::{Manifests, Protocol, Proxy, Service};
use clap::ValueEnum;
use ipvs::{Batch, Client, RealServer, Scheduler, VirtualServer, VirtualServerId};

use crate::ground::{Family, Ground, Measured, NODE_PORT, PORT, TARGET};
use crate::kube_proxy;

const NFTABLES: &str = "--rule-backend=nftables";
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
    /// The same, on the fast path by connection tracking.
    OursConntrack,
    /// The same, with the flow table.
    OursOffload,
}

impl Installed {
    pub(crate) const ALL: [Self; 10] = [
        Self::Nothing,
        Self::Tracking,
        Self::Ipvs,
        Self::TrackedIpvs,
        Self::KubeProxyIpvs,
        Self::KubeProxyNftables,
        Self::Ours,
        Self::OursNftables,
        Self::OursConntrack,
        Self::OursOffload,
    ];

    /// True if it answers at the addresses of Services.
    pub(crate) fn has_services(self) -> bool {
        !matches!(self, Self::Nothing | Self::Tracking)
    }

    /// True if a kernel without nf_tables cannot have it.
    pub(crate) fn needs_nf_tables(self) -> bool {
        !matches!(self, Self::Nothing | Self::Ipvs | Self::KubeProxyIpvs | Self::Ours)
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
            Self::Ours => ours(ground, services, &["--rule-backend=iptables"]),
            Self::OursNftables => ours(ground, services, &[NFTABLES]),
            Self::OursConntrack => ours(ground, services, &[NFTABLES, "--fast-path=conntrack"]),
            Self::OursOffload => ours(ground, services, &[NFTABLES, "--fast-path=offload"]),
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
            Self::OursConntrack => "kube-ipvs, conntrack",
            Self::OursOffload => "kube-ipvs, offload",
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
fn ours(ground: &Ground, services: u32, words: &[&str]) -> Result<()> {
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
    Proxy::start(ground.node()?, &manifests, words)?.stop().map(drop)
}
