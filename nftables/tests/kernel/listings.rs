//! Listings, also while others change what is listed.

use std::sync::atomic::{AtomicBool, Ordering};

use nftables::{Batch, Element, Policy, TableFlags};

use super::sandbox::{Sandbox, frontend, name, of_frontends, table};

/// A table with a set of this many frontends.
fn fill(client: &mut nftables::Client, number: u32) {
    let mut batch = Batch::new();
    batch.create_table(&table(), TableFlags::empty());
    batch.create_set(&table(), &name("set"), of_frontends());
    client.commit(batch).unwrap();
    let elements: Vec<Element> = (0..number).map(frontend).collect();
    for some in elements.chunks(5_000) {
        let mut batch = Batch::new();
        for message in some.chunks(2_500) {
            batch.add_elements(&table(), &name("set"), message);
        }
        assert!(batch.byte_len() < client.longest_batch());
        client.commit(batch).unwrap();
    }
}

#[test]
fn all_elements_are_listed_and_some_looked_up() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    fill(&mut client, 20_000);
    let mut listed = client.list_elements(&table(), &name("set")).unwrap();
    listed.sort();
    assert_eq!(listed, (0..20_000).map(frontend).collect::<Vec<_>>());
    let keys = [frontend(1).key, frontend(30_000).key, frontend(19_999).key];
    let found = client.contains(&table(), &name("set"), &keys).unwrap();
    assert_eq!(found, [true, false, true]);
    assert!(client.contains(&table(), &name("set"), &[]).unwrap().is_empty());
}

#[test]
fn a_listing_with_a_change_in_its_middle_is_not_returned() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    fill(&mut client, 20_000);
    let mut other = sandbox.client();
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 20_000;
            while !is_over.load(Ordering::Relaxed) {
                let mut batch = Batch::new();
                batch.add_elements(&table(), &name("set"), &[frontend(number)]);
                other.commit(batch).unwrap();
                let mut batch = Batch::new();
                batch.delete_elements(&table(), &name("set"), &[frontend(number)].map(|it| it.key));
                other.commit(batch).unwrap();
                number += 1;
                has_begun.store(true, Ordering::Relaxed);
            }
        });
        while !has_begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // One that nothing came between is whole.
        let disturbed =
            (0..1_000).find_map(|_| match client.list_elements(&table(), &name("set")) {
                Ok(listed) if [20_000, 20_001].contains(&listed.len()) => None,
                Ok(listed) => Some(format!("{} elements", listed.len())),
                Err(error) => Some(error.to_string()),
            });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(
            disturbed.as_deref(),
            Some(
                "list elements of set set of table ip zz: changes disturbed the listing in each of 8 tries"
            )
        );
    });
    assert_eq!(client.list_elements(&table(), &name("set")).unwrap().len(), 20_000);
}

#[test]
fn what_nft_made_is_listed() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    sandbox.nft(
        "table inet firewall {
            set allowed { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 } }
            map verdicts { type inet_service : verdict; elements = { 22 : accept } }
            chain input {
                type filter hook input priority 10; policy drop;
                counter log prefix \"seen\"
                tcp dport vmap @verdicts
                tcp dport { 80, 443 } accept
                ip saddr @allowed accept
            }
            chain ingress { }
        }",
    );
    let tables = client.list_tables().unwrap();
    assert_eq!(tables.len(), 1);
    let chains = client.list_chains().unwrap();
    let base = chains.iter().find_map(|chain| chain.base).unwrap();
    assert_eq!((base.priority, base.policy), (10, Policy::Drop));
    let rules = client.list_rules(&tables[0].id, None).unwrap();
    assert_eq!(rules.len(), 4);
    let sets = client.list_sets(&tables[0].id).unwrap();
    assert!(sets.iter().any(|set| &set.name == "verdicts" && set.spec.value.is_some()), "{sets:?}");
    let elements = client.list_elements(&tables[0].id, &name("verdicts")).unwrap();
    assert_eq!(elements.len(), 1);
}

#[test]
fn a_lacking_table_or_set_is_not_found() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let error = client.table(&table()).unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "read table ip zz: No such file or directory (os error 2)");
    assert!(client.list_elements(&table(), &name("set")).unwrap_err().is_not_found());
    assert!(
        client.contains(&table(), &name("set"), &[frontend(1).key]).is_ok_and(|it| it == [false])
    );
}
