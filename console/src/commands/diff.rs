//! `kube-ipvs diff`: the kernel against the plan.

use std::path::Path;

use clap::{Args, ValueEnum};

use super::plan::operations_text;
use super::services::listed;
use super::source::SourceArguments;
use super::{Session, written};
use crate::answers::diff::{Diff, DiffLine, DifferenceKind, DifferenceState};
use crate::answers::takeover::Takeover;
use crate::offline::Node;
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, duration, notable, or_dash};
use crate::process::{self, Running};
use crate::table::{Column, Table};
use config::Configuration;
use syntax::counted::counted;

/// Compares the kernel with the desired state: missing, unowned and different objects, and the
/// Service of each
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs diff && echo whole\n\n\
    Exit code: 0, without output, if the kernel has the desired state; 1 if it differs; 5 if all \
    differences are pending or retried. Draining endpoints do not count as a difference.\n\n\
    Without a running kube-ipvs, pass its flags: kube-ipvs diff -- \
    --config=/etc/kube-ipvs/config.conf\n\n\
    Example before a takeover, with the configuration of the running kube-proxy: kube-ipvs diff \
    --with kube-proxy")]
pub struct Arguments {
    /// Lists draining endpoints, too
    #[arg(short, long)]
    all: bool,
    /// Dry run of a takeover from this proxy, without a running kube-ipvs
    #[arg(long, value_enum, value_name = "PROGRAM", conflicts_with = "all")]
    with: Option<With>,
    #[command(flatten)]
    source: SourceArguments,
}

/// Programs that a node may be taken over from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    /// kube-proxy, in any mode, or kube-ipvs itself after an end.
    KubeProxy,
}

const COLUMNS: [Column<DiffLine>; 6] = [
    ("DIFFERENCE", |it| {
        let kind = match it.kind {
            DifferenceKind::Missing => "missing",
            DifferenceKind::Different => "different",
            DifferenceKind::Foreign => "foreign",
        };
        kind.to_owned()
    }),
    ("OBJECT", |it| it.object.clone()),
    ("KERNEL HAS", |it| or_dash(it.found.as_ref())),
    ("PLAN WANTS", |it| or_dash(it.desired.as_ref())),
    ("ASKED FOR BY", |it| listed(&it.services, 0)),
    ("STATE", state_text),
];

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    if let Some(With::KubeProxy) = arguments.with {
        let configuration = match arguments.source.is_given() {
            true => arguments.source.configuration()?,
            false => of_running_proxy(process::PROC.as_ref())?,
        };
        let takeover = Node::read(configuration)?.takeover()?;
        let verdict = Verdict::from(takeover.whole);
        written(session.output.show(takeover, takeover_text))?;
        return Ok(verdict);
    }
    let diff: Diff = if arguments.source.is_given() {
        Node::read(arguments.source.configuration()?)?.diff()?
    } else {
        session.client()?.get("/v1/diff", &[])?
    };
    let verdict = verdict(&diff);
    written(session.output.show(diff, |diff| text(diff, arguments.all)))?;
    Ok(verdict)
}

/// Returns the configuration of the running kube-proxy, which a takeover would be made with.
fn of_running_proxy(proc: &Path) -> Result<Configuration, Failure> {
    let running = process::find_named(proc, "kube-proxy");
    let running = running.map_err(|error| {
        Failure::Asked(format!(
            "no configuration to compare with: {error}. Name its file: kube-ipvs diff --with \
             kube-proxy -- --config=FILE"
        ))
    })?;
    let configuration =
        running.configuration().map_err(|error| Failure::Asked(format!("{error:#}")))?;
    match unread_kubeconfig(&running, &configuration) {
        Some(text) => Err(Failure::Asked(text)),
        None => Ok(configuration),
    }
}

