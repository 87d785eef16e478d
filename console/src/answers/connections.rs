//! `/v1/connections`: who is connected to what, from IPVS's table and connection tracking joined.
//!
//! Connection tracking knows what the client sent to and which source the endpoint sees; IPVS knows the
//! state by which it goes on. Both are read by sockets of their own, and the loop is asked whose the
//! frontends are, some at a time.

mod read;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use plan::kernel_objects::Frontend;
use plan::model::ServiceName;
use plan::settings::FastPath;
use serde::{Deserialize, Serialize};

use super::question::Parameters;
use super::{Answer, Content, FailureAnswer, blocking, services};
use crate::Desk;
pub(super) use read::Wanted;
use read::{Found, Read};
use reconcile::inquiry::CHUNK;

/// Connections of this many are shown, if nothing else is said.
pub const DEFAULT_LIMIT: usize = 1_000;

/// Connections through this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// The connections, or the first of them, in the order of Services, frontends and clients.
    pub connections: Vec<Connection>,
    /// Number of all.
    pub total: usize,
    /// Reason for which something was not read; none: everything was.
    pub incomplete: Option<String>,
}

/// A connection through a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    pub service: Option<String>,
    /// Its protocol: `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port that the client connected to.
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
    /// Source that the endpoint sees; none: connection tracking does not know the connection.
    pub seen: Option<SocketAddr>,
    /// Seconds since it began; none: the kernel does not note that
    /// (`net.netfilter.nf_conntrack_timestamp`).
    pub age: Option<u64>,
    /// State that IPVS has it in; none: IPVS does not know it.
    pub ipvs: Option<ConnectionState>,
    /// State that connection tracking has it in.
    pub conntrack: Option<ConnectionState>,
    /// Carrier of its packets.
    #[serde(default)]
    pub path: Path,
}

/// Part of the kernel that carries the packets of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Path {
    /// IPVS.
    #[default]
    Ipvs,
    /// Connection tracking.
    Conntrack,
    /// The flow table.
    Offload,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// The kernel's word.
    pub state: String,
    /// Seconds until it is forgotten, if no packet comes.
    pub expires: u32,
}

/// Parameters of the question.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// `NS/NAME`
    service: Option<String>,
    limit: Option<usize>,
}

impl Content for Connections {
    const KIND: &'static str = "Connections";
}

/// Answers.
///
/// # Errors
/// When there is no such Service, or the kernel or the loop has no answer.
pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Connections>, FailureAnswer> {
    let mut wanted = Wanted::all(desk.settings.families.clone());
    let service = asked.service.as_deref().map(services::name).transpose()?;
    if let Some(service) = &service {
        wanted.frontends = Some(frontends_of(&desk, service).await?);
    }
    let service = service.map(|service| service.to_string());
    let is_wanted = |connection: &Connection| match &service {
        Some(name) => connection.service.as_ref() == Some(name),
        None => connection.service.is_some(),
    };
    let most = asked.limit.unwrap_or(DEFAULT_LIMIT);
    of(&desk, wanted, is_wanted, most).await.map(Answer::new)
}

/// Returns the connections to a frontend, of a client or of all, at most `most`.
pub(super) async fn to(
    desk: &Desk,
    frontend: Frontend,
    client: Option<IpAddr>,
    most: usize,
) -> Result<Connections, FailureAnswer> {
    let wanted =
        Wanted { frontend: Some(frontend), client, ..Wanted::all([frontend.family()].into()) };
    of(desk, wanted, |_| true, most).await
}

async fn of(
    desk: &Desk,
    wanted: Wanted,
    is_wanted: impl Fn(&Connection) -> bool,
    most: usize,
) -> Result<Connections, FailureAnswer> {
    let Read { found, incomplete } = blocking(move || read::read(&wanted)).await??;
    let owners = owners(desk, &found).await?;
    let connections = found.into_iter().map(|found| found.answer(&owners, SystemTime::now()));
    let mut connections: Vec<Connection> = connections.filter(is_wanted).collect();
    connections.sort_by(|one, other| one.place().cmp(&other.place()));
    let total = connections.len();
    connections.truncate(most);
    Ok(Connections { connections, total, incomplete })
}

/// Returns the frontends that a Service claims.
async fn frontends_of(
    desk: &Desk,
    service: &ServiceName,
) -> Result<HashSet<Frontend>, FailureAnswer> {
    let name = service.clone();
    let claimed = desk.inquiries.ask(move |view| view.planner.frontends_claimed_by(&name)).await?;
    match claimed {
        Some(frontends) => Ok(frontends.into_iter().collect()),
        None => Err(services::unknown(desk, service).await),
    }
}

/// Returns the Services that the frontends of these connections belong to.
async fn owners(
    desk: &Desk,
    found: &[Found],
) -> Result<HashMap<Frontend, ServiceName>, FailureAnswer> {
    let frontends: BTreeSet<Frontend> = found.iter().map(|found| found.frontend).collect();
    owners_of(desk, frontends.into_iter().collect()).await
}

/// Returns the Services that these frontends belong to, as clients see them.
pub(super) async fn owners_of(
    desk: &Desk,
    frontends: Vec<Frontend>,
) -> Result<HashMap<Frontend, ServiceName>, FailureAnswer> {
    let mut owners = HashMap::new();
    for chunk in frontends.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let of_chunk = desk.inquiries.ask(move |view| {
            let owner = |frontend: &Frontend| {
                let owner = view.planner.owner_as_seen_by_clients(frontend)?;
                Some((*frontend, owner.clone()))
            };
            chunk.iter().filter_map(owner).collect::<Vec<_>>()
        });
        owners.extend(of_chunk.await?);
    }
    Ok(owners)
}

impl Connection {
    /// Its place in the order.
    fn place(&self) -> (&Option<String>, &str, SocketAddr, SocketAddr, SocketAddr) {
        (&self.service, &self.protocol, self.frontend, self.client, self.endpoint)
    }

    /// State by which the connection goes on: that of IPVS, where it carries it.
    #[must_use]
    pub fn leading(&self) -> Option<&ConnectionState> {
        let (ipvs, conntrack) = (self.ipvs.as_ref(), self.conntrack.as_ref());
        match self.path {
            Path::Ipvs => ipvs.or(conntrack),
            Path::Conntrack | Path::Offload => conntrack.or(ipvs),
        }
    }

    /// Returns the number of seconds until it is forgotten, if no packet comes; none: the flow table has it.
    #[must_use]
    pub fn expires(&self) -> Option<u32> {
        self.leading().filter(|_| self.path != Path::Offload).map(|state| state.expires)
    }
}

impl From<FastPath> for Path {
    fn from(path: FastPath) -> Self {
        match path {
            FastPath::Off => Self::Ipvs,
            FastPath::Conntrack => Self::Conntrack,
            FastPath::Offload => Self::Offload,
        }
    }
}

impl Path {
    /// Returns its word: but for `ipvs`, that of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Conntrack => "conntrack",
            Self::Offload => "offload",
        }
    }
}
