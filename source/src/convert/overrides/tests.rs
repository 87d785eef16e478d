use plan::event::Event;
use plan::model::{Overrides, Weights};

use super::*;
use crate::convert::Converter;
use crate::object;

/// Returns what a Service with these annotations chooses where `default` is everyone's scheduler,
/// and the warnings.
fn chosen_beside(default: &str, annotations: &str) -> (Option<Overrides>, Vec<String>) {
    let text = format!(
        "metadata: {{name: web, namespace: shop, annotations: {{{annotations}}}}}\n\
         spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}"
    );
    let object: object::Service = serde_saphyr::from_str(&text).unwrap();
    let mut converter = Converter::new(SchedulerName::new(default).unwrap());
    let converted = converter.service(&object).unwrap();
    let Event::ServiceApplied(service) = converted.event else { panic!("{annotations}") };
    let warnings = converted.warnings.iter().map(ToString::to_string).collect();
    (service.overrides.map(|overrides| *overrides), warnings)
}

fn chosen(annotations: &str) -> (Option<Overrides>, Vec<String>) {
    chosen_beside("rr", annotations)
}

/// Overrides that nothing is wrong with.
fn fine(annotations: &str) -> Overrides {
    let (overrides, warnings) = chosen(annotations);
    assert_eq!(warnings, Vec::<String>::new(), "{annotations}");
    overrides.unwrap_or_else(|| panic!("{annotations} chooses nothing"))
}

/// Overrides that one thing is wrong with.
fn faulty(annotations: &str) -> (Option<Overrides>, String) {
    let (overrides, warnings) = chosen(annotations);
    let [warning] = warnings.as_slice() else { panic!("{annotations}: {warnings:?}") };
    (overrides, warning.clone())
}

#[test]
fn all_of_them_together() {
    let overrides = fine(
        "kube-ipvs.io/scheduler: mh, kube-ipvs.io/scheduler-flags: 'mh-fallback,mh-port', \
         kube-ipvs.io/drain-deadline: 30s, kube-ipvs.io/weights: 'node=8,zone=4,elsewhere=2', \
         kube-ipvs.io/fast-path: ' off '",
    );
    let expected = Overrides {
        scheduler: SchedulerName::new("mh").ok(),
        scheduler_flags: Some(0x18),
        drain_deadline_seconds: Some(30),
        weights: Some(Weights { node: 8, zone: 4, elsewhere: 2 }),
        is_off_fast_path: true,
    };
    assert_eq!(overrides, expected);
}

#[test]
fn nothing_is_chosen_by_saying_nothing() {
    for annotations in [
        "",
        "example.org/scheduler: wrr",
        "kube-ipvs.io/scheduler: '', kube-ipvs.io/weights: ~",
        "kube-ipvs.io/scheduler-flags: ' , ', kube-ipvs.io/drain-deadline: '  '",
    ] {
        assert_eq!(chosen(annotations), (None, vec![]), "{annotations}");
    }
}

#[test]
fn every_scheduler_of_the_kernel_may_be_chosen() {
    for name in SCHEDULERS.map(|scheduler| scheduler.name) {
        let overrides = fine(&format!("kube-ipvs.io/scheduler: ' {name} '"));
        assert_eq!(overrides.scheduler.unwrap().as_str(), name);
    }
}

#[test]
fn an_unknown_scheduler_is_none() {
    for name in ["WRR", "roundrobin", "averyveryverylongname", "wrr,lc"] {
        let (overrides, warning) = faulty(&format!("kube-ipvs.io/scheduler: '{name}'"));
        assert_eq!(overrides, None);
        let begins = format!(
            "Service shop/web: metadata.annotations[kube-ipvs.io/scheduler]: {name:?} is none of rr"
        );
        assert!(warning.starts_with(&begins), "{warning}");
        assert!(warning.ends_with("; the default, rr, is used"), "{warning}");
    }
    // What else is chosen counts.
    let (overrides, _) = faulty("kube-ipvs.io/scheduler: x, kube-ipvs.io/drain-deadline: '5'");
    assert_eq!(
        overrides,
        Some(Overrides { drain_deadline_seconds: Some(5), ..Overrides::default() })
    );
}

#[test]
fn flags_are_the_schedulers() {
    let with = |scheduler: &str, flags: &str| {
        format!("kube-ipvs.io/scheduler: {scheduler}, kube-ipvs.io/scheduler-flags: '{flags}'")
    };
    for (scheduler, flags, bits) in [
        ("sh", "sh-fallback", 0x08),
        ("sh", "sh-port", 0x10),
        ("sh", "sh-port, sh-fallback", 0x18),
        ("mh", "mh-fallback,mh-fallback", 0x08),
        ("mh", "mh-port", 0x10),
    ] {
        assert_eq!(fine(&with(scheduler, flags)).scheduler_flags, Some(bits), "{flags}");
    }
    for scheduler in ["sh", "mh", "rr"] {
        assert_eq!(fine(&with(scheduler, " none ")).scheduler_flags, Some(0), "{scheduler}");
    }
    let (overrides, warning) = faulty(&with("mh", "none,mh-port"));
    assert_eq!(overrides.unwrap().scheduler_flags, Some(0x10));
    assert!(warning.contains("none cannot be combined with other flags; left out"), "{warning}");
    let (overrides, warning) = faulty(&with("sh", "mh-port,sh-port"));
    assert_eq!(overrides.unwrap().scheduler_flags, Some(0x10));
    assert!(warning.contains("mh-port means something to the scheduler mh"), "{warning}");
    let (overrides, warning) = faulty(&with("sh", "flag-3"));
    assert_eq!(overrides.unwrap().scheduler_flags, None);
    let expected = "\"flag-3\" is none of sh-fallback, sh-port, mh-fallback, mh-port, and not none";
    assert!(warning.contains(expected), "{warning}");
}

