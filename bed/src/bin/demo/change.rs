//! An endpoint goes and comes back while clients are served.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bed::{Cluster, Manifests, Namespace, Question, Stream, StreamPlan, eventually};

use crate::report::Report;

pub(crate) const FILE: &str = "web.yaml";
const VIRTUAL_SERVER: &str = "10.96.0.10:80";
/// Four pods take turns, so each has two of them.
const KEPT: usize = 8;
/// Number of answers that must come in each of the three phases.
const PHASE: usize = 300;
const LIMIT: Duration = Duration::from_secs(20);

/// Takes the last pod of `web` out of its manifest, and puts it back.
pub(crate) fn under_traffic(
    report: &mut Report,
    cluster: &Cluster,
    manifests: &Manifests,
) -> Result<()> {
    let node = &cluster.node(1)?.namespace;
    let pod = cluster.pod(2, 2)?;
    let address = pod.ipv4.to_string();
    let place = manifests.path().join(FILE);
    let before = fs::read_to_string(&place).with_context(|| format!("read {}", place.display()))?;
    let question = Question::tcp(([10, 96, 0, 10], 80));
    let plan = StreamPlan { askers: 2, kept_open: KEPT, ..StreamPlan::default() };
    let stream = Stream::start(&cluster.client(1)?.namespace, question, plan)?;
    stream.wait_for_answers(PHASE, LIMIT)?;

    let started = Instant::now();
    manifests.write(FILE, &without_endpoint(&before, &address)?)?;
    let gone = eventually(LIMIT, "the pod to get nothing new", || match weight(node, &address)? {
        None | Some(0) => Ok(()),
        Some(weight) => bail!("its weight is still {weight}"),
    });
    let what = format!("{} gets no new connections ({} ms)", pod.name, millis(started));
    report.expect(&what, gone);
    let answered_before = answers_of(&stream, &pod.name);
    let goes_on = stream.wait_for_answers(PHASE, LIMIT);
    report.expect("the other pods go on answering", goes_on);
    let answered = answers_of(&stream, &pod.name);
    // A request that was under way when the weight changed may still be counted.
    let stray = answered - answered_before;
    let quiet = if stray <= plan.askers { Ok(()) } else { Err(too_many(stray)) };
    report.expect(&format!("{} stays quiet", pod.name), quiet);

    let started = Instant::now();
    manifests.write(FILE, &before)?;
    let quiet_so_far = answers_of(&stream, &pod.name);
    let back = eventually(LIMIT, "the pod to answer again", || {
        if answers_of(&stream, &pod.name) == quiet_so_far {
            bail!("no answer yet");
        }
        Ok(())
    });
    let what = format!("{} answers again ({} ms)", pod.name, millis(started));
    report.expect(&what, back);
    stream.wait_for_answers(PHASE, LIMIT)?;
    let traffic = stream.stop();
    println!(
        "  {} answers on fresh connections, {} on {KEPT} kept open, {} failures",
        traffic.fresh,
        traffic.kept,
        traffic.failures.len()
    );
    report.expect("no request failed, on fresh or kept connections", {
        traffic.require_no_failure(3 * PHASE)
    });
    Ok(())
}

fn answers_of(stream: &Stream, pod: &str) -> usize {
    stream.report().by_server.get(pod).copied().unwrap_or_default()
}

fn too_many(answers: usize) -> anyhow::Error {
    anyhow::anyhow!("it has answered {answers} fresh connections")
}

fn millis(started: Instant) -> u128 {
    started.elapsed().as_millis()
}

/// The weight of one of the virtual server's real servers, if it is there.
fn weight(node: &Namespace, real_server: &str) -> Result<Option<u32>> {
    let listing = node.command("ipvsadm", &["-Ln", "-t", VIRTUAL_SERVER])?;
    weight_in(&listing, real_server)
}

/// Lines of real servers are `-> ADDRESS:PORT FORWARD WEIGHT ACTIVE INACTIVE`.
fn weight_in(listing: &str, real_server: &str) -> Result<Option<u32>> {
    let prefix = format!("-> {real_server}:");
    let Some(line) = listing.lines().find(|line| line.trim_start().starts_with(&prefix)) else {
        return Ok(None);
    };
    let weight = line.split_whitespace().nth(3).and_then(|weight| weight.parse().ok());
    Ok(Some(weight.with_context(|| format!("no weight in {line:?} of ipvsadm"))?))
}

/// The manifest without the lines of one endpoint.
pub(crate) fn without_endpoint(manifest: &str, address: &str) -> Result<String> {
    let start = format!("- addresses: [{address}]");
    let mut inside = false;
    let mut found = false;
    let mut rest = String::new();
    for line in manifest.lines() {
        // An endpoint's further lines are indented.
        inside = line == start || inside && line.starts_with(' ');
        found |= inside;
        if !inside {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    if !found {
        bail!("{FILE} has no line {start:?}");
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_all_of_its_lines() {
        let manifest = "endpoints:\n- addresses: [10.0.0.1]\n  nodeName: a\n\
                        - addresses: [10.0.0.2]\n  nodeName: b\nports:\n  - name: c\n";
        let rest = without_endpoint(manifest, "10.0.0.1").unwrap();
        let expected = "endpoints:\n- addresses: [10.0.0.2]\n  nodeName: b\nports:\n  - name: c\n";
        assert_eq!(rest, expected);
        assert!(without_endpoint(manifest, "10.0.0.3").is_err());
    }

    #[test]
    fn a_weight_is_read_from_the_line_of_its_real_server() {
        let listing = "Prot LocalAddress:Port Scheduler Flags\n  \
                       -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
                       TCP  10.96.0.10:80 rr\n  \
                       -> 10.244.1.1:8080              Masq    1      0          3\n  \
                       -> 10.244.1.11:8080             Masq    0      2          3\n";
        assert_eq!(weight_in(listing, "10.244.1.1").unwrap(), Some(1));
        assert_eq!(weight_in(listing, "10.244.1.11").unwrap(), Some(0));
        assert_eq!(weight_in(listing, "10.244.1.12").unwrap(), None);
        assert!(weight_in("-> 10.244.1.1:8080", "10.244.1.1").is_err());
    }
}
