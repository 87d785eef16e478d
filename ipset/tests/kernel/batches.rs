//! Many changes at once, and what becomes of those that the kernel refuses.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipset::{Batch, Client, Entry, EntryOptions, Error, Family, Name, Protocol, SetSpec, SetType};

use super::sandbox::{Sandbox, entry, listed, name};

/// The `index`-th of different entries for `hash:ip,port`.
fn nth(index: u32) -> Entry {
    let address = Ipv4Addr::from_bits(0x0a00_0001 + index / 100).into();
    let port = u16::try_from(index % 100).unwrap() + 1;
    Entry::IpPort { address, protocol: Protocol::TCP, port }
}

fn create(client: &mut Client, set: Name, max_elements: u32) {
    let mut spec = SetSpec::new(SetType::HashIpPort, Family::Ipv4);
    spec.options.max_elements = Some(max_elements);
    client.create(set, spec).unwrap();
}

fn refused(results: &[Result<(), Error>]) -> Vec<usize> {
    let refused = results.iter().enumerate().filter(|(_, result)| result.is_err());
    refused.map(|(index, _)| index).collect()
}

#[test]
fn each_of_ten_thousand_entries_has_its_own_result() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let set = name("A");
    create(&mut client, set, 65_536);
    // The first and last of a message, neighbours, and some in the middle.
    let present: Vec<usize> = vec![0, 1, 500, 999, 1000, 1001, 5_000, 5_001, 7_777, 9_999];
    let mut before = Batch::strict();
    for index in &present {
        before.add(set, nth(u32::try_from(*index).unwrap()));
    }
    assert!(client.send(&before).unwrap().iter().all(Result::is_ok));

    let mut batch = Batch::strict();
    for index in 0..10_000 {
        batch.add(set, nth(index));
    }
    let results = client.send(&batch).unwrap();
    assert_eq!(refused(&results), present);
    for index in &present {
        let error = results[*index].as_ref().unwrap_err();
        assert!(error.is_exists());
        let text = nth(u32::try_from(*index).unwrap()).to_string();
        assert_eq!(error.to_string(), format!("add {text} to set A: it is in the set"));
    }
    let wanted: BTreeSet<String> = (0..10_000).map(|index| nth(index).to_string()).collect();
    assert_eq!(listed(&mut client, "A").into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(sandbox.saved("A").into_iter().collect::<BTreeSet<_>>(), wanted);

    let mut batch = Batch::strict();
    for index in 0..10_001 {
        batch.delete(set, nth(index));
    }
    assert_eq!(refused(&client.send(&batch).unwrap()), [10_000]);
    assert_eq!(client.header(set).unwrap().elements, Some(0));
}

#[test]
fn the_outcome_is_what_counts_unless_the_batch_is_strict() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let set = name("A");
    create(&mut client, set, 65_536);
    let mut batch = Batch::new();
    for index in (0..3_000).chain(0..3_000) {
        batch.add(set, nth(index));
    }
    for index in 1_000..4_000 {
        batch.delete(set, nth(index));
    }
    assert_eq!(refused(&client.send(&batch).unwrap()), [0; 0]);
    assert_eq!(sandbox.saved("A").len(), 1_000);
}

#[test]
fn many_entries_go_in_few_messages() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let set = name("A");
    create(&mut client, set, 65_536);
    let mut batch = Batch::new();
    for index in 0..10_000 {
        batch.add(set, nth(index));
    }
    let before = client.traffic();
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    assert_eq!(client.traffic().requests - before.requests, 10);
    // Few entries for several sets in turn share a send.
    create(&mut client, name("B"), 65_536);
    let mut batch = Batch::new();
    for index in 0..200 {
        batch.add(set, nth(20_000 + index));
        batch.add(name("B"), nth(index));
    }
    let before = client.traffic();
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    assert_eq!(client.traffic().sends - before.sends, 1);
}

#[test]
fn a_full_set_refuses_what_is_too_much_and_nothing_else() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    create(&mut client, name("A"), 1_024);
    create(&mut client, name("B"), 65_536);
    let mut batch = Batch::new();
    for index in 0..5_000 {
        batch.add(name("A"), nth(index));
    }
    let elsewhere = batch.add(name("B"), nth(1));
    let deleted = batch.delete(name("A"), nth(0));
    let results = client.send(&batch).unwrap();
    assert!(results[elsewhere].is_ok() && results[deleted].is_ok());
    let refused = refused(&results);
    assert!(!refused.is_empty());
    for index in &refused {
        let error = results[*index].as_ref().unwrap_err();
        assert!(error.is_set_full(), "{error}");
    }
    let mut wanted: Vec<String> = (0..5_000_usize)
        .filter(|index| refused.binary_search(index).is_err() && *index != 0)
        .map(|index| nth(u32::try_from(index).unwrap()).to_string())
        .collect();
    wanted.sort();
    assert_eq!(listed(&mut client, "A"), wanted, "what is not refused is there");
    assert!(wanted.len() <= 1_024);

    // The way out: a larger set, filled, and exchanged.
    let mut batch = Batch::strict();
    let mut larger = SetSpec::new(SetType::HashIpPort, Family::Ipv4);
    larger.options.max_elements = Some(8_192);
    batch.create(name("NEW"), larger);
    for index in 0..5_000 {
        batch.add(name("NEW"), nth(index));
    }
    batch.swap(name("A"), name("NEW"));
    batch.destroy(name("NEW"));
    assert_eq!(self::refused(&client.send(&batch).unwrap()), [0; 0]);
    assert_eq!(sandbox.saved("A").len(), 5_000);
    assert!(sandbox.ipset("list -t A").contains("maxelem 8192"));
    assert!(client.identity(name("NEW")).unwrap_err().is_no_such_set());
}

