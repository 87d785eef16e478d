//! The codec against what the ipset tool and four kernels said to each other; the recipe is in
//! tests/captures/README.md.

use netlink::{MessageWriter, attributes};

use super::*;
use crate::entry::{Counters, Entry, EntryOptions, Mark};
use crate::name::Name;
use crate::set::{Family, Revisions, SetOptions, SetSpec, SetType};
use crate::uapi::{attr, cmd, err, flag};

const REQUESTS: &str = include_str!("../../tests/captures/requests.hex");
const ANSWERS: [(&str, &str); 4] = [
    ("5.10", include_str!("../../tests/captures/answers-5.10.hex")),
    ("6.1", include_str!("../../tests/captures/answers-6.1.hex")),
    ("6.12", include_str!("../../tests/captures/answers-6.12.hex")),
    ("6.18", include_str!("../../tests/captures/answers-6.18.hex")),
];
/// `struct nlmsghdr` in bytes.
const MESSAGE_HEADER: usize = 16;

/// One command of the tool, and what came of it.
#[derive(Debug, Default)]
struct Section<'a> {
    command: &'a str,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    printed: Vec<&'a str>,
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for line in text.lines() {
        let (mark, rest) = line.split_at(2);
        if mark == "# " {
            let command = rest.strip_prefix("ipset ").unwrap();
            sections.push(Section { command, ..Section::default() });
            continue;
        }
        let section = sections.last_mut().unwrap();
        match mark {
            "> " => section.sent.push(bytes(rest)),
            "< " => section.received.push(bytes(rest)),
            "= " => section.printed.push(rest),
            _ => panic!("{line}"),
        }
    }
    sections
}

fn section<'a>(sections: &'a [Section<'a>], command: &str) -> &'a Section<'a> {
    sections.iter().find(|section| section.command == command).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len() % 2, 0);
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The messages of one command: the datagrams may hold several.
fn bodies(datagrams: &[Vec<u8>], command: u8) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    for datagram in datagrams {
        let mut rest = datagram.as_slice();
        while rest.len() >= MESSAGE_HEADER {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            if u16::from_ne_bytes(rest[4..6].try_into().unwrap()) == message_type(command) {
                bodies.push(rest[MESSAGE_HEADER..length].to_vec());
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
    bodies
}

/// The attributes as text, so that a difference can be read. They are sorted, since their order
/// means nothing, and line numbers are left out: the tool numbers an entry that goes by itself,
/// too.
fn shown(bytes: &[u8]) -> String {
    let mut all = Vec::new();
    let mut rest = bytes;
    while let [l0, l1, k0, k1, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]);
        let value = &rest[4..length];
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        if kind & 0x3fff == attr::LINENO {
            continue;
        }
        let value = if kind & 0x8000 != 0 {
            format!("[{}]", shown(value))
        } else {
            format!("{value:02x?}")
        };
        all.push((kind & 0x3fff, format!("{kind:#x}={value}")));
    }
    // Entries in one message keep their order.
    all.sort_by_key(|(kind, _)| *kind);
    all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
}

