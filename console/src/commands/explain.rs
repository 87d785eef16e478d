//! `kube-ipvs explain`: who gets which endpoints of a Service, and why, in sentences.

mod offline;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::service::{full_name, hints_text, is_by_hints, kind_text};
use super::{Session, completion, written};
use crate::answers::decision::Use;
use crate::answers::explain::{
    Asked, AskingPod, ClientExplanation, ClientPlace, Explanation, FrontendExplanation, Outcome,
    Reached, Rule, Seen, Unused,
};
use crate::answers::mode;
use crate::answers::service::FrontendKind;
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, duration, good, heading, notable};
use syntax::counted::counted;

/// Explains which clients get which endpoints of a Service, and why
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs explain shop/cart:80\n  \
    kube-ipvs explain shop/cart --from 10.244.1.7\n  \
    kube-ipvs explain shop/cart --from pod web-5d4f\n  \
    kube-ipvs explain shop/cart --manifests ./deploy --node worker-1\n\n\
    Clients are examples unless --from names an address. Packets are followed through the desired \
    state; none is sent. Exit code: 1 if one of the clients reaches no endpoint.")]
pub struct Arguments {
    /// Service, and one of its ports by number or name; without a namespace, in the namespace
    /// default
    #[arg(value_name = "NAMESPACE/NAME[:PORT]", add = ArgValueCompleter::new(completion::services))]
    service: Option<String>,
    /// Client: pod (of this node), node, outside, or an address; or one pod, by its name with or
    /// without a namespace
    #[arg(long, value_names = ["CLIENT", "POD"], num_args = 1..=2)]
    from: Vec<String>,
    /// Explains these manifests, without a running kube-ipvs
    #[arg(long, value_name = "FOLDER")]
    manifests: Option<PathBuf>,
    /// With --manifests: name of the node (default: this host's name)
    #[arg(long, value_name = "NAME", requires = "manifests")]
    node: Option<String>,
    /// With --manifests: configuration of kube-ipvs
    #[arg(long, value_name = "FILE", requires = "manifests")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let asked = arguments.asked()?;
    let explanation: Explanation = match &arguments.manifests {
        Some(folder) => offline::explain(
            folder,
            arguments.node.as_deref(),
            arguments.config.as_deref(),
            &asked,
        )?,
        None => {
            let mut query = vec![("name", asked.name.as_str())];
            query.extend(asked.port.as_deref().map(|port| ("port", port)));
            query.extend(asked.from.as_deref().map(|from| ("from", from)));
            query.extend(asked.pod.as_deref().map(|pod| ("pod", pod)));
            session.client()?.get("/v1/explain", &query)?
        }
    };
    let verdict = Verdict::from(is_served(&explanation));
    written(session.output.show(explanation, text))?;
    Ok(verdict)
}

impl Arguments {
    fn asked(&self) -> Result<Asked, Failure> {
        // An option with one or two values takes the Service for its second one, if it comes last.
        let (service, from, pod) = match (self.service.as_deref(), &self.from[..]) {
            (Some(service), [from, pod]) if from == "pod" => (service, Some(from), Some(pod)),
            (None, [from, service]) => (service.as_str(), Some(from), None),
            (Some(service), []) => (service, None, None),
            (Some(service), [from]) => (service, Some(from), None),
            (Some(_), [from, name, ..]) => {
                let text = format!("--from {from} takes no name such as {name}: only pod does");
                return Err(Failure::Asked(text));
            }
            (None, _) => {
                let text = "name a Service: kube-ipvs explain NAMESPACE/NAME[:PORT]";
                return Err(Failure::Asked(text.to_owned()));
            }
        };
        let (name, port) = match service.split_once(':') {
            Some((name, port)) => (name, Some(port.to_owned())),
            None => (service, None),
        };
        let name = full_name(name);
        let namespace = name.split_once('/').map_or("default", |(namespace, _)| namespace);
        let in_namespace = |pod: &String| match pod.contains('/') {
            true => pod.clone(),
            false => format!("{namespace}/{pod}"),
        };
        let pod = pod.map(in_namespace);
        Ok(Asked { name, port, from: from.cloned(), pod })
    }
}

/// True if every client reaches an endpoint, but for examples that source ranges keep out.
fn is_served(explanation: &Explanation) -> bool {
    explanation.frontends.iter().all(|frontend| {
        let is_restricted = !frontend.source_ranges.is_empty();
        frontend.clients.iter().all(|client| {
            client.outcomes.iter().all(|outcome| match outcome.reached {
                // Where another node serves the same address, its pods ask that.
                Reached::Endpoint => true,
                Reached::Unanswered => frontend.kind == FrontendKind::ClusterAddress,
                Reached::Dropped => is_restricted && client.is_example,
                Reached::Refused(_) | Reached::Node | Reached::PassedOn => false,
            })
        })
    })
}