#[test]
fn flags_go_with_the_operators_scheduler_where_none_is_chosen() {
    let flags = "kube-ipvs.io/scheduler-flags: sh-port";
    let overrides = Overrides { scheduler_flags: Some(0x10), ..Overrides::default() };
    assert_eq!(chosen_beside("sh", flags), (Some(overrides), vec![]));
    let (overrides, warning) = faulty(flags);
    assert_eq!(overrides, None);
    assert!(warning.ends_with("and this Service has rr; left out"), "{warning}");
}

#[test]
fn a_deadline_is_a_duration_or_a_number_of_seconds() {
    for (text, seconds) in [
        ("30s", 30),
        ("0", 0),
        ("0s", 0),
        ("90", 90),
        ("1m30s", 90),
        ("1500ms", 2),
        ("1ns", 1),
        ("24h", 86_400),
        ("86400", 86_400),
    ] {
        let overrides = fine(&format!("kube-ipvs.io/drain-deadline: '{text}'"));
        assert_eq!(overrides.drain_deadline_seconds, Some(seconds), "{text}");
    }
    for (text, expected) in [
        ("86401", "is not a time from 0s to 24h"),
        ("24h1ns", "is not a time from 0s to 24h"),
        ("99999999999999999999", "is not a time from 0s to 24h"),
        ("-1s", "is not a time from 0s to 24h"),
        ("-1", "is not a duration"),
        ("1.5", "is not a duration"),
        ("soon", "is not a duration"),
        ("5 m", "is not a duration"),
    ] {
        let (overrides, warning) = faulty(&format!("kube-ipvs.io/drain-deadline: '{text}'"));
        assert_eq!(overrides, None);
        assert!(warning.contains(&format!("{text:?} {expected}")), "{warning}");
        assert!(warning.ends_with("; left out"), "{warning}");
    }
}

#[test]
fn weights_by_distance() {
    let with = |text: &str| format!("kube-ipvs.io/scheduler: wrr, kube-ipvs.io/weights: '{text}'");
    for (text, [node, zone, elsewhere]) in [
        ("node=8,zone=4,elsewhere=1", [8, 4, 1]),
        ("node=65535", [65_535, 1, 1]),
        (" zone = 2 , node = 3 ", [3, 2, 1]),
        ("elsewhere=2", [1, 1, 2]),
    ] {
        let weights = Some(Weights { node, zone, elsewhere });
        assert_eq!(fine(&with(text)).weights, weights, "{text}");
    }
    for (text, expected) in [
        ("8", "is not a name and a number"),
        ("node=8,", "is not a name and a number"),
        ("node:8", "is not a name and a number"),
        ("node=0", "is not a number from 1 to 65535"),
        ("node=65536", "is not a number from 1 to 65535"),
        ("node=+1", "is not a number from 1 to 65535"),
        ("node=", "is not a number from 1 to 65535"),
        ("node=8,region=2", "is none of node, zone and elsewhere"),
        ("node=8,node=8", "is there twice"),
    ] {
        let (overrides, warning) = faulty(&with(text));
        assert_eq!(overrides.unwrap().weights, None, "{text}");
        assert!(warning.contains(expected) && warning.ends_with("; left out"), "{warning}");
    }
}

#[test]
fn weights_that_the_scheduler_does_not_look_at() {
    for scheduler in ["rr", "lc", "dh"] {
        let (_, warning) =
            faulty(&format!("kube-ipvs.io/scheduler: {scheduler}, kube-ipvs.io/weights: node=2"));
        let expected = format!("the scheduler {scheduler} ignores them");
        assert!(warning.contains(&expected), "{warning}");
    }
    let (overrides, warnings) = chosen_beside("wlc", "kube-ipvs.io/weights: node=2");
    assert_eq!(warnings, Vec::<String>::new());
    let weights = Some(Weights { node: 2, zone: 1, elsewhere: 1 });
    assert_eq!(overrides, Some(Overrides { weights, ..Overrides::default() }));
}

#[test]
fn the_annotations_of_the_documents_are_those_that_are_read() {
    let page = include_str!("../../../../docs/annotations.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `kube-ipvs.io/"));
    let documented: Vec<String> =
        rows.filter_map(|row| Some(format!("kube-ipvs.io/{}", row.split_once('`')?.0))).collect();
    let read = [SCHEDULER, SCHEDULER_FLAGS, DRAIN_DEADLINE, FAST_PATH, WEIGHTS]
        .map(|field| field.trim_start_matches("metadata.annotations[").trim_end_matches(']'));
    assert_eq!(documented, read);
    for name in read {
        let annotations: Annotations = serde_saphyr::from_str(&format!("{name}: x")).unwrap();
        assert_ne!(annotations, Annotations::default(), "{name}");
    }
}

/// Every node logs it, and keeps it for as long as the Service is so.
#[test]
fn a_long_text_is_cut_where_it_is_quoted() {
    let long = "x".repeat(200_000);
    for annotation in ["scheduler", "scheduler-flags", "drain-deadline", "fast-path", "weights"] {
        let (_, warning) = faulty(&format!("kube-ipvs.io/{annotation}: {long}"));
        assert!(warning.len() < 500, "{annotation}: {} bytes", warning.len());
        assert!(warning.contains("xx… (200000 bytes)\""), "{warning}");
    }
}

#[test]
fn a_service_is_taken_off_the_fast_path_and_never_put_on_it() {
    let (overrides, warning) = faulty("kube-ipvs.io/fast-path: offload");
    assert_eq!(overrides, None);
    assert!(warning.contains("\"offload\" is not off"), "{warning}");
}