fn written(write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut batch = netlink::Batch::new();
    batch.push(0, 0, write);
    batch.body(0).unwrap().to_vec()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Reads the words after `create NAME`.
fn spec(words: &[&str]) -> SetSpec {
    let set_type = SetType::from_name(name(words[0]));
    let after = |word| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
    let number = |word| after(word).map(|text| text.parse().unwrap());
    let family = match after("family") {
        Some("inet") => Family::Ipv4,
        Some("inet6") => Family::Ipv6,
        _ => Family::Unspecified,
    };
    let ports = after("range").map(|range| {
        let (first, last) = range.split_once('-').unwrap();
        first.parse().unwrap()..=last.parse().unwrap()
    });
    let options = SetOptions {
        hash_size: number("hashsize"),
        max_elements: number("maxelem"),
        netmask: after("netmask").map(|text| text.parse().unwrap()),
        ports,
        timeout: number("timeout"),
        counters: words.contains(&"counters"),
        comment: words.contains(&"comment"),
        skbinfo: words.contains(&"skbinfo"),
        force_add: words.contains(&"forceadd"),
    };
    SetSpec { set_type, family, options }
}

/// Reads the words after `add NAME ENTRY`; only those that the captures have.
fn entry_options(words: &[&str]) -> EntryOptions {
    match words {
        [] => EntryOptions::default(),
        ["timeout", "5"] => EntryOptions { timeout: Some(5), ..EntryOptions::default() },
        ["timeout", "0", "packets", "7", "bytes", "8", "comment", "remark", ..] => EntryOptions {
            timeout: Some(0),
            counters: Some(Counters { packets: 7, bytes: 8 }),
            comment: Some("remark".to_owned()),
            mark: Some(Mark { value: 0xab, mask: 0xff00_00ff }),
            priority: Some(0x0001_0002),
            queue: Some(9),
        },
        _ => panic!("{words:?}"),
    }
}

/// Encodes a command of the tool as this library sends it: the command's number, and the body.
fn request(words: &[&str], revision: u8) -> (u8, Vec<u8>) {
    let optional = |at: usize| words.get(at).map(|text| name(text));
    let lines = |add: fn(&mut MessageWriter<'_>, Name, &Entry, &EntryOptions)| {
        let (set, entry) = (name(words[1]), words[2].parse().unwrap());
        let options = entry_options(&words[3..]);
        written(|message| add(message, set, &entry, &options))
    };
    let entries = |message: &mut MessageWriter<'_>, set, entry: &Entry, options: &EntryOptions| {
        let attached = [(70, options.clone())];
        let entries = [*entry];
        let lines = Lines { set, entries: &entries, options: &attached, first: 70 };
        assert_eq!(super::entries(message, 7, &lines), 1);
    };
    match words[0] {
        "create" => {
            let spec = spec(&words[2..]);
            (cmd::CREATE, written(|m| create(m, 7, name(words[1]), (&spec, revision))))
        }
        "add" => (cmd::ADD, lines(entries)),
        "del" => (cmd::DEL, lines(entries)),
        "test" => (cmd::TEST, lines(|message, set, entry, _| test(message, 7, set, entry))),
        "list" if words.get(1) == Some(&"-t") => {
            (cmd::LIST, written(|m| list(m, 7, optional(2), flag::LIST_HEADER)))
        }
        "list" if words.get(1) == Some(&"-n") => {
            (cmd::LIST, written(|m| list(m, 7, None, flag::LIST_SETNAME)))
        }
        "list" => (cmd::LIST, written(|m| list(m, 7, optional(1), 0))),
        "rename" => (cmd::RENAME, written(|m| two_names(m, 7, name(words[1]), name(words[2])))),
        "swap" => (cmd::SWAP, written(|m| two_names(m, 7, name(words[1]), name(words[2])))),
        "flush" => (cmd::FLUSH, written(|m| one_name(m, 7, optional(1)))),
        "destroy" => (cmd::DESTROY, written(|m| one_name(m, 7, optional(1)))),
        _ => panic!("{words:?}"),
    }
}

#[test]
fn requests_are_written_as_the_tool_writes_them() {
    let sections = sections(REQUESTS);
    assert!(sections.len() > 30);
    for section in sections {
        let theirs = section.sent.last().unwrap();
        let words: Vec<&str> = section.command.split(' ').collect();
        // The tool takes the newest revision; that choice is not the codec's.
        let revision = attributes(&theirs[MESSAGE_HEADER + 4..])
            .map(Result::unwrap)
            .find(|attribute| attribute.kind == attr::REVISION)
            .map_or(0, |attribute| attribute.u8().unwrap());
        let (command, ours) = request(&words, revision);
        assert_eq!(theirs[4..6], message_type(command).to_ne_bytes(), "{}", section.command);
        assert_eq!(theirs[MESSAGE_HEADER..][..4], ours[..4], "{}", section.command);
        let (theirs, ours) = (shown(&theirs[MESSAGE_HEADER + 4..]), shown(&ours[4..]));
        assert_eq!(ours, theirs, "{}", section.command);
    }
}

#[test]
fn questions_are_written_as_the_tool_writes_them() {
    let sections = sections(ANSWERS[3].1);
    let test = section(&sections, "test T5 5");
    let ask = |command| bodies(&test.sent, command).remove(0);
    assert_eq!(ask(cmd::PROTOCOL), written(|message| versions(message, 7)));
    assert_eq!(ask(cmd::HEADER), written(|message| one_name(message, 7, Some(name("T5")))));
    let create = section(&sections, "create T4 hash:ip,port,net family inet");
    let ours = written(|message| revisions_of(message, 7, SetType::HashIpPortNet, 2));
    assert_eq!(bodies(&create.sent, cmd::TYPE), [ours]);
}

