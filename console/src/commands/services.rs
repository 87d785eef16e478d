//! `kube-ipvs services`: a table of Services.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::{Session, completion, written};
use crate::answers::services::{ServiceRow, Services};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, notable, or_dash};
use crate::table::{Column, Table};

/// Namespace that is meant if none is named, as with kubectl.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// Heading of the column that leads to a Service.
pub(crate) const NAME: &str = "NAME";

/// Lists Services with their addresses, ports, endpoints and connections on this node
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs services -A\n\n\
    READY: ready endpoints of all; USED: endpoints that this node sends clients to. ACTIVE: \
    established connections; INACTIVE: connections that begin or end, and all of UDP.")]
pub struct Arguments {
    /// Lists Services of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Lists Services of this namespace
    #[arg(
        short,
        long,
        default_value = DEFAULT_NAMESPACE,
        value_name = "NAMESPACE",
        add = ArgValueCompleter::new(completion::namespaces),
    )]
    namespace: String,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    // The next part is asked for by the name as it is.
    let client = session.client()?.verbatim();
    let mut all = Services { services: Vec::new(), next: None, uncounted: None };
    loop {
        let mut query = Vec::new();
        if !arguments.all_namespaces {
            query.push(("namespace", arguments.namespace.as_str()));
        }
        if let Some(after) = &all.next {
            query.push(("after", after));
        }
        let part: Services = client.get("/v1/services", &query)?;
        all.services.extend(part.services);
        all.uncounted = part.uncounted.or(all.uncounted);
        all.next = part.next;
        if all.next.is_none() {
            break;
        }
    }
    written(session.output.show(all, |all| text(all, arguments)))?;
    Ok(Verdict::Yes)
}

fn text(all: &Services, arguments: &Arguments) -> String {
    if all.services.is_empty() {
        return if arguments.all_namespaces {
            "No Services.\n".to_owned()
        } else {
            format!("No Services in namespace {}; -A shows all namespaces.\n", arguments.namespace)
        };
    }
    let mut text = table(&all.services, arguments.all_namespaces).text();
    if let Some(reason) = &all.uncounted {
        text += &format!("{}\n", notable(reason));
    }
    text
}

pub(crate) fn table(services: &[ServiceRow], with_namespaces: bool) -> Table {
    let columns: [Column<ServiceRow>; 11] = [
        ("NAMESPACE", |it| it.namespace.clone()),
        (NAME, |it| it.name.clone()),
        ("TYPE", |it| it.kind.clone()),
        ("CLUSTER-IP", |it| listed(&it.cluster_addresses, 0)),
        ("EXTERNAL-IP", |it| listed(&it.external_addresses, it.more_addresses)),
        ("PORTS", |it| listed(&it.ports, it.more_ports)),
        ("READY", |it| {
            let ready = format!("{}/{}", it.ready, it.endpoints);
            if it.ready < it.endpoints { notable(ready) } else { ready }
        }),
        ("USED", |it| if it.used == 0 { bad("0") } else { it.used.to_string() }),
        ("ACTIVE", |it| or_dash(it.connections.map(|it| it.active))),
        ("INACTIVE", |it| or_dash(it.connections.map(|it| it.inactive))),
        ("WARNINGS", |it| {
            if it.warnings == 0 { "-".to_owned() } else { notable(it.warnings.to_string()) }
        }),
    ];
    Table::of(columns.get(usize::from(!with_namespaces)..).unwrap_or_default(), services)
}

/// Returns a list as kubectl writes it: `80:30080/TCP,53/UDP`, and the number of those that it has not.
pub(super) fn listed(listed: &[impl ToString], n_more: usize) -> String {
    if listed.is_empty() {
        return "-".to_owned();
    }
    let text = listed.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if n_more > 0 { format!("{text} and {n_more} more") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::services::{Connections, PortRow};

    fn mk_services() -> Services {
        let web = ServiceRow {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            kind: "NodePort".to_owned(),
            cluster_addresses: vec!["10.96.0.10".parse().unwrap()],
            external_addresses: Vec::new(),
            more_addresses: 0,
            ports: vec![PortRow {
                name: "http".to_owned(),
                protocol: "TCP".to_owned(),
                port: 80,
                node_port: Some(30_080),
            }],
            more_ports: 0,
            endpoints: 3,
            ready: 2,
            used: 2,
            warnings: 0,
            connections: Some(Connections { active: 7, inactive: 1 }),
        };
        Services { services: vec![web], next: None, uncounted: None }
    }

    fn plain(services: &Services, all_namespaces: bool) -> String {
        let arguments = Arguments { all_namespaces, namespace: "default".to_owned() };
        anstream::adapter::strip_str(&text(services, &arguments)).to_string()
    }

    #[test]
    fn the_table_is_like_that_of_kubectl() {
        assert_eq!(
            plain(&mk_services(), true),
            "NAMESPACE   NAME   TYPE       CLUSTER-IP   EXTERNAL-IP   PORTS          READY   USED   ACTIVE   INACTIVE   WARNINGS\n\
             default     web    NodePort   10.96.0.10   -             80:30080/TCP   2/3     2      7        1          -\n"
        );
    }

    #[test]
    fn ports_that_are_not_named_are_counted() {
        let mut services = mk_services();
        services.services[0].more_ports = 14_999;
        let text = plain(&services, false);
        assert!(text.contains("   80:30080/TCP and 14999 more   "), "{text}");
    }

    #[test]
    fn connections_that_are_not_counted_are_no_zeros() {
        let mut services = mk_services();
        services.services[0].connections = None;
        services.uncounted = Some("iptables mode counts none".to_owned());
        let text = plain(&services, false);
        assert!(text.contains("2      -        -          -"), "{text}");
        assert!(text.ends_with("iptables mode counts none\n"), "{text}");
    }

    #[test]
    fn an_empty_namespace_is_said_to_be_empty() {
        let none = Services { services: Vec::new(), next: None, uncounted: None };
        assert_eq!(
            plain(&none, false),
            "No Services in namespace default; -A shows all namespaces.\n"
        );
        assert_eq!(plain(&none, true), "No Services.\n");
    }
}