/// Returns the reason for which the kubeconfig of a process in a container cannot be used from here, with what to do.
fn unread_kubeconfig(running: &Running, configuration: &Configuration) -> Option<String> {
    let path = configuration.api_server.kubeconfig.as_deref()?;
    if running.sees_the_same_files() || path.exists() {
        return None;
    }
    let (pid, node) = (running.pid.as_raw_nonzero(), &configuration.settings.node_name);
    let what_to_do = match running.arguments.file() {
        Some(file) => format!(
            "Copy its configuration {file}, set clientConnection.kubeconfig in the copy to a kubeconfig of this \
             node, such as /etc/kubernetes/admin.conf, and name the copy: kube-ipvs diff --with kube-proxy -- \
             --config=COPY --hostname-override={node}"
        ),
        None => format!(
            "Pass its flags with a kubeconfig of this node, such as /etc/kubernetes/admin.conf: kube-ipvs diff \
             --with kube-proxy -- --kubeconfig=FILE --hostname-override={node}"
        ),
    };
    Some(format!(
        "cannot read the kubeconfig {} of kube-proxy (process {pid}): it is in kube-proxy's container, and names \
         files there. {what_to_do}",
        path.display()
    ))
}

fn verdict(diff: &Diff) -> Verdict {
    let is_pending_alone = diff.pending > 0 && diff.drifted == 0 && diff.unread.is_empty();
    if is_pending_alone { Verdict::Pending } else { Verdict::from(diff.whole) }
}

fn text(diff: &Diff, all: bool) -> String {
    let shown = |line: &&DiffLine| all || line.state != DifferenceState::Draining;
    let table = Table::of(&COLUMNS, diff.differences.iter().filter(shown));
    let mut text = String::new();
    for note in &diff.notes {
        text += &format!("{}: {note}\n", notable("Note"));
    }
    if !table.rows.is_empty() {
        text += &table.text();
    }
    if diff.omitted > 0 {
        text += &format!("and {}\n", counted(diff.omitted, "more difference"));
    }
    if diff.pending > 0 {
        let pending = counted(diff.pending, "difference");
        let drift = counted(diff.drifted, "difference");
        text += &format!("pending, written or retried by kube-ipvs: {pending}; drift: {drift}\n");
    }
    for unread in &diff.unread {
        text += &format!("{}: {unread}\n", bad("not compared"));
    }
    if diff.more_unread > 0 {
        let objects = counted(diff.more_unread, "more object");
        text += &format!("{}: {objects}\n", bad("not compared"));
    }
    if diff.waiting > 0 && !text.is_empty() {
        let services = counted(diff.waiting, "Service");
        text += &format!("not planned yet, and not compared: {services}\n");
    }
    text
}

fn takeover_text(takeover: &Takeover) -> String {
    let mut text = String::new();
    for note in &takeover.notes {
        text += &format!("{}: {note}\n", notable("Note"));
    }
    text + &operations_text(&takeover.operations, takeover.omitted)
}

