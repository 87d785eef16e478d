//! `kube-ipvs trace`: a packet's way through this node, without sending it.

use std::net::{IpAddr, SocketAddr};

use clap::Args;

use super::connections::COLUMNS;
use super::{Session, written};
use crate::answers::connections::Path;
use crate::answers::mode;
use crate::answers::trace::{Choice, End, Trace, TracedStep, TracedWay};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, good, heading, notable, or_dash};
use crate::table::{Column, Table};

/// Most endpoints of a way that are listed.
const MOST_ENDPOINTS: usize = 20;

/// Traces a packet through this node, hook by hook, without sending it
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs trace outside 203.0.113.10:80\n  \
    kube-ipvs trace 10.244.1.12 10.96.0.10:53/udp --live\n  \
    kube-ipvs trace node '[fd00:96::10]:443'\n\n\
    Exit code: 1 if the client is rejected or gets no answer. The packet is the first of its \
    connection. The trace does not know rules of other programs.")]
pub struct Arguments {
    /// Sender: an address, or `node`, `localhost` or `outside`
    #[arg(value_parser = source)]
    source: String,
    /// Destination: ADDRESS:PORT, with /udp or /sctp if it is not TCP
    #[arg(value_name = "DESTINATION:PORT[/PROTO]", value_parser = destination)]
    destination: Destination,
    /// Lists existing connections to the destination, too
    #[arg(long)]
    live: bool,
}

/// Destination of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Destination {
    socket: SocketAddr,
    protocol: String,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let Arguments { source, destination, live } = arguments;
    let socket = destination.socket.to_string();
    let mut query = vec![
        ("source", source.as_str()),
        ("destination", socket.as_str()),
        ("protocol", destination.protocol.as_str()),
    ];
    if *live {
        query.push(("live", "true"));
    }
    let trace: Trace = session.client()?.get("/v1/trace", &query)?;
    let is_lost = trace
        .ways
        .iter()
        .any(|way| matches!(way.end, End::Refused | End::Dropped | End::Unanswered));
    written(session.output.show(trace, text))?;
    Ok(Verdict::from(!is_lost))
}

fn source(word: &str) -> Result<String, String> {
    let is_known = ["node", "localhost", "outside"].contains(&word);
    if is_known || word.parse::<IpAddr>().is_ok() {
        return Ok(word.to_owned());
    }
    Err("use an address, `node`, `localhost` or `outside`".to_owned())
}

