//! `kube-ipvs status`: one screen.

use clap::Args;

use super::{Session, written};
use crate::answers::events::EventLine;
use crate::answers::status::{
    DrainStatus, KernelStatus, KindStatus, PendingWrite, ProgramStatus, SetStatus, Status,
};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, duration, good, notable};
use crate::table::{Column, Facts, Table};
use syntax::counted::counted;

/// Shows the state of kube-ipvs and its node: mode, API server, Services, pending and failed
/// operations
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs status\n\n\
    Exit code: 1 if the kernel is not in sync, changes are pending, an operation is retried, \
    sysctls are wrong, the kernel cannot be read, a switch is stalled, the configuration file is \
    rejected, or changes do not arrive from the API server. The first lines name the reason.")]
pub struct Arguments {}

/// Columns of the sets, of refused writes and of errors.
const SETS: [Column<SetStatus>; 4] = [
    ("SET", |it| it.name.clone()),
    ("ENTRIES", |it| it.entries.to_string()),
    ("CAPACITY", |it| it.capacity.to_string()),
    ("FULL", |it| fill(it.entries, it.capacity)),
];

const REFUSED: [Column<PendingWrite>; 3] = [
    ("PENDING WRITE", |it| it.operation.clone()),
    ("ATTEMPTS", |it| it.attempts.to_string()),
    ("REFUSED BECAUSE", |it| bad(&it.reason)),
];

const ERRORS: [Column<EventLine>; 2] =
    [("LAST ERRORS", |it| it.at.clone()), ("", |it| it.text.clone())];

pub(super) fn run(_: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let status: Status = session.client()?.get("/v1/status", &[])?;
    let verdict = Verdict::from(status.lacks.is_empty());
    written(session.output.show(status, text))?;
    Ok(verdict)
}

fn text(status: &Status) -> String {
    let tables = tables(status).into_iter().map(|table| format!("\n{}", table.text()));
    facts(status).text() + &tables.collect::<String>()
}

/// Returns the facts about the program and its node.
pub(crate) fn facts(status: &Status) -> Facts {
    let mut facts = Facts::default();
    let (program, mode, input) = (&status.program, &status.mode, &status.input);
    facts.add("Not whole", status.lacks.iter().map(bad));
    facts.add("Node", [format!("{}, Linux {}", program.node, program.kernel_release)]);
    let since = duration(program.seconds);
    facts.add("Program", [format!("{}, process {}, for {since}", program.version, program.pid)]);
    facts.add("Versions", [versions_text(program)]);
    facts.add("Mode", [mode_text(status)]);
    facts.add("Fallback", mode.fallen_back.as_ref().map(notable));
    facts.add("Host", mode.limits.iter().map(notable));
    facts.add("Source", source_lines(status));
    if status.is_loop_stuck {
        return facts;
    }
    let warnings = match input.with_warnings {
        0 => String::new(),
        number => format!(", {}", notable(format!("{number} with warnings"))),
    };
    let endpoints = counted(input.endpoints, "endpoint");
    facts.add("Services", [format!("{}, {endpoints}{warnings}", input.services)]);
    let waiting = match (input.waiting, input.waiting_seconds) {
        (0, _) => "nothing".to_owned(),
        (number, age) => {
            let age = duration(age.unwrap_or_default());
            notable(format!("{}, the oldest for {age}", counted(number, "Service")))
        }
    };
    facts.add("Pending", [waiting]);
    facts.add("Kernel", [kernel_text(&status.kernel, input.waiting)]);
    facts.add("Drift", [drift_text(&status.kernel)]);
    facts.add("Sysctls", [sysctls_text(&status.kernel)]);
    facts.add("Draining", [draining_text(&status.draining)]);
    facts
}

