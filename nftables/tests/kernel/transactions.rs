//! Transactions: all of one or nothing, and which change was refused.

use nftables::{
    BaseChain, Batch, ChainType, Change, Data, DataType, Element, Expression, Family, Field, Hook,
    NatFlags, NatKind, Operator, PayloadBase, Register, Reject, SetSpec, TableFlags, TableId,
    Verdict,
};
use nftables::{ConntrackKey, MetaKey};

use super::sandbox::{Sandbox, frontend, name, of_frontends, table};

/// A table with a set of frontends, `set`.
fn table_with_set() -> Batch {
    let mut batch = Batch::new();
    batch.create_table(&table(), TableFlags::empty());
    batch.create_set(&table(), &name("set"), of_frontends());
    batch
}

fn at(number: u8) -> Register {
    Register::at(number)
}

/// Loads address, protocol and port of the destination.
fn destination() -> [Expression; 3] {
    [
        Expression::Payload { base: PayloadBase::Network, offset: 16, length: 4, to: at(0) },
        Expression::Meta { key: MetaKey::TransportProtocol, to: at(1) },
        Expression::Payload { base: PayloadBase::Transport, offset: 2, length: 2, to: at(2) },
    ]
}

fn looked_up(set: &str) -> Expression {
    Expression::Lookup { set: name(set), from: at(0), is_inverted: false, value_to: None }
}

/// A rule for each expression that the library writes, but for flow tables.
fn rules() -> Vec<Vec<Expression>> {
    let [address, ..] = destination();
    let identity = Expression::Nat {
        kind: NatKind::Destination,
        family: Family::Ipv4,
        addresses: Some((at(0), at(0))),
        ports: None,
        flags: NatFlags::empty(),
    };
    let mark = |mask: u32, xor: u32| {
        vec![
            Expression::Meta { key: MetaKey::Mark, to: at(0) },
            Expression::Bitwise {
                from: at(0),
                to: at(0),
                mask: Data::mark(mask),
                xor: Data::mark(xor),
            },
        ]
    };
    let set_mark = Expression::SetMeta { key: MetaKey::Mark, from: at(0) };
    let tcp = [
        Expression::Meta { key: MetaKey::TransportProtocol, to: at(0) },
        Expression::Compare {
            from: at(0),
            operator: Operator::Equal,
            value: Data::default().with_protocol(6),
        },
    ];
    let is_dnat = [
        Expression::Conntrack { key: ConntrackKey::Status, to: at(0) },
        Expression::Bitwise { from: at(0), to: at(0), mask: Data::mark(0x20), xor: Data::mark(0) },
        Expression::Compare { from: at(0), operator: Operator::NotEqual, value: Data::mark(0) },
    ];
    let shadow = Expression::Lookup {
        set: name("shadows"),
        from: at(0),
        is_inverted: false,
        value_to: Some(at(0)),
    };
    let outside = Expression::Lookup {
        set: name("addresses"),
        from: at(0),
        is_inverted: true,
        value_to: None,
    };
    vec![
        [&destination()[..], &[looked_up("set"), Expression::Verdict(Verdict::GoTo(name("own")))]]
            .concat(),
        vec![address.clone(), outside, Expression::Verdict(Verdict::Return)],
        [mark(!0x4000, 0x4000), vec![set_mark, address.clone(), identity.clone()]].concat(),
        [&destination()[..], &[shadow, identity]].concat(),
        [&tcp[..], &[Expression::Reject(Reject::TcpReset)]].concat(),
        [&is_dnat[..], &[Expression::Verdict(Verdict::Accept)]].concat(),
        vec![Expression::Reject(Reject::IcmpUnreachable(3))],
    ]
}