fn destination(word: &str) -> Result<Destination, String> {
    let (socket, protocol) = word.rsplit_once('/').unwrap_or((word, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
        return Err(format!("{protocol} is not a protocol of Services: use tcp, udp or sctp"));
    }
    let socket = socket.parse().map_err(|_| {
        "it needs an address and a port, such as 10.96.0.10:53/udp or '[fd00:96::10]:443'"
            .to_owned()
    })?;
    Ok(Destination { socket, protocol })
}

fn text(trace: &Trace) -> String {
    let mut text = head(trace).into_iter().map(|line| line + "\n").collect::<String>();
    for way in ways(trace) {
        text += &format!("\n{}\n{}", heading(way.title), way.steps.text());
        text += &way.endpoints.text();
    }
    if let Some(live) = &trace.live {
        text += &match (live.connections.len(), live.total) {
            (_, 0) => "\nno connections to it\n".to_owned(),
            (shown, total) if shown < total => format!("\n{shown} of {total} connections:\n"),
            (_, total) => format!("\nconnections: {total}\n"),
        };
        if !live.connections.is_empty() {
            text += &Table::of(&COLUMNS, &live.connections).text();
        }
    }
    text
}

/// Returns lines about the packet, and the notes.
pub(crate) fn head(trace: &Trace) -> Vec<String> {
    let packet = &trace.packet;
    let comes = match packet.interface.as_deref() {
        None => "sent by this node".to_owned(),
        Some("") => "arrives at an unknown interface".to_owned(),
        Some(name) => format!("arrives at {name}"),
    };
    let who = if packet.asked == packet.source.to_string() {
        packet.asked.clone()
    } else {
        format!("{} ({})", packet.asked, packet.source)
    };
    let service = match &trace.service {
        Some(service) => format!("Service {service}"),
        None => notable("no Service has this destination"),
    };
    let protocol = packet.protocol.to_ascii_uppercase();
    let (to, mode) = (packet.destination, &trace.mode);
    let first = format!("{protocol} from {who} to {to}: {service}; {comes}, {}", mode::title(mode));
    let notes = trace.notes.iter().map(|note| format!("{}: {note}", notable("Note")));
    [first].into_iter().chain(notes).collect()
}

/// A way as people read it.
pub(crate) struct WayText {
    pub(crate) title: String,
    /// Its steps, without headings: hook and table, chain and number, what happens.
    pub(crate) steps: Table,
    pub(crate) endpoints: Table,
}

/// Returns the ways in order.
pub(crate) fn ways(trace: &Trace) -> impl Iterator<Item = WayText> {
    let of = trace.ways.len();
    (1..).zip(&trace.ways).map(move |(number, way)| {
        let title = match (of, way.share) {
            (1, _) => "Its path".to_owned(),
            (_, Some(share)) => {
                format!("Path {number} of {of}, {} of new connections", percent(share))
            }
            (_, None) => format!("Path {number} of {of}"),
        };
        WayText { title, steps: steps(way), endpoints: endpoints(way) }
    })
}

fn steps(way: &TracedWay) -> Table {
    let mut hook_now = "";
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |cells: [&str; 3]| {
        let [first, second, third] = cells.map(str::to_owned);
        rows.push(vec![format!("  {first}"), second, third]);
    };
    for step in &way.steps {
        match step {
            TracedStep::Rule { hook, table, chain, number, rule, entries, is_of_endpoint } => {
                hook_now = hook;
                let of =
                    if *is_of_endpoint { " (of the first endpoint; each has one)" } else { "" };
                let rule = without_comment(rule) + of;
                row([&format!("{hook} {table}"), &format!("{chain} {number}"), &rule]);
                entries.iter().for_each(|entry| row(["", "", &format!("  found in {entry}")]));
            }
            TracedStep::Mark { mark } => row(["", "", &format!("  its mark is now {mark}")]),
            TracedStep::Translation { to, is_of_endpoint } => {
                let to = if *is_of_endpoint { "the endpoint".to_owned() } else { to.to_string() };
                row(["", "", &format!("  its destination is now {to}")]);
            }
            TracedStep::Routing { is_local: true } => row(["routing", "", "for this node"]),
            TracedStep::Routing { is_local: false } => row(["routing", "", "for another host"]),
            TracedStep::VirtualServer { address, scheduler, persistence } => {
                let kept = persistence.map_or_else(String::new, |seconds| {
                    format!("; a client keeps its endpoint for {seconds} s")
                });
                let server = format!("{address}, scheduler {scheduler}{kept}");
                row([&format!("{hook_now} IPVS"), "virtual server", &server]);
            }
            TracedStep::LaterPackets { path } => {
                row(["later packets", path.name(), carried(*path)]);
            }
            TracedStep::Relay { proxy_port } => {
                let text = format!(
                    "proxy port {proxy_port}; the relay connects to an endpoint \
                                    itself"
                );
                row(["relay", "", &text]);
            }
        }
    }
    row(["end", "", &end_text(way)]);
    Table { rows, ..Table::default() }
}

fn carried(path: Path) -> &'static str {
    match path {
        Path::Ipvs => "IPVS translates them",
        Path::Conntrack => "conntrack translates them: they do not pass IPVS",
        Path::Offload => {
            "the flow table forwards them past all hooks, from the client's third packet on"
        }
    }
}

