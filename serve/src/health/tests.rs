use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Half a second after nine o'clock, when all tests begin.
fn start() -> Moment {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_258_000_500);
    Moment { instant: Instant::now(), time }
}

/// Returns the moment so many seconds after the start.
fn after(start: Moment, seconds: u64) -> Moment {
    let distance = Duration::from_secs(seconds);
    Moment { instant: start.instant + distance, time: start.time + distance }
}

fn both(start: Moment) -> Health {
    Health::new(&Family::BOTH, TIMEOUT, start)
}

#[test]
fn answers_are_kube_proxys_to_the_letter_and_say_what_is_wrong() {
    let start = start();
    let mut health = both(start);
    health.node_leaving(false);
    health.written(Family::V6, after(start, 3));
    let now = after(start, 10);
    assert_eq!(
        health.healthz(now).body,
        r#"{"lastUpdated":"2026-01-01T09:00:10.5Z","currentTime":"2026-01-01T09:00:10.5Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-01T09:00:00.5Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T09:00:03.5Z","healthy":true}}}"#
    );
    health.waiting(12, after(start, 4));
    let late = Moment { time: now.time + Duration::from_nanos(7), ..after(start, 100) };
    assert_eq!(
        health.livez(late).body,
        r#"{"lastUpdated":"2026-01-01T09:00:03.5Z","currentTime":"2026-01-01T09:00:10.500000007Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T09:00:00.5Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-01T09:00:03.5Z","healthy":false}},"problems":["changes of 12 Services are pending, the oldest for 96 s (limit 60 s)"]}"#
    );
    assert_eq!(
        Health::new(&[], TIMEOUT, start).livez(start).body,
        r#"{"lastUpdated":"2026-01-01T09:00:00.5Z","currentTime":"2026-01-01T09:00:00.5Z","healthy":true}"#
    );
}

/// Step of a case, in seconds after the start.
#[derive(Debug, Clone, Copy)]
enum Step {
    Waiting(u64),
    /// A round leaves something that has been waiting since then.
    Left(u64),
    Written(Family, u64),
    Refused(Family, bool, u64),
    /// No change of a chain is written, or one is.
    Withheld(Family, bool, u64),
    Leaving(bool),
}

/// Expected health of IPv4, IPv6, `/healthz` and `/livez`, so many seconds after the start.
type Expected = (u64, [bool; 4]);

/// Takes a step in the life of a proxy that started then.
fn take(health: &mut Health, step: Step, start: Moment) {
    use Step::{Leaving, Left, Refused, Waiting, Withheld, Written};
    match step {
        Waiting(at) => health.waiting(3, after(start, at)),
        Left(at) => health.left(2, after(start, at).instant),
        Written(family, at) => health.written(family, after(start, at)),
        Refused(family, refused, at) => {
            health.prerequisites_refused(family, refused, after(start, at));
        }
        Withheld(family, withheld, at) => {
            health.chains_withheld(family, withheld, after(start, at));
        }
        Leaving(leaving) => health.node_leaving(leaving),
    }
}

#[test]
fn what_is_healthy_and_what_is_not() {
    use Family::{V4, V6};
    use Step::{Leaving, Left, Refused, Waiting, Withheld, Written};
    let eligible = Leaving(false);
    let cases: &[(&str, &[Step], &[Expected])] = &[
        ("a node that is not known", &[], &[(0, [true, true, false, true])]),
        ("nothing to do", &[eligible], &[(0, [true; 4]), (9_999, [true; 4])]),
        (
            "waiting shorter than the timeout, and as long",
            &[eligible, Waiting(5)],
            &[(64, [true; 4]), (65, [false; 4]), (500, [false; 4])],
        ),
        (
            "the oldest wait decides",
            &[eligible, Waiting(5), Waiting(50)],
            &[(64, [true; 4]), (65, [false; 4])],
        ),
        (
            "one family is written, the other waits",
            &[eligible, Waiting(5), Written(V6, 10)],
            &[(64, [true; 4]), (65, [false, true, false, false])],
        ),
        (
            "both are written, however late",
            &[eligible, Waiting(5), Written(V4, 100), Written(V6, 100)],
            &[(101, [true; 4])],
        ),
        (
            "a wait after a write counts from its own beginning",
            &[eligible, Waiting(5), Written(V4, 10), Written(V6, 10), Waiting(40)],
            &[(99, [true; 4]), (100, [false; 4])],
        ),
        (
            "a proxy that writes all the time and falls behind",
            &[eligible, Waiting(5), Left(6), Left(8), Waiting(50)],
            &[(67, [true; 4]), (68, [false; 4])],
        ),
        (
            "a node that leaves gets nothing new, and its proxy lives",
            &[eligible, Leaving(true)],
            &[(0, [true, true, false, true])],
        ),
        ("a node that stays after all", &[Leaving(true), eligible], &[(0, [true; 4])]),
        (
            "what everything rests on is refused, although nothing waits",
            &[eligible, Refused(V4, true, 5), Written(V4, 6), Refused(V4, true, 50)],
            &[(64, [true; 4]), (65, [false, true, false, false])],
        ),
        (
            "no chain could be written, although the rounds go on",
            &[eligible, Withheld(V4, true, 5), Written(V4, 6), Withheld(V4, true, 50)],
            &[(64, [true; 4]), (65, [false, true, false, false])],
        ),
        (
            "a chain was written meanwhile",
            &[eligible, Withheld(V4, true, 5), Withheld(V4, false, 50), Withheld(V4, true, 51)],
            &[(110, [true; 4]), (111, [false, true, false, false])],
        ),
        (
            "it is no longer refused",
            &[eligible, Refused(V4, true, 5), Refused(V4, false, 80), Refused(V4, true, 90)],
            &[(149, [true; 4]), (150, [false, true, false, false])],
        ),
    ];
    for (name, steps, expected) in cases {
        let start = start();
        let mut health = both(start);
        for step in *steps {
            take(&mut health, *step, start);
        }
        for (at, expected) in *expected {
            let now = after(start, *at);
            let body: serde_json::Value = serde_json::from_str(&health.livez(now).body).unwrap();
            let family = |name: &str| body["status"][name]["healthy"] == true;
            let found =
                [family("IPv4"), family("IPv6"), health.healthz(now).good, health.livez(now).good];
            assert_eq!(found, *expected, "{name}, {at} s after the start");
            assert_eq!(body["healthy"] == true, health.is_healthy(now), "{name}");
        }
    }
}

