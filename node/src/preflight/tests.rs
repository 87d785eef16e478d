use super::*;

#[test]
fn a_host_can_serve_unless_a_check_has_failed() {
    let note = Check::note("a", "b");
    let failed = Check::new("c", CheckState::Failed, "d").advised("e");
    let preflight = |checks| Preflight::new(Mode::Ipvs, "defaults", checks);
    assert!(preflight(vec![note.clone()]).can_serve);
    assert!(!preflight(vec![note, failed]).can_serve);
}

#[test]
fn it_says_the_same_as_json() {
    let checks = vec![Check::ok("kernel", "Linux 6.12"), Check::warning("x", "y", "z")];
    let preflight = Preflight::new(Mode::Userspace, "defaults", checks);
    let json = serde_json::to_value(&preflight).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "mode": "userspace",
            "configuration": "defaults",
            "canServe": true,
            "checks": [
                {"name": "kernel", "state": "ok", "found": "Linux 6.12"},
                {"name": "x", "state": "warning", "found": "y", "remedy": "z"},
            ],
        })
    );
    assert_eq!(serde_json::from_value::<Preflight>(json).unwrap(), preflight);
}