/// Returns the tables that have rows: sets, refused writes, errors.
pub(crate) fn tables(status: &Status) -> Vec<Table> {
    let mut tables = Vec::new();
    if !status.is_loop_stuck {
        let kernel = &status.kernel;
        let more = kernel.pending.saturating_sub(kernel.pending_first.len());
        let more = (more > 0).then(|| format!("and {more} more"));
        tables.push(Table::of(&SETS, status.sets.iter().filter(|set| set.entries > 0)));
        tables.push(Table::of(&REFUSED, &kernel.pending_first).with_more(more));
    }
    tables.push(Table::of(&ERRORS, &status.errors));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn draining_text(draining: &DrainStatus) -> String {
    let by_themselves = match draining.virtual_servers {
        0 => None,
        number => Some(format!(
            "{}, {}",
            counted(number, "virtual server"),
            counted(draining.connections, "connection")
        )),
    };
    let by_hand = match draining.by_hand {
        0 => None,
        number => Some(notable(format!("{} by hand", counted(number, "endpoint")))),
    };
    let all: Vec<String> = by_themselves.into_iter().chain(by_hand).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

fn mode_text(status: &Status) -> String {
    let mode = &status.mode;
    let mut text = mode.served.clone();
    if mode.configured != mode.served && !mode.configured.is_empty() {
        text += &format!(" (configured: {})", mode.configured);
    }
    text += &format!(", {}", mode.families.join(" and "));
    if mode.is_held_up {
        text += &format!(", {}", bad("rules of the former mode still handle connections"));
    }
    if let Some(number) = mode.left_by_ipvs.filter(|number| *number > 0) {
        let left =
            format!("{} of IPVS mode still have connections", counted(number, "virtual server"));
        text += &format!(", {}", notable(left));
    }
    text
}

/// Returns the source, and below an API server its kinds.
fn source_lines(status: &Status) -> Vec<String> {
    let source = &status.source;
    if let Some(folder) = &source.manifests {
        return vec![format!("manifests in {folder}")];
    }
    let server = source.server.as_deref().unwrap_or("an API server").to_owned();
    [server].into_iter().chain(source.kinds.iter().map(kind_text)).collect()
}

fn kind_text(kind: &KindStatus) -> String {
    let time = kind.seconds.map(|seconds| format!(" for {}", duration(seconds)));
    let time = time.unwrap_or_default();
    let lag = match kind.lag_seconds {
        Some(seconds) => format!("last heard {} ago", duration(seconds)),
        None => "never heard".to_owned(),
    };
    let state = if kind.is_following {
        format!("following{time}")
    } else if kind.since.is_none() && kind.last_heard.is_some() {
        "listed, watch starting".to_owned()
    } else {
        bad(format!("NOT following{time}"))
    };
    let lists = kind.lists.iter().map(|(reason, number)| format!("{reason} {number}"));
    let lists: Vec<String> = lists.collect();
    let lists =
        if lists.is_empty() { String::new() } else { format!("; lists: {}", lists.join(", ")) };
    format!("{}: {state}, {lag}{lists}", kind.kind)
}

/// Returns the versions of what is beside the program. Both families mostly have the same iptables.
fn versions_text(program: &ProgramStatus) -> String {
    let mut words: Vec<String> = Vec::new();
    for iptables in &program.iptables {
        let word = format!("iptables {} ({})", iptables.version, iptables.variant);
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.extend(program.ipvs_version.iter().map(|version| format!("IPVS {version}")));
    words.extend(program.ipset_protocol.iter().map(|version| format!("ipset protocol {version}")));
    words.extend(program.nftables.iter().map(|table| format!("nf_tables (tables {table})")));
    words.extend(program.fast_path.iter().map(|path| format!("fast path {path}")));
    words.join(", ")
}

fn kernel_text(kernel: &KernelStatus, waiting: usize) -> String {
    let state = match (kernel.in_sync_once, kernel.pending) {
        (false, _) => notable("not in sync yet"),
        (true, 0) if waiting == 0 => good("in sync"),
        (true, 0) => notable(format!("in sync except for {}", counted(waiting, "Service"))),
        (true, number) => bad(format!("{} failed, retried", counted(number, "write"))),
    };
    let objects = if kernel.virtual_servers == 0 {
        String::new()
    } else {
        let of_node_ports = match kernel.node_port_virtual_servers {
            0 => String::new(),
            number => format!(" ({number} for NodePorts)"),
        };
        format!(
            ", {}{of_node_ports}, {}, {}",
            counted(kernel.virtual_servers, "virtual server"),
            counted(kernel.real_servers, "real server"),
            counted(kernel.addresses, "address")
        )
    };
    let operations = counted(kernel.operations, "operation");
    format!("{state}{objects}, {operations} since the start")
}

fn drift_text(kernel: &KernelStatus) -> String {
    let repaired = match kernel.drift_repaired {
        0 => "none".to_owned(),
        number => {
            let [number, hour, minutes] =
                [number, kernel.drift_last_hour, kernel.drift_last_ten_minutes];
            let last = kernel.drift_last.as_deref().unwrap_or("unknown");
            let lately =
                format!("{hour} in the last hour, {minutes} in ten minutes, the last at {last}");
            let operations = counted(number, "operation");
            let text = format!("repaired by {operations} since the start ({lately})");
            if hour == 0 { text } else { notable(text) }
        }
    };
    let failed = match kernel.failed_readings {
        0 => String::new(),
        number => format!(", {}", notable(format!("{} failed", counted(number, "reading")))),
    };
    let passes = counted(kernel.audit_passes, "pass");
    format!("{repaired}, {passes} of the audit{failed}")
}

fn sysctls_text(kernel: &KernelStatus) -> String {
    let state = match kernel.sysctl_mismatches {
        0 => "all as required".to_owned(),
        number => bad(format!("{number} not as required")),
    };
    match kernel.sysctls_put_back {
        0 => state,
        number => format!("{state}, set again {}", counted(number, "time")),
    }
}

fn fill(entries: usize, capacity: u64) -> String {
    let percent = (entries as u64).saturating_mul(100).checked_div(capacity);
    match percent {
        None => "-".to_owned(),
        Some(percent) if percent >= 90 => bad(format!("{percent}%")),
        Some(percent) => format!("{percent}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_facts_and_the_tables_with_rows() {
        let mut status: serde_json::Value =
            serde_json::from_str(include_str!("../answers/status/whole.json")).unwrap();
        status["lacks"] = serde_json::json!(["an operation is retried", "sysctls are wrong"]);
        status["sets"] = serde_json::json!([
            {"name": "KUBE-CLUSTER-IP", "entries": 65_000, "capacity": 65_536},
            {"name": "KUBE-LOOP-BACK", "entries": 0, "capacity": 65_536},
        ]);
        status["kernel"]["pending"] = 2.into();
        status["kernel"]["pendingFirst"] =
            serde_json::json!([{"operation": "add 10.96.0.9", "reason": "full", "attempts": 3}]);
        status["errors"] = serde_json::json!([{"number": 1, "at": "2026-01-02T03:04:05Z", "what": "write",
            "service": null, "isError": true, "text": "refused", "seconds": null}]);
        let plain = |status: &serde_json::Value| {
            let text = text(&serde_json::from_value(status.clone()).unwrap());
            let plain = anstream::adapter::strip_str(&text).to_string();
            plain.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>()
        };
        let head = "\
Not whole   an operation is retried
            sysctls are wrong
Node        n, Linux 6.12
Program     0, process 1, for 9s
Mode        ipvs, IPv4
Source      api
            Service: following for 5s, last heard 1s ago
";
        let middle = "\
Services    1, 1 endpoint
Pending     nothing
Kernel      2 writes failed, retried, 1 virtual server, 1 real server, 1 address, 1 operation since the start
Drift       none, 1 pass of the audit
Sysctls     all as required
Draining    nothing

SET               ENTRIES   CAPACITY   FULL
KUBE-CLUSTER-IP   65000     65536      99%

PENDING WRITE   ATTEMPTS   REFUSED BECAUSE
add 10.96.0.9   3          full
and 1 more
";
        let errors = "\n\
LAST ERRORS
2026-01-02T03:04:05Z   refused
";
        assert_eq!(plain(&status), [head, middle, errors].concat());
        status["isLoopStuck"] = true.into();
        assert_eq!(plain(&status), [head, errors].concat());
    }
}