fn table_with_rules() -> Batch {
    let mut batch = table_with_set();
    let table = table();
    let address = DataType::new(&[Field::Ipv4Address]);
    batch.create_set(&table, &name("addresses"), SetSpec::set(address));
    batch.create_set(&table, &name("shadows"), SetSpec::map(of_frontends().key, address));
    let base = BaseChain::new(ChainType::Nat, Hook::PreRouting, -110);
    batch.create_chain(&table, &name("own"));
    batch.create_base_chain(&table, &name("prerouting"), base);
    for rule in rules() {
        batch.append_rule(&table, &name("prerouting"), &rule);
    }
    let masquerade = Expression::Masquerade { flags: NatFlags::FULLY_RANDOM };
    let base = BaseChain::new(ChainType::Nat, Hook::PostRouting, 90);
    batch.create_base_chain(&table, &name("postrouting"), base);
    batch.append_rule(&table, &name("postrouting"), &[masquerade]);
    batch
}

#[test]
fn what_is_written_is_listed_by_nft_and_read_back() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    client.commit(table_with_rules()).unwrap();
    let mut elements = Batch::new();
    elements.add_elements(&table(), &name("set"), &[frontend(1)]);
    let shadow = Data::default().with_address([240, 0, 0, 1].into());
    let mapped = Element::with_value(frontend(1).key, shadow);
    elements.add_elements(&table(), &name("shadows"), std::slice::from_ref(&mapped));
    client.commit(elements).unwrap();

    let listed = sandbox.nft("list table ip zz");
    let lines: Vec<&str> = listed.lines().map(str::trim).collect();
    for line in [
        "type ipv4_addr . inet_proto . inet_service",
        "elements = { 10.0.0.1 . tcp . 80 }",
        "elements = { 10.0.0.1 . tcp . 80 : 240.0.0.1 }",
        "type nat hook prerouting priority -110; policy accept;",
        "ip daddr . meta l4proto . th dport @set goto own",
        "ip daddr != @addresses return",
        "meta mark set meta mark | 0x00004000 dnat to ip daddr",
        "dnat to ip daddr . meta l4proto . th dport map @shadows",
        "reject with tcp reset",
        "ct status dnat accept",
        "reject",
        "masquerade fully-random",
    ] {
        assert!(lines.contains(&line), "{line}\n{listed}");
    }
    let chain = name("prerouting");
    let read = client.list_rules(&table(), Some(&chain)).unwrap();
    let read: Vec<_> = read.into_iter().map(|rule| rule.expressions).collect();
    assert_eq!(read, rules());
    assert_eq!(client.list_elements(&table(), &name("shadows")).unwrap(), [mapped]);
}

#[test]
fn a_refused_transaction_names_each_refused_change_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let mut batch = table_with_set();
    batch.delete_chain(&table(), &name("lacking"));
    batch.add_elements(&table(), &name("set"), &[frontend(1)]);
    batch.delete_elements(&table(), &name("set"), &[frontend(2).key]);
    let error = client.commit(batch).unwrap_err();
    let refused: Vec<_> = error.refusals().iter().map(|it| (it.place, it.errno)).collect();
    assert_eq!(refused, [(Some(2), 2), (Some(4), 2)]);
    assert!(error.is_not_found());
    assert_eq!(
        error.to_string(),
        "delete chain lacking of table ip zz: No such file or directory (os error 2) \
         (and 1 more changes of the transaction)"
    );
    assert!(client.list_tables().unwrap().is_empty());
}

#[test]
fn thousands_of_refusals_are_one_error() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    client.commit(table_with_set()).unwrap();
    let mut batch = Batch::new();
    for number in 0..2_500 {
        batch.delete_elements(&table(), &name("set"), &[frontend(number).key]);
    }
    assert!(batch.byte_len() < client.longest_batch());
    let error = client.commit(batch).unwrap_err();
    assert_eq!(error.refusals().len(), 2_500);
    // The socket is in order for what comes next.
    let mut batch = Batch::new();
    batch.add_elements(&table(), &name("set"), &[frontend(1)]);
    client.commit(batch).unwrap();
    assert_eq!(client.list_elements(&table(), &name("set")).unwrap(), [frontend(1)]);
}

