//! The page about performance, made from results.

use std::fmt::Write as _;

use super::Lane;
use super::results::{Commit, Results, Run, grouped, names};
use super::schema::{Line, Measured};
use super::targets::{self, CheckedTarget};

/// Text above all figures.
const BEGINNING: &str = "\
# Performance

This page is made by `cargo xtask bench --write-docs`, with `docs/internals/performance.json` and the picture.
Nothing on it was written by hand but what explains it, in `xtask/src/bench/`, and the profile of a first sync.

## What is measured

The real loop, with its thread for the kernel, on a real kernel. It is told what a cluster's API
would say, from memory: nothing is decoded, and no network is waited for (what nodes cost the API server, for 5,000
of them, is in `docs/internals/api-server-load.md`). Each size has fresh network namespaces
and processes of its own. *Raw* is the least that the same state can cost: plain netlink batches by a program
that knows what it wants, knows that nothing else is there, and keeps nothing; for a restart, listing everything
without looking at it. After each step another process compares the kernel with what it should be,
and the run fails if anything is left to do. First syncs and restarts are measured three times, in a process each; the one with the middle processor time
counts.

There are two lanes. *Native*: user-mode-linux, a kernel that is a program of the machine. It and the
loop run at the processor's own speed, on one processor. A system call costs some twenty microseconds,
a page of memory that is touched for the first time some seventy (where a machine needs a fraction of
one; `call_us` and `fault_us` of each run have them), and starting a process tens of milliseconds, so
what was waited for iptables is in the times, but in no ratio (`programs_wall_ms` has
it). These kernels have no nf_tables for IPv4. That of Linux 6.1 starts modprobe at each request to
x_tables unless modules may not be loaded (`benches/at_scale/main.rs`), so they may not once those that
are needed are there. *Emulated*: qemu without hardware virtualisation. Everything is
ten times as slow and more, so only ratios and counts are worth reading.
";

/// Title and meaning of every line.
const LINES: [(&str, &str, &str); 18] = [
    (
        "first_sync",
        "first sync",
        "from the source's first object to the complete state, on an empty kernel",
    ),
    ("first_sync_after_source", "… after the source", "the same from when the source is complete"),
    (
        "first_service_after_source",
        "… first service",
        "from there until `default/kubernetes` is served",
    ),
    (
        "restart",
        "restart",
        "from the source's first object until all is found to be as it should be; it writes nothing",
    ),
    (
        "change_at_restart",
        "… change in force",
        "an endpoint that changes right after the source is complete, from then until the kernel has it",
    ),
    ("endpoint_added", "endpoint added", "one at a time, each of another service"),
    (
        "endpoint_removed",
        "endpoint removed",
        "the same; that it is taken out when it has drained is part of processor time and requests",
    ),
    ("endpoint_moved", "endpoint moved", "one goes and another comes"),
    ("service_added", "service added", "with its endpoints"),
    ("service_removed", "service removed", ""),
    (
        "rolling_update",
        "rolling update",
        "of 100 services at once, whose endpoints all give way to others, as fast as they are told",
    ),
    ("idle", "nothing", "a minute without a change"),
    (
        "verification",
        "verification",
        "what reading and comparing everything takes, without the pauses in between; not waited for where a pass takes minutes",
    ),
    (
        "change_at_any_time",
        "endpoint at any time",
        "one change after the other, spread over a sync period, so that some of them meet verification",
    ),
    ("repair_virtual_servers", "after `ipvsadm -C`", "until the state is whole again"),
    ("repair_sets", "after `ipset flush`", ""),
    ("repair_rules", "after `iptables -F`", ""),
    ("repair_link", "after `ip link del kube-ipvs0`", ""),
];

const PROFILE: &str = "
## Where a first sync's time goes

Milliseconds of a first sync of 10,000 × 10 on Linux 6.12, native, once the source was complete. Sampled with `perf record -e cpu-clock`
around `cargo xtask vm run --kernel 6.12 --accel uml` with the stage `first` of `benches/at_scale/main.rs`, and `raw`; the guest's
`/proc/kallsyms` names its kernel's functions.

| | raw | the loop |
| --- | ---: | ---: |
| the kernel's list of addresses, walked for each that comes (`__inet_insert_ifa`, `inet_rtm_newaddr`) | 390 | 375 |
| the rest of the kernel's work on addresses, virtual servers and sets | 245 | 270 |
| the program: planning, encoding, taking in answers; and `malloc` | 30 | 145 |
| this lane's system calls, page faults, and turns between threads | 185 | 150 |

