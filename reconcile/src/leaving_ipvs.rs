//! Leaving IPVS mode: what IPVS balances goes on until it ends, while another mode's rules lead all
//! new connections.
//!
//! Rules of nat are asked once for each connection, and before IPVS. So connections that IPVS has
//! stay with it after the takeover, for as long as their real servers are there and the addresses
//! that they come to are local: real servers of TCP and SCTP drain, and addresses, sets and rules of
//! IPVS mode stay until the last one has gone. UDP virtual servers go at once: the next datagram is led
//! by the rules.
//!
//! The kernel chooses a bound address as the source of the node's own connections to it, and they
//! would end with it. So each becomes local by a route instead, with a source that stays
//! ([`replace_addresses`]). Connections that have such a source are masqueraded by the constant
//! rules, which know these addresses by a set ([`note_bound`]), until all virtual servers have gone.
//!
//! A client may use the port of a connection again that IPVS still knows. When IPVS forgets that, it
//! would cut the new connection off. So rules show IPVS a copy of each connection's first packet
//! ([`copies`]).
//!
//! All of it waits until the rules lead ([`super::leading`]). A Service whose rules the kernel refuses,
//! and a family, keep their virtual servers, which serve as they were left, and drain when the rules
//! are there.
//!
//! Nothing of this is remembered but by the kernel: a restart goes on where it ended. What is left
//! when all virtual servers have gone carries no traffic, and is cleaned up outside of the loop.

mod copies;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use plan::actual::{Actual, ActualSet, Addresses, ListedVirtualServer};
use plan::adoption::Unadopted;
use plan::capacity::SetSize;
use plan::facts::BoundAddresses;
use plan::hash::HashSet;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::{Op, PartKind, Subject};
use plan::planner::Planner;
use plan::routes::{LocalRoute, RouteOp};
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use tokio::time::Instant;
use tracing::{info, warn};

use super::context::{Context, LARGEST_CHUNK};
use super::leading::Unled;
use super::observer::Report;
use super::pace::READ_RETRY;
use super::writer::{Basis, Known, Writer};
use kernel::worker::{ReadFailure, WorkerGone};

/// Time between two checks whether all virtual servers have gone.
const CHECK: Duration = Duration::from_secs(1);

/// Longest time between two listings while a virtual server cannot be removed.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Sets whose entries let new connections through to IPVS.
const ADMITTING: [SetKind; 6] = [
    SetKind::ClusterIp,
    SetKind::ExternalIp,
    SetKind::ExternalIpLocal,
    SetKind::LoadBalancer,
    SetKind::LoadBalancerLocal,
    SetKind::LoadBalancerFirewall,
];

/// Progress of leaving IPVS mode.
#[derive(Debug)]
pub(super) enum LeavingIpvs {
    /// The kernel is to be read, not before this.
    Unread(Instant),
    /// Virtual servers drain. They are listed again at this time. If one cannot be removed, the pause
    /// is longer each time.
    Draining(Instant, Duration),
    /// No virtual server of ours is left, and the rules that look into sets are to go. Whether they
    /// have gone is checked at this time.
    Closing(Instant),
    /// No virtual server of ours is left, nor a rule that looks into a set.
    Left,
}

impl LeavingIpvs {
    /// Nothing is known yet.
    pub(super) fn new(now: Instant) -> Self {
        Self::Unread(now)
    }

    /// Returns the time of the next step; none if there is none, or the rules do not lead yet.
    pub(super) fn next_due(&self, cx: &Context) -> Option<Instant> {
        if !cx.status.borrow().is_carried {
            return None;
        }
        match self {
            Self::Unread(due) | Self::Draining(due, _) | Self::Closing(due) => Some(*due),
            Self::Left => None,
        }
    }

