#[cfg(feature = "kernel-tests")]
mod kernel;

use plan::capacity::Capacity;

use super::*;

#[test]
fn what_takes_a_sets_place_has_a_name_of_its_own() {
    let sets: Vec<SetId> = Family::BOTH.into_iter().flat_map(SetId::all).collect();
    let mut names: Vec<Name> = sets.iter().map(|set| beside(*set).unwrap()).collect();
    assert!(names.iter().all(|name| SetId::by_name(&name.to_string()).is_none()));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), sets.len());
}

#[test]
fn a_set_has_a_bucket_for_each_entry_that_is_expected() {
    for (expected, capacity, buckets) in [
        (0, 65_536, 1_024),
        (1_025, 65_536, 2_048),
        (57_344, 65_536, 65_536),
        (57_345, 131_072, 65_536),
        (1 << 20, 1 << 21, 1 << 20),
        (usize::MAX, 1 << 31, 1 << 31),
        (20, 16, 1_024),
    ] {
        let size = SetSize { capacity: Capacity::new(capacity), expected };
        assert_eq!(hash_size(size), buckets, "{expected} of {capacity}");
    }
}