*Raw* encodes everything before it sends anything, and touches its memory then. The program's own time is 1.3 µs for each of 110,000 virtual and
real servers: a quarter of that is `malloc`, a tenth hashing, a tenth encoding, and the rest is spread over all of it. Commit eb8a05e.
";

/// Measurement that others have published.
struct Published {
    /// Number of Services, and of endpoints of each.
    size: (u32, u32),
    /// Published times.
    figure: &'static str,
}

const PUBLISHED: [Published; 2] = [
    Published {
        size: (8_000, 30),
        figure: "syncs after the last endpoints came: 1 min 22 s to 5 min 34 s on Linux 6.12.46, mean 4 min 0 s as stated; \
                 12 min 12 s to 19 min 4 s on Linux 6.1.144, mean 15 min 0 s as stated ([guessi/kube-proxy-benchmark][g])",
    },
    Published { size: (44_125, 1), figure: "a full sync: 16 min 43 s ([kubernetes#139513][k])" },
];

const PUBLISHED_BEGIN: &str = "
## Sizes of published measurements of kube-proxy

Two sizes are those of measurements that others have published of kube-proxy in mode nftables. **Machines, kernels and what was timed
differ, so the columns are not a race**: `cargo xtask bench --peer FILE` measures a kube-proxy that you have and kube-ipvs in one guest, with the same steps.

| Services × endpoints | kube-proxy in mode nftables, published | kube-ipvs: first sync (Linux) | restart | one endpoint |
| --- | --- | ---: | ---: | ---: |
";

const PUBLISHED_END: &str = "
- guessi/kube-proxy-benchmark, of 2025-10-15: kube-proxy 1.32.6 of EKS on Bottlerocket, an m5.4xlarge (16 processors, 64 GiB) for each kernel. 8,000
  Services select the same 30 pods, so there are 240,000 entries and 30 addresses. The times are `SyncProxyRules complete` in its log, of four syncs on
  6.12 and five on 6.1, while the pods were scaled up; two of the nine are of 200,000 entries. Syncs below a minute are left out there. Of these times the means are 4 min 10 s
  and 15 min 12 s.
- kubernetes#139513, of 2026-06-05: kube-proxy 1.36.1, 44,125 Services with 44,152 endpoints, a full sync as its log has it; some 63 s of it are `nft list`.
- Here every endpoint has an address of its own, and everything is told from memory: a kube-proxy's time with the API server is not in its figures either.

[g]: https://github.com/guessi/kube-proxy-benchmark/blob/d84e018653d6c1dca5033d03143a4b51b7d61360/README.md
[k]: https://github.com/kubernetes/kubernetes/issues/139513
";

const SCHEMA: &str = "
## The figures for machines

`docs/internals/performance.json` has all of it. `machine` and `remark` say on what it was measured;
each of `runs` has the `commits` that were measured (`commit`, and at which `sizes`), cargo's `profile`, a `lane`
(`uml`, which is native, or `qemu`), the kernel's `series` and
`kernel` (its release), `short` (whether it watched for seconds only), the guest's `memory_kib`, `fault_us` and `call_us`
(what a page costs that is touched for the first time, and the least that a system call costs), `nothing` (the loop with
`default/kubernetes` alone) and `sizes`; each of those `services` and `endpoints` (of each), `raw` and `ours`, whose
lines have:

| Field | What it is |
| --- | --- |
| `name`, `count` | what was done, and how often; all that follows is of all together |
| `wall_ms` | time from the first event to the kernel's last answer |
| `median_ms`, `p99_ms` | of each alone, where there were many |
| `cpu_ms`, `user_ms`, `system_ms` | processor time of the process, without what made up the events; the last two are known to 10 ms |
| `programs`, `programs_wall_ms`, `programs_ms` | programs started, the time they were waited for, their processor time |
| `requests`, `sends` | netlink requests, and the sends they went in |
| `writing_requests` | those requests that wrote; the others looked whether all is as it should be |
| `operations` | operations that the loop had its thread for the kernel carry out |
| `wakeups` | how often a thread had been asleep and went on |
| `faults` | how often a page of memory was touched for the first time |
| `anonymous_kib`, `resident_kib`, `peak_kib` | memory at the end: of its own; with what is shared with files; and the most it ever was |
";

/// The whole page.
pub(crate) fn write(results: &Results) -> String {
    let mut page = BEGINNING.to_owned();
    page += &machine(results);
    page += &targets(results);
    page += &published(results);
    page += PROFILE;
    page += "\n## What the lines are\n\n| Line | What it is |\n| --- | --- |\n";
    for (_, title, what) in LINES.iter().filter(|line| !line.2.is_empty()) {
        let _ = writeln!(page, "| {title} | {what} |");
    }
    for run in &results.runs {
        page += &tables(run);
    }
    page + SCHEMA
}