#[test]
fn what_is_shown_as_the_last_update_moves_on_as_long_as_the_answer_is_good() {
    let start = start();
    let mut health = both(start);
    let now = after(start, 20);
    let shown = |report: &HealthReport| {
        let body: serde_json::Value = serde_json::from_str(&report.body).unwrap();
        body["lastUpdated"].as_str().unwrap().to_owned()
    };
    // Healthy, and yet not eligible: that is not good at /healthz.
    assert_eq!(shown(&health.healthz(now)), "2026-01-01T09:00:00.5Z");
    assert_eq!(shown(&health.livez(now)), "2026-01-01T09:00:20.5Z");
    health.node_leaving(false);
    assert_eq!(shown(&health.healthz(now)), "2026-01-01T09:00:20.5Z");
}

#[test]
fn a_family_that_is_not_served_changes_nothing() {
    let start = start();
    let mut health = Health::new(&[Family::V4], TIMEOUT, start);
    health.prerequisites_refused(Family::V6, true, start);
    health.written(Family::V6, start);
    assert!(health.is_healthy(after(start, 1_000)));
    assert!(!health.livez(start).body.contains("IPv6"));
}

/// Health is answered on a thread of its own, so that silence of the event loop has to show.
#[test]
fn a_loop_that_takes_nothing_is_not_healthy() {
    let start = start();
    let mut health = both(start);
    let is_healthy = |health: &Health, second| health.livez(after(start, second)).good;
    assert!(is_healthy(&health, 1_000), "nothing was delivered");
    health.delivered(after(start, 1_000));
    health.delivered(after(start, 1_050));
    assert!(is_healthy(&health, 1_059));
    assert!(!is_healthy(&health, 1_060));
    let body = health.livez(after(start, 1_060)).body;
    assert!(body.contains("taken no change for 60 s, and 2 are pending"), "{body}");
    // It goes on: what is left has its own time.
    health.taken(1, after(start, 1_070));
    assert!(is_healthy(&health, 1_129));
    assert!(!is_healthy(&health, 1_130));
    health.taken(1, after(start, 1_131));
    assert!(is_healthy(&health, 9_000));
}

#[test]
fn a_process_is_ready_once_it_serves_and_follows_and_stays_so() {
    let start = start();
    let mut health = both(start);
    let lacks = |health: &Health, now: Moment| {
        let report = health.readyz(now);
        let body: serde_json::Value = serde_json::from_str(&report.body).unwrap();
        let problems = body["problems"].as_array().cloned().unwrap_or_default();
        let problems: Vec<_> = problems.iter().filter_map(|it| it.as_str()).collect();
        assert_eq!(report.good, problems.is_empty(), "{}", report.body);
        problems.join("; ")
    };
    assert!(lacks(&health, start).contains("not been in sync"));
    assert!(health.livez(start).good, "a restart would not help");
    health.prerequisites_refused(Family::V6, true, start);
    health.served();
    assert!(lacks(&health, start).contains("EndpointSlices"));
    health.followed();
    assert!(lacks(&health, start).contains("the kernel rejects"));
    health.prerequisites_refused(Family::V6, false, start);
    assert_eq!(lacks(&health, start), "");
    // Neither a node that leaves nor another tenure changes that, as long as the process works.
    health.node_leaving(true);
    health.begin(&[Family::V4], TIMEOUT, after(start, 5));
    health.prerequisites_refused(Family::V4, true, after(start, 10));
    assert_eq!(lacks(&health, after(start, 69)), "");
    assert!(!health.healthz(after(start, 69)).good);
    assert!(lacks(&health, after(start, 70)).contains("interface, a set or the rules"));
}

#[test]
fn a_new_tenure_answers_what_was_known_last() {
    let start = start();
    let mut health = both(start);
    health.node_leaving(false);
    health.waiting(3, after(start, 10));
    health.delivered(after(start, 10));
    health.chains_withheld(Family::V6, true, start);
    let now = after(start, 65);
    health.begin(&Family::BOTH, TIMEOUT, now);
    let body: serde_json::Value = serde_json::from_str(&health.healthz(now).body).unwrap();
    assert_eq!(body["nodeEligible"], true);
    let families = [&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]];
    assert_eq!(families, [true, false]);
    assert!(health.is_withheld(Family::V6));
    // Before the first list nothing waits, however long that takes.
    health.chains_withheld(Family::V6, false, now);
    health.written(Family::V6, now);
    assert!(health.is_healthy(after(start, 1_000)));
}
