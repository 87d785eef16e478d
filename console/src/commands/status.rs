//! `kube-ipvs status`: one screen.

use clap::Args;

use super::{Session, counted_many, written};
use crate::answers::status::{DrainStatus, KernelStatus, KindStatus, ProgramStatus, Status};
use crate::outcome::{Failure, Verdict};
use crate::output::{aligned, bad, duration, good, heading, notable, table};
use syntax::counted::counted;

/// Shows one screen about the program and its node: mode, API, Services, what is pending and why
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs status\n\n\
    The exit code is 1 while the node is not whole: the kernel is not in sync, changes wait, a write is retried, \
    sysctls are wrong, the kernel cannot be read, a switch is held up, or changes do not arrive from the API server. \
    The first lines say which.")]
pub struct Arguments {}

pub(super) fn run(_: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let status: Status = session.client()?.get("/v1/status", &[])?;
    let verdict = Verdict::from(status.lacks.is_empty());
    written(session.output.show(status, text))?;
    Ok(verdict)
}

fn text(status: &Status) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            lines += &format!("{}\t{value}\n", heading(name));
        }
    };
    let (program, mode, input) = (&status.program, &status.mode, &status.input);
    let lacks: Vec<String> = status.lacks.iter().map(bad).collect();
    line("Not whole", lacks.join("\n\t"));
    line("Node", format!("{}, Linux {}", program.node, program.kernel_release));
    let since = duration(program.seconds);
    line("Program", format!("{}, process {}, for {since}", program.version, program.pid));
    line("Versions", versions_text(program));
    line("Mode", mode_text(status));
    line("Fallback", mode.fallen_back.as_ref().map(notable).unwrap_or_default());
    line("Host", mode.limits.iter().map(notable).collect::<Vec<_>>().join("\n\t"));
    line("Source", source_text(status));
    if status.is_loop_stuck {
        return aligned(&lines) + &errors_text(status);
    }
    let warnings = match input.with_warnings {
        0 => String::new(),
        number => format!(", {}", notable(format!("{number} with warnings"))),
    };
    line(
        "Services",
        format!("{}, {}{warnings}", input.services, counted(input.endpoints, "endpoint")),
    );
    line(
        "Waiting",
        match (input.waiting, input.waiting_seconds) {
            (0, _) => "nothing".to_owned(),
            (number, age) => {
                let age = duration(age.unwrap_or_default());
                notable(format!("{}, the oldest for {age}", counted(number, "Service")))
            }
        },
    );
    line("Kernel", kernel_text(&status.kernel, input.waiting));
    line("Drift", drift_text(&status.kernel));
    line("Sysctls", sysctls_text(&status.kernel));
    line("Draining", draining_text(&status.draining));
    let mut text = aligned(&lines);
    text += &sets_text(status);
    text += &pending_text(&status.kernel);
    text += &errors_text(status);
    text
}

fn draining_text(draining: &DrainStatus) -> String {
    let by_themselves = match draining.virtual_servers {
        0 => None,
        number => Some(format!(
            "{}, {}",
            counted(number, "virtual server"),
            counted_many(draining.connections, "connection")
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
        text += &format!(", {}", bad("rules of the former mode still lead connections"));
    }
    if let Some(number) = mode.left_by_ipvs.filter(|number| *number > 0) {
        let left =
            format!("{} of mode ipvs still have connections", counted(number, "virtual server"));
        text += &format!(", {}", notable(left));
    }
    text
}

fn source_text(status: &Status) -> String {
    match &status.source.manifests {
        Some(folder) => format!("manifests in {folder}"),
        None => {
            let server = status.source.server.as_deref().unwrap_or("an API server");
            let lines = status.source.kinds.iter().map(kind_text);
            // Kinds stand below the server.
            [server.to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n\t")
        }
    }
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
        "listed, and its watch begins".to_owned()
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
    words.join(", ")
}

fn kernel_text(kernel: &KernelStatus, waiting: usize) -> String {
    let state = match (kernel.in_sync_once, kernel.pending) {
        (false, _) => notable("not in sync yet"),
        (true, 0) if waiting == 0 => good("in sync"),
        (true, 0) => notable(format!("in sync but for {}", counted(waiting, "Service"))),
        (true, number) => bad(format!("{} refused, and retried", counted(number, "write"))),
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
            if kernel.addresses == 1 {
                "1 address".to_owned()
            } else {
                format!("{} addresses", kernel.addresses)
            }
        )
    };
    let operations = counted_many(kernel.operations, "operation");
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
            let operations = counted_many(number, "operation");
            let text = format!("repaired by {operations} since the start ({lately})");
            if hour == 0 { text } else { notable(text) }
        }
    };
    let failed = match kernel.failed_readings {
        0 => String::new(),
        number => format!(", {}", notable(format!("{} failed", counted_many(number, "reading")))),
    };
    let passes = match kernel.audit_passes {
        1 => "1 pass".to_owned(),
        number => format!("{number} passes"),
    };
    format!("{repaired}, {passes} of the audit{failed}")
}

fn sysctls_text(kernel: &KernelStatus) -> String {
    let state = match kernel.sysctl_mismatches {
        0 => "as they should be".to_owned(),
        number => bad(format!("{number} not as they should be")),
    };
    match kernel.sysctls_put_back {
        0 => state,
        number => format!("{state}, set again {}", counted_many(number, "time")),
    }
}

fn sets_text(status: &Status) -> String {
    let used: Vec<_> = status.sets.iter().filter(|set| set.entries > 0).collect();
    if used.is_empty() {
        return String::new();
    }
    let rows = used.iter().map(|set| {
        let fill = fill(set.entries, set.capacity);
        [set.name.clone(), set.entries.to_string(), set.capacity.to_string(), fill]
    });
    format!("\n{}", table(&["SET", "ENTRIES", "CAPACITY", "FULL"], rows))
}

fn fill(entries: usize, capacity: u64) -> String {
    let percent = (entries as u64).saturating_mul(100).checked_div(capacity);
    match percent {
        None => "-".to_owned(),
        Some(percent) if percent >= 90 => bad(format!("{percent}%")),
        Some(percent) => format!("{percent}%"),
    }
}

fn pending_text(kernel: &KernelStatus) -> String {
    if kernel.pending_first.is_empty() {
        return String::new();
    }
    let rows = kernel.pending_first.iter().map(|pending| {
        [pending.operation.clone(), pending.attempts.to_string(), bad(&pending.reason)]
    });
    let text = format!("\n{}", table(&["PENDING WRITE", "ATTEMPTS", "REFUSED BECAUSE"], rows));
    match kernel.pending - kernel.pending_first.len().min(kernel.pending) {
        0 => text,
        more => format!("{text}and {more} more\n"),
    }
}

fn errors_text(status: &Status) -> String {
    if status.errors.is_empty() {
        return String::new();
    }
    let rows = status.errors.iter().map(|event| [event.at.clone(), event.text.clone()]);
    format!("\n{}", table(&["LAST ERRORS", ""], rows))
}