fn text(explanation: &Explanation) -> String {
    let Explanation { namespace, name, service_type, mode, node, .. } = explanation;
    let mut text = format!(
        "{}, {service_type}, on node {node} in {}\n",
        heading(format!("{namespace}/{name}")),
        mode::title(mode)
    );
    if let Some(pod) = &explanation.pod {
        text += &pod_text(pod);
    }
    if explanation.is_waiting {
        text += &notable("A change of it is pending: packets follow the state before it.\n");
    }
    for warning in &explanation.warnings {
        text += &format!("{} {warning}\n", bad("Warning:"));
    }
    if explanation.frontends.is_empty() {
        text += "It has no frontends on this node.\n";
    }
    for frontend in &explanation.frontends {
        text += &format!("\n{}", frontend_text(frontend));
    }
    if explanation.more_frontends > 0 {
        text += &format!(
            "\nwithout {}; name a port: {namespace}/{name}:PORT\n",
            counted(explanation.more_frontends, "more frontend")
        );
    }
    text
}

/// Returns where a named pod is: its packets go by its own node's proxy first.
fn pod_text(pod: &AskingPod) -> String {
    let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
    let addresses = addresses.join(", ");
    let text = format!("The pod {}/{} is {addresses}", pod.namespace, pod.name);
    match &pod.node {
        Some(_) if pod.is_here => format!("{text}, on this node.\n"),
        Some(node) => format!(
            "{text}, {}: run the command there. This answer is about packets that the pod sends to \
             this node.\n",
            notable(format!("on node {node}"))
        ),
        None => format!("{text}; its node is not known.\n"),
    }
}

fn frontend_text(frontend: &FrontendExplanation) -> String {
    let destination = SocketAddr::new(frontend.address, frontend.port);
    let mut text = heading(format!("{} {destination}", frontend.protocol));
    text += &format!(", {}", kind_text(frontend.kind, None));
    if !frontend.port_name.is_empty() {
        text += &format!(", port {}", frontend.port_name);
    }
    if frontend.more_addresses > 0 {
        text += &match frontend.more_addresses {
            1 => " (and at 1 more address of the node)".to_owned(),
            number => format!(" (and at {number} more addresses of the node)"),
        };
    }
    text += "\n";
    let mut sentence = |sentence: String| text += &format!("  {sentence}\n");
    if let Some(other) = &frontend.taken_by {
        sentence(bad(format!("Service {other} has it: no client reaches this Service at it.")));
        return text;
    }
    sentence(policy_sentence(frontend));
    if let Some(seconds) = frontend.affinity_seconds {
        let time = duration(f64::from(seconds));
        sentence(format!("Session affinity: a client stays with its endpoint for {time}."));
    }
    if !frontend.source_ranges.is_empty() {
        let ranges = frontend.source_ranges.join(", ");
        sentence(format!("Source ranges: only clients in {ranges} are allowed."));
    }
    for client in &frontend.clients {
        client_sentences(client).into_iter().for_each(&mut sentence);
    }
    let unused = frontend.unused.iter().map(|it| unused_sentence(it, frontend.kind));
    unused.for_each(&mut sentence);
    if frontend.more_unused > 0 {
        let endpoints = counted(frontend.more_unused, "more endpoint");
        sentence(format!("Not explained: {endpoints} that no client gets."));
    }
    if frontend.more_endpoints > 0 {
        let endpoints = counted(frontend.more_endpoints, "more endpoint");
        sentence(notable(format!("Not explained: {endpoints} (the Service has too many).")));
    }
    text
}

fn unused_sentence(unused: &Unused, kind: FrontendKind) -> String {
    let Unused { endpoint, reason, .. } = unused;
    let node = unused.node.as_deref().map(|it| format!(" on node {it}")).unwrap_or_default();
    let hints = unused.hints.as_deref().filter(|_| is_by_hints(*reason));
    let hints = hints.map(|it| format!(" ({it})")).unwrap_or_default();
    // The cluster's own clients get all endpoints, whatever the policy for others is.
    let whom = match (reason, kind) {
        (Use::Elsewhere, FrontendKind::ClusterAddress) => "",
        (Use::Elsewhere, _) => " for clients outside of the cluster",
        _ => "",
    };
    let reason = reason.to_string().replacen("not used", &format!("not used{whom}"), 1);
    format!("{endpoint}{node} is {reason}{hints}.")
}

fn policy_sentence(frontend: &FrontendExplanation) -> String {
    let (field, whose) = match frontend.kind {
        FrontendKind::ClusterAddress => ("internalTrafficPolicy", "its clients get"),
        FrontendKind::NodePort | FrontendKind::LoadBalancer | FrontendKind::External => {
            ("externalTrafficPolicy", "clients outside of the cluster get")
        }
    };
    let policy = &frontend.traffic_policy;
    let endpoints = if policy == "Local" { "endpoints on this node only" } else { "any endpoint" };
    let mut text = format!("{field} {policy}: {whose} {endpoints}");
    if let Some(hints) = hints_text(frontend.hints) {
        text += &format!("; {hints}");
    }
    if let Some(scheduler) = &frontend.scheduler {
        text += &format!("; the scheduler {scheduler} chooses");
    }
    text + "."
}

