//! Every command, its success and its refusals.

use ipset::{Batch, Entry, Family, SetSpec, SetType};

use super::sandbox::{Sandbox, entry, listed, name};

fn hash_ip() -> SetSpec {
    SetSpec::new(SetType::HashIp, Family::Ipv4)
}

#[test]
fn a_protocol_is_agreed_on() {
    let client = Sandbox::new().client();
    assert!((6..=7).contains(&client.protocol()));
}

#[test]
fn a_set_is_created_once() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    client.create(name("A"), hash_ip()).unwrap();
    assert!(sandbox.ipset("list -n").contains('A'));
    let error = client.create(name("A"), hash_ip()).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert!(error.to_string().starts_with("create set A of type hash:ip: "), "{error}");
    let mut batch = Batch::new();
    batch.create(name("A"), hash_ip());
    client.send(&batch).unwrap().remove(0).unwrap();
}

#[test]
fn a_set_with_other_options_is_in_the_way() {
    let sandbox = Sandbox::new();
    sandbox.ipset("create A hash:ip timeout 7");
    sandbox.ipset("create B hash:ip,port");
    sandbox.ipset("create C hash:ip,port family inet6");
    let mut batch = Batch::new();
    batch.create(name("A"), hash_ip());
    batch.create(name("B"), hash_ip());
    batch.create(name("C"), SetSpec::new(SetType::HashIpPort, Family::Ipv4));
    let mut client = sandbox.client();
    let results = client.send(&batch).unwrap();
    for result in &results[..2] {
        assert!(result.as_ref().is_err_and(ipset::Error::is_exists), "{result:?}");
    }
    // The kernel takes a set of another family for the same: a client has to check the family.
    assert!(results[2].is_ok());
    assert_eq!(client.identity(name("C")).unwrap().family, Family::Ipv6);
}

#[test]
fn what_the_kernel_does_not_have_is_said() {
    let mut client = Sandbox::new().client();
    let unknown = SetType::from_name(name("hash:nothing"));
    let error = client.revisions(unknown, Family::Ipv4).unwrap_err();
    assert!(error.is_unknown_type(), "{error}");
    let error = client.create(name("A"), SetSpec::new(unknown, Family::Ipv4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "create set A of type hash:nothing: this library creates no sets of that type"
    );
}

#[test]
fn a_set_is_destroyed_when_nothing_refers_to_it() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let error = client.destroy(name("A")).unwrap_err();
    assert!(error.is_no_such_set(), "{error}");
    assert_eq!(error.to_string(), "destroy set A: there is no such set");
    sandbox.restore("create A hash:ip\ncreate L list:set\nadd L A\n");
    assert!(client.destroy(name("A")).unwrap_err().is_busy());
    assert!(client.destroy_all().unwrap_err().is_busy());
    assert_eq!(client.header(name("A")).unwrap().references, 1);
    client.destroy(name("L")).unwrap();
    // The reference is dropped a moment after the list is gone.
    let mut tries = 0;
    while let Err(error) = client.destroy(name("A")) {
        assert!(error.is_busy() && tries < 100, "{error}");
        tries += 1;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(client.list_names().unwrap().is_empty());
    let mut batch = Batch::new();
    batch.destroy(name("A"));
    assert!(client.send(&batch).unwrap()[0].is_ok(), "what is to be gone is gone");
}

#[test]
fn all_sets_are_destroyed() {
    let sandbox = Sandbox::new();
    sandbox.restore("create A hash:ip\ncreate B hash:ip\n");
    sandbox.client().destroy_all().unwrap();
    assert_eq!(sandbox.ipset("list -n"), "");
}

#[test]
fn a_set_is_renamed_unless_the_name_is_taken() {
    let sandbox = Sandbox::new();
    sandbox.restore("create A hash:ip\ncreate B hash:ip\nadd A 10.0.0.1\n");
    let mut client = sandbox.client();
    let error = client.rename(name("A"), name("B")).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert!(client.rename(name("X"), name("Y")).unwrap_err().is_no_such_set());
    client.rename(name("A"), name("C")).unwrap();
    assert_eq!(sandbox.saved("C"), ["10.0.0.1"]);
    assert!(sandbox.try_ipset("list A").is_err());
}

#[test]
fn two_sets_are_swapped() {
    let sandbox = Sandbox::new();
    sandbox.restore("create A hash:ip\ncreate B hash:ip\ncreate C hash:ip,port\nadd A 10.0.0.1\n");
    let mut client = sandbox.client();
    client.swap(name("A"), name("B")).unwrap();
    assert_eq!(sandbox.saved("A"), [""; 0]);
    assert_eq!(sandbox.saved("B"), ["10.0.0.1"]);
    assert!(client.swap(name("A"), name("C")).unwrap_err().is_type_mismatch());
    assert!(client.swap(name("A"), name("X")).unwrap_err().is_no_such_set());
    assert!(client.swap(name("X"), name("A")).unwrap_err().is_no_such_set());
}

#[test]
fn sets_are_flushed() {
    let sandbox = Sandbox::new();
    sandbox.restore("create A hash:ip\nadd A 10.0.0.1\ncreate B bitmap:port range 0-9\nadd B 1\n");
    let mut client = sandbox.client();
    client.flush(name("A")).unwrap();
    assert_eq!((sandbox.saved("A").len(), sandbox.saved("B").len()), (0, 1));
    client.flush_all().unwrap();
    assert_eq!(sandbox.saved("B").len(), 0);
    assert!(client.flush(name("X")).unwrap_err().is_no_such_set());
}

#[test]
fn an_entry_is_added_tested_and_deleted() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let (set, ip) = (name("A"), entry("10.0.0.1"));
    assert!(client.add(set, ip).unwrap_err().is_no_such_set());
    assert!(client.test(set, ip).unwrap_err().is_no_such_set());
    client.create(set, hash_ip()).unwrap();
    assert!(!client.test(set, ip).unwrap());
    client.add(set, ip).unwrap();
    assert!(client.test(set, ip).unwrap());
    sandbox.ipset("test A 10.0.0.1");
    let error = client.add(set, ip).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert_eq!(error.to_string(), "add 10.0.0.1 to set A: it is in the set");
    client.delete(set, ip).unwrap();
    assert!(!client.test(set, ip).unwrap());
    let error = client.delete(set, ip).unwrap_err();
    assert!(error.is_not_found() && !error.is_exists(), "{error}");
    assert_eq!(error.to_string(), "delete 10.0.0.1 from set A: it is not in the set");
    let mut batch = Batch::new();
    for _ in 0..2 {
        batch.add(set, ip);
        batch.delete(set, ip);
        batch.delete(set, ip);
    }
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
}

