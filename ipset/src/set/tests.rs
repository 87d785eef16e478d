use super::*;

fn options(words: &str) -> SetOptions {
    let has = |word| words.split(' ').any(|w| w == word);
    SetOptions {
        counters: has("counters"),
        comment: has("comment"),
        skbinfo: has("skbinfo"),
        force_add: has("forceadd"),
        ..SetOptions::default()
    }
}

#[test]
fn the_oldest_revision_that_will_do() {
    use SetType::{BitmapPort, HashIp, HashIpPort, HashIpPortIp, HashIpPortNet};
    for (set_type, words, wanted) in [
        (HashIp, "", Some(0)),
        (HashIp, "counters", Some(1)),
        (HashIp, "comment counters", Some(2)),
        (HashIp, "forceadd", Some(3)),
        (HashIp, "skbinfo", Some(4)),
        (HashIpPort, "", Some(1)),
        (HashIpPort, "forceadd", Some(4)),
        (HashIpPort, "skbinfo counters", Some(5)),
        (HashIpPortIp, "comment", Some(3)),
        (HashIpPortNet, "", Some(1)),
        (HashIpPortNet, "counters", Some(4)),
        (HashIpPortNet, "forceadd", Some(6)),
        (HashIpPortNet, "skbinfo", Some(7)),
        (BitmapPort, "", Some(0)),
        (BitmapPort, "skbinfo", Some(3)),
        (BitmapPort, "forceadd", None),
        (SetType::Other(Name::new("hash:mac").unwrap()), "", None),
    ] {
        assert_eq!(set_type.revision_for(&options(words)), wanted, "{set_type} {words}");
    }
}

#[test]
fn a_type_is_known_by_its_name() {
    for set_type in SetType::ALL {
        assert_eq!(SetType::from_name(Name::new(set_type.as_bytes()).unwrap()), *set_type);
    }
    let other = Name::new("list:set").unwrap();
    assert_eq!(SetType::from_name(other), SetType::Other(other));
}

#[test]
fn a_set_that_cannot_be_is_refused() {
    let mut spec = SetSpec::new(SetType::BitmapPort, Family::Unspecified);
    spec.options.ports = Some(1..=9);
    assert_eq!(spec.contradiction(), None);
    assert_eq!(spec.to_string(), "bitmap:port range 1-9");
    spec.family = Family::Ipv4;
    assert!(spec.contradiction().is_some());
    let mut spec = SetSpec::new(SetType::HashIpPort, Family::Ipv4);
    assert_eq!(spec.contradiction(), None);
    spec.options.netmask = Some(24);
    assert_eq!(spec.contradiction(), Some("only hash:ip has a netmask"));
    spec.set_type = SetType::HashIp;
    assert_eq!(spec.contradiction(), None);
    spec.options.ports = Some(1..=9);
    assert!(spec.contradiction().is_some());
}
