//! `kube-ipvs plan`: a change that is not made.

use std::fs;
use std::io::Read as _;

use clap::Args;

use super::source::SourceArguments;
use super::{Session, written};
use crate::answers::plan::{Manifest, PlanRequest, Planned, PlannedOperation};
use crate::offline::Node;
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, good, notable, table};
use crate::words::Effect;
use syntax::counted::counted;

/// Largest size of all manifests together.
const LARGEST: usize = 3 << 20;

/// Name that stands for the standard input.
const STDIN: &str = "-";

/// Shows what applying manifests would change on this node, and changes nothing
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kubectl kustomize . | kube-ipvs plan -f -\n\n\
    Services keep what the cluster gave them, such as cluster addresses and node ports. The exit code \
    is 0, whether something would change or not.\n\n\
    Example without a running program: kube-ipvs plan -f web.yaml -- --manifests=/etc/services")]
pub struct Arguments {
    /// Files with Services and EndpointSlices, YAML or JSON; - is the standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<String>,
    /// Plans what deleting the objects would change, instead of applying them
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    source: SourceArguments,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let request = PlanRequest { manifests: read(&arguments.files)?, delete: arguments.delete };
    let planned: Planned = if arguments.source.is_given() {
        Node::read(arguments.source.configuration()?)?.plan(&request)?
    } else {
        session.client()?.post("/v1/plan", &request)?
    };
    written(session.output.show(planned, text))?;
    Ok(Verdict::Yes)
}

fn read(files: &[String]) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::with_capacity(files.len());
    let mut left = LARGEST;
    for file in files {
        let text = if file == STDIN {
            let mut text = String::new();
            let mut stdin = std::io::stdin().take(LARGEST as u64 + 1);
            stdin.read_to_string(&mut text).map(|_| text)
        } else {
            fs::read_to_string(file)
        };
        let text = text.map_err(|error| Failure::Asked(format!("cannot read {file}: {error}")))?;
        left = left.checked_sub(text.len()).ok_or_else(|| {
            let mebibytes = LARGEST >> 20;
            Failure::Asked(format!(
                "the manifests have more than {mebibytes} MiB up to {file}; plan fewer at once"
            ))
        })?;
        let name = if file == STDIN { "stdin".to_owned() } else { file.clone() };
        manifests.push(Manifest { name, text });
    }
    Ok(manifests)
}

fn text(planned: &Planned) -> String {
    let mut text = String::new();
    for warning in &planned.warnings {
        text += &format!("{}: {warning}\n", bad("Warning"));
    }
    for note in &planned.notes {
        text += &format!("{}: {note}\n", notable("Note"));
    }
    if planned.operations.is_empty() {
        return text + "nothing would change on this node\n";
    }
    text + &operations_text(&planned.operations, planned.omitted)
}

/// Returns a table of operations, and the number of those that it has not.
pub(super) fn operations_text(operations: &[PlannedOperation], omitted: usize) -> String {
    let headings = ["CHANGE", "OBJECT", "FROM", "TO", "FOR"];
    let text = table(&headings, operations.iter().map(row));
    match omitted {
        0 => text,
        number => text + &format!("and {}\n", counted(number, "more operation")),
    }
}

fn row(operation: &PlannedOperation) -> [String; 5] {
    let effect = match operation.effect {
        Effect::Add => good("add"),
        Effect::Change => notable("change"),
        Effect::Remove => bad("remove"),
    };
    let or_nothing = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let services = match operation.services.join(",") {
        none if none.is_empty() => "-".to_owned(),
        names => names,
    };
    let (from, to) = (or_nothing(&operation.found), or_nothing(&operation.desired));
    [
        effect,
        narrow(&operation.object, 80),
        narrow(&from, 48),
        narrow(&to, 48),
        narrow(&services, 64),
    ]
}

/// Returns the beginning of a text that is wider than this: a rule would push the other columns out of a
/// terminal. JSON has all of it.
pub(super) fn narrow(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(planned: &Planned) -> String {
        anstream::adapter::strip_str(&text(planned)).to_string()
    }

    #[test]
    fn every_operation_is_a_line_and_warnings_come_first() {
        let operation = PlannedOperation {
            effect: Effect::Change,
            object: "virtual server TCP 10.96.0.10:80".to_owned(),
            found: Some("rr".to_owned()),
            desired: Some("wrr".to_owned()),
            services: vec!["default/web".to_owned()],
            operation: "change virtual server TCP 10.96.0.10:80 to wrr".to_owned(),
        };
        let mut planned = Planned {
            services: vec!["default/web".to_owned()],
            operations: vec![operation],
            omitted: 0,
            notes: vec!["default/web: keeps its cluster address 10.96.0.10".to_owned()],
            warnings: vec!["default/web: no".to_owned()],
        };
        assert_eq!(
            plain(&planned),
            "Warning: default/web: no\n\
             Note: default/web: keeps its cluster address 10.96.0.10\n\
             CHANGE   OBJECT                             FROM   TO    FOR\n\
             change   virtual server TCP 10.96.0.10:80   rr     wrr   default/web\n"
        );
        assert_eq!(serde_json::to_value(&planned).unwrap()["operations"][0]["effect"], "change");
        planned.operations.clear();
        assert!(plain(&planned).ends_with("nothing would change on this node\n"));
    }

    #[test]
    fn files_are_read_up_to_a_size_and_named_when_they_are_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.yaml");
        fs::write(&path, "{}").unwrap();
        let name = path.display().to_string();
        let expected = [Manifest { name: name.clone(), text: "{}".to_owned() }];
        assert_eq!(read(std::slice::from_ref(&name)).unwrap(), expected);
        let missing = read(&["/nowhere/web.yaml".to_owned()]).unwrap_err();
        assert!(matches!(&missing, Failure::Asked(text) if text.contains("/nowhere/web.yaml")));
        fs::write(&path, vec![b' '; LARGEST + 1]).unwrap();
        let large = read(&[name]).unwrap_err();
        assert!(matches!(&large, Failure::Asked(text) if text.contains("3 MiB")), "{large:?}");
    }
}