#[test]
fn an_entry_that_does_not_belong_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.restore("create A hash:ip\ncreate P bitmap:port range 10-20\n");
    let mut client = sandbox.client();
    let error = client.add(name("A"), entry("fd00::1")).unwrap_err();
    assert_eq!(error.to_string(), "add fd00::1 to set A: it does not fit the set's type or family");
    let error = client.add(name("A"), entry("10.0.0.1,tcp:80")).unwrap_err();
    assert!(error.to_string().contains("does not fit the set's type"), "{error}");
    let error = client.add(name("P"), Entry::Port(21)).unwrap_err();
    assert!(error.is_out_of_range() && !error.is_set_full(), "{error}");
    assert!(client.add(name("A"), Entry::Port(21)).is_err());
}

#[test]
fn sets_are_listed_by_name_by_header_and_whole() {
    let sandbox = Sandbox::new();
    sandbox.restore(
        "create A hash:ip family inet hashsize 64 maxelem 7 timeout 9 counters comment\n\
         add A 10.0.0.1 timeout 5 comment hello\n\
         create B bitmap:port range 5-9\nadd B 6\nadd B 7\n\
         create L list:set\nadd L A\nadd L B\n\
         create N hash:net family inet6\nadd N fd00::/8\n",
    );
    let mut client = sandbox.client();
    assert_eq!(client.list_names().unwrap(), ["A", "B", "N", "L"].map(name));
    let headers = client.list_headers().unwrap();
    assert_eq!(headers.len(), 4);
    let a = client.header(name("A")).unwrap();
    assert_eq!(headers[0], a);
    assert_eq!((a.identity.set_type, a.identity.family), (SetType::HashIp, Family::Ipv4));
    assert_eq!(a.options.to_string(), " hashsize 64 maxelem 7 timeout 9 counters comment");
    assert_eq!((a.references, a.elements), (1, Some(1)));
    assert!(a.memory > 0);
    let b = client.list(name("B")).unwrap();
    assert_eq!(b.header.options.ports, Some(5..=9));
    assert_eq!(listed(&mut client, "B"), ["6", "7"]);
    let all = client.list_all().unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!((all[0].entries.len(), all[0].undecoded), (1, 0));
    // Networks and sets of sets have other entries: counted, not shown.
    assert_eq!((all[2].entries.len(), all[2].undecoded), (0, 1));
    assert_eq!((all[3].entries.len(), all[3].undecoded), (0, 2));
    assert_eq!(all[3].header.identity.set_type.to_string(), "list:set");
    assert!(client.list(name("X")).unwrap_err().is_no_such_set());
    assert!(client.identity(name("X")).unwrap_err().is_no_such_set());
    let identity = client.identity(name("N")).unwrap();
    assert_eq!(
        (identity.set_type.to_string().as_str(), identity.family),
        ("hash:net", Family::Ipv6)
    );
}

#[test]
fn a_rule_holds_a_set_and_a_swap_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.restore(
        "create A hash:ip\ncreate B hash:ip\ncreate L list:set\nadd L A\nadd B 10.0.0.9\n",
    );
    let mut client = sandbox.client();
    assert!(client.rename(name("A"), name("Z")).unwrap_err().is_busy());
    client.swap(name("A"), name("B")).unwrap();
    assert_eq!(listed(&mut client, "A"), ["10.0.0.9"]);
    assert_eq!(
        client.header(name("A")).unwrap().references,
        1,
        "the reference stays with the name"
    );
}