fn client_sentences(client: &ClientExplanation) -> Vec<String> {
    let who = who(client);
    if let Some(reason) = &client.unknown {
        return vec![notable(format!("{who}: not known, {reason}."))];
    }
    let mut sentences = Vec::new();
    for outcome in &client.outcomes {
        sentences.push(format!("{who} {}", outcome_text(outcome)));
        let reasons = reasons(outcome).into_iter();
        sentences.extend(reasons.map(|rule| format!("  by {}", rule_text(rule))));
    }
    sentences
}

/// Returns the client as a sentence begins with it.
fn who(client: &ClientExplanation) -> String {
    let range = match client.is_in_source_range {
        None => "",
        Some(true) => " inside of the source ranges",
        Some(false) => " outside of the source ranges",
    };
    let place = match client.client {
        ClientPlace::Pod => "pod of this node",
        ClientPlace::Node => return "This node".to_owned(),
        ClientPlace::Outside => "client outside of this node",
    };
    match client.address {
        None => format!("A {place}"),
        Some(address) if client.is_example => format!("A {place} (such as {address}){range}"),
        Some(address) => format!("{address}, a {place}{range},"),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match &outcome.reached {
        Reached::Endpoint => {
            let endpoints = endpoints_text(outcome);
            let seen = match outcome.seen {
                Some(Seen::Node) => ", which sees an address of this node: it is masqueraded",
                Some(Seen::Client(_)) | None => ", which sees the client's own address",
            };
            let led = match outcome.internal_frontend {
                Some(at) => format!(", by the internal frontend {at}"),
                None => String::new(),
            };
            format!("{endpoints}{led}{seen}.")
        }
        Reached::Unanswered => format!(
            "{}, whose answer goes directly to the client, which drops it: {}. A pod of another \
             node uses its own node's proxy.",
            endpoints_text(outcome),
            bad("lost")
        ),
        Reached::Refused(by) => format!("is {} ({by}).", bad("rejected")),
        Reached::Dropped => format!("is {}: its packets are dropped.", bad("not answered")),
        Reached::Node => bad("reaches a process of the node, not the Service."),
        Reached::PassedOn => bad("is routed on unchanged by this node."),
    }
}

fn endpoints_text(outcome: &Outcome) -> String {
    let endpoints: Vec<String> = outcome.endpoints.iter().map(ToString::to_string).collect();
    let text = match &endpoints[..] {
        [one] => format!("gets {}", good(one)),
        several => format!("gets one of {}", good(several.join(", "))),
    };
    match outcome.more_endpoints {
        0 => text,
        number => format!("{text} and {number} more"),
    }
}

/// Returns the rules that are the reason of an outcome: for refusing, for masquerading, and for
/// leading to an internal frontend; each with the rule that leads to its chain by a set.
fn reasons(outcome: &Outcome) -> Vec<&Rule> {
    let with_target = |targets: &'static [&str]| {
        let rules = outcome.rules.iter().enumerate();
        rules.filter(move |(_, rule)| targets.contains(&rule.target())).map(|(index, _)| index)
    };
    let decisive: Vec<usize> = match outcome.reached {
        Reached::Refused(_) | Reached::Dropped => {
            with_target(&["DROP", "REJECT"]).next_back().into_iter().collect()
        }
        Reached::Endpoint => {
            let is_masqueraded = outcome.seen == Some(Seen::Node);
            // What is marked is masqueraded at the end by a rule for all that is.
            let marked = with_target(&["KUBE-MARK-MASQ"]).next();
            let masqueraded = marked.or_else(|| with_target(&["MASQUERADE"]).next());
            let led = with_target(&["NETMAP"]);
            led.chain(masqueraded.filter(|_| is_masqueraded)).collect()
        }
        Reached::Unanswered | Reached::Node | Reached::PassedOn => Vec::new(),
    };
    let mut reasons: Vec<&Rule> = Vec::new();
    for (index, rule) in decisive.into_iter().filter_map(|it| Some((it, outcome.rules.get(it)?))) {
        let before = outcome.rules.iter().take(index);
        let way_in = before.rev().find(|it| it.target() == rule.chain && it.table == rule.table);
        for reason in way_in.into_iter().chain([rule]) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    reasons
}

fn rule_text(rule: &Rule) -> String {
    let entries = rule.entries.iter();
    let entries: String =
        entries.map(|it| format!(" [entry {} of {}]", it.entry, it.set)).collect();
    format!(
        "rule {} of {} in table {}: {}{entries}",
        rule.number, rule.chain, rule.table, rule.rule
    )
}
