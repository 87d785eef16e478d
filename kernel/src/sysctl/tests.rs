use super::*;

fn paths(wanted: &[Sysctl]) -> Vec<(&'static str, u32)> {
    wanted.iter().map(|sysctl| (sysctl.path, sysctl.value.parse().unwrap())).collect()
}

/// Sysctls to set: two of IPVS, of which the first is required, and two others.
fn mk_wanted() -> Vec<Sysctl> {
    [
        ("net/ipv4/vs/conntrack", 1, true),
        ("net/ipv4/vs/conn_reuse_mode", 0, false),
        ("net/ipv4/ip_forward", 1, true),
        ("net/ipv4/conf/all/arp_announce", 2, false),
    ]
    .map(|(path, value, required)| Sysctl::new(path, value, required, "of a test"))
    .to_vec()
}

/// A folder with every sysctl at a value, as `/proc/sys` would have it.
fn mk_root(wanted: &[Sysctl], value: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for sysctl in wanted {
        let path = root.path().join(sysctl.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }
    root
}

#[test]
fn invalid_packets_are_dropped_unless_the_sysctl_is_on() {
    let liberal = Sysctl::new("net/netfilter/nf_conntrack_tcp_be_liberal", 1, false, "");
    for (value, expected) in [("0", false), ("1", true)] {
        let root = mk_root(std::slice::from_ref(&liberal), value);
        assert_eq!(is_tcp_liberal(root.path()), expected);
    }
    assert!(!is_tcp_liberal(Path::new("/nowhere")));
}

#[test]
fn kernel_versions_are_read() {
    for (release, expected) in [
        ("6.1.0-18-cloud-amd64", Some(KernelVersion(6, 1))),
        ("4.19", Some(KernelVersion(4, 19))),
        ("5.10-rc1", Some(KernelVersion(5, 10))),
        ("linux", None),
        ("6", None),
        ("", None),
    ] {
        assert_eq!(KernelVersion::parse(release), expected, "{release}");
    }
    assert!(kernel_version(Path::new(ROOT)).is_some());
}

#[test]
fn only_what_differs_is_written() {
    let wanted = mk_wanted();
    let root = mk_root(&wanted, "1");
    let differing_now = |root: &tempfile::TempDir| paths(&differing(root.path(), &wanted));
    let expected = [("net/ipv4/vs/conn_reuse_mode", 0), ("net/ipv4/conf/all/arp_announce", 2)];
    assert_eq!(differing_now(&root), expected);

    let outcome = apply(root.path(), &wanted);
    assert!(outcome.failed.is_empty(), "{outcome:?}");
    let changed: Vec<(&str, &str)> =
        outcome.changed.iter().map(|it| (it.sysctl.path, it.before.as_str())).collect();
    assert_eq!(changed, expected.map(|(path, _)| (path, "1")));
    assert_eq!(differing_now(&root), []);
    let again = apply(root.path(), &wanted);
    assert!(again.changed.is_empty() && again.failed.is_empty());
}

#[test]
fn what_cannot_be_set_is_told_and_the_rest_is_set() {
    let wanted = mk_wanted();
    let root = mk_root(&wanted, "0");
    fs::remove_dir_all(root.path().join("net/ipv4/vs")).unwrap();
    let outcome = apply(root.path(), &wanted);
    let changed: Vec<&str> = outcome.changed.iter().map(|it| it.sysctl.path).collect();
    assert_eq!(changed, ["net/ipv4/ip_forward", "net/ipv4/conf/all/arp_announce"]);
    assert_eq!(outcome.failed.len(), 2);
    let first = outcome.failed[0].to_string();
    assert!(first.starts_with("cannot set net.ipv4.vs.conntrack=1: "), "{first}");
    assert!(first.contains("modprobe ip_vs"), "{first}");
}

#[test]
fn a_read_only_proc_is_explained() {
    let error = SysctlError {
        sysctl: mk_wanted()[0].clone(),
        found: Some("0".to_owned()),
        source: rustix::io::Errno::ROFS.into(),
    };
    let text = error.to_string();
    assert!(text.contains("(it is 0)") && text.contains("mounted read-only"), "{text}");
    assert!(text.contains("sysctl -w net.ipv4.vs.conntrack=1"), "{text}");
}