fn end_text(way: &TracedWay) -> String {
    match way.end {
        End::Endpoint => good("an endpoint gets it"),
        End::Unanswered => bad(
            "an endpoint on another node gets it, and answers directly, past this node: the client \
             drops an answer from another address",
        ),
        End::Delivered => "a process on this node gets it".to_owned(),
        End::PassedOn => "it is routed on unchanged".to_owned(),
        End::Dropped => bad("dropped: the client gets no answer"),
        End::Refused => bad(format!("refused: {}", way.refused_by.as_deref().unwrap_or_default())),
    }
}

fn without_comment(rule: &str) -> String {
    const BEGIN: &str = "-m comment --comment \"";
    let parts = rule.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once("\" ")?;
        Some(format!("{before}{after}"))
    });
    parts.unwrap_or_else(|| rule.to_owned())
}

fn endpoints(way: &TracedWay) -> Table {
    const COLUMNS: [Column<Choice>; 4] = [
        ("  ENDPOINT", |it| format!("  {}", it.endpoint)),
        ("WEIGHT", |it| or_dash(it.weight)),
        ("SHARE", |it| or_dash(it.share.map(percent))),
        ("SEES AS SOURCE", |it| match (it.sees, it.is_masqueraded) {
            (Some(address), false) => address.to_string(),
            (Some(address), true) => format!("{address}, masqueraded"),
            (None, _) => "an address of this node, masqueraded".to_owned(),
        }),
    ];
    let n_all = way.endpoints.len();
    if n_all == 0 {
        return Table::default();
    }
    let more = match (n_all.saturating_sub(MOST_ENDPOINTS), way.more_endpoints) {
        (0, 0) => None,
        (more, 0) => Some(format!("  and {more} more: -o json has all")),
        (more, left_out) => Some(format!(
            "  and {} more: -o json has the first {n_all}, `kube-ipvs service` lists them",
            more + left_out
        )),
    };
    Table::of(&COLUMNS, way.endpoints.iter().take(MOST_ENDPOINTS)).with_more(more)
}

