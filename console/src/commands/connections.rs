//! `kube-ipvs connections`: who is connected to what.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::service::full_name;
use super::{Session, completion, written};
use crate::answers::connections::{Connection, Connections, DEFAULT_LIMIT};
use crate::outcome::{Failure, Verdict};
use crate::output::{duration, notable, or_dash};
use crate::table::{Column, Table};

/// Columns of connections.
pub(super) const COLUMNS: [Column<Connection>; 10] = [
    ("SERVICE", |it| or_dash(it.service.as_ref())),
    ("PROTO", |it| it.protocol.to_ascii_uppercase()),
    ("CLIENT", |it| it.client.to_string()),
    ("FRONTEND", |it| it.frontend.to_string()),
    ("ENDPOINT", |it| it.endpoint.to_string()),
    ("SEEN AS", |it| match it.seen {
        Some(seen) if seen == it.client => "the client".to_owned(),
        seen => or_dash(seen),
    }),
    ("PATH", |it| it.path.name().to_owned()),
    ("STATE", |it| or_dash(it.leading().map(|state| &state.state))),
    ("AGE", |it| or_dash(it.age.map(|age| duration(age as f64)))),
    ("EXPIRES IN", |it| or_dash(it.expires().map(|seconds| duration(f64::from(seconds))))),
];

/// Lists connections to Services with their state, from IPVS and conntrack
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs connections kube-system/kube-dns\n  \
    kube-ipvs connections --limit 50 -o json\n\n\
    SEEN AS is the source that the endpoint sees: the client, or an address of this node. PATH is \
    what carries the packets: ipvs, conntrack or offload (the flow table). AGE needs \
    net.netfilter.nf_conntrack_timestamp=1.")]
pub struct Arguments {
    /// Lists connections of this Service only; without a namespace, in the namespace default
    #[arg(value_name = "NAMESPACE/NAME", add = ArgValueCompleter::new(completion::services))]
    service: Option<String>,
    /// Most connections to list
    #[arg(long, default_value_t = DEFAULT_LIMIT, value_name = "NUMBER")]
    limit: usize,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let limit = arguments.limit.to_string();
    let mut query = vec![("limit", limit.as_str())];
    let service = arguments.service.as_deref().map(full_name);
    if let Some(service) = &service {
        query.push(("service", service));
    }
    let connections: Connections = session.client()?.get("/v1/connections", &query)?;
    written(session.output.show(connections, text))?;
    Ok(Verdict::Yes)
}

fn text(answer: &Connections) -> String {
    let shown = answer.connections.len();
    let mut text = match (shown, answer.total) {
        (_, 0) => "no connections\n".to_owned(),
        _ => Table::of(&COLUMNS, &answer.connections).text(),
    };
    if shown < answer.total {
        let said = format!("{shown} of {} connections; --limit shows more", answer.total);
        text += &format!("{}\n", notable(said));
    }
    if let Some(incomplete) = &answer.incomplete {
        text += &format!("{}: {incomplete}\n", notable("Note"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::connections::{ConnectionState, Path};

    fn connection(seen: &str) -> Connection {
        Connection {
            service: Some("default/web".to_owned()),
            protocol: "tcp".to_owned(),
            client: "192.168.0.100:20000".parse().unwrap(),
            frontend: "10.96.0.10:80".parse().unwrap(),
            endpoint: "10.244.1.11:8080".parse().unwrap(),
            seen: Some(seen.parse().unwrap()),
            age: Some(61),
            ipvs: Some(ConnectionState { state: "ESTABLISHED".to_owned(), expires: 899 }),
            conntrack: None,
            path: Path::Ipvs,
        }
    }

    #[test]
    fn a_connection_is_a_line() {
        let answer = Connections {
            connections: vec![connection("192.0.2.1:4000"), connection("192.168.0.100:20000")],
            total: 7,
            incomplete: Some("3 more were not looked at".to_owned()),
        };
        let expected = "\
SERVICE       PROTO   CLIENT                FRONTEND        ENDPOINT           SEEN AS          PATH   STATE         AGE   EXPIRES IN
default/web   TCP     192.168.0.100:20000   10.96.0.10:80   10.244.1.11:8080   192.0.2.1:4000   ipvs   ESTABLISHED   61s   14m59s
default/web   TCP     192.168.0.100:20000   10.96.0.10:80   10.244.1.11:8080   the client       ipvs   ESTABLISHED   61s   14m59s
2 of 7 connections; --limit shows more
Note: 3 more were not looked at
";
        assert_eq!(anstream::adapter::strip_str(&text(&answer)).to_string(), expected);
        let none = Connections { connections: Vec::new(), total: 0, incomplete: None };
        assert_eq!(text(&none), "no connections\n");
    }
}
