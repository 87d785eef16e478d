//! The least that mode iptables can cost: the text that the loop has left, handed to a bare
//! `iptables-restore`, and `iptables-save` whose output is not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cost::milliseconds;
use crate::kind::MeasuredVariant;
use crate::schema::Line;

/// Number of chains of Services in a COMMIT, as the program has it for nf_tables.
const CHAINS: usize = 1_000;
/// Prefixes of chains of Services, those first that others lead to.
const OF_SERVICES: [&str; 5] = ["KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"];

/// The rules of each chain of a table, with the lines that declare it.
type Chains = BTreeMap<String, Vec<String>>;

/// Writes the text into an empty namespace, reads it, and writes the chains of some Services again.
pub(crate) fn measure(
    variant: MeasuredVariant,
    saved: &str,
    changes: usize,
    in_one: bool,
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    if in_one {
        lines.push(timed("first_sync_in_one", || restore(variant, saved))?);
        ensure!(save(variant)?.len() >= saved.len(), "not everything was written");
        return Ok(lines);
    }
    let parts = parts(saved, variant);
    lines.push(timed("first_sync", || parts.iter().try_for_each(|part| restore(variant, part)))?);
    lines.push(timed("restart", || save(variant).map(drop))?);
    let found = save(variant)?;
    let rules = |saved: &str| saved.lines().filter(|line| line.starts_with("-A ")).count();
    ensure!(rules(&found) == rules(saved), "other rules were written: {}", parts.len());
    let nat = tables(saved).remove("nat").context("the text has no table nat")?;
    let mut each = Vec::new();
    for chain in nat.keys().filter(|chain| chain.starts_with("KUBE-SVC-")).take(changes) {
        let text = of_service(&nat, chain);
        let began = Instant::now();
        restore(variant, &text)?;
        each.push(began.elapsed());
    }
    let line = Line { name: "one_change".to_owned(), ..Line::default() };
    lines.push(line.of_each(each));
    let empty = (0..changes.max(1)).map(|_| {
        let began = Instant::now();
        restore(variant, "*nat\nCOMMIT\n").map(|()| began.elapsed())
    });
    let line = Line { name: "empty_restore".to_owned(), ..Line::default() };
    lines.push(line.of_each(empty.collect::<Result<Vec<Duration>>>()?));
    Ok(lines)
}

/// Returns what a table of this kind holds.
pub(crate) fn save(variant: MeasuredVariant) -> Result<String> {
    let program = format!("{}-save", variant.program());
    let output = Command::new(&program).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn restore(variant: MeasuredVariant, text: &str) -> Result<()> {
    let program = format!("{}-restore", variant.program());
    let mut child = Command::new(&program)
        .arg("--noflush")
        .stdin(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}"))?;
    // It is closed before the program is waited for.
    child.stdin.take().context("no input")?.write_all(text.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

fn timed(name: &str, work: impl FnOnce() -> Result<()>) -> Result<Line> {
    let began = Instant::now();
    work()?;
    let wall_ms = milliseconds(began.elapsed());
    Ok(Line { name: name.to_owned(), count: 1, wall_ms, ..Line::default() })
}

/// The chains of each table.
fn tables(saved: &str) -> BTreeMap<String, Chains> {
    let mut tables: BTreeMap<String, Chains> = BTreeMap::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let (named, rule) = match (line.strip_prefix(':'), line.strip_prefix("-A ")) {
            (Some(declared), _) => (declared, None),
            (_, Some(appended)) => (appended, Some(line.to_owned())),
            _ => continue,
        };
        let chain = named.split(' ').next().unwrap_or_default().to_owned();
        tables.entry(table.to_owned()).or_default().entry(chain).or_default().extend(rule);
    }
    tables
}

/// Inputs that write everything, one after the other: as one, but for nf_tables, where so many chains
/// go first, those that others lead to before these.
fn parts(saved: &str, variant: MeasuredVariant) -> Vec<String> {
    if variant != MeasuredVariant::Nft {
        return vec![saved.to_owned()];
    }
    let mut tables = tables(saved);
    let nat = tables.get_mut("nat").map(std::mem::take).unwrap_or_default();
    let leads = |rules: &[String]| {
        rules
            .iter()
            .any(|rule| OF_SERVICES.iter().any(|start| rule.contains(&format!("-j {start}"))))
    };
    let (mut first, mut last) = (Chains::new(), Chains::new());
    let mut of_services: BTreeMap<&str, Vec<(&String, &Vec<String>)>> = BTreeMap::new();
    for (chain, rules) in &nat {
        match OF_SERVICES.iter().find(|start| chain.starts_with(**start)) {
            Some(start) => of_services.entry(start).or_default().push((chain, rules)),
            None if chain.starts_with("KUBE-") && !leads(rules) => {
                first.insert(chain.clone(), rules.clone());
            }
            None => drop(last.insert(chain.clone(), rules.clone())),
        }
    }
    let mut parts = vec![text("nat", first.iter())];
    let ordered = OF_SERVICES.iter().filter_map(|start| of_services.get(start)).flatten();
    let ordered: Vec<_> = ordered.copied().collect();
    parts.extend(ordered.chunks(CHAINS).map(|chains| text("nat", chains.iter().copied())));
    let mut rest = text("nat", last.iter());
    for (table, chains) in &tables {
        if table != "nat" {
            rest += &text(table, chains.iter());
        }
    }
    parts.push(rest);
    parts
}

fn text<'a>(
    table: &str,
    chains: impl Iterator<Item = (&'a String, &'a Vec<String>)> + Clone,
) -> String {
    let mut text = format!("*{table}\n");
    for (chain, _) in chains.clone() {
        // A built-in chain has a policy.
        let policy = if chain.starts_with("KUBE-") { "-" } else { "ACCEPT" };
        let _ = writeln!(text, ":{chain} {policy} [0:0]");
    }
    for rule in chains.flat_map(|(_, rules)| rules) {
        text += rule;
        text.push('\n');
    }
    text + "COMMIT\n"
}

/// The chain of a Service and that of its first endpoint: a change that brings an endpoint writes
/// as much.
fn of_service(nat: &Chains, chain: &String) -> String {
    let rules = nat.get(chain).into_iter().flatten();
    let endpoints = rules.flat_map(|rule| rule.split(' ')).filter(|it| it.starts_with("KUBE-SEP-"));
    let written: BTreeSet<String> =
        endpoints.take(1).map(str::to_owned).chain([chain.clone()]).collect();
    text("nat", nat.iter().filter(|(chain, _)| written.contains(*chain)))
}
