//! Connections that the flow table carries, while their endpoint goes from the Service.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use bed::{Cluster, Connection, Manifests, Namespace, Question, eventually};

use crate::change::{FILE, without_endpoint};
use crate::report::Report;

const WEB: ([u8; 4], u16) = ([10, 96, 0, 10], 80);
/// Exchanges on a connection before it is counted, and those that are.
const FIRST: u64 = 4;
const COUNTED: u64 = 100;
const LIMIT: Duration = Duration::from_secs(20);
/// A table that counts the packets of translated connections which meet the hook FORWARD.
const COUNTER: &str = "add table inet demo
add chain inet demo forward { type filter hook forward priority 50; }
add rule inet demo forward ct status dnat counter
";

/// Opens connections, counts their packets at a hook, and takes their endpoint away.
pub(crate) fn show(
    report: &mut Report,
    program: &Path,
    cluster: &Cluster,
    manifests: &Manifests,
) -> Result<()> {
    let node = &cluster.node(1)?.namespace;
    node.command_with_input("nft", &["-f", "-"], COUNTER)?;
    let mut connections = Vec::new();
    for host in [cluster.client(1)?, cluster.pod(1, 1)?] {
        report.step(&format!("a connection from {} to web, with {COUNTED} exchanges", host.name));
        let mut connection = open(&host.namespace)?;
        let server = say(&mut connection, FIRST)?;
        let before = forwarded(node)?;
        say(&mut connection, COUNTED)?;
        let passed = forwarded(node)? - before;
        let what = format!("{passed} of its packets met the hook FORWARD");
        let few = ensure_few(passed);
        report.expect(&what, few);
        connections.push((host.name.clone(), connection, server));
    }
    report.step("kube-ipvs connections default/web");
    let program = program.to_string_lossy();
    let listed = node.command(&program, &["connections", "default/web"])?;
    let (mut n_offloaded, n_all) = (0, listed.lines().count().saturating_sub(1));
    for line in listed.lines() {
        let is_offloaded = line.contains(" offload ");
        n_offloaded += usize::from(is_offloaded);
        if is_offloaded || line.starts_with("SERVICE") {
            println!("{line}");
        }
    }
    println!("and {} that have ended", n_all - n_offloaded);
    let are_listed = match n_offloaded == connections.len() {
        true => Ok(()),
        false => Err(anyhow!("it has {n_offloaded}\n{listed}")),
    };
    report.expect("the flow table has both", are_listed);

    let (_, _, server) = connections.first().context("there is no connection")?;
    report.step(&format!("taking {server} away from web"));
    let pod = cluster.pods().find(|pod| pod.name == *server).context("an unknown server")?;
    let place = manifests.path().join(FILE);
    let before = fs::read_to_string(&place).with_context(|| format!("read {}", place.display()))?;
    manifests.write(FILE, &without_endpoint(&before, &pod.ipv4.to_string())?)?;
    let internal_frontend = "250.96.0.10:80";
    let gone = eventually(LIMIT, "the endpoint to get nothing new", || {
        let servers = node.command("ipvsadm", &["-Ln", "-t", internal_frontend])?;
        let line = servers.lines().find(|line| line.contains(&format!("{}:", pod.ipv4)));
        let weight = line.and_then(|line| line.split_whitespace().nth(3));
        ensure!(weight.is_none_or(|weight| weight == "0"), "its weight is not 0");
        Ok(())
    });
    report.expect("it gets no new connections", gone);
    for (client, mut connection, server) in connections {
        let goes_on = say(&mut connection, COUNTED).and_then(|by| {
            ensure!(by == server, "{by} answered instead of {server}");
            Ok(())
        });
        report.expect(&format!("the connection of {client} to {server} continues"), goes_on);
    }
    manifests.write(FILE, &before)
}

fn open(from: &Namespace) -> Result<Connection> {
    Connection::open(from, Question::tcp(WEB)).map_err(|refusal| anyhow!("{refusal}"))
}

/// Asks so often, and returns the server that answers each time.
fn say(connection: &mut Connection, times: u64) -> Result<String> {
    let mut server = String::new();
    for _ in 0..times {
        server = connection.say().map_err(|refusal| anyhow!("{refusal}"))?.server;
    }
    Ok(server)
}

fn forwarded(node: &Namespace) -> Result<u64> {
    let text = node.command("nft", &["list", "chain", "inet", "demo", "forward"])?;
    let number = text.split("counter packets ").nth(1);
    let number = number.and_then(|rest| rest.split_whitespace().next());
    number.context("the rule has no counter")?.parse().context("a counter is a number")
}

/// A connection that returns from the flow table for a moment may have a packet pass.
fn ensure_few(packets: u64) -> Result<()> {
    ensure!(packets <= 2, "that is more than 2 of {}", 2 * COUNTED);
    Ok(())
}