#[test]
fn a_batch_that_is_too_long_is_not_sent() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let mut batch = table_with_set();
    while batch.byte_len() <= client.longest_batch() {
        let elements: Vec<Element> = (0..1_000).map(frontend).collect();
        batch.add_elements(&table(), &name("set"), &elements);
    }
    let error = client.commit(batch).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(90), "EMSGSIZE: {error}");
    assert!(client.list_tables().unwrap().is_empty());
}

#[test]
fn a_check_finds_what_is_missing_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let generation = client.generation().unwrap();
    client.check(&table_with_rules()).unwrap();
    let mut lacking = table_with_set();
    lacking.append_rule(&table(), &name("nowhere"), &rules()[0]);
    assert!(client.check(&lacking).unwrap_err().is_not_found());
    assert!(client.list_tables().unwrap().is_empty());
    assert_eq!(client.generation().unwrap().id, generation.id);
}

#[test]
fn an_element_that_is_there_is_success_and_one_of_another_value_is_not() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    client.commit(table_with_rules()).unwrap();
    let mapped = |last| {
        let shadow = Data::default().with_address([240, 0, 0, last].into());
        let mut batch = Batch::new();
        let element = Element::with_value(frontend(1).key, shadow);
        batch.add_elements(&table(), &name("shadows"), &[element]);
        batch
    };
    client.commit(mapped(1)).unwrap();
    let generation = client.generation().unwrap();
    client.commit(mapped(1)).unwrap();
    assert!(client.commit(mapped(2)).unwrap_err().is_exists());
    assert_eq!(client.generation().unwrap().id, generation.id, "nothing changed");
}

#[test]
fn a_batch_of_a_generation_that_is_over_is_refused() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    let generation = client.generation().unwrap();
    sandbox.nft("add table ip other");
    let mut batch = Batch::of_generation(generation.id);
    batch.create_table(&table(), TableFlags::empty());
    let error = client.commit(batch).unwrap_err();
    assert!(error.is_generation_over());
    assert_eq!(error.refusals()[0].place, None);
    let mut batch = Batch::of_generation(client.generation().unwrap().id);
    batch.create_table(&table(), TableFlags::empty());
    client.commit(batch).unwrap();
}

#[test]
fn changes_of_others_are_told_with_their_program() {
    let sandbox = Sandbox::new();
    let mut listener = sandbox.client();
    listener.listen().unwrap();
    sandbox.nft("add table ip6 other");
    let (mut tables, mut programs) = (Vec::new(), Vec::new());
    while programs.is_empty() {
        listener
            .changes(|change| match change {
                Change::Object(table) => tables.extend(table),
                Change::Generation(generation) => programs.push(generation.program),
                _ => panic!("{change:?}"),
            })
            .unwrap();
    }
    assert_eq!(tables, [TableId::new(Family::Ipv6, name("other"))]);
    assert_eq!(programs, ["nft"]);
}

#[test]
fn rules_and_sets_are_deleted() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.client();
    client.commit(table_with_rules()).unwrap();
    let (table, chain) = (table(), name("prerouting"));
    let busy = |client: &mut nftables::Client| {
        let mut batch = Batch::new();
        batch.delete_set(&table, &name("shadows"));
        client.commit(batch)
    };
    assert!(busy(&mut client).unwrap_err().is_busy());
    let rules = client.list_rules(&table, Some(&chain)).unwrap();
    let mut batch = Batch::new();
    batch.delete_rule(&table, &chain, rules[3].handle);
    client.commit(batch).unwrap();
    busy(&mut client).unwrap();
    assert_eq!(client.list_rules(&table, Some(&chain)).unwrap().len(), rules.len() - 1);
    let mut batch = Batch::new();
    batch.flush_chain(&table, &chain);
    batch.delete_chain(&table, &chain);
    batch.delete_set(&table, &name("set"));
    client.commit(batch).unwrap();
    assert_eq!(client.list_chains().unwrap().len(), 2);
    assert_eq!(client.list_sets(&table).unwrap().len(), 1);
    let mut batch = Batch::new();
    batch.delete_table(&table);
    client.commit(batch).unwrap();
    assert_eq!(sandbox.nft("list ruleset"), "");
}
