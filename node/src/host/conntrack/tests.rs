use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::*;

/// Leaves everything as the kernel has it.
const NONE: Conntrack = Conntrack {
    max_per_core: None,
    min: 0,
    tcp_established: None,
    tcp_close_wait: None,
    tcp_be_liberal: false,
    udp: None,
    udp_stream: None,
};

/// Files as below `/proc/sys` and `/sys`.
fn mk_root(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root { proc_sys: folder.path().join("proc_sys"), sys: folder.path().join("sys") };
    for (path, text) in files {
        let below = if path.starts_with("net/") { &root.proc_sys } else { &root.sys };
        let path = below.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    (folder, root)
}

fn read(root: &Root, path: &str) -> String {
    let below = if path.starts_with("net/") { &root.proc_sys } else { &root.sys };
    fs::read_to_string(below.join(path)).unwrap().trim().to_owned()
}

fn mk_table(max_per_core: u32, min: u32) -> Conntrack {
    Conntrack { max_per_core: Some(max_per_core), min, ..NONE }
}

#[test]
fn the_tables_size_is_kube_proxys() {
    for (max_per_core, min, processors, expected) in [
        (None, 0, 4, None),
        (None, 131_072, 4, None),
        (Some(0), 131_072, 4, None),
        (Some(32_768), 0, 4, Some(131_072)),
        (Some(32_768), 0, 2, Some(65_536)),
        (Some(32_768), 131_072, 2, Some(131_072)),
        (Some(32_768), 131_072, 8, Some(262_144)),
        (Some(32_768), 131_072, 32, Some(1_048_576)),
        (Some(32_768), 131_072, 33, Some(1_048_576)),
        // The most is looked at before the least.
        (Some(32_768), 2_000_000, 33, Some(1_048_576)),
        (Some(32_768), 2_000_000, 2, Some(2_000_000)),
        (Some(u32::MAX), 0, u32::MAX, Some(1_048_576)),
    ] {
        let found = entries(max_per_core, min, processors);
        assert_eq!(found, expected, "{max_per_core:?} {min:?} {processors}");
    }
}

#[test]
fn each_sysctl_is_set_when_it_is_chosen_and_only_then() {
    let paths = |chosen: Conntrack| -> Vec<(&str, u32)> {
        sysctls(&chosen).iter().map(|sysctl| (sysctl.path, sysctl.value.parse().unwrap())).collect()
    };
    let second = Duration::from_secs(1);
    assert_eq!(paths(NONE), []);
    for (chosen, expected) in [
        (
            Conntrack { tcp_established: Some(86_400 * second), ..NONE },
            ("net/netfilter/nf_conntrack_tcp_timeout_established", 86_400),
        ),
        (
            Conntrack { tcp_close_wait: Some(3_600 * second), ..NONE },
            ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 3_600),
        ),
        (
            Conntrack { udp: Some(30 * second), ..NONE },
            ("net/netfilter/nf_conntrack_udp_timeout", 30),
        ),
        (
            Conntrack { udp_stream: Some(Duration::from_millis(1_900)), ..NONE },
            ("net/netfilter/nf_conntrack_udp_timeout_stream", 1),
        ),
        (
            Conntrack { udp: Some(Duration::from_millis(10)), ..NONE },
            ("net/netfilter/nf_conntrack_udp_timeout", 1),
        ),
        (
            Conntrack { tcp_be_liberal: true, ..NONE },
            ("net/netfilter/nf_conntrack_tcp_be_liberal", 1),
        ),
    ] {
        assert_eq!(paths(chosen), [expected]);
    }
}

#[test]
fn what_differs_is_set_and_the_rest_is_left() {
    let established = "net/netfilter/nf_conntrack_tcp_timeout_established";
    let (_folder, root) = mk_root(&[
        (PROCESSORS, "0-7"),
        (MAX, "65536"),
        (HASH_SIZE, "16384"),
        (established, "432000"),
    ]);
    let chosen = Conntrack {
        tcp_established: Some(Duration::from_secs(86_400)),
        ..mk_table(32_768, 131_072)
    };
    let outcome = set(&root, &chosen);
    assert_eq!(outcome.changed.len(), 3, "{outcome:?}");
    assert_eq!((outcome.tolerated.len(), outcome.failed.len()), (0, 0), "{outcome:?}");
    assert_eq!(read(&root, MAX), "262144");
    assert_eq!(read(&root, HASH_SIZE), "65536");
    assert_eq!(read(&root, established), "86400");
    assert_eq!(set(&root, &chosen), ConntrackSetup::default());

    // Entries and buckets are only added.
    assert_eq!(set(&root, &mk_table(16_384, 0)), ConntrackSetup::default());
    assert!(wanted(&root, &mk_table(16_384, 0)).is_empty(), "a preflight says the same");
    assert_eq!((read(&root, MAX).as_str(), read(&root, HASH_SIZE).as_str()), ("262144", "65536"));
    assert_eq!(set(&root, &NONE), ConntrackSetup::default());
}

