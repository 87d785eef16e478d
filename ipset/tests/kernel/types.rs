//! Every type, family and option, written here and read by the tool, and the other way round.

use std::collections::BTreeMap;

use ipset::{Batch, Client, Counters, EntryOptions, Family, Mark, SetOptions, SetSpec, SetType};

use super::sandbox::{Sandbox, entry, name};

/// Each type in each of its families, with entries.
const SETS: [(SetType, Family, &[&str]); 9] = [
    (SetType::HashIp, Family::Ipv4, &["10.0.0.1", "255.255.255.255"]),
    (SetType::HashIp, Family::Ipv6, &["fd00::1", "fe80::ffff"]),
    (
        SetType::HashIpPort,
        Family::Ipv4,
        &["10.0.0.1,tcp:80", "10.0.0.1,udp:80", "10.0.0.1,sctp:80", "10.0.0.1,udplite:65535"],
    ),
    (SetType::HashIpPort, Family::Ipv6, &["fd00::1,tcp:80", "fd00::1,sctp:0", "fd00::2,udp:53"]),
    (
        SetType::HashIpPortIp,
        Family::Ipv4,
        &["10.0.0.1,tcp:80,10.0.0.1", "10.0.0.1,sctp:80,10.0.0.2", "10.0.0.1,udp:80,10.0.0.1"],
    ),
    (
        SetType::HashIpPortIp,
        Family::Ipv6,
        &["fd00::1,tcp:80,fd00::1", "fd00::1,sctp:80,fd00::1", "fd00::1,udp:80,fd00::2"],
    ),
    (
        SetType::HashIpPortNet,
        Family::Ipv4,
        &[
            "10.0.0.1,tcp:80,10.1.0.0/16",
            "10.0.0.1,sctp:80,10.1.2.3/32",
            "10.0.0.1,udp:8,8.0.0.0/5",
        ],
    ),
    (
        SetType::HashIpPortNet,
        Family::Ipv6,
        &["fd00::1,tcp:80,fd00::/8", "fd00::1,sctp:80,fd00::2/128", "fd00::1,udp:8,8000::/1"],
    ),
    (SetType::BitmapPort, Family::Unspecified, &["0", "30000", "65535"]),
];

fn options(words: &str) -> SetOptions {
    let has = |word| words.split(' ').any(|w| w == word);
    let options = SetOptions::default()
        .with_counters(has("counters"))
        .with_comment(has("comment"))
        .with_skbinfo(has("skbinfo"))
        .with_force_add(has("forceadd"));
    if has("timeout") { options.with_timeout(600) } else { options }
}

/// Returns all that can be attached to an entry of such a set.
fn attached(options: &SetOptions) -> EntryOptions {
    let mut attached = EntryOptions::default();
    attached.timeout = options.timeout.map(|_| 0);
    attached.counters = options.counters.then_some(Counters { packets: 7, bytes: u64::MAX >> 1 });
    attached.comment = options.comment.then(|| "a remark".to_owned());
    attached.mark = options.skbinfo.then_some(Mark { value: 0xab, mask: 0xff00_00ff });
    attached.priority = options.skbinfo.then_some(0x0001_0002);
    attached.queue = options.skbinfo.then_some(9);
    attached
}

#[test]
fn the_tool_reads_what_is_written_in_every_type_family_and_option() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    for (set_type, family, entries) in SETS {
        for words in ["", "timeout", "counters", "comment", "skbinfo", "forceadd", ALL] {
            let mut spec = SetSpec::new(set_type, family);
            spec.options = options(words);
            spec.options.force_add &= set_type != SetType::BitmapPort;
            write_and_read(&sandbox, &mut client, &spec, entries);
        }
    }
}

/// Creates a set, fills it, reads it with the tool and with the library, and takes it down.
fn write_and_read(sandbox: &Sandbox, client: &mut Client, spec: &SetSpec, entries: &[&str]) {
    let (set, attached) = (name("T"), attached(&spec.options));
    let mut batch = Batch::strict();
    batch.create(set, spec.clone());
    for text in entries {
        batch.add_with(set, entry(text), attached.clone());
    }
    for result in client.send(&batch).unwrap() {
        result.unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
    // The tool leaves out the prefix length of a single address.
    let shown = |text: &&str| {
        let text = text.strip_suffix("/32").or(text.strip_suffix("/128")).unwrap_or(text);
        format!("{text}{attached}")
    };
    let mut wanted: Vec<String> = entries.iter().map(shown).collect();
    wanted.sort();
    assert_eq!(sandbox.saved("T"), wanted, "{spec}");
    // The tool takes forceadd, but version 7.17 does not print it.
    let printed = spec.options.clone().with_force_add(false);
    let created = sandbox.ipset("save T");
    assert!(created.lines().next().unwrap().contains(&printed.to_string()), "{spec}: {created}");

    let listed = client.list(set).unwrap();
    let identity = listed.header.identity;
    assert_eq!((identity.set_type, identity.family), (spec.set_type, spec.family), "{spec}");
    assert_eq!(client.identity(set).unwrap(), identity);
    let attached = (!attached.is_empty()).then_some(attached);
    let wanted: BTreeMap<_, _> =
        entries.iter().map(|text| (entry(text), attached.clone())).collect();
    let read: BTreeMap<_, _> =
        listed.entries.into_iter().map(|line| (line.entry, line.options.map(|o| *o))).collect();
    assert_eq!(read, wanted, "{spec}");
    // Sizes and range are the kernel's choice here.
    let mut read = listed.header.options;
    (read.hash_size, read.max_elements, read.ports) = (None, None, None);
    assert_eq!(read, spec.options, "{spec}");

    for text in entries {
        assert!(client.test(set, entry(text)).unwrap(), "{spec}: {text}");
        client.delete(set, entry(text)).unwrap();
        assert!(!client.test(set, entry(text)).unwrap(), "{spec}: {text}");
    }
    assert_eq!(sandbox.saved("T").len(), 0, "{spec}");
    client.destroy(set).unwrap();
}

const ALL: &str = "timeout counters comment skbinfo forceadd";

#[test]
fn what_the_tool_writes_is_read_in_every_type_and_family() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    for (set_type, family, entries) in SETS {
        let (family_words, flags) = match family {
            Family::Unspecified => {
                ("range 0-65535".to_owned(), "timeout 600 counters comment skbinfo")
            }
            family => (format!("family {family}"), "timeout 600 counters comment skbinfo forceadd"),
        };
        let attached_words = attached(&options(ALL));
        let mut lines = format!("create T {set_type} {family_words} {flags}\n");
        for text in entries {
            lines += &format!("add T {text}{attached_words}\n");
        }
        sandbox.restore(&lines);
        let listed = client.list(name("T")).unwrap();
        let mut read: Vec<(String, EntryOptions)> = (listed.entries.into_iter())
            .map(|line| (line.entry.to_string(), *line.options.unwrap()))
            .collect();
        read.sort_by(|one, other| one.0.cmp(&other.0));
        let mut wanted: Vec<(String, EntryOptions)> =
            entries.iter().map(|text| ((*text).to_owned(), attached(&options(ALL)))).collect();
        wanted.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(read, wanted, "{set_type} {family}");
        assert_eq!(listed.header.options.timeout, Some(600));
        client.destroy(name("T")).unwrap();
    }
}