    /// Does what is due. Nothing is, until new connections go by the rules of this mode.
    pub(super) async fn step(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let now = Instant::now();
        if self.next_due(cx).is_none_or(|due| now < due) {
            return Ok(());
        }
        if matches!(self, Self::Closing(_)) {
            self.close(cx, writer);
            return Ok(());
        }
        let former_pause = match self {
            Self::Draining(_, pause) => Some(*pause),
            _ => None,
        };
        let n_draining = writer.drain().n_removed_when_drained();
        if former_pause.is_some() && n_draining > 0 {
            copies::give_up_refused(cx, writer).await?;
            report(cx, writer, n_draining);
            *self = Self::Draining(now + CHECK, CHECK);
            return Ok(());
        }
        let found = read(cx).await;
        let Some(found) = cx.or_report(found)? else {
            *self = Self::again(former_pause);
            return Ok(());
        };
        let n_left = match found {
            Some(found) if former_pause.is_none() => copies::drain(cx, writer, found).await?,
            Some(found) => {
                let unled = Unled::of(cx, writer.retry_queue());
                drain(cx, writer, found, &unled).await?
            }
            None => Some(0),
        };
        let Some(n_left) = n_left else {
            *self = Self::again(former_pause);
            return Ok(());
        };
        if n_left > 0 {
            report(cx, writer, n_left);
            if former_pause.is_none() {
                info!(
                    virtual_servers = n_left,
                    "IPVS mode left virtual servers: new connections follow the rules of this \
                     mode; existing IPVS connections continue until they end, or until \
                     drainDeadline"
                );
            }
            let pause = former_pause.map_or(CHECK, |pause| (pause * 2).min(LONGEST_PAUSE));
            *self = Self::Draining(Instant::now() + pause, pause);
        } else {
            let ops = cx.planner.note_bound(BTreeMap::new());
            if !ops.is_empty() {
                cx.set_desired_rules().await?;
                writer.apply(cx, ops, Basis::Reading).await?;
            }
            self.close(cx, writer);
        }
        Ok(())
    }

    /// Reads the kernel again later: it could not be read. `former_pause` is there once virtual servers
    /// drain.
    fn again(former_pause: Option<Duration>) -> Self {
        let retry = Instant::now() + READ_RETRY;
        match former_pause {
            Some(pause) => Self::Draining(retry, pause),
            None => Self::Unread(retry),
        }
    }

    /// Ends it if the constant rules are as desired. What is cleaned up then are the sets that former
    /// rules looked into.
    fn close(&mut self, cx: &mut Context, writer: &Writer) {
        let is_pending = |family| writer.retry_queue().contains(&Subject::RuleSet(family));
        if Family::BOTH.into_iter().any(is_pending) {
            *self = Self::Closing(Instant::now() + CHECK);
            return;
        }
        report(cx, writer, 0);
        *self = Self::Left;
    }
}

/// Reports the progress.
fn report(cx: &mut Context, writer: &Writer, n_virtual_servers: usize) {
    let n_connections = if n_virtual_servers == 0 { 0 } else { writer.drain().n_connections() };
    cx.observers.report(&Report::LeftByIpvs { n_virtual_servers, n_connections });
}

/// Has the constant rules masquerade the node's own connections from addresses that IPVS mode left,
/// if it left some: to be called before the rules are compared with what is there. Puts into the set
/// of these addresses those that are not in there, and routes into their place. Returns false if the
/// kernel could not be read.
pub(super) async fn note_bound(
    cx: &mut Context,
    addresses: &Addresses,
) -> Result<bool, WorkerGone> {
    if cx.uses(PartKind::VirtualServers) || !cx.kernel.call(|kernel| kernel.has_ipvs()).await? {
        return Ok(true);
    }
    let mut bound = BTreeMap::new();
    for family in cx.planner.settings().families.clone() {
        let settings = cx.planner.settings();
        let is_ours =
            |address: &IpAddr| Family::of(*address) == family && !settings.excludes(*address);
        let local: Vec<IpAddr> = addresses.bound.iter().copied().filter(is_ours).collect();
        let of_family = addresses.routes.iter().filter(|net| Family::of_net(net) == family);
        let (single, mut routes): (Vec<IpNet>, Vec<IpNet>) =
            of_family.partition(|net| net.prefix_len() == net.max_prefix_len());
        if local.is_empty() && single.is_empty() && routes.is_empty() {
            continue;
        }
        routes.sort_unstable();
        let entries = local.iter().copied().chain(single.iter().map(IpNet::addr));
        let entries = entries.map(Entry::Address).collect();
        let set = SetId { kind: SetKind::IpvsAddresses, family };
        let found = cx.read_own_set(set).await;
        let Some(found) = cx.or_report(found)? else { return Ok(false) };
        if complete(cx, set, found, entries).await? {
            let hairpins = has_set(cx, SetId { kind: SetKind::LoopBack, family }).await?;
            let Some(hairpins) = hairpins else { return Ok(false) };
            let known = BoundAddresses { routes: routes.clone(), hairpins, copies: None };
            bound.insert(family, known);
            replace_addresses(cx, family, local, routes, addresses).await?;
        }
    }
    // The caller sets and compares all of the constant rules.
    let _all_are_compared = cx.planner.note_bound(bound);
    Ok(true)
}