fn state_text(line: &DiffLine) -> String {
    match line.state {
        DifferenceState::Drift => bad("drift"),
        DifferenceState::Writing => notable("being written"),
        DifferenceState::AtStart => notable("until kube-ipvs starts"),
        DifferenceState::Pending => {
            let reason = line.reason.as_deref().unwrap_or_default();
            notable(match line.attempts {
                Some(attempts) if attempts > 0 => {
                    format!("pending after {attempts} attempts: {reason}")
                }
                _ => format!("pending: {reason}"),
            })
        }
        DifferenceState::Draining => {
            let seconds = line.seconds.unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let left = duration(seconds as f64);
            format!("draining, {left} left")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::mk_process;

    fn line(kind: DifferenceKind, state: DifferenceState) -> DiffLine {
        DiffLine {
            kind,
            object: "virtual server TCP 10.96.0.10:80".to_owned(),
            found: None,
            desired: Some("rr".to_owned()),
            services: vec!["default/web".to_owned()],
            operation: "create virtual server TCP 10.96.0.10:80 rr".to_owned(),
            state,
            reason: (state == DifferenceState::Pending).then(|| "no memory".to_owned()),
            attempts: (state == DifferenceState::Pending).then_some(3),
            seconds: (state == DifferenceState::Draining).then_some(70),
        }
    }

    fn plain(diff: &Diff, all: bool) -> String {
        anstream::adapter::strip_str(&text(diff, all)).to_string()
    }

    #[test]
    fn a_kubeconfig_in_kube_proxys_container_is_named_with_what_to_pass() {
        let proc = tempfile::tempdir().unwrap();
        let (own, container) = (proc.path().join("10"), proc.path().join("11/root"));
        mk_process(proc.path(), "10", "net:[1]", "/bin/kube-ipvs", &["kube-ipvs", "diff"]);
        std::os::unix::fs::symlink(own, proc.path().join("self")).unwrap();
        let words = ["kube-proxy", "--config=/etc/kube-proxy.conf", "--hostname-override=worker-7"];
        mk_process(proc.path(), "11", "net:[1]", "/usr/local/bin/kube-proxy", &words);
        let file = container.join("etc/kube-proxy.conf");
        std::fs::create_dir_all(container.join("etc")).unwrap();
        let write = |kubeconfig: &str| {
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                 clientConnection: {{kubeconfig: {kubeconfig}}}\n"
            );
            std::fs::write(&file, text).unwrap();
        };
        write("/only/in/the/container.conf");
        let said = of_running_proxy(proc.path()).unwrap_err().to_string();
        for text in [
            "cannot read the kubeconfig /only/in/the/container.conf of kube-proxy (process 11)",
            file.to_str().unwrap(),
            "-- --config=COPY --hostname-override=worker-7",
        ] {
            assert!(said.contains(text), "{text}: {said}");
        }
        write(file.to_str().unwrap());
        assert!(of_running_proxy(proc.path()).is_ok(), "one that is here is used");
    }

    #[test]
    fn a_whole_kernel_is_no_words_and_what_drains_is_shown_on_request() {
        let mut diff = Diff {
            mode: "ipvs".to_owned(),
            whole: true,
            drifted: 0,
            pending: 0,
            differences: Vec::new(),
            omitted: 0,
            waiting: 2,
            unread: Vec::new(),
            more_unread: 0,
            notes: Vec::new(),
        };
        assert_eq!(plain(&diff, true), "");
        diff.differences.push(line(DifferenceKind::Foreign, DifferenceState::Draining));
        assert_eq!(plain(&diff, false), "");
        assert!(plain(&diff, true).contains("draining, 70s left"), "{}", plain(&diff, true));
    }

    #[test]
    fn a_difference_is_a_line_with_what_becomes_of_it() {
        let mut diff = Diff {
            mode: "ipvs".to_owned(),
            whole: false,
            drifted: 1,
            pending: 1,
            differences: vec![
                line(DifferenceKind::Missing, DifferenceState::Drift),
                line(DifferenceKind::Missing, DifferenceState::Pending),
            ],
            omitted: 4,
            waiting: 2,
            unread: vec!["cannot read virtual server TCP 10.96.0.1:443: no".to_owned()],
            more_unread: 41,
            notes: Vec::new(),
        };
        assert_eq!(
            plain(&diff, false),
            "DIFFERENCE   OBJECT                             KERNEL HAS   PLAN WANTS   ASKED FOR BY   STATE\n\
             missing      virtual server TCP 10.96.0.10:80   -            rr           default/web    drift\n\
             missing      virtual server TCP 10.96.0.10:80   -            rr           default/web    \
             pending after 3 attempts: no memory\n\
             and 4 more differences\n\
             pending, written or retried by kube-ipvs: 1 difference; drift: 1 difference\n\
             not compared: cannot read virtual server TCP 10.96.0.1:443: no\n\
             not compared: 41 more objects\n\
             not planned yet, and not compared: 2 Services\n"
        );
        let json = serde_json::to_value(&diff.differences[1]).unwrap();
        assert_eq!(json["state"], "pending");
        assert_eq!(json["kind"], "missing");
        assert_eq!(serde_json::from_value::<DiffLine>(json).unwrap(), diff.differences[1]);
        assert_eq!(verdict(&diff), Verdict::No);
        (diff.drifted, diff.pending) = (0, 2);
        assert_eq!(verdict(&diff), Verdict::No, "something is unread");
        diff.unread.clear();
        assert_eq!(verdict(&diff), Verdict::Pending);
    }
}