#[test]
fn changes_to_a_set_keep_their_order_past_a_refusal() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let [a, b] = ["A", "B"].map(name);
    create(&mut client, a, 65_536);
    create(&mut client, b, 65_536);
    client.add(a, nth(2)).unwrap();
    let mut batch = Batch::strict();
    for index in 0..100 {
        // 2 is refused, so all behind it are sent a second time.
        batch.add(a, nth(index));
    }
    batch.delete(a, nth(50));
    batch.swap(a, b);
    for index in 200..300 {
        batch.add(a, nth(index));
    }
    batch.flush_all();
    batch.add(b, nth(400));
    batch.swap(a, b);
    let results = client.send(&batch).unwrap();
    assert_eq!(refused(&results), [2]);
    assert_eq!(listed(&mut client, "A"), [nth(400).to_string()]);
    assert_eq!(listed(&mut client, "B"), [""; 0]);

    client.flush_all().unwrap();
    client.add(a, nth(0)).unwrap();
    let mut batch = Batch::strict();
    for index in 0..100 {
        batch.add(a, nth(index));
    }
    for index in 50..100 {
        batch.delete(a, nth(index));
    }
    assert_eq!(refused(&client.send(&batch).unwrap()), [0]);
    assert_eq!(sandbox.saved("A").len(), 50);
}

#[test]
fn a_set_that_is_missing_or_of_another_type_refuses_each_entry() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    sandbox.ipset("create A hash:ip");
    let mut batch = Batch::new();
    for index in 0..100 {
        batch.add(name("X"), nth(index));
    }
    for port in 0..100 {
        batch.add(name("A"), Entry::Port(port));
    }
    let good = batch.add(name("A"), entry("10.0.0.1"));
    let results = client.send(&batch).unwrap();
    assert_eq!(refused(&results).len(), 200);
    assert!(results[..100].iter().all(|r| r.as_ref().is_err_and(Error::is_no_such_set)));
    assert_eq!(
        results[142].as_ref().unwrap_err().to_string(),
        "add 42 to set A: it does not fit the set's type or family"
    );
    assert!(results[good].is_ok());
}

#[test]
fn a_remark_that_is_too_long_harms_only_its_entry() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    sandbox.ipset("create A hash:ip comment");
    let remark = |length| EntryOptions::default().with_comment("x".repeat(length));
    let mut batch = Batch::new();
    for index in 0..600_u32 {
        let length = if [0, 300, 599].contains(&index) { 256 } else { 255 };
        let address = Ipv4Addr::from_bits(0x0a00_0001 + index).into();
        batch.add_with(name("A"), Entry::Ip(address), remark(length));
    }
    let results = client.send(&batch).unwrap();
    assert_eq!(refused(&results), [0, 300, 599]);
    let error = results[0].as_ref().unwrap_err().to_string();
    assert_eq!(error, "add 10.0.0.1 to set A: its comment is longer than 255 bytes");
    assert_eq!(sandbox.saved("A").len(), 597);
}

#[test]
fn the_largest_entries_fit() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let set = name("A");
    sandbox.ipset("create A hash:ip,port,ip family inet6 counters comment skbinfo timeout 0");
    let mut batch = Batch::strict();
    let options = EntryOptions::default()
        .with_timeout(1_000)
        .with_counters(ipset::Counters { packets: 1, bytes: 2 })
        .with_comment("y".repeat(255))
        .with_mark(ipset::Mark { value: 3, mask: 4 })
        .with_priority(5)
        .with_queue(6);
    for port in 1..=2_000 {
        let address = entry("fd00::1,tcp:1,fd00::2");
        let Entry::IpPortIp { address, protocol, second, .. } = address else { panic!() };
        batch.add_with(set, Entry::IpPortIp { address, protocol, port, second }, options.clone());
    }
    assert_eq!(refused(&client.send(&batch).unwrap()), [0; 0]);
    let listing = client.list(set).unwrap();
    assert_eq!(listing.entries.len(), 2_000);
    for line in &listing.entries {
        let listed = line.options.as_deref().unwrap();
        let left = listed.timeout.unwrap();
        assert!((900..=1_000).contains(&left), "{listed:?}");
        assert_eq!(*listed, options.clone().with_timeout(left));
    }
}

#[test]
fn a_hundred_thousand_entries_are_listed() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let set = name("A");
    create(&mut client, set, 200_000);
    let mut batch = Batch::strict();
    for index in 0..100_000 {
        batch.add(set, nth(index));
    }
    assert_eq!(refused(&client.send(&batch).unwrap()), [0; 0]);
    let listing = client.list(set).unwrap();
    assert_eq!(listing.header.elements, Some(100_000));
    let entries: BTreeSet<Entry> = listing.entries.iter().map(|line| line.entry).collect();
    assert!(entries.iter().copied().eq((0..100_000).map(nth)), "each once, and no other");
    assert_eq!(listing.entries.len(), 100_000);
}

#[test]
fn without_the_capability_nothing_is_done() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    create(&mut client, name("A"), 100);
    let full = capabilities(None).unwrap();
    let mut less = full;
    less.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, less).unwrap();
    let error = client.add(name("A"), nth(1)).unwrap_err();
    let opened = Client::open();
    set_capabilities(None, full).unwrap();
    assert!(error.is_permission(), "{error}");
    let opened = opened.unwrap_err();
    assert!(opened.is_permission() && !opened.is_unsupported(), "{opened}");
    assert_eq!(sandbox.saved("A"), [""; 0]);
}
