//! Connections as the kernel has them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol, ServiceName};

use super::{Connection, ConnectionState, Path};
use crate::answers::{FailureAnswer, Reason};
use kernel::connection_table::{self, TableEntry};
use kernel::conntrack::{self, ConntrackClient, TrackedConnection};

/// Most conntrack entries that are held at once.
const MOST: usize = 50_000;

/// Most lines of IPVS's table that are read: the cost grows with the square of their number.
const MOST_LINES: usize = 50_000;

/// Connections to read.
#[derive(Debug, Clone)]
pub(in crate::answers) struct Wanted {
    pub(in crate::answers) families: Vec<Family>,
    /// Those to one frontend alone.
    pub frontend: Option<Frontend>,
    /// Those to these frontends alone. One of an unspecified address is at every address.
    pub(in crate::answers) frontends: Option<HashSet<Frontend>>,
    /// Those of one client alone.
    pub(in crate::answers) client: Option<IpAddr>,
}

/// Connections that were read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) found: Vec<Found>,
    /// Reason for which something was not read; none: everything was.
    pub(super) incomplete: Option<String>,
}

/// A connection that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Address, protocol and port that the client connected to.
    pub(super) frontend: Frontend,
    client: SocketAddr,
    endpoint: SocketAddr,
    tracked: Option<TrackedConnection>,
    ipvs: Option<ConnectionState>,
}

/// Ends by which IPVS and conntrack know a connection. IPVS has another frontend if rules led the client to an
/// internal frontend.
type Ends = (Protocol, SocketAddr, SocketAddr);

/// Connections of IPVS by their ends.
type Table = HashMap<Ends, (Frontend, ConnectionState)>;

impl Wanted {
    /// All connections of these families.
    pub(super) fn all(families: Vec<Family>) -> Self {
        Self { families, frontend: None, frontends: None, client: None }
    }

    fn has(&self, frontend: &Frontend, client: SocketAddr) -> bool {
        let anywhere = || {
            let unspecified: IpAddr = match frontend.family() {
                Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
                Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            Frontend { address: unspecified, ..*frontend }
        };
        self.frontend.is_none_or(|wanted| wanted == *frontend)
            && self.client.is_none_or(|wanted| wanted == client.ip())
            && self
                .frontends
                .as_ref()
                .is_none_or(|wanted| wanted.contains(frontend) || wanted.contains(&anywhere()))
    }
}

/// Reads connections.
pub(super) fn read(wanted: &Wanted) -> Result<Read, FailureAnswer> {
    let mut tracked = Vec::new();
    let mut n_more = 0;
    let mut client = ConntrackClient::open().map_err(|error| unread("conntrack", &error))?;
    for family in &wanted.families {
        let asked = conntrack::Wanted {
            family: *family,
            frontend: wanted.frontend.filter(|frontend| frontend.family() == *family),
            most: MOST.saturating_sub(tracked.len()),
        };
        let has = |it: &TrackedConnection| wanted.has(&it.frontend(), it.client);
        let listed =
            client.connections(&asked, has).map_err(|error| unread("conntrack", &error))?;
        n_more += listed.n_more;
        tracked.extend(listed.found);
    }
    let (table, is_whole) = match table() {
        Ok(read) => read,
        // A kernel without IPVS, or one whose module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Table::new(), true),
        Err(error) => return Err(unread("the connection table of IPVS", &error)),
    };
    let mut parts = Vec::new();
    if n_more > 0 {
        parts.push(format!("{n_more} more conntrack entries were not read"));
    }
    if !is_whole {
        parts.push(format!(
            "only the first {MOST_LINES} connections of IPVS were read: the others have \
             conntrack's state only"
        ));
    }
    let incomplete = (!parts.is_empty()).then(|| parts.join("; "));
    Ok(Read { found: joined(tracked, table, wanted), incomplete })
}

/// Joins what connection tracking and IPVS know of connections.
fn joined(tracked: Vec<TrackedConnection>, mut table: Table, wanted: &Wanted) -> Vec<Found> {
    let with_table = |tracked: TrackedConnection| {
        let ends = (tracked.protocol, tracked.client, tracked.endpoint);
        Found {
            frontend: tracked.frontend(),
            client: tracked.client,
            endpoint: tracked.endpoint,
            ipvs: table.remove(&ends).map(|(_, state)| state),
            tracked: Some(tracked),
        }
    };
    let mut found: Vec<Found> = tracked.into_iter().map(with_table).collect();
    // Without connection tracking for IPVS (`net.ipv4.vs.conntrack`), the table alone has them.
    let alone =
        table.into_iter().filter(|((_, client, _), (frontend, _))| wanted.has(frontend, *client));
    found.extend(alone.map(|((_, client, endpoint), (frontend, state))| Found {
        frontend,
        client,
        endpoint,
        tracked: None,
        ipvs: Some(state),
    }));
    found
}

/// Reads IPVS's table, and whether it was read to its end.
fn table() -> io::Result<(Table, bool)> {
    let (mut table, mut n_lines) = (Table::new(), 0);
    connection_table::read(|entry| {
        n_lines += 1;
        if n_lines > MOST_LINES {
            return ControlFlow::Break(());
        }
        insert(&mut table, &entry);
        ControlFlow::Continue(())
    })?;
    Ok((table, n_lines <= MOST_LINES))
}

fn insert(table: &mut Table, entry: &TableEntry<'_>) {
    // What keeps a client at its endpoint is no connection.
    if entry.client.port() == 0 {
        return;
    }
    let state = ConnectionState { state: entry.state.to_owned(), expires: entry.expires };
    table.insert((entry.protocol, entry.client, entry.endpoint), (entry.frontend, state));
}

impl Found {
    /// Returns the connection as it is answered.
    pub(super) fn answer(
        self,
        owners: &HashMap<Frontend, ServiceName>,
        now: SystemTime,
    ) -> Connection {
        let Self { frontend, client, endpoint, tracked, ipvs } = self;
        let path = tracked.as_ref().map_or(Path::Ipvs, |tracked| tracked.path.into());
        Connection {
            service: owners.get(&frontend).map(ToString::to_string),
            protocol: frontend.protocol.name().to_owned(),
            client,
            frontend: SocketAddr::new(frontend.address, frontend.port),
            endpoint,
            seen: tracked.as_ref().map(|tracked| tracked.seen),
            age: tracked.as_ref().and_then(|tracked| age(tracked.began?, now)),
            conntrack: tracked.map(|tracked| ConnectionState {
                state: tracked.state.to_owned(),
                expires: tracked.expires,
            }),
            ipvs,
            path,
        }
    }
}

/// Returns the number of seconds since a time in nanoseconds.
fn age(began: u64, now: SystemTime) -> Option<u64> {
    let began = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(began))?;
    Some(now.duration_since(began).unwrap_or_default().as_secs())
}

