//! Page of the program and its node.

use std::fmt::Display;

use super::markup::Markup;
use crate::answers::status::{SetStatus, Status};
use crate::output::duration;

/// Share of a set from which it is worth a look: it grows at seven eighths.
const NOTABLE_FILL: f64 = 0.875;

/// Writes the page.
pub(super) fn write(main: &mut Markup, status: &Status) {
    for lack in &status.lacks {
        main.note("bad", Some(lack));
    }
    main.element("div", &[("class", "cards")], |cards| {
        program(cards, status);
        input(cards, status);
        kernel(cards, status);
        running(cards, status);
    });
    pending(main, status);
    errors(main, status);
    sets(main, &status.sets);
}

fn card(cards: &mut Markup, title: &'static str, content: impl FnOnce(&mut Markup)) {
    cards.element("section", &[], |section| {
        section.labelled("h2", &[], title);
        content(section);
    });
}

fn program(cards: &mut Markup, status: &Status) {
    let (program, mode) = (&status.program, &status.mode);
    card(cards, "Program", |section| {
        section.element("dl", &[], |list| {
            list.term("node", &program.node)
                .term("version", format!("{} {}", program.version, program.commit).trim_end())
                .term("process", program.pid)
                .term("in this mode for", duration(program.seconds))
                .term("kernel", &program.kernel_release);
            let served = if mode.served == mode.configured {
                mode.served.clone()
            } else {
                format!("{} (configured: {})", mode.served, mode.configured)
            };
            list.term("mode", served).term("families", mode.families.join(", "));
        });
        section.note("notable", mode.fallen_back.as_deref());
        for limit in &mode.limits {
            section.note("notable", Some(limit));
        }
        if mode.is_held_up {
            section.labelled("p", &[("class", "bad")], "The switch to this mode is held up.");
        }
    });
}

fn input(cards: &mut Markup, status: &Status) {
    let input = &status.input;
    card(cards, "Input", |section| {
        section.element("dl", &[], |list| {
            list.term("Services", input.services)
                .term("endpoints", format!("{} in {} slices", input.endpoints, input.slices));
            coloured(list, "with warnings", input.with_warnings, "notable");
            let waiting = match input.waiting_seconds {
                Some(seconds) => format!("{}, for {}", input.waiting, duration(seconds)),
                None => input.waiting.to_string(),
            };
            list.term("waiting to be written", waiting);
            if let Some(folder) = &status.source.manifests {
                list.term("from manifests in", folder);
            }
        });
        for line in &status.source.following {
            section.labelled("p", &[("class", "soft")], line);
        }
    });
}

fn kernel(cards: &mut Markup, status: &Status) {
    let kernel = &status.kernel;
    card(cards, "Kernel", |section| {
        section.element("dl", &[], |list| {
            let (class, text) = match (kernel.in_sync_once, status.lacks.is_empty()) {
                (false, _) => ("notable", "not yet"),
                (true, true) => ("good", "yes"),
                (true, false) => ("bad", "no"),
            };
            list.labelled("dt", &[], "in sync").labelled("dd", &[("class", class)], text);
            list.term("virtual servers", kernel.virtual_servers)
                .term("real servers", kernel.real_servers)
                .term("addresses", kernel.addresses)
                .term("operations", kernel.operations);
            coloured(list, "refused", kernel.refused, "notable");
            coloured(list, "refused now, and retried", kernel.pending, "bad");
            coloured(list, "drift repaired", kernel.drift_repaired, "notable");
            coloured(list, "failed readings", kernel.failed_readings, "notable");
            coloured(list, "sysctls without their value", kernel.sysctl_mismatches, "bad");
        });
    });
}

fn running(cards: &mut Markup, status: &Status) {
    card(cards, "At work", |section| {
        section.element("dl", &[], |list| {
            list.term("virtual servers with draining endpoints", status.draining.virtual_servers)
                .term("connections of draining endpoints", status.draining.connections);
            coloured(list, "endpoints drained by hand", status.draining.by_hand, "notable");
            list.term("audit passes", status.kernel.audit_passes)
                .term("sysctls set again", status.kernel.sysctls_put_back)
                .term("stale flows removed", status.kernel.flows_removed);
            if let Some(left) = status.mode.left_by_ipvs {
                list.term("virtual servers left by mode ipvs", left);
            }
        });
    });
}

fn pending(main: &mut Markup, status: &Status) {
    let pending = &status.kernel.pending_first;
    if pending.is_empty() {
        return;
    }
    main.labelled("h2", &[], "Refused by the kernel, and retried");
    main.element("table", &[], |table| {
        table.headings(&["Operation", "Reason", "Attempts"]);
        table.element("tbody", &[], |body| {
            for write in pending {
                body.element("tr", &[], |row| {
                    row.labelled("td", &[], &write.operation)
                        .labelled("td", &[("class", "bad")], &write.reason)
                        .labelled("td", &[("class", "number")], write.attempts);
                });
            }
        });
    });
}

fn errors(main: &mut Markup, status: &Status) {
    if status.errors.is_empty() {
        return;
    }
    main.labelled("h2", &[], "Errors lately");
    main.element("table", &[], |table| {
        table.headings(&["Time", "What", "Service", "Error"]);
        table.element("tbody", &[], |body| {
            for event in &status.errors {
                body.element("tr", &[], |row| {
                    row.labelled("td", &[], &event.at)
                        .labelled("td", &[], &event.what)
                        .labelled("td", &[], event.service.as_deref().unwrap_or_default())
                        .labelled("td", &[("class", "bad")], &event.text);
                });
            }
        });
    });
}

fn sets(main: &mut Markup, sets: &[SetStatus]) {
    let used: Vec<&SetStatus> = sets.iter().filter(|set| set.entries > 0).collect();
    if used.is_empty() {
        return;
    }
    main.labelled("h2", &[], "Sets");
    main.element("table", &[], |table| {
        table.headings(&["Set", "Entries", "Capacity", "Fill"]);
        table.element("tbody", &[], |body| {
            for set in used {
                let fill = share(set.entries, set.capacity);
                let class = if fill > NOTABLE_FILL { "number notable" } else { "number" };
                body.element("tr", &[], |row| {
                    row.labelled("td", &[("class", "address")], &set.name)
                        .labelled("td", &[("class", "number")], set.entries)
                        .labelled("td", &[("class", "number")], set.capacity)
                        .labelled("td", &[("class", class)], format!("{:.1} %", fill * 100.0));
                });
            }
        });
    });
}

/// A number that is coloured unless it is zero.
fn coloured<T: Display + Default + PartialEq>(
    list: &mut Markup,
    term: &'static str,
    number: T,
    class: &'static str,
) {
    let class = if number == T::default() { "" } else { class };
    list.labelled("dt", &[], term).labelled("dd", &[("class", class)], number);
}

#[expect(clippy::cast_precision_loss, reason = "a share in percent")]
fn share(entries: usize, capacity: u64) -> f64 {
    if capacity == 0 { 0.0 } else { entries as f64 / capacity as f64 }
}
