use super::*;
use crate::kernel_objects::Entry;
use crate::model::Family;
use crate::sets::SetKind;

const SET: SetId = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
const OTHER: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };
const PORTS: SetId = SetId { kind: SetKind::NodePortTcp, family: Family::V4 };

fn entry(number: u32) -> Entry {
    Entry::Address(std::net::Ipv4Addr::from_bits(0x0a60_0000 + number).into())
}

fn added(count: u32) -> Vec<Op> {
    (0..count).map(|number| Op::AddEntry(SET, entry(number))).collect()
}

/// A set that holds so many of so many.
fn found(entries: u32, capacity: u32) -> ActualSet {
    let entries = (1 << 16..).take(entries as usize).map(entry);
    ActualSet { capacity: Capacity::new(capacity), ..entries.collect() }
}

/// Returns the growth that these operations need besides.
fn growth(sizes: &SetSizes, ops: &[Op]) -> Vec<String> {
    let mut with_growth = ops.to_vec();
    sizes.insert_growth(&mut with_growth, Capacity::new(u32::MAX));
    assert!(with_growth.is_sorted_by_key(Op::phase));
    let is_growth = |op: &&Op| matches!(op, Op::GrowSet(..));
    let again = {
        let mut again = with_growth.clone();
        sizes.insert_growth(&mut again, Capacity::new(u32::MAX));
        again
    };
    assert_eq!(again, with_growth, "what is large enough needs no more");
    with_growth.iter().filter(is_growth).map(ToString::to_string).collect()
}

#[test]
fn a_set_grows_past_seven_eighths_to_a_power_of_two_that_is_twice_what_it_holds() {
    for (capacity, entries, expected) in [
        (65_536, 0, None),
        (65_536, 57_344, None),
        (65_536, 57_345, Some(131_072)),
        (65_536, 65_536, Some(131_072)),
        (65_536, 65_537, Some(262_144)),
        (65_536, 70_000, Some(262_144)),
        (131_072, 114_688, None),
        (131_072, 114_689, Some(262_144)),
        (8, 7, None),
        (8, 8, Some(16)),
        (10, 9, Some(32)),
        (1, 1, Some(2)),
        (0, 0, None),
        (0, 1, Some(2)),
        (1 << 31, 1 << 31, None),
        (1 << 30, 1 << 31, Some(1 << 31)),
        (1 << 30, usize::MAX / 8, Some(1 << 31)),
        (u32::MAX, usize::MAX / 8, None),
    ] {
        let grown = Capacity::new(capacity).grown_for(entries).map(Capacity::entries);
        assert_eq!(grown, expected, "{capacity} with {entries}");
    }
}

#[test]
fn a_new_set_is_made_for_what_is_known() {
    for (entries, expected) in [(0, 65_536), (57_344, 65_536), (57_345, 131_072), (70_000, 262_144)]
    {
        let size = SetSize::of_new(SET, entries);
        assert_eq!((size.capacity.entries(), size.expected), (expected, entries));
        assert_eq!(SetSize::of_new(PORTS, entries).capacity, Capacity::FIRST);
    }
}

#[test]
fn sets_grow_before_entries_are_added() {
    for (row, set, ops, expected) in [
        ("enough", found(5, 8), added(2), ""),
        ("the last of seven eighths", found(0, 8), added(7), ""),
        ("past it", found(0, 8), added(8), "grow set KUBE-IPVS-IPS to 16 entries"),
        ("what is there counts", found(7, 8), added(1), "grow set KUBE-IPVS-IPS to 16 entries"),
        ("far past it", found(7, 8), added(93), "grow set KUBE-IPVS-IPS to 256 entries"),
        ("nothing is added", found(8, 8), Vec::new(), ""),
        (
            "others count",
            ActualSet { n_unknown: 7, ..found(0, 8) },
            added(1),
            "grow set KUBE-IPVS-IPS to 16 entries",
        ),
        ("found larger", found(70_000, 1 << 20), added(100), ""),
        (
            "what goes is there until then",
            found(7, 8),
            [added(1), vec![Op::RemoveEntry(SET, entry(1 << 16))]].concat(),
            "grow set KUBE-IPVS-IPS to 16 entries",
        ),
    ] {
        let mut sizes = SetSizes::default();
        sizes.found(SET, Some(&set));
        let expected: Vec<&str> = [expected].into_iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(growth(&sizes, &ops), expected, "{row}");
        assert_eq!(
            growth(&SetSizes::of(&[(SET, set)].into_iter().collect()), &ops),
            expected,
            "{row}"
        );
    }
}

#[test]
fn a_set_that_is_made_has_what_it_is_made_with() {
    let mut sizes = SetSizes::default();
    sizes.found(SET, Some(&found(60_000, 65_536)));
    let make = |capacity| SetSize { capacity: Capacity::new(capacity), expected: 0 };
    let ops = |size| [vec![Op::CreateSet(SET, size)], added(60)].concat();
    assert_eq!(growth(&sizes, &ops(make(128))), [""; 0]);
    assert_eq!(growth(&sizes, &ops(make(64))), ["grow set KUBE-IPVS-IPS to 128 entries"]);
    let ports: Vec<Op> =
        (0..=u16::MAX).map(|port| Op::AddEntry(PORTS, Entry::Port(port))).collect();
    assert_eq!(growth(&sizes, &ports), [""; 0], "it has a place for every port");
}

#[test]
fn what_was_carried_out_counts() {
    let mut sizes = SetSizes::default();
    assert_eq!((sizes.capacity(SET), sizes.n_entries(SET)), (Capacity::FIRST, 0));
    sizes.found(SET, Some(&found(3, 8)));
    sizes.found(OTHER, Some(&found(3, 8)));
    for op in added(3) {
        sizes.carried_out(&op);
    }
    sizes.carried_out(&Op::RemoveEntry(SET, entry(0)));
    assert_eq!((sizes.n_entries(SET), sizes.n_entries(OTHER)), (5, 3));
    assert_eq!(growth(&sizes, &added(2)), [""; 0]);
    let grown = SetSize { capacity: Capacity::new(32), expected: 9 };
    sizes.carried_out(&Op::GrowSet(SET, grown));
    assert_eq!((sizes.capacity(SET), sizes.n_entries(SET)), (Capacity::new(32), 5));
    sizes.carried_out(&Op::CreateSet(SET, SetSize { capacity: Capacity::new(64), expected: 0 }));
    assert_eq!((sizes.capacity(SET), sizes.n_entries(SET)), (Capacity::new(64), 0));
    sizes.found(SET, None);
    assert_eq!((sizes.capacity(SET), sizes.n_entries(SET)), (Capacity::FIRST, 0));
}

#[test]
fn no_set_grows_past_the_largest() {
    let mut sizes = SetSizes::default();
    sizes.found(SET, Some(&found(7, 8)));
    let growth = |most| {
        let mut ops = added(20);
        sizes.insert_growth(&mut ops, Capacity::new(most));
        let grown = ops.iter().find(|op| matches!(op, Op::GrowSet(..)));
        grown.map(ToString::to_string)
    };
    assert_eq!(growth(64).unwrap(), "grow set KUBE-IPVS-IPS to 64 entries");
    assert_eq!(growth(16).unwrap(), "grow set KUBE-IPVS-IPS to 16 entries");
    assert_eq!(growth(8), None);
    let size = SetSize::of_new(SET, 1_000_000);
    assert_eq!(size.at_most(Capacity::FIRST).capacity, Capacity::FIRST);
}
