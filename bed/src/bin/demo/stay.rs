//! A node that goes on, with traffic, and a shell on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use bed::{Connection, Namespace, Protocol, Question, ask_many};

use crate::Node;
use crate::report::Report;

/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(500);

/// Questions of each client to each Service, in one round.
const QUESTIONS: usize = 5;

/// Text before the shell begins.
const HINTS: &str = "
This is node1: kube-ipvs runs, and a client and a pod ask Services all the time. For example:

    kube-ipvs status
    kube-ipvs services -A
    kube-ipvs explain default/web
    kube-ipvs trace outside 10.96.0.10:80
    kube-ipvs top
    ipvsadm -Ln

The page for a browser (consolePage: loopback), as it would come through kubectl port-forward:

    busybox wget -qO- http://127.0.0.1:10249/console/
    busybox wget -qO- 'http://127.0.0.1:10249/console/service?name=default/web'

kube-ipvs --help has the flags of the program, docs/console.md all commands. ctrl-d ends it all.
";

/// Starts the node and gives the terminal to a shell on it, until that ends.
pub(crate) fn run(report: &Report, program: &Path, examples: &Path) -> Result<()> {
    let node = Node::start(report, program, examples, &["--console-page=loopback"])?;
    let (client, pod) = (node.cluster.client(1)?, node.cluster.pod(1, 1)?);
    let web = Question::tcp((Ipv4Addr::new(10, 96, 0, 10), 80));
    // Connections that stay.
    let _open: Vec<Connection> = [client, pod]
        .into_iter()
        .map(|host| {
            let opened = Connection::open(&host.namespace, web);
            opened.map_err(|refusal| anyhow!("open a connection to web: {refusal:?}"))
        })
        .collect::<Result<_>>()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for host in [client, pod] {
            scope.spawn(|| ask_on(&host.namespace, &is_over));
        }
        println!("{HINTS}");
        let ended = shell(&node.cluster.node(1)?.namespace, program);
        is_over.store(true, Ordering::Relaxed);
        ended
    })?;
    node.proxy.stop().map(drop)
}

fn ask_on(from: &Namespace, is_over: &AtomicBool) {
    let dns = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 53), 53));
    let affinity = SocketAddr::from((Ipv4Addr::new(10, 96, 0, 40), 80));
    while !is_over.load(Ordering::Relaxed) {
        for question in [
            Question::tcp((Ipv4Addr::new(10, 96, 0, 10), 80)),
            Question::new(Protocol::Udp, dns),
            Question::new(Protocol::Tcp, affinity),
        ] {
            let _unread = ask_many(from, question, QUESTIONS);
        }
        thread::sleep(PAUSE);
    }
}

/// Runs a shell in a namespace, in which kube-ipvs is found by its name.
fn shell(node: &Namespace, program: &Path) -> Result<()> {
    let mut command = Command::new("bash");
    command.args(["--norc", "-i"]).arg0("node1").env("PS1", "node1# ");
    let folder = program.parent().unwrap_or(Path::new("/")).display();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{folder}:{path}"));
    let mut shell = node.enter(|| command.spawn())?.context("start a shell")?;
    shell.wait().context("wait for the shell")?;
    Ok(())
}
