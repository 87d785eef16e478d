use std::fs;
use std::path::Path;

use plan::scheduler::SchedulerName;

use super::super::sysctl::Sysctl;
use super::*;

/// A host that has everything.
fn mk_facts() -> Facts {
    Facts {
        net_admin: Some(true),
        net_raw: Some(true),
        rule_form: RuleForm::Iptables,
        of_ipvs: Some(mk_ipvs_facts()),
        iptables_v4: Ok(()),
        iptables_v6: Some(Ok(())),
        ipv6: Ipv6::Available,
        sysctls: Some(Vec::new()),
        sysctls_writable: Ok(()),
        kernel_release: "6.12.0-211.26.1.el9_4.x86_64".to_owned(),
    }
}

fn mk_ipvs_facts() -> IpvsFacts {
    IpvsFacts {
        ipvs: Ok(()),
        scheduler: SchedulerName::default(),
        scheduler_taken: Some(Ok(())),
        ipv6_taken: Some(Ok(())),
        unbalanced: Vec::new(),
        ipset: Ok(()),
        dummy: Ok(()),
    }
}

fn of_ipvs(facts: &mut Facts) -> &mut IpvsFacts {
    facts.of_ipvs.get_or_insert_with(mk_ipvs_facts)
}

fn mk_sysctl(required: bool) -> Sysctl {
    let path = if required { "net/ipv4/vs/conntrack" } else { "net/ipv4/vs/expire_nodest_conn" };
    Sysctl::new(path, 1, required, "of a test")
}

fn refused<T, E: From<String>>() -> Result<T, E> {
    Err("said no".to_owned().into())
}