#[test]
fn many_entries_are_written_as_the_tool_writes_them() {
    let sections = sections(ANSWERS[3].1);
    let theirs = bodies(&section(&sections, "restore").sent, cmd::ADD).remove(0);
    let entries = [1, 2, 10, 3].map(Entry::Port);
    let lines = Lines { set: name("T5"), entries: &entries, options: &[], first: 0 };
    let ours = written(|message| assert_eq!(super::entries(message, 7, &lines), 4));
    assert_eq!(shown(&ours[4..]), shown(&theirs[4..]));
    let numbers: Vec<u32> = attributes(&ours[4..])
        .map(Result::unwrap)
        .filter(|attribute| attribute.kind == attr::ADT)
        .flat_map(|adt| adt.nested().map(Result::unwrap).collect::<Vec<_>>())
        .map(|line| line.nested().map(Result::unwrap).last().unwrap().u32().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[test]
fn a_message_holds_what_an_attribute_can() {
    let entry: Entry = "fd00::1,tcp:1,fd00::2".parse().unwrap();
    let count = |entries: &[Entry], options: &[(usize, EntryOptions)]| {
        let lines = Lines { set: name("S"), entries, options, first: 0 };
        let mut count = 0;
        let body = written(|message| count = super::entries(message, 7, &lines));
        assert!(attributes(&body[4..]).all(|attribute| attribute.is_ok()));
        assert!(body.len() < 64 << 10);
        count
    };
    assert_eq!(count(&[Entry::Port(1); 5_000], &[]), 1_000);
    let large = count(&[entry; 5_000], &[]);
    assert!((600..900).contains(&large), "{large}");
    let options =
        entry_options(&["timeout", "0", "packets", "7", "bytes", "8", "comment", "remark"]);
    let options = EntryOptions { comment: Some("x".repeat(255)), ..options };
    let attached: Vec<_> = (0..5_000).map(|place| (place, options.clone())).collect();
    let larger = count(&[entry; 5_000], &attached);
    assert!((100..200).contains(&larger), "{larger}");
}

#[test]
fn listings_are_read_to_what_the_tool_prints() {
    for (kernel, answers) in ANSWERS {
        let sections = sections(answers);
        let save = section(&sections, "save");
        let fragments: Vec<Fragment> = bodies(&save.received, cmd::LIST)
            .iter()
            .map(|body| decode_fragment(body).unwrap())
            .collect();
        assert_eq!(fragments.len(), 10, "{kernel}");
        for Fragment { name, header, entries, undecoded } in fragments {
            let header = header.unwrap();
            assert_eq!(header.identity.name, name);
            assert!(header.memory > 0 && header.references == 0, "{kernel} {header:?}");
            let listed = entries.len() + undecoded;
            assert_eq!(header.elements, Some(u32::try_from(listed).unwrap()), "{kernel} {name}");
            let created = format!("create {name} ");
            let theirs = save.printed.iter().find_map(|line| line.strip_prefix(&created)).unwrap();
            let ours = header.spec();
            // Behind it the tool prints what newer revisions have.
            let rest = theirs.strip_prefix(&ours.to_string());
            let rest = rest.unwrap_or_else(|| panic!("{kernel}: {ours} is not {theirs}"));
            assert!(rest.is_empty() || rest.starts_with(" bucketsize"), "{kernel} {name}: {rest}");
            if ours.set_type == SetType::from_name(self::name("hash:net")) {
                assert_eq!((entries.len(), undecoded), (0, 1), "{kernel}");
                continue;
            }
            let added = format!("add {name} ");
            let mut theirs: Vec<String> = (save.printed.iter())
                .filter_map(|line| line.strip_prefix(&added))
                .map(|line| {
                    let (entry, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
                    format!("{}{rest}", Entry::parse_for(ours.set_type, entry).unwrap())
                })
                .collect();
            let mut ours: Vec<String> = (entries.into_iter())
                .map(|line| format!("{}{}", line.entry, line.options.unwrap_or_default()))
                .collect();
            theirs.sort();
            ours.sort();
            assert_eq!(ours, theirs, "{kernel}");
        }
    }
}

#[test]
fn names_alone_are_read() {
    for (kernel, answers) in ANSWERS {
        let sections = sections(answers);
        let list = section(&sections, "list -n");
        let names: Vec<String> = bodies(&list.received, cmd::LIST)
            .iter()
            .map(|body| decode_fragment(body).unwrap())
            .inspect(|fragment| assert_eq!((&fragment.header, fragment.entries.len()), (&None, 0)))
            .map(|fragment| fragment.name.to_string())
            .collect();
        assert_eq!(names, list.printed, "{kernel}");
    }
}

#[test]
fn versions_and_revisions_are_read() {
    for (kernel, answers) in ANSWERS {
        let sections = sections(answers);
        let newest = |command| {
            let section = section(&sections, command);
            let versions = &bodies(&section.received, cmd::PROTOCOL)[0];
            assert_eq!(decode_protocol_versions(versions), Ok((6, 7)), "{kernel}");
            let found = decode_revisions(&bodies(&section.received, cmd::TYPE)[0]).unwrap();
            assert_eq!(found, Revisions { min: 0, max: found.max });
            found.max
        };
        let newest = [
            newest("create T1 hash:ip family inet"),
            newest("create T2 hash:ip,port family inet"),
            newest("create T3 hash:ip,port,ip family inet"),
            newest("create T4 hash:ip,port,net family inet"),
            newest("create T5 bitmap:port range 0-9"),
        ];
        let wanted = match kernel {
            "5.10" => [4, 5, 5, 7, 3],
            "6.1" => [5, 6, 6, 8, 3],
            _ => [6, 7, 6, 8, 3],
        };
        assert_eq!(newest, wanted, "{kernel}");
    }
}

#[test]
fn an_identity_is_read() {
    for (kernel, answers) in ANSWERS {
        let sections = sections(answers);
        let test = section(&sections, "test T5 5");
        let read = decode_identity(&bodies(&test.received, cmd::HEADER)[0]).unwrap();
        assert_eq!(read.name, "T5", "{kernel}");
        assert_eq!(read.set_type, SetType::BitmapPort, "{kernel}");
        assert_eq!((read.revision, read.family), (3, Family::Unspecified), "{kernel}");
    }
}

#[test]
fn the_failing_line_is_read_from_the_request_sent_back() {
    for (kernel, answers) in ANSWERS {
        let sections = sections(answers);
        let refusal = section(&sections, "restore").received.last().unwrap();
        let errno = i32::from_ne_bytes(refusal[16..20].try_into().unwrap());
        assert_eq!(-errno, err::BITMAP_RANGE, "{kernel}");
        assert_eq!(failing_line(&refusal[20..]), Some(3), "{kernel}");
        // A capped answer has no line, nor has one to a request that was not numbered.
        assert_eq!(failing_line(&refusal[20..36]), None);
        let miss = section(&sections, "test T5 5").received.last().unwrap();
        assert_eq!(failing_line(&miss[20..]), None);
    }
}

#[test]
fn nothing_that_is_broken_makes_a_reader_panic() {
    let read = |body: &[u8]| {
        let _ = decode_fragment(body);
        let _ = decode_identity(body);
        let _ = decode_revisions(body);
        let _ = decode_protocol_versions(body);
        let _ = decode_entry(body);
        let _ = failing_line(body);
    };
    for section in ANSWERS.iter().flat_map(|(_, answers)| sections(answers)) {
        for datagram in section.received {
            let body = &datagram[MESSAGE_HEADER..];
            (0..body.len()).for_each(|length| read(&body[..length]));
            for at in 0..body.len() {
                for byte in [0, 1, 0x7f, 0xff, body[at] ^ 1] {
                    let mut broken = body.to_vec();
                    broken[at] = byte;
                    read(&broken);
                }
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    let error = decode_fragment(&[2, 0, 0, 0]).unwrap_err().to_string();
    assert_eq!(error, "ipset message: it has no set name");
    let error = decode_revisions(&[]).unwrap_err().to_string();
    assert_eq!(error, "ipset message: it has no newest revision");
    let body = written(|message| {
        let mut attributes = message.attributes();
        attributes.nested(uapi::data::IP, |_| {});
    });
    assert_eq!(decode_entry(&body).unwrap_err().to_string(), "ipset message: it has no address");
}
