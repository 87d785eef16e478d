//! The sender of a packet: where it is, as this node's routes have it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plan::trace::Origin;

use crate::answers::{FailureAnswer, Reason};
use kernel::way::{Interface, Ways};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sender {
    /// Its address; none: it is this node, and no route says which it takes.
    pub(super) source: Option<IpAddr>,
    /// Interface by which its packets come; none: it is this node.
    pub(super) interface: Option<Interface>,
    /// Notes to keep in mind.
    pub(super) notes: Vec<String>,
}

impl Sender {
    /// Way by which its packets come.
    pub(super) fn origin(&self) -> Origin {
        match &self.interface {
            None => Origin::Node,
            Some(interface) => Origin::Interface {
                name: interface.name.as_str().into(),
                is_by_bridge_port: interface.is_bridge,
            },
        }
    }
}

/// Returns the sender that a word or an address stands for. `outside` is an address outside of the
/// cluster, if there is any.
pub(super) fn find(
    word: &str,
    destination: IpAddr,
    outside: Option<IpAddr>,
) -> Result<Sender, FailureAnswer> {
    let localhost: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    match word {
        "node" => {
            let to = SocketAddr::new(destination, 0);
            let source = own_sources(vec![to])?.remove(&to);
            Ok(Sender { source, interface: None, notes: Vec::new() })
        }
        "localhost" => Ok(Sender { source: Some(localhost), interface: None, notes: Vec::new() }),
        "outside" => {
            let outside = outside.ok_or_else(|| {
                let text = "no address outside of the cluster is known: write one";
                FailureAnswer::new(Reason::BadRequest, text)
            })?;
            let mut sender = at(outside)?;
            sender.notes.push(format!(
                "outside stands for {outside}; if a Service has source ranges, the result depends \
                 on the address"
            ));
            Ok(sender)
        }
        word => {
            let address: IpAddr = word.parse().map_err(|_| {
                let text = format!(
                    "{word} is not a source: use an address, `node`, `localhost` or `outside`"
                );
                FailureAnswer::new(Reason::BadRequest, text)
            })?;
            if address.is_ipv4() != destination.is_ipv4() {
                let text = format!(
                    "a packet from {address} cannot go to {destination}: their address families \
                     differ"
                );
                return Err(FailureAnswer::new(Reason::BadRequest, text));
            }
            at(address)
        }
    }
}

/// Returns the client whose connections a word or an address asks for; none: every client.
pub(super) fn client_of(word: &str, source: IpAddr) -> Option<IpAddr> {
    (word != "outside").then_some(source)
}

/// Returns the address of this node by which it comes to each of these endpoints, as the routes of the
/// calling thread's network namespace have it.
pub fn own_sources(
    endpoints: Vec<SocketAddr>,
) -> Result<BTreeMap<SocketAddr, IpAddr>, FailureAnswer> {
    sources(endpoints, |ways, to| Ok(ways.to(to)?.and_then(|way| way.source)))
}

/// Returns the address of this node that masquerading gives packets to each of these endpoints.
pub fn masqueraded_sources(
    endpoints: Vec<SocketAddr>,
) -> Result<BTreeMap<SocketAddr, IpAddr>, FailureAnswer> {
    let mut addresses = None;
    sources(endpoints, |ways, to| {
        let addresses = match &mut addresses {
            Some(addresses) => addresses,
            unread => unread.insert(ways.addresses()?),
        };
        ways.masqueraded(to, addresses)
    })
}

fn sources(
    endpoints: Vec<SocketAddr>,
    mut source_to: impl FnMut(&mut Ways, IpAddr) -> Result<Option<IpAddr>, netlink::Error>,
) -> Result<BTreeMap<SocketAddr, IpAddr>, FailureAnswer> {
    let mut sources = BTreeMap::new();
    if endpoints.is_empty() {
        return Ok(sources);
    }
    let mut ways = Ways::open().map_err(|error| unread(&error))?;
    for endpoint in endpoints {
        let source = source_to(&mut ways, endpoint.ip()).map_err(|error| unread(&error))?;
        sources.extend(source.map(|source| (endpoint, source)));
    }
    Ok(sources)
}

/// Returns those of these endpoints that are not behind an interface: between a client that is and them,
/// packets pass this node both ways.
pub(super) fn behind_others(
    endpoints: Vec<SocketAddr>,
    interface: &str,
) -> Result<Vec<SocketAddr>, FailureAnswer> {
    let mut behind_others = Vec::new();
    if endpoints.is_empty() {
        return Ok(behind_others);
    }
    let mut ways = Ways::open().map_err(|error| unread(&error))?;
    for endpoint in endpoints {
        let Some(way) = ways.to(endpoint.ip()).map_err(|error| unread(&error))? else { continue };
        let by = ways.interface(way.interface).map_err(|error| unread(&error))?;
        if by.is_some_and(|by| by.name != interface) {
            behind_others.push(endpoint);
        }
    }
    Ok(behind_others)
}

pub(super) fn at(address: IpAddr) -> Result<Sender, FailureAnswer> {
    let mut ways = Ways::open().map_err(|error| unread(&error))?;
    let mut sender = Sender { source: Some(address), interface: None, notes: Vec::new() };
    match ways.to(address).map_err(|error| unread(&error))? {
        Some(way) if way.is_local => {}
        Some(way) => {
            let interface = ways.interface(way.interface).map_err(|error| unread(&error))?;
            sender.interface = Some(interface.unwrap_or_else(unknown));
        }
        None => {
            sender.interface = Some(unknown());
            sender.notes.push(format!(
                "this node has no route to {address}: answers would not reach it, and the \
                 interface of its packets is not known"
            ));
        }
    }
    Ok(sender)
}

/// An interface that no rule asks for.
fn unknown() -> Interface {
    Interface { name: String::new(), is_bridge: false }
}

fn unread(error: &netlink::Error) -> FailureAnswer {
    FailureAnswer::new(Reason::Unavailable, format!("cannot read this node's routes: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 254));

    fn find(word: &str, destination: &str) -> Result<Sender, String> {
        let destination = destination.parse().unwrap();
        super::find(word, destination, Some(OUTSIDE)).map_err(|failure| failure.message)
    }

    #[test]
    fn a_word_stands_for_an_address_of_the_destinations_family() {
        let loopback = Some(Ipv4Addr::LOCALHOST.into());
        let node = Sender { source: loopback, interface: None, notes: Vec::new() };
        assert_eq!(find("node", "127.0.0.1").unwrap(), node);
        // A connection to an address of its own has that as its source.
        let localhost = |destination| find("localhost", destination).unwrap().source;
        assert_eq!(localhost("127.0.0.1"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(localhost("::1"), Some(Ipv6Addr::LOCALHOST.into()));
        let outside = find("outside", "10.96.0.10").unwrap();
        assert_eq!(outside.source, Some(OUTSIDE));
        assert!(outside.interface.is_some());
        assert!(outside.notes.iter().any(|note| note.contains("192.0.2.254")), "{outside:?}");
    }

    #[test]
    fn an_address_of_this_node_is_the_node() {
        let own = find("127.0.0.2", "10.96.0.10").unwrap();
        assert_eq!(own.interface, None);
        assert_eq!(own.source, Some([127, 0, 0, 2].into()));
    }

    #[test]
    fn what_is_no_source_is_said() {
        let said = find("everywhere", "10.96.0.10").unwrap_err();
        assert!(said.contains("everywhere is not a source"), "{said}");
        let said = find("fd00::1", "10.96.0.10").unwrap_err();
        assert!(said.contains("address families differ"), "{said}");
    }
}