/// Changes one fact, and says what is to be found: the families, and the problems with how they
/// begin and whether they are fatal.
type Case = (fn(&mut Facts), &'static [Family], &'static [(&'static str, bool)]);

const BOTH: &[Family] = &Family::BOTH;
const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];

const CASES: [Case; 21] = [
    (|_| {}, BOTH, &[]),
    (
        |facts| of_ipvs(facts).ipv6_taken = Some(refused()),
        V4,
        &[("IPv6 is not served: IPVS of this kernel does not support it", false)],
    ),
    (
        |facts| {
            of_ipvs(facts).ipv6_taken = Some(refused());
            facts.iptables_v4 = refused();
        },
        &[],
        &[
            ("IPv6 is not served: IPVS of this kernel does not support it", true),
            ("IPv4 is not served: iptables does not work", true),
        ],
    ),
    (
        |facts| of_ipvs(facts).unbalanced = vec![Protocol::Sctp],
        BOTH,
        &[(
            "IPVS of this kernel does not support SCTP: SCTP ports of Services are rejected",
            false,
        )],
    ),
    (|facts| facts.net_admin = None, BOTH, &[]),
    (|facts| facts.net_admin = Some(false), BOTH, &[("the capability CAP_NET_ADMIN", true)]),
    (|facts| facts.net_raw = Some(false), BOTH, &[("the capability CAP_NET_RAW", true)]),
    (
        |facts| {
            of_ipvs(facts).ipvs = refused();
            of_ipvs(facts).scheduler_taken = None;
            facts.sysctls = None;
            facts.sysctls_writable = refused();
        },
        BOTH,
        &[("IPVS is not available in this kernel", true)],
    ),
    (
        |facts| of_ipvs(facts).scheduler_taken = Some(refused()),
        BOTH,
        &[("the kernel does not have the IPVS scheduler rr", true)],
    ),
    (
        |facts| of_ipvs(facts).ipset = refused(),
        BOTH,
        &[("ipset is not available in this kernel", true)],
    ),
    (|facts| of_ipvs(facts).dummy = refused(), BOTH, &[("cannot create a dummy interface", true)]),
    (
        |facts| facts.iptables_v4 = refused(),
        V6,
        &[("IPv4 is not served: iptables does not work", false)],
    ),
    (
        |facts| facts.iptables_v6 = Some(refused()),
        V4,
        &[("IPv6 is not served: ip6tables does not work", false)],
    ),
    (
        |facts| {
            facts.iptables_v4 = refused();
            facts.iptables_v6 = Some(refused());
        },
        &[],
        &[
            ("IPv4 is not served: iptables does not work", true),
            ("IPv6 is not served: ip6tables does not work", true),
        ],
    ),
    (
        |facts| {
            facts.ipv6 = Ipv6::NotInKernel;
            facts.iptables_v6 = None;
        },
        V4,
        &[("IPv6 is not served (the kernel has no IPv6", false)],
    ),
    (
        |facts| {
            facts.ipv6 = Ipv6::SwitchedOff;
            facts.iptables_v6 = None;
            facts.iptables_v4 = refused();
        },
        &[],
        &[
            ("IPv4 is not served: iptables does not work", true),
            ("IPv6 is not served (IPv6 is disabled: net.ipv6.conf.all.disable_ipv6", false),
        ],
    ),
    (|facts| facts.sysctls_writable = refused(), BOTH, &[]),
    // Rules without sets need no raw socket.
    (
        |facts| {
            facts.of_ipvs = None;
            facts.net_raw = Some(false);
        },
        BOTH,
        &[],
    ),
    (
        |facts| {
            facts.of_ipvs = None;
            facts.iptables_v4 = Err("no rule can have recent (module xt_recent)".to_owned().into());
            facts.iptables_v6 = Some(refused());
        },
        &[],
        &[
            ("IPv4 is not served: iptables does not work", true),
            ("IPv6 is not served: ip6tables does not work", true),
        ],
    ),
    (
        |facts| {
            facts.sysctls = Some(vec![mk_sysctl(true)]);
            facts.sysctls_writable = refused();
        },
        BOTH,
        &[("sysctls have wrong values; they must be: net.ipv4.vs.conntrack=1", true)],
    ),
    (
        |facts| {
            facts.sysctls = Some(vec![mk_sysctl(false)]);
            facts.sysctls_writable = refused();
        },
        BOTH,
        &[("sysctls have wrong values; they must be: net.ipv4.vs.expire_nodest", false)],
    ),
];

/// `/proc` with what is read of it.
fn mk_proc(effective: &str) -> (tempfile::TempDir, ProcRoot) {
    let folder = tempfile::tempdir().unwrap();
    let proc = folder.path();
    write(proc, "thread-self/status", &format!("Name:\tx\nCapEff:\t{effective}\nCapBnd:\t0\n"));
    write(proc, "thread-self/net/if_inet6", "");
    write(proc, "sys/net/ipv6/conf/all/disable_ipv6", "0\n");
    write(proc, "sys/net/ipv4/ip_forward", "0\n");
    let root = ProcRoot { proc: proc.to_owned() };
    (folder, root)
}

fn write(proc: &Path, path: &str, text: &str) {
    let path = proc.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn each_fact_has_its_meaning() {
    for (number, (change, families, expected)) in CASES.into_iter().enumerate() {
        let mut facts = mk_facts();
        change(&mut facts);
        let findings = judge(&facts);
        assert_eq!(findings.families, families, "case {number}");
        let found = &findings.problems;
        assert_eq!(found.len(), expected.len(), "case {number}: {found:?}");
        for (problem, (start, fatal)) in found.iter().zip(expected) {
            let text = problem.to_string();
            assert!(text.starts_with(start), "case {number}: {text}");
            assert!(text.contains(". What to do: ") && !problem.remedy.is_empty());
            assert_eq!(problem.fatal, *fatal, "case {number}: {text}");
        }
        assert_eq!(findings.is_usable(), expected.iter().all(|(_, fatal)| !fatal));
    }
}

#[test]
fn all_problems_are_told_at_once_the_fatal_ones_first() {
    let facts = Facts {
        net_admin: Some(false),
        of_ipvs: Some(IpvsFacts {
            ipvs: refused(),
            scheduler_taken: Some(refused()),
            ipset: refused(),
            dummy: refused(),
            ..mk_ipvs_facts()
        }),
        iptables_v4: Ok(()),
        iptables_v6: Some(refused()),
        sysctls: Some(vec![mk_sysctl(true)]),
        sysctls_writable: refused(),
        ..mk_facts()
    };
    let findings = judge(&facts);
    let fatal: Vec<bool> = findings.problems.iter().map(|problem| problem.fatal).collect();
    assert_eq!(fatal, [true, true, true, true, true, true, false]);
    assert!(findings.problems[1..].iter().all(|problem| problem.why.contains("said no")));
}

#[test]
fn the_capability_is_read_from_the_status() {
    for (effective, expected) in [
        ("0000000000001000", Some(true)),
        ("000001ffffffffff", Some(true)),
        ("0000000000000fff", Some(false)),
        ("0000000000000000", Some(false)),
        ("no number", None),
    ] {
        let (_folder, root) = mk_proc(effective);
        assert_eq!(root.has_capability(facts::CAP_NET_ADMIN), expected, "{effective}");
    }
    assert_eq!(ProcRoot { proc: "/nowhere".into() }.has_capability(facts::CAP_NET_ADMIN), None);
}

#[test]
fn whether_the_host_does_ipv6_is_read() {
    let (_folder, root) = mk_proc("0");
    assert_eq!(root.ipv6(), Ipv6::Available);
    write(&root.proc, "sys/net/ipv6/conf/all/disable_ipv6", "1\n");
    assert_eq!(root.ipv6(), Ipv6::SwitchedOff);
    fs::remove_file(root.proc.join("thread-self/net/if_inet6")).unwrap();
    assert_eq!(root.ipv6(), Ipv6::NotInKernel);
    // What cannot be looked at is no lack.
    fs::remove_dir_all(root.proc.join("thread-self/net")).unwrap();
    write(&root.proc, "thread-self/net", "");
    write(&root.proc, "sys/net/ipv6/conf/all/disable_ipv6", "0\n");
    assert_eq!(root.ipv6(), Ipv6::Available);
}

#[test]
fn trying_whether_sysctls_can_be_set_sets_none() {
    let (_folder, root) = mk_proc("0");
    assert_eq!(root.sysctls_writable(), Ok(()));
    let sysctl = root.proc.join("sys/net/ipv4/ip_forward");
    assert_eq!(fs::read_to_string(&sysctl).unwrap(), "0\n");
    fs::remove_file(sysctl).unwrap();
    assert!(root.sysctls_writable().unwrap_err().contains("ip_forward"));
}

#[test]
fn what_the_attempts_answer_are_the_facts() {
    let (_folder, root) = mk_proc("1000");
    let mut asked = Vec::new();
    let scheduler = SchedulerName::new("wlc").unwrap();
    let of_ipvs = IpvsAttempts {
        scheduler: &scheduler,
        try_scheduler: &mut |scheduler| Err(format!("no {scheduler}")),
        try_ipv6: &mut |_| Ok(()),
        unbalanced: &mut Vec::new,
        ipset: &mut || Ok(()),
        dummy: &mut refused,
    };
    let wanted = [mk_sysctl(true)];
    let facts = gather(
        &root,
        &wanted,
        &mut Attempts {
            of_ipvs: Some(of_ipvs),
            iptables: &mut |family| {
                asked.push(family);
                Err(format!("no {family}").into())
            },
        },
    );
    assert_eq!(facts.net_admin, Some(true));
    let of_ipvs = facts.of_ipvs.unwrap();
    assert_eq!((&of_ipvs.ipset, &of_ipvs.dummy), (&Ok(()), &refused()));
    assert_eq!(facts.iptables_v4, Err(format!("no {}", Family::V4).into()));
    assert_eq!(facts.iptables_v6, Some(Err(format!("no {}", Family::V6).into())));
    assert_eq!(asked, Family::BOTH);
    // Whether this host has IPVS depends on the host, and whether its scheduler is asked on that.
    let taken = of_ipvs.ipvs.is_ok().then(|| Err("no wlc".to_owned()));
    assert_eq!(of_ipvs.scheduler_taken, taken);
    assert_eq!(of_ipvs.ipv6_taken, None, "nothing can be tried");
    assert_eq!(facts.sysctls.is_some(), of_ipvs.ipvs.is_ok());
}

#[test]
fn without_ipvs_only_iptables_is_tried() {
    let (_folder, root) = mk_proc("1000");
    let wanted = [Sysctl::new("net/ipv4/ip_forward", 1, true, "of a test")];
    let mut attempts = Attempts { of_ipvs: None, iptables: &mut |_| Ok(()) };
    let facts = gather(&root, &wanted, &mut attempts);
    assert_eq!(facts.of_ipvs, None);
    assert_eq!(facts.sysctls.as_deref(), Some(&wanted[..]), "ip_forward is 0");
    assert!(judge(&facts).is_usable());
}

#[test]
fn a_distribution_that_leaves_modules_out_is_named_with_the_package_that_has_them() {
    let mut facts = mk_facts();
    (facts.iptables_v4, facts.net_raw) = (refused(), Some(false));
    of_ipvs(&mut facts).ipset = refused();
    let advised = |facts: &Facts| {
        let problems = judge(facts).problems;
        let named = problems.iter().filter(|it| it.remedy.contains("kernel-modules-extra"));
        (named.count(), problems.len())
    };
    assert_eq!(advised(&facts), (0, 3));
    facts.kernel_release = "6.12.0-211.26.1.el10_2.aarch64".to_owned();
    assert_eq!(advised(&facts), (2, 3), "a capability is in no package");
}

#[test]
fn a_family_that_could_not_be_tried_keeps_the_host_from_being_ready() {
    let mk = |is_momentary| {
        let words = "Another app is currently holding the xtables lock".to_owned();
        let refused = Some(Err(ProbeError { words, is_momentary }));
        judge(&Facts { iptables_v6: refused, ..mk_facts() })
    };
    let momentary = mk(true);
    assert!(momentary.are_momentary() && !momentary.is_usable());
    assert!(momentary.fatal()[0].contains("IPv6") && momentary.fatal()[0].contains("xtables lock"));
    assert_eq!(momentary.dropped_families(), [""; 0]);
    let lacking = mk(false);
    assert!(!lacking.are_momentary() && lacking.is_usable());
    assert_eq!(lacking.families, V4);
    assert!(lacking.dropped_families()[0].contains("IPv6 is not served"));
    // What the kernel does not have is not dropped.
    let without = Facts { ipv6: Ipv6::NotInKernel, iptables_v6: None, ..mk_facts() };
    assert_eq!(judge(&without).dropped_families(), [""; 0]);
}

#[test]
fn a_family_that_an_operator_switched_off_is_nothing_that_is_missing() {
    let mut facts = mk_facts();
    facts.iptables_v6 = None;
    for (ipv6, is_chosen) in [(Ipv6::SwitchedOff, true), (Ipv6::NotInKernel, true)] {
        facts.ipv6 = ipv6;
        let problems = judge(&facts).problems;
        assert_eq!((problems.len(), problems[0].is_chosen), (1, is_chosen), "{problems:?}");
    }
    (facts.ipv6, facts.iptables_v6) = (Ipv6::Available, Some(refused()));
    assert!(!judge(&facts).problems[0].is_chosen);
}
