//! `kube-ipvs plan`: what manifests would be on a node.

use std::path::PathBuf;

use clap::Args;

use super::services::listed;
use super::source::SourceArguments;
use super::{Session, written};
use crate::answers::plan::{Planned, PlannedOperation};
use crate::offline::PlannedManifests;
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, good, notable, or_dash};
use crate::table::{Column, Table};
use crate::words::Effect;
use syntax::counted::counted;

/// Dry run of manifests on any machine: lists the kernel operations, and writes nothing
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(
    after_help = "Example: kube-ipvs plan -f deploy/examples/ -- --hostname-override=node1\n\n\
    Needs no running kube-ipvs, and does not read the kernel. The node's addresses are those of \
    its Node object in the manifests. Exit code: 1 if a part of the manifests is invalid."
)]
pub struct Arguments {
    /// Files and directories with Services, EndpointSlices and Nodes, YAML or JSON; - is standard
    /// input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    source: SourceArguments,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let configuration = arguments.source.configuration()?;
    let manifests = PlannedManifests::read(&arguments.files, configuration)?;
    let verdict = Verdict::from(manifests.warnings.is_empty());
    written(session.output.show(Planned::from(manifests), text))?;
    Ok(verdict)
}

fn text(planned: &Planned) -> String {
    let mut text = String::new();
    for warning in &planned.warnings {
        text += &format!("{}: {warning}\n", bad("Warning"));
    }
    for note in &planned.notes {
        text += &format!("{}: {note}\n", notable("Note"));
    }
    text + &operations_text(&planned.operations, 0)
}

const COLUMNS: [Column<PlannedOperation>; 5] = [
    ("CHANGE", |it| match it.effect {
        Effect::Add => good("add"),
        Effect::Change => notable("change"),
        Effect::Remove => bad("remove"),
    }),
    ("OBJECT", |it| narrow(&it.object, 80)),
    ("FROM", |it| narrow(&or_dash(it.found.as_ref()), 48)),
    ("TO", |it| narrow(&or_dash(it.desired.as_ref()), 48)),
    ("FOR", |it| narrow(&listed(&it.services, 0), 64)),
];

/// Returns a table of operations, and the number of those that it has not. None: no text.
pub(super) fn operations_text(operations: &[PlannedOperation], omitted: usize) -> String {
    if operations.is_empty() {
        return String::new();
    }
    let more = (omitted > 0).then(|| format!("and {}", counted(omitted, "more operation")));
    Table::of(&COLUMNS, operations).with_more(more).text()
}

/// Returns the beginning of a text that is wider than this: a rule would push the other columns out of a
/// terminal. JSON has all of it.
fn narrow(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use config::Configuration;

    const WEB: &str = r#"
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIPs: [10.96.0.10],
  ipFamilies: [IPv4], type: NodePort, ports: [{name: http, port: 80, nodePort: 30080}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.11]}]
"#;
    const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: n1}, \
        status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}";

    fn plan(files: &[(&str, &str)], flags: &[&str]) -> Planned {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let paths = [folder.path().to_owned()];
        Planned::from(PlannedManifests::read(&paths, configuration(flags)).unwrap())
    }

    fn configuration(flags: &[&str]) -> Configuration {
        let words = ["kube-ipvs", "--hostname-override=n1"].iter().chain(flags);
        let arguments = config::cli::parse(words.map(Into::into)).unwrap();
        Configuration::load(&arguments).unwrap()
    }

    fn plain(planned: &Planned) -> String {
        anstream::adapter::strip_str(&text(planned)).to_string()
    }

    #[test]
    fn every_operation_is_a_line_in_the_order_in_which_it_is_written() {
        let planned = plan(&[("web.yaml", WEB), ("node.json", NODE), ("notes.txt", "-")], &[]);
        assert_eq!((&*planned.mode, &*planned.node), ("ipvs", "n1"));
        assert_eq!((planned.notes.len(), planned.warnings.len()), (0, 0), "{planned:?}");
        let expected = "\
CHANGE   OBJECT                                                  FROM   TO         FOR
add      entry 10.96.0.10,tcp:80 of set KUBE-CLUSTER-IP          -      there      default/web
add      entry 30080 of set KUBE-NODE-PORT-TCP                   -      there      default/web
add      entry 10.96.0.10 of set KUBE-IPVS-IPS                   -      there      default/web
add      virtual server TCP 10.96.0.10:80                        -      rr         default/web
add      virtual server TCP 192.168.0.1:30080                    -      rr         default/web
add      real server 10.244.1.11:8080 of TCP 10.96.0.10:80       -      weight 1   default/web
add      real server 10.244.1.11:8080 of TCP 192.168.0.1:30080   -      weight 1   default/web
add      address 10.96.0.10 on kube-ipvs0                        -      there      default/web
";
        assert_eq!(plain(&planned), expected);
        let json = serde_json::to_value(&planned).unwrap();
        assert_eq!(json["operations"][0]["effect"], "add");
        assert_eq!(json["operations"][0]["services"], serde_json::json!(["default/web"]));
    }

    #[test]
    fn flags_choose_the_mode_and_what_is_wrong_or_unknown_comes_first() {
        let flags = ["--proxy-mode=iptables"];
        let planned = plan(&[("a.yaml", WEB), ("b.yaml", "kind: [")], &flags);
        let text = plain(&planned);
        let mut lines = text.lines();
        let warning = lines.next().unwrap();
        assert!(warning.starts_with("Warning: ") && warning.contains("b.yaml"), "{text}");
        let note =
            "Note: no Node n1 is in the manifests: NodePorts have no address; add its manifest";
        assert_eq!(lines.next(), Some(note), "{text}");
        assert!(text.contains("KUBE-SVC-"), "{text}");
        assert_eq!(plain(&plan(&[("node.yaml", NODE)], &[])), "");
    }

    #[test]
    fn a_file_that_is_not_there_is_a_mistake() {
        let missing = PlannedManifests::read(&["/nowhere.yaml".into()], configuration(&[]));
        let Err(Failure::Asked(text)) = missing else { panic!("{missing:?}") };
        assert!(text.contains("/nowhere.yaml"), "{text}");
    }
}