fn machine(results: &Results) -> String {
    let machine = &results.machine;
    let kernels: Vec<String> = results
        .runs
        .iter()
        .map(|run| {
            let (kernel, lane) = (&run.report.kernel, run.lane.title());
            let of = |it: &Commit| format!("{} at commit {}", it.sizes.join(", "), it.commit);
            let commits: Vec<String> = run.commits.iter().map(of).collect();
            format!("{kernel} ({lane}), {}, profile `{}`", commits.join(" and "), run.profile)
        })
        .collect();
    format!(
        "\nMeasured on {} processors ({}) with {} GiB of memory. Guests had one processor. Kernels, and \
         what was built with which of cargo's profiles: {}.{}{}\n",
        machine.processors,
        machine.processor,
        machine.memory_gib,
        kernels.join("; "),
        if results.remark.is_empty() { "" } else { " " },
        results.remark
    )
}

fn targets(results: &Results) -> String {
    let runs: Vec<(&Run, Vec<CheckedTarget>)> =
        results.native().map(|run| (run, targets::checked(run))).collect();
    let Some((_, first)) = runs.first() else { return String::new() };
    let mut page = "\n## What is aimed at\n\nIn the native lane; the fewest and the most services are those of ten endpoints each that \
                    were measured.\n\n| What | Aim |"
        .to_owned();
    let mut rule = "\n| --- | --- |".to_owned();
    for (run, _) in &runs {
        let _ = write!(page, " Linux {} |", run.series);
        rule += " --- |";
    }
    page += &rule;
    for outcome in first {
        let _ = write!(page, "\n| {} | {} |", outcome.what, outcome.aim);
        for (_, outcomes) in &runs {
            let same = outcomes.iter().find(|other| other.what == outcome.what);
            let cell = same.map_or("not measured".to_owned(), cell);
            let _ = write!(page, " {cell} |");
        }
    }
    page += "\n";
    let reasons: String = first.iter().filter_map(|outcome| reason(outcome.what, &runs)).collect();
    if !reasons.is_empty() {
        page = page + "\nWhat is behind those that were missed:\n\n" + &reasons;
    }
    page
}

/// Sizes that others have published figures of, beside the figures of the same sizes here.
fn published(results: &Results) -> String {
    let mut rows = String::new();
    for published in &PUBLISHED {
        let (services, endpoints) = published.size;
        let runs = results.native().filter_map(|run| Some((run, run.size(services, endpoints)?)));
        let runs: Vec<(&Run, &Measured)> = runs.collect();
        let cell = |figure: &dyn Fn(&Measured) -> Option<String>| {
            let cells = runs
                .iter()
                .filter_map(|(run, size)| Some(format!("{} ({})", figure(size)?, run.series)));
            let cells: Vec<String> = cells.collect();
            if cells.is_empty() { "not measured".to_owned() } else { cells.join(", ") }
        };
        let seconds = |name: &'static str| {
            move |size: &Measured| Some(format!("{} s", short(size.ours(name)?.wall_ms / 1_000.0)))
        };
        let moved = |size: &Measured| {
            Some(format!("{} ms", short(size.ours("endpoint_moved")?.typical_ms())))
        };
        let _ = writeln!(
            rows,
            "| {} × {endpoints} | {} | {} | {} | {} |",
            grouped(services),
            published.figure,
            cell(&seconds("first_sync")),
            cell(&seconds("restart")),
            cell(&moved),
        );
    }
    format!("{PUBLISHED_BEGIN}{rows}{PUBLISHED_END}")
}

/// Returns why a target was missed, by kernel where the reasons differ; none if it was met on all.
fn reason(what: &str, runs: &[(&Run, Vec<CheckedTarget>)]) -> Option<String> {
    let missed: Vec<(&str, &CheckedTarget)> = runs
        .iter()
        .flat_map(|(run, outcomes)| outcomes.iter().map(|outcome| (run.series.as_str(), outcome)))
        .filter(|(_, outcome)| outcome.what == what && outcome.missed.is_some())
        .collect();
    let (_, first) = missed.first()?;
    if missed.iter().all(|(_, outcome)| outcome.why == first.why) {
        return Some(format!("- {what}: {}.\n", first.why));
    }
    let each =
        missed.iter().map(|(series, outcome)| format!("  - Linux {series}: {}.\n", outcome.why));
    Some(format!("- {what}:\n") + &each.collect::<String>())
}

