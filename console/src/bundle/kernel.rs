//! Dumps of the kernel's state, by own readers: nothing has to be installed but iptables.

use std::fmt::Write as _;
use std::net::IpAddr;

use plan::model::Family;

use super::Bundle;
use crate::answers::sets::Sets;
use kernel::link::Links;
use kernel::route::Routes;
use kernel::rules::{Backend, Rules};

/// Adds what the kernel has: IPVS, sets, rules, addresses.
pub fn add_to(bundle: &mut Bundle) {
    bundle.add("kernel/ipvs.txt", ipvs().map_err(|error| error.to_string()));
    bundle.add("kernel/ipset.txt", ipset().map_err(|error| error.to_string()));
    let sets = Sets::read().map_err(|error| error.to_string());
    bundle.add("kernel/sets.txt", sets.map(|sets| sets.text()));
    for rules in Family::BOTH.into_iter().flat_map(Rules::installed) {
        let saved = rules.saved().map_err(|error| error.to_string());
        bundle.add(&format!("kernel/{}.txt", program(&rules)), saved);
    }
    bundle.add("kernel/addresses.txt", addresses().map_err(|error| error.to_string()));
}

fn program(rules: &Rules) -> String {
    let family = match rules.family() {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let kind = match rules.backend() {
        Backend::Nft => "nft",
        Backend::Legacy => "legacy",
    };
    format!("{family}-{kind}-save")
}

/// Virtual servers with their real servers, about as `ipvsadm -Ln` with its statistics.
fn ipvs() -> Result<String, ipvs::Error> {
    let mut client = ipvs::Client::open()?;
    let (info, timeouts) = (client.info()?, client.timeouts()?);
    let mut text = format!(
        "IPVS {} (connection table of {} buckets), timeouts in seconds: tcp {} tcpfin {} udp {}\n",
        info.version, info.connection_table_size, timeouts.tcp, timeouts.tcp_fin, timeouts.udp
    );
    for listing in client.list_all()? {
        let found = &listing.virtual_server;
        let (server, statistics) = (&found.server, &found.statistics);
        let _ = write!(text, "{} {}", server.id, server.scheduler);
        if server.flags.contains(ipvs::Flags::PERSISTENT) {
            let _ = write!(text, " persistent {}", server.persistence_timeout);
        }
        let _ = writeln!(text, " flags {:#x} {}", server.flags.bits(), counted(statistics));
        for real in &listing.real_servers {
            let configured = &real.server;
            let _ = write!(
                text,
                "  -> {} {} weight {} active {} inactive {} persistent {}",
                configured.socket_address(),
                configured.forwarding,
                configured.weight,
                real.active_connections,
                real.inactive_connections,
                real.persistent_connections
            );
            if configured.upper_threshold > 0 {
                let _ = write!(text, " upper {}", configured.upper_threshold);
            }
            let _ = writeln!(text, " {}", counted(&real.statistics));
        }
    }
    Ok(text)
}

fn counted(statistics: &ipvs::Statistics) -> String {
    format!(
        "connections {} packets {}/{} bytes {}/{}",
        statistics.connections,
        statistics.incoming_packets,
        statistics.outgoing_packets,
        statistics.incoming_bytes,
        statistics.outgoing_bytes
    )
}

/// Sets with their entries, as `ipset save` writes them.
fn ipset() -> Result<String, ipset::Error> {
    let mut client = ipset::Client::open()?;
    let mut text = String::new();
    for name in client.list_names()? {
        let set = match client.list(name) {
            Ok(set) => set,
            // One of a type of others, or one that has gone.
            Err(error) => {
                let _ = writeln!(text, "# {name}: {error}");
                continue;
            }
        };
        let header = &set.header;
        let _ = writeln!(text, "create {name} {}", header.spec());
        let _ = writeln!(text, "# {} references, {} bytes", header.references, header.memory);
        for listed in &set.entries {
            let _ = writeln!(text, "add {name} {}", listed.entry);
        }
        if set.undecoded > 0 {
            let _ = writeln!(text, "# {} more entries, of an unknown type", set.undecoded);
        }
    }
    Ok(text)
}

/// Addresses of all interfaces by their numbers, and the local routes that are ours.
fn addresses() -> Result<String, netlink::Error> {
    let mut links = Links::open()?;
    let ours = links.find()?.map(|link| link.index);
    let mut text = String::new();
    for found in links.addresses()? {
        let (address, prefix): (IpAddr, u8) = (found.address, found.prefix);
        let is_ours = if Some(found.index) == ours { " (kube-ipvs0)" } else { "" };
        let _ = writeln!(
            text,
            "interface {}{is_ours}: {address}/{prefix} scope {}",
            found.index, found.scope
        );
    }
    for route in Routes::open()?.ours()?.all {
        let _ = writeln!(text, "local route of kube-ipvs: {route}");
    }
    Ok(text)
}