fn unread(what: &str, error: &dyn std::fmt::Display) -> FailureAnswer {
    FailureAnswer::new(
        Reason::Unavailable,
        format!(
            "cannot read {what}: {error}; kube-ipvs needs CAP_NET_ADMIN in the host's network \
                 namespace"
        ),
    )
}

#[cfg(test)]
mod tests {
    use plan::settings::FastPath;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn frontend(text: &str) -> Frontend {
        let socket = at(text);
        Frontend { address: socket.ip(), protocol: Protocol::Tcp, port: socket.port() }
    }

    fn tracked(client: &str, destination: &str, endpoint: &str, seen: &str) -> TrackedConnection {
        TrackedConnection {
            protocol: Protocol::Tcp,
            client: at(client),
            destination: at(destination),
            endpoint: at(endpoint),
            seen: at(seen),
            state: "ESTABLISHED",
            path: FastPath::Off,
            expires: 86_000,
            began: Some(5_000_000_000),
        }
    }

    fn table(lines: &[&str]) -> Table {
        let mut table = Table::new();
        for line in lines {
            insert(&mut table, &TableEntry::of_line(line).unwrap());
        }
        table
    }

    fn all() -> Wanted {
        Wanted::all(vec![Family::V4])
    }

    #[test]
    fn a_connection_by_an_internal_frontend_is_one_with_what_the_client_asked_for() {
        // 10.96.0.10:80 to the internal frontend 240.96.0.10:80.
        let table = table(&[
            "TCP C0A80064 4E20 F060000A 0050 0AF4010B 1F90 FIN_WAIT        99",
            "TCP C0A80064 0000 F060000A 0050 0AF4010B 1F90 NONE            599",
        ]);
        let tracked = tracked(
            "192.168.0.100:20000",
            "10.96.0.10:80",
            "10.244.1.11:8080",
            "192.168.0.100:20000",
        );
        let mut found = joined(vec![tracked], table, &all());
        assert_eq!(found.len(), 1, "{found:?}");
        let service = ServiceName::new("default", "web");
        let owners = HashMap::from([(frontend("10.96.0.10:80"), service)]);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(65);
        let answer = found.remove(0).answer(&owners, now);
        let expected = Connection {
            service: Some("default/web".to_owned()),
            protocol: "tcp".to_owned(),
            client: at("192.168.0.100:20000"),
            frontend: at("10.96.0.10:80"),
            endpoint: at("10.244.1.11:8080"),
            seen: Some(at("192.168.0.100:20000")),
            age: Some(60),
            ipvs: Some(ConnectionState { state: "FIN_WAIT".to_owned(), expires: 99 }),
            conntrack: Some(ConnectionState { state: "ESTABLISHED".to_owned(), expires: 86_000 }),
            path: Path::Ipvs,
        };
        assert_eq!(answer, expected);
        assert_eq!(answer.leading().unwrap().state, "FIN_WAIT");
        // IPVS has seen its beginning alone.
        let fast = Connection { path: Path::Offload, ..answer };
        assert_eq!(fast.leading().unwrap().state, "ESTABLISHED");
    }

    #[test]
    fn what_ipvs_alone_knows_is_a_connection_too() {
        let table = table(&["TCP C0A80064 4E20 0A60000A 0050 0AF4010B 1F90 ESTABLISHED 899"]);
        let found = joined(Vec::new(), table.clone(), &all());
        let answer = found[0].clone().answer(&HashMap::new(), SystemTime::now());
        assert_eq!((answer.seen, answer.conntrack.clone()), (None, None));
        assert_eq!(answer.leading().unwrap().expires, 899);
        let other = Wanted { client: Some([192, 168, 0, 101].into()), ..all() };
        assert_eq!(joined(Vec::new(), table, &other), []);
    }

    #[test]
    fn a_node_ports_frontend_is_at_every_address() {
        let wanted = Wanted { frontends: Some([frontend("0.0.0.0:30080")].into()), ..all() };
        let client = at("192.168.0.100:20000");
        assert!(wanted.has(&frontend("192.0.2.1:30080"), client));
        assert!(!wanted.has(&frontend("192.0.2.1:30081"), client));
        assert!(all().has(&frontend("192.0.2.1:30081"), client));
    }
}