/// True if there is this set. None if it could not be read. It is not made for a rule that looks into
/// it: without it, IPVS mode had no entry for that.
async fn has_set(cx: &mut Context, set: SetId) -> Result<Option<bool>, WorkerGone> {
    let read = cx.read_own_set(set).await;
    Ok(cx.or_report(read)?.map(|found| found.is_some()))
}

/// Puts these entries into a set that was found, or is to be made. Returns false if that is refused.
async fn complete(
    cx: &mut Context,
    set: SetId,
    found: Option<ActualSet>,
    mut entries: HashSet<Entry>,
) -> Result<bool, WorkerGone> {
    let mut ops = Vec::new();
    match found {
        Some(found) => entries.retain(|entry| !found.entries.contains(entry)),
        None => ops.push(Op::CreateSet(set, SetSize::of_new(set, entries.len()))),
    }
    ops.extend(entries.into_iter().map(|entry| Op::AddEntry(set, entry)));
    let (ops, results) = cx.kernel.apply(ops).await?;
    let refused = ops.iter().zip(results).find_map(|(op, result)| Some((op, result.err()?)));
    if let Some((op, refusal)) = &refused {
        warn!(
            "{op}: {refusal}. Until the node has left IPVS mode, its own connections to Services \
             use a Service address as source, and endpoints on other nodes cannot answer"
        );
    }
    Ok(refused.is_none())
}

/// Makes bound addresses local by routes instead, and gives the routes that there are a source. An
/// address stays where its route is refused. All of a family's stay if that of a network is: the
/// network's may go with the last address.
async fn replace_addresses(
    cx: &mut Context,
    family: Family,
    mut bound: Vec<IpAddr>,
    routes: Vec<IpNet>,
    addresses: &Addresses,
) -> Result<(), WorkerGone> {
    let Some(source) = source(cx, family, addresses) else { return Ok(()) };
    // The largest first, as in every removal of addresses.
    bound.sort_unstable_by(|one, other| other.cmp(one));
    let is_bound: HashSet<IpNet> = bound.iter().copied().map(IpNet::from).collect();
    let networks = routes.into_iter().chain(bound.into_iter().map(IpNet::from));
    let source = Some(source);
    let route = |network| Op::Route(RouteOp::Add(LocalRoute { network, source }));
    let ops = networks.map(route).collect();
    let (ops, results) = cx.kernel.apply(ops).await?;
    let (mut replaced, mut refused, mut lacks_network) = (Vec::new(), None, false);
    for (op, result) in ops.into_iter().zip(results) {
        let Op::Route(route) = &op else { continue };
        let network = route.network();
        match result {
            Ok(()) if is_bound.contains(&network) => {
                replaced.push(Op::UnbindAddress(network.addr()));
            }
            Ok(()) => {}
            Err(refusal) => {
                lacks_network |= !is_bound.contains(&network);
                refused = refused.or(Some((op, refusal)));
            }
        }
    }
    if lacks_network {
        replaced.clear();
    }
    let (ops, results) = cx.kernel.apply(replaced).await?;
    let mut failures = ops.into_iter().zip(results);
    let failure = failures.find_map(|(op, result)| Some((op, result.err()?)));
    if let Some((op, refusal)) = refused.or(failure) {
        warn!(
            "{op}: {refusal}. The node's own connections to Services use a Service address as \
             source, and are cut once the node has left IPVS mode"
        );
    }
    Ok(())
}

/// Returns the source of the node's own connections: the address by which the cluster knows the
/// node, or else the first one that other hosts can reach.
fn source(cx: &Context, family: Family, addresses: &Addresses) -> Option<IpAddr> {
    let is_local = |address: &IpAddr| addresses.local.contains(address);
    let is_usable = |address: &&IpAddr| {
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        Family::of(**address) == family && !address.is_loopback() && !is_link_local
    };
    let first = || addresses.local.iter().filter(is_usable).min().copied();
    cx.planner.own_address(family).filter(is_local).or_else(first)
}

