//! On a real kernel.

use std::thread;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// nfnetlink refuses every request of a thread without it (`nfnetlink_rcv` in net/netfilter/nfnetlink.c).
#[test]
fn without_the_capability_for_networks_the_chains_of_input_are_an_obstacle() {
    let without = thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        in_input(&Settings::new("node1"), [])
    });
    let found = without.join().unwrap();
    let [Obstacle { what, .. }] = &found[..] else { panic!("{found:?}") };
    assert!(
        what.contains("cannot read the nftables chains") && what.contains("not permitted"),
        "{what}"
    );
    assert_eq!(in_input(&Settings::new("node1"), []), []);
}