fn cell(outcome: &CheckedTarget) -> String {
    match &outcome.missed {
        None => format!("{}: met", outcome.measured),
        Some(by) => format!("{}: missed by {by}", outcome.measured),
    }
}

/// Times and what else it took, of one guest.
fn tables(run: &Run) -> String {
    let sizes: Vec<&Measured> = run.report.sizes.iter().collect();
    let title = format!("Linux {}, {}", run.series, run.lane.title());
    let note = match run.lane {
        Lane::Uml => "",
        Lane::Qemu => " The times are an emulated machine's.",
    };
    let mut page = format!(
        "\n## {title}\n\nMilliseconds; the median where there are many, and the 99th percentile behind it. In \
         parentheses, how many times the raw cost that is; for the first sync and the restart, \
         of processor time, without what they take with no services at all and without the page \
         faults of the raw cost.{note}\n\n"
    );
    page += &table(&sizes, run, time);
    page += "\nProcessor time in milliseconds, netlink requests in so many sends, and programs started: of each change \
             where there are many.\n\n";
    page += &table(&sizes, run, spent);
    let _ =
        writeln!(page, "\nMemory, in MiB over that of the loop with `default/kubernetes` alone:\n");
    page + &memory(run, &sizes)
}

fn table(sizes: &[&Measured], run: &Run, cell: fn(&Run, &Measured, &Line) -> String) -> String {
    let mut page = "| |".to_owned();
    page.extend(sizes.iter().map(|size| format!(" {} |", size.label())));
    page += "\n| --- |";
    page.extend(sizes.iter().map(|_| " ---: |"));
    page += "\n";
    for name in names(std::slice::from_ref(run)) {
        let title = LINES.iter().find(|line| line.0 == name).map_or(name, |line| line.1);
        let _ = write!(page, "| {title} |");
        for size in sizes {
            let text = size.ours(name).map_or(String::new(), |line| cell(run, size, line));
            let _ = write!(page, " {text} |");
        }
        page += "\n";
    }
    page
}

fn time(run: &Run, size: &Measured, line: &Line) -> String {
    let mut text = short(line.typical_ms());
    if let Some(p99) = line.p99_ms {
        let _ = write!(text, " / {}", short(p99));
    }
    if let Some(ratio) = run.ratio(size, &line.name) {
        let _ = write!(text, " ({})", short(ratio));
    }
    text
}

fn spent(_: &Run, _: &Measured, line: &Line) -> String {
    // What is told of the first sync's parts is its time alone.
    if line.cpu_ms == 0.0 && line.requests == 0 {
        return String::new();
    }
    let each = |total: u64| short(line.each(total as f64));
    let mut text = format!(
        "{}; {} in {}",
        short(line.each(line.cpu_ms)),
        each(line.requests),
        each(line.sends)
    );
    if line.programs > 0 {
        let _ = write!(text, "; {}", line.programs);
    }
    text
}

fn memory(run: &Run, sizes: &[&Measured]) -> String {
    let nothing = run.report.nothing.iter().find(|line| line.name == "first_sync");
    let nothing = nothing.map_or(0, |line| line.anonymous_kib);
    let mut page =
        "| | after the first sync | at its peak | at the end | all of it, for each endpoint |\n| --- | ---: | ---: | ---: | ---: |\n"
            .to_owned();
    for size in sizes {
        let Some(first) = size.ours("first_sync") else { continue };
        let last = size.ours.last().map_or(0, |line| line.anonymous_kib);
        let over = |kibibytes: u64| kibibytes.saturating_sub(nothing) as f64 / 1_024.0;
        let endpoints = f64::from(size.services) * f64::from(size.endpoints);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {:.0} B |",
            size.label(),
            short(over(first.anonymous_kib)),
            short(over(
                first
                    .peak_kib
                    .saturating_sub(first.resident_kib.saturating_sub(first.anonymous_kib))
            )),
            short(over(last)),
            over(first.anonymous_kib) * 1_048_576.0 / endpoints
        );
    }
    page
}

/// Three figures, or as many as there are before the point.
fn short(number: f64) -> String {
    if number >= 100.0 {
        grouped(number.round() as u32)
    } else if number >= 10.0 {
        format!("{number:.1}")
    } else if number >= 1.0 || number == 0.0 {
        let text = format!("{number:.2}");
        text.strip_suffix(".00").unwrap_or(&text).to_owned()
    } else {
        format!("{number:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_figures() {
        let numbers = [0.0, 0.123_4, 1.0, 1.234, 12.34, 123.4, 12_345.6].map(short);
        assert_eq!(numbers, ["0", "0.123", "1", "1.23", "12.3", "123", "12,346"]);
    }
}