/// Returns a share as people write it: `50%`, `33.3%`.
fn percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{}%", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::answers::trace::{Live, TracedPacket};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        let words = ["trace"].iter().chain(words);
        Line::try_parse_from(words).map(|it| it.arguments).map_err(|error| error.to_string())
    }

    fn choice(endpoint: &str, sees: Option<&str>) -> Choice {
        Choice {
            endpoint: endpoint.parse().unwrap(),
            weight: Some(1),
            share: Some(0.5),
            sees: sees.map(|address| address.parse().unwrap()),
            is_masqueraded: true,
        }
    }

    fn rule(hook: &str, number: usize, rule: &str, entries: &[&str]) -> TracedStep {
        TracedStep::Rule {
            hook: hook.to_owned(),
            table: "nat".to_owned(),
            chain: "KUBE-SERVICES".to_owned(),
            number,
            rule: rule.to_owned(),
            entries: entries.iter().map(ToString::to_string).collect(),
            is_of_endpoint: false,
        }
    }

    fn trace(ways: Vec<TracedWay>) -> Trace {
        Trace {
            mode: "ipvs".to_owned(),
            packet: TracedPacket {
                protocol: "tcp".to_owned(),
                asked: "outside".to_owned(),
                source: "192.0.2.254".parse().unwrap(),
                destination: "10.96.0.10:80".parse().unwrap(),
                interface: Some("eth0".to_owned()),
            },
            service: Some("default/web".to_owned()),
            arrives: true,
            ways,
            notes: vec!["outside stands for 192.0.2.254".to_owned()],
            live: None,
        }
    }

    fn plain(trace: &Trace) -> String {
        anstream::adapter::strip_str(&text(trace)).to_string()
    }

    #[test]
    fn the_command_line_names_a_source_and_a_destination() {
        let arguments = parse(&["outside", "10.96.0.10:53/UDP", "--live"]).unwrap();
        let expected = Arguments {
            source: "outside".to_owned(),
            destination: Destination {
                socket: "10.96.0.10:53".parse().unwrap(),
                protocol: "udp".to_owned(),
            },
            live: true,
        };
        assert_eq!(arguments, expected);
        let v6 = parse(&["fd00::1", "[fd00:96::10]:443"]).unwrap();
        assert_eq!(v6.destination.socket, "[fd00:96::10]:443".parse().unwrap());
        assert_eq!(v6.destination.protocol, "tcp");
        for (words, said) in [
            (["anywhere", "10.96.0.10:53"], "`node`, `localhost` or `outside`"),
            (["node", "10.96.0.10"], "an address and a port"),
            (["node", "10.96.0.10:53/icmp"], "icmp is not a protocol"),
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_way_reads_hook_by_hook() {
        let way = TracedWay {
            steps: vec![
                rule(
                    "PREROUTING",
                    3,
                    "! -s 10.0.0.0/8 -m comment --comment \"of a Service\" -j KUBE-MARK-MASQ",
                    &["KUBE-CLUSTER-IP: 10.96.0.10,tcp:80"],
                ),
                TracedStep::Mark { mark: "0x4000".to_owned() },
                TracedStep::Routing { is_local: true },
                rule("INPUT", 1, "-j ACCEPT", &[]),
                TracedStep::VirtualServer {
                    address: "10.96.0.10:80".parse().unwrap(),
                    scheduler: "rr".to_owned(),
                    persistence: Some(90),
                },
            ],
            end: End::Endpoint,
            refused_by: None,
            share: Some(1.0),
            endpoints: vec![
                choice("10.244.1.11:8080", Some("10.244.1.1")),
                choice("10.244.2.11:8080", None),
            ],
            more_endpoints: 0,
        };
        let expected = "\
TCP from outside (192.0.2.254) to 10.96.0.10:80: Service default/web; arrives at eth0, IPVS mode
Note: outside stands for 192.0.2.254

Its path
  PREROUTING nat   KUBE-SERVICES 3   ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ
                                       found in KUBE-CLUSTER-IP: 10.96.0.10,tcp:80
                                       its mark is now 0x4000
  routing                            for this node
  INPUT nat        KUBE-SERVICES 1   -j ACCEPT
  INPUT IPVS       virtual server    10.96.0.10:80, scheduler rr; a client keeps its endpoint for 90 s
  end                                an endpoint gets it
  ENDPOINT           WEIGHT   SHARE   SEES AS SOURCE
  10.244.1.11:8080   1        50%     10.244.1.1, masqueraded
  10.244.2.11:8080   1        50%     an address of this node, masqueraded
";
        assert_eq!(plain(&trace(vec![way])), expected);
    }

    #[test]
    fn endpoints_that_are_not_listed_are_counted() {
        let text = |number, more_endpoints| {
            let way = TracedWay {
                steps: Vec::new(),
                end: End::Endpoint,
                refused_by: None,
                share: None,
                endpoints: vec![choice("10.244.1.11:8080", None); number],
                more_endpoints,
            };
            endpoints(&way).text()
        };
        assert!(!text(MOST_ENDPOINTS, 0).contains("more"));
        let all = text(25, 0);
        assert!(all.ends_with("  and 5 more: -o json has all\n"), "{all}");
        let text = text(500, 9_500);
        let expected =
            "  and 9980 more: -o json has the first 500, `kube-ipvs service` lists them\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn refusals_and_shares_are_said() {
        let refused = |share| TracedWay {
            steps: vec![rule("INPUT", 1, "-j REJECT", &[])],
            end: End::Refused,
            refused_by: Some("icmp-port-unreachable".to_owned()),
            share,
            endpoints: Vec::new(),
            more_endpoints: 0,
        };
        let mut trace = trace(vec![refused(Some(1.0 / 3.0)), refused(None)]);
        trace.live = Some(Live { connections: Vec::new(), total: 0 });
        let text = plain(&trace);
        assert!(text.contains("Path 1 of 2, 33.3% of new connections\n"), "{text}");
        assert!(text.contains("Path 2 of 2\n"), "{text}");
        assert!(text.contains("refused: icmp-port-unreachable\n"), "{text}");
        assert!(text.ends_with("\nno connections to it\n"), "{text}");
    }
}