#[test]
fn a_table_that_an_operator_enlarged_is_not_made_smaller() {
    // 128 processors ask for 4,194,304 entries, which is cut to 1,048,576.
    let (_folder, root) =
        mk_root(&[(PROCESSORS, "0-127"), (MAX, "4194304"), (HASH_SIZE, "1048576")]);
    assert_eq!(set(&root, &mk_table(32_768, 131_072)), ConntrackSetup::default());
    assert_eq!(
        (read(&root, MAX).as_str(), read(&root, HASH_SIZE).as_str()),
        ("4194304", "1048576")
    );
}

#[test]
fn too_few_buckets_are_a_warning() {
    // Not even root can write a directory in the place of the file.
    let (_folder, root) = mk_root(&[(PROCESSORS, "0"), (MAX, "65536")]);
    fs::create_dir_all(root.sys.join(HASH_SIZE)).unwrap();
    for chosen in [mk_table(1_000, 0), mk_table(0, 0)] {
        let is_asked = chosen.max_per_core != Some(0);
        let outcome = set(&root, &chosen);
        assert_eq!((outcome.changed.len(), outcome.failed.len()), (0, 0), "{outcome:?}");
        assert_eq!(outcome.tolerated.len(), usize::from(is_asked), "{outcome:?}");
        assert_eq!(buckets_missing(&root, &chosen), outcome.tolerated.first().cloned());
    }
    for (error, cure) in [
        (rustix::io::Errno::ROFS, "Mount /sys writable"),
        (rustix::io::Errno::ACCESS, "Mount /sys writable"),
        (rustix::io::Errno::OPNOTSUPP, "not the host's network namespace"),
    ] {
        let said = too_few_buckets(250, &error.into());
        assert!(said.contains(cure) && said.contains("echo 250 > /sys/module"), "{said}");
    }
}

#[test]
fn a_limit_of_ipvs_below_that_of_conntrack_is_warned_of() {
    let (_folder, before_7_2) = mk_root(&[(MAX, "1000")]);
    assert_eq!(ipvs_limit(&before_7_2), None);
    for (most, is_warned) in [("1000", false), ("1073741824", false), ("999", true)] {
        let (_folder, root) = mk_root(&[(MAX, "1000"), (IPVS_MAX, most)]);
        let warning = ipvs_limit(&root);
        assert_eq!(warning.is_some(), is_warned, "{warning:?}");
        let says = |it: String| it.contains("999") && it.ends_with("net.ipv4.vs.conn_max=1000");
        assert!(warning.is_none_or(says));
    }
}

#[test]
fn a_sysctl_that_cannot_be_set_is_reported_with_what_to_do() {
    // Not even root can read or write a directory in the place of a sysctl.
    let (_folder, root) = mk_root(&[(PROCESSORS, "0"), (HASH_SIZE, "16")]);
    for path in [MAX, "net/netfilter/nf_conntrack_tcp_be_liberal"] {
        fs::create_dir_all(root.proc_sys.join(path)).unwrap();
    }
    let outcome = set(&root, &Conntrack { tcp_be_liberal: true, ..mk_table(1_000, 0) });
    assert_eq!(outcome.failed.len(), 2, "{outcome:?}");
    let [max, liberal] = &outcome.failed[..] else { panic!("{outcome:?}") };
    assert!(max.contains("net.netfilter.nf_conntrack_max=1000") && max.contains("sysctl -w"));
    assert!(liberal.contains("modprobe nf_conntrack"), "{liberal}");
}

#[test]
fn a_table_that_is_not_this_namespaces_need_not_be_writable() {
    let refused = |found: &str| SysctlError {
        sysctl: Sysctl::new(MAX, 131_072, true, ""),
        found: Some(found.to_owned()),
        source: rustix::io::Errno::ROFS.into(),
    };
    let (_folder, root) = mk_root(&[(MAX, "65536")]);
    let is_wanted = |root: &Root| !wanted(root, &mk_table(32_768, 131_072)).is_empty();
    assert_eq!(tolerable(&root.proc_sys, &refused("65536")), None);
    assert!(is_wanted(&root));
    // As in a network namespace of its own: the sysctl is read-only.
    let path = root.proc_sys.join(MAX);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let reason = tolerable(&root.proc_sys, &refused("65536")).unwrap();
    assert!(reason.contains("not the host's network namespace"), "{reason}");
    assert!(!is_wanted(&root), "nobody is told that a start would set it");
}

#[test]
fn there_is_always_a_processor() {
    assert!(processors(&Root::default()) >= 1);
    assert!(processors(&Root { sys: PathBuf::from("/nowhere"), ..Root::default() }) >= 1);
}

#[test]
fn processors_of_a_list_are_counted_and_what_is_no_list_is_refused() {
    for (list, expected) in [
        ("0\n", Some(1)),
        ("0-3", Some(4)),
        ("0-3,6,8-9", Some(7)),
        ("", None),
        ("3-1", None),
        ("0-", None),
        ("0,,1", None),
        ("0-4294967295", None),
        ("all", None),
    ] {
        assert_eq!(counted(list), expected, "{list:?}");
    }
}
