use super::*;
use crate::uapi::err;

fn refused(attempt: Attempt, errno: i32) -> Error {
    Error::new(attempt, netlink::Refusal::new(errno).into())
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn add(entry: &str) -> Attempt {
    Attempt::Add(name("S"), entry.parse().unwrap())
}

#[test]
fn one_number_means_different_things_by_type() {
    let full = refused(add("10.0.0.1"), 4352);
    assert!(full.is_set_full() && !full.is_out_of_range());
    assert_eq!(
        full.to_string(),
        "add 10.0.0.1 to set S: the set is full (maxelem): it needs a larger one, swapped into \
         its place"
    );
    let outside = refused(add("80"), 4352);
    assert!(outside.is_out_of_range() && !outside.is_set_full());
    assert_eq!(
        outside.to_string(),
        "add 80 to set S: it is outside of the range that the set was created for"
    );
}

#[test]
fn the_second_name_exists_or_does_not() {
    let rename = refused(Attempt::Rename(name("A"), name("B")), err::EXIST_SETNAME2);
    assert!(rename.is_exists() && !rename.is_no_such_set() && !rename.is_not_found());
    assert_eq!(rename.to_string(), "rename set A to B: a set with the new name exists");
    let swap = refused(Attempt::Swap(name("A"), name("B")), err::EXIST_SETNAME2);
    assert!(swap.is_no_such_set() && swap.is_not_found() && !swap.is_exists());
    assert_eq!(swap.to_string(), "swap sets A and B: the second set does not exist");
}

#[test]
fn every_number_has_words() {
    for errno in (err::PROTOCOL..=err::SKBINFO).chain(err::HASH_FULL..=err::HASH_RANGE) {
        let text = refused(add("10.0.0.1"), errno).to_string();
        assert!(!text.contains("os error"), "{errno}: {text}");
    }
    for errno in [err::BITMAP_RANGE, err::BITMAP_RANGE_SIZE] {
        let text = refused(add("80"), errno).to_string();
        assert!(!text.contains("os error"), "{errno}: {text}");
    }
    let text = refused(add("80"), 4400).to_string();
    assert!(text.contains("4400"), "{text}");
}

#[test]
fn predicates_tell_errors_apart() {
    let destroy = |errno| refused(Attempt::Destroy(Some(name("S"))), errno);
    assert!(destroy(2).is_no_such_set());
    assert!(destroy(err::BUSY).is_busy() && destroy(err::REFERENCED).is_busy());
    assert!(destroy(16).is_busy());
    assert!(destroy(1).is_permission());
    assert!(destroy(err::FIND_TYPE).is_unknown_type());
    assert!(destroy(err::TYPE_MISMATCH).is_type_mismatch());
    let added = refused(add("1"), err::EXIST);
    assert!(added.is_exists() && !added.is_not_found() && !added.is_no_such_set());
    let entry = "1".parse().unwrap();
    let deleted = refused(Attempt::Delete(name("S"), entry), err::EXIST);
    assert!(deleted.is_not_found() && !deleted.is_exists() && !deleted.is_no_such_set());
    assert!(destroy(17).is_exists() && !destroy(17).is_not_found());
    assert!(destroy(2).is_not_found() && !destroy(2).is_exists());
    assert!(!destroy(22).is_unsupported());
    let open = refused(Attempt::Open, 22);
    assert!(open.is_unsupported());
    assert!(open.to_string().starts_with("open ipset: the kernel has no ipset"), "{open}");
    let open = Error::protocol(8, 9);
    assert!(open.is_unsupported());
    assert_eq!(
        open.to_string(),
        "open ipset: the kernel speaks ipset protocol 8 to 9, and this library 6 to 7"
    );
}