#[test]
fn a_set_has_the_oldest_revision_that_will_do() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    for (set_type, words, wanted) in [
        (SetType::HashIp, "", 0),
        (SetType::HashIp, "timeout", 0),
        (SetType::HashIp, "skbinfo", 4),
        (SetType::HashIpPort, "", 1),
        (SetType::HashIpPort, "counters", 2),
        (SetType::HashIpPort, "comment", 3),
        (SetType::HashIpPort, "forceadd", 4),
        (SetType::HashIpPort, "skbinfo", 5),
        (SetType::HashIpPortIp, "", 1),
        (SetType::HashIpPortIp, "skbinfo", 5),
        (SetType::HashIpPortNet, "", 1),
        (SetType::HashIpPortNet, "skbinfo", 7),
        (SetType::BitmapPort, "", 0),
        (SetType::BitmapPort, "skbinfo", 3),
    ] {
        let bitmap = set_type == SetType::BitmapPort;
        let family = if bitmap { Family::Unspecified } else { Family::Ipv6 };
        let kernel = client.revisions(set_type, family).unwrap();
        assert!(kernel.min <= wanted && wanted <= kernel.max, "{set_type}: {kernel:?}");
        let spec = SetSpec::new(set_type, family).with_options(options(words));
        client.create(name("T"), spec).unwrap();
        assert_eq!(client.identity(name("T")).unwrap().revision, wanted, "{set_type} {words}");
        let shown = sandbox.ipset("list -t T");
        assert!(shown.contains(&format!("Revision: {wanted}\n")), "{set_type} {words}: {shown}");
        client.destroy(name("T")).unwrap();
    }
}

#[test]
fn sizes_netmask_and_range_are_as_asked_for() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let options =
        SetOptions::default().with_hash_size(4_096).with_max_elements(1_000_000).with_netmask(24);
    let spec = SetSpec::new(SetType::HashIp, Family::Ipv4).with_options(options);
    client.create(name("A"), spec.clone()).unwrap();
    client.add(name("A"), entry("10.0.0.77")).unwrap();
    assert_eq!(sandbox.saved("A"), ["10.0.0.0"]);
    let create = sandbox.ipset("save A");
    let wanted = "create A hash:ip family inet hashsize 4096 maxelem 1000000 netmask 24\n";
    assert!(create.starts_with(wanted), "{create}");
    assert_eq!(client.header(name("A")).unwrap().options, spec.options);

    let mut spec = SetSpec::new(SetType::BitmapPort, Family::Unspecified);
    spec.options.ports = Some(30_000..=32_767);
    client.create(name("P"), spec.clone()).unwrap();
    assert_eq!(sandbox.ipset("save P"), "create P bitmap:port range 30000-32767\n");
    assert_eq!(client.header(name("P")).unwrap().options, spec.options);
    assert!(client.add(name("P"), entry("29999")).unwrap_err().is_out_of_range());
}

#[test]
fn a_set_takes_only_what_it_was_created_for() {
    let sandbox = Sandbox::new();
    sandbox.ipset("create A hash:ip");
    let mut client = sandbox.client();
    let everything = attached(&options(ALL));
    let only = |attach: &dyn Fn(&mut EntryOptions)| {
        let mut options = EntryOptions::default();
        attach(&mut options);
        options
    };
    for (options, words) in [
        (only(&|options| options.timeout = everything.timeout), "without timeout"),
        (only(&|options| options.counters = everything.counters), "without counters"),
        (only(&|options| options.comment = everything.comment.clone()), "without comment"),
        (only(&|options| options.mark = everything.mark), "without skbinfo"),
    ] {
        let error = client.add_with(name("A"), entry("10.0.0.1"), options).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(sandbox.saved("A").len(), 0);
}
