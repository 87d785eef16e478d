//! Sets looked at without their entries.

use std::time::Instant;

use ipset::{Batch, Entry, Family, Name, Protocol, SetOptions, SetSpec, SetType};

use super::sandbox::{Sandbox, name};

const N_SETS: u32 = 32;

/// Sets `S0`, `S1`, … for at least a thousand entries, the last of which has `entries`.
fn filled(sandbox: &Sandbox, entries: u32) -> Vec<Name> {
    let names: Vec<Name> = (0..N_SETS).map(|index| name(&format!("S{index}"))).collect();
    let options = SetOptions::default().with_max_elements(entries.max(1_024));
    let spec = SetSpec::new(SetType::HashIpPort, Family::Ipv4).with_options(options);
    let mut batch = Batch::new();
    for set in &names {
        batch.create(*set, spec.clone());
    }
    for number in 0..entries {
        let address = std::net::Ipv4Addr::from(0x0a60_0000 + number).into();
        let entry = Entry::IpPort { address, protocol: Protocol::TCP, port: 80 };
        batch.add(*names.last().unwrap(), entry);
    }
    let results = sandbox.client().send(&batch).unwrap();
    assert!(results.iter().all(Result::is_ok));
    names
}

#[test]
fn headers_tell_entries_capacity_buckets_and_references() {
    let sandbox = Sandbox::new();
    // Of 1,024 buckets, one must have more than the 12 entries at which a set grows. With five
    // entries a bucket, chance decides that; with twenty it is certain.
    let names = filled(&sandbox, 20_000);
    sandbox.ipset("add S0 10.0.0.1,tcp:80");
    sandbox.ipset("create L list:set");
    sandbox.ipset("add L S1");
    let mut client = sandbox.client();
    let headers = client.list_headers().unwrap();
    let of = |set: Name| headers.iter().find(|header| header.identity.name == set).unwrap();
    assert_eq!(of(names[0]).elements, Some(1));
    assert_eq!((of(names[1]).elements, of(names[1]).references), (Some(0), 1));
    let last = of(*names.last().unwrap());
    assert_eq!(last.elements, Some(20_000));
    assert_eq!(last.options.max_elements, Some(20_000));
    assert!(last.options.hash_size > Some(1_024), "it has grown: {:?}", last.options.hash_size);

    sandbox.ipset("flush S31");
    assert_eq!(client.header(*names.last().unwrap()).unwrap().elements, Some(0));
}

#[test]
fn one_listing_of_all_headers_is_a_datagram_a_set() {
    let sandbox = Sandbox::new();
    for entries in [0, 60_000] {
        let names = filled(&sandbox, entries);
        let mut client = sandbox.client();
        let before = client.traffic();
        let begin = Instant::now();
        let headers = client.list_headers().unwrap();
        let together = begin.elapsed();
        let traffic = client.traffic();
        assert_eq!(headers.len(), names.len());
        assert_eq!(traffic.requests - before.requests, 1);
        assert!(traffic.receives - before.receives <= u64::from(N_SETS) + 2, "{traffic:?}");

        let begin = Instant::now();
        for set in names {
            client.header(set).unwrap();
        }
        println!(
            "{entries} entries: headers of {N_SETS} sets {together:?} in {} datagrams, \
             one by one {:?}",
            traffic.receives - before.receives,
            begin.elapsed()
        );
        sandbox.ipset("destroy");
    }
}