/// Reads what IPVS mode left; none if there is nothing.
async fn read(cx: &mut Context) -> Result<Option<Unadopted>, ReadFailure> {
    if !cx.kernel.call(|kernel| kernel.has_ipvs()).await? {
        return Ok(None);
    }
    let addresses = cx.read_addresses().await?;
    let mut beside = Actual {
        link: addresses.link,
        addresses: addresses.bound,
        routes: addresses.routes,
        local_addresses: addresses.local,
        ..Actual::default()
    };
    for set in Family::BOTH.into_iter().flat_map(SetId::all) {
        beside.sets.extend(cx.read_own_set(set).await?.map(|found| (set, found)));
    }
    let listed = cx.list_virtual_servers().await?.virtual_servers;
    Ok(Some(cx.planner.left_by_ipvs(beside, listed)))
}

/// Drains the virtual servers of ours among what was found. Returns how many there are; none if the
/// kernel could not be read.
async fn drain(
    cx: &mut Context,
    writer: &mut Writer,
    mut found: Unadopted,
    unled: &Unled,
) -> Result<Option<usize>, WorkerGone> {
    let settings = cx.planner.settings();
    let internal_frontend_networks = settings.ipvs_internal_frontend_networks;
    let settings = Settings { internal_frontend_networks, ..settings.clone() };
    let served = found.served_addresses();
    let mut n_found = 0;
    loop {
        let desired = cx.planner.desired();
        let part = found.next_virtual_servers(LARGEST_CHUNK, desired, &settings);
        if part.is_empty() {
            break;
        }
        n_found += part.len();
        let is_led = |it: &ListedVirtualServer| !unled.contains(&cx.planner, &it.frontend);
        let part: Vec<_> = part.into_iter().filter(is_led).collect();
        // Each next datagram of these goes by the rules, and connections through an internal frontend
        // live by connection tracking alone. So they go first.
        let needs_ipvs = |frontend: &Frontend| {
            frontend.protocol != Protocol::Udp
                && (served.contains(&frontend.address)
                    || !settings.internal_frontend_networks.may_have_had(frontend.address))
        };
        let (lasting, others): (Vec<_>, Vec<_>) =
            part.into_iter().partition(|it| needs_ipvs(&it.frontend));
        let mut ops: Vec<Op> =
            others.into_iter().map(|it| Op::RemoveVirtualServer(it.frontend)).collect();
        let Some(closing) = close(cx, writer, lasting).await? else { return Ok(None) };
        ops.extend(closing);
        writer.apply(cx, ops, Basis::Reading).await?;
    }
    // Without a route, an address marks a virtual server as ours, and needs no entry for that. What
    // comes there and was not led elsewhere by a rule is refused from now on.
    if n_found > 0 && !found.has_routes() {
        for set in Family::BOTH.into_iter().flat_map(SetId::all) {
            if ADMITTING.contains(&set.kind) {
                let mut ops =
                    found.excess_entries(set, usize::MAX, cx.planner.desired(), &settings);
                ops.retain(|op| is_of_led(op, unled, &cx.planner));
                writer.apply(cx, ops, Basis::Reading).await?;
            }
        }
    }
    Ok(Some(n_found))
}

/// True if an operation takes the entry of a frontend away whose new connections the rules lead.
fn is_of_led(op: &Op, unled: &Unled, planner: &Planner) -> bool {
    match op.subject() {
        Subject::Entry(set, entry) => match entry.frontend() {
            Some(frontend) => !unled.contains(planner, &frontend),
            None => !unled.families.contains(&set.family),
        },
        _ => true,
    }
}

/// Returns the operations by which virtual servers go when their last connection has ended; none if the
/// kernel could not be read.
async fn close(
    cx: &mut Context,
    writer: &mut Writer,
    listed: Vec<ListedVirtualServer>,
) -> Result<Option<Vec<Op>>, WorkerGone> {
    if listed.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let seen = cx.read_listed(&listed.into()).await;
    let Some(seen) = cx.or_report(seen)? else { return Ok(None) };
    let now = Instant::now();
    let mut ops = Vec::new();
    for (frontend, found) in &seen.found {
        let repairs = cx.planner.repair(frontend, found.as_ref());
        let known = Known::Compared(*frontend, found.as_ref());
        ops.extend(writer.let_drain(cx, repairs, known, now));
    }
    ops.sort_by_key(Op::phase);
    Ok(Some(ops))
}
