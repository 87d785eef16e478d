//! Settings that a Service chooses for itself by annotation. docs/annotations.md is about them.

#[cfg(test)]
mod tests;

use std::time::Duration;

use plan::model::{Overrides, Weights};
use plan::scheduler::{SCHEDULERS, SchedulerName};

use super::ObjectWarnings;
use crate::object::Annotations;
use syntax::duration::GoDuration;
use syntax::quoted::Quoted;

const SCHEDULER: &str = "metadata.annotations[kube-ipvs.io/scheduler]";
const SCHEDULER_FLAGS: &str = "metadata.annotations[kube-ipvs.io/scheduler-flags]";
const DRAIN_DEADLINE: &str = "metadata.annotations[kube-ipvs.io/drain-deadline]";
const WEIGHTS: &str = "metadata.annotations[kube-ipvs.io/weights]";

const FAST_PATH: &str = "metadata.annotations[kube-ipvs.io/fast-path]";

/// The value that asks for none of these flags.
const NO_FLAGS: &str = "none";

/// The longest time that connections may be waited for.
const MAX_DRAIN_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns what the annotations choose, if they choose anything. `default` is the scheduler of
/// Services that choose none.
pub(super) fn convert(
    annotations: &Annotations,
    default: &SchedulerName,
    warnings: &mut ObjectWarnings,
) -> Option<Box<Overrides>> {
    let scheduler =
        written(&annotations.scheduler).and_then(|text| scheduler(text, default, warnings));
    let in_force = scheduler.as_ref().unwrap_or(default);
    let overrides = Overrides {
        scheduler: scheduler.clone(),
        scheduler_flags: written(&annotations.scheduler_flags)
            .and_then(|text| scheduler_flags(text, in_force, warnings)),
        drain_deadline_seconds: written(&annotations.drain_deadline)
            .and_then(|text| warnings.ok_or_warn(DRAIN_DEADLINE, drain_deadline_seconds(text))),
        weights: written(&annotations.weights)
            .and_then(|text| warnings.ok_or_warn(WEIGHTS, weights(text))),
        is_off_fast_path: written(&annotations.fast_path)
            .is_some_and(|text| warnings.ok_or_warn(FAST_PATH, fast_path(text)).is_some()),
    };
    let uses_weights = in_force.known().is_none_or(|known| known.uses_weights);
    if overrides.weights.is_some() && !uses_weights {
        let problem = format_args!(
            "the scheduler {in_force} ignores them; choose another one, such as wrr or wlc, with \
             kube-ipvs.io/scheduler"
        );
        warnings.add(WEIGHTS, problem);
    }
    (overrides != Overrides::default()).then(|| Box::new(overrides))
}

/// Returns the annotation's text without surrounding space; none if nothing is left.
fn written(annotation: &Option<String>) -> Option<&str> {
    annotation.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

fn scheduler(
    text: &str,
    default: &SchedulerName,
    warnings: &mut ObjectWarnings,
) -> Option<SchedulerName> {
    let name = SchedulerName::new(text).ok().filter(|name| name.known().is_some());
    if name.is_none() {
        let problem = format_args!(
            "{} is none of {}; the default, {default}, is used",
            Quoted(text),
            SCHEDULERS.map(|scheduler| scheduler.name).join(", ")
        );
        warnings.add(SCHEDULER, problem);
    }
    name
}

/// The flags that mean something to the scheduler; 0 if the Service wants none, nothing if it does
/// not say.
fn scheduler_flags(
    text: &str,
    scheduler: &SchedulerName,
    warnings: &mut ObjectWarnings,
) -> Option<u32> {
    if text == NO_FLAGS {
        return Some(0);
    }
    let all = || SCHEDULERS.iter().flat_map(|of| of.flags.iter().map(move |flag| (of.name, flag)));
    let mut flags = 0;
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match all().find(|(_, flag)| flag.name == name) {
            Some((of, flag)) if of == scheduler.as_str() => flags |= flag.bit,
            Some((of, _)) => {
                let problem = format_args!(
                    "{name} means something to the scheduler {of}, and this Service has \
                     {scheduler}; left out"
                );
                warnings.add(SCHEDULER_FLAGS, problem);
            }
            None if name == NO_FLAGS => {
                let problem = format_args!(
                    "{NO_FLAGS} cannot be combined with other flags; left \
                                            out"
                );
                warnings.add(SCHEDULER_FLAGS, problem);
            }
            None => {
                let known = all().map(|(_, flag)| flag.name).collect::<Vec<_>>().join(", ");
                let problem = format_args!(
                    "{} is none of {known}, and not {NO_FLAGS}; left out",
                    Quoted(name)
                );
                warnings.add(SCHEDULER_FLAGS, problem);
            }
        }
    }
    (flags != 0).then_some(flags)
}

/// A duration as Go writes it, or a number of seconds. The kernel is looked at once a second, so
/// parts of a second count as whole ones.
fn drain_deadline_seconds(text: &str) -> Result<u32, String> {
    let wrong = |why: &str| Err(format!("{} {why}, as in 30s, 5m or 30", Quoted(text)));
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    let deadline = if is_number {
        text.parse().map(Duration::from_secs).ok()
    } else {
        match text.parse::<GoDuration>() {
            Ok(duration) if duration < GoDuration::ZERO => None,
            Ok(duration) => Some(duration.to_std()),
            Err(_) => return wrong("is not a duration"),
        }
    };
    let Some(deadline) = deadline.filter(|deadline| *deadline <= MAX_DRAIN_DEADLINE) else {
        return wrong("is not a time from 0s to 24h");
    };
    let seconds = deadline.as_secs() + u64::from(deadline.subsec_nanos() > 0);
    u32::try_from(seconds).map_err(|error| error.to_string())
}

/// The only value: a Service takes the path that the operator chose, or none.
fn fast_path(text: &str) -> Result<(), String> {
    if text == "off" { Ok(()) } else { Err(format!("{} is not off", Quoted(text))) }
}

/// `node=8,zone=4,elsewhere=1`; what is not said is 1.
fn weights(text: &str) -> Result<Weights, String> {
    let (mut node, mut zone, mut elsewhere) = (None, None, None);
    for item in text.split(',').map(str::trim) {
        let wrong =
            |why: &str| Err(format!("{} {why}, as in node=8,zone=4,elsewhere=1", Quoted(item)));
        let Some((name, number)) = item.split_once('=') else {
            return wrong("is not a name and a number");
        };
        let weight = match name.trim() {
            "node" => &mut node,
            "zone" => &mut zone,
            "elsewhere" => &mut elsewhere,
            _ => return wrong("is none of node, zone and elsewhere"),
        };
        let number = number.trim();
        let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
        let Some(value) = number.parse::<u16>().ok().filter(|value| is_number && *value > 0) else {
            return wrong("is not a number from 1 to 65535");
        };
        if weight.replace(value).is_some() {
            return wrong("is there twice");
        }
    }
    let or_one = |weight: Option<u16>| weight.unwrap_or(1);
    Ok(Weights { node: or_one(node), zone: or_one(zone), elsewhere: or_one(elsewhere) })
}
