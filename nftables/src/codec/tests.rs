//! The codec against what nft and three kernels said to each other; the recipe is in
//! tests/captures/README.md.

use netlink::attributes;

use super::*;
use crate::batch::Batch;
use crate::data::{DataType, Field};
use crate::expression::{
    Expression, NatFlags, NatKind, PayloadBase, Register, Reject, Rule, Verdict,
};
use crate::object::{BaseChain, ChainType, Element, Hook, Policy, SetSpec, TableFlags};

const REQUESTS: &str = include_str!("../../tests/captures/requests.hex");
const ANSWERS: [(&str, &str); 3] = [
    ("5.10", include_str!("../../tests/captures/answers-5.10.hex")),
    ("6.1", include_str!("../../tests/captures/answers-6.1.hex")),
    ("6.12", include_str!("../../tests/captures/answers-6.12.hex")),
];
/// `struct nlmsghdr` in bytes.
const MESSAGE_HEADER: usize = 16;

/// A message of nf_tables: command and body.
type Message = (u8, Vec<u8>);

fn bytes(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len() % 2, 0);
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The messages of nf_tables in a line of a file.
fn messages(line: &str) -> Vec<Message> {
    let (mut rest, mut messages) = (&bytes(line)[..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(*rest.first_chunk().unwrap()) as usize;
        if u16::from(rest[5]) == uapi::SUBSYSTEM {
            messages.push((rest[4], rest[MESSAGE_HEADER..length].to_vec()));
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    messages
}

/// The command, and the message that carries it out.
fn requests() -> Vec<(&'static str, Message)> {
    let mut lines = REQUESTS.lines();
    let mut requests = Vec::new();
    while let (Some(command), Some(sent)) = (lines.next(), lines.next()) {
        let command = command.strip_prefix("# nft ").unwrap();
        let mut messages = messages(sent.strip_prefix("> ").unwrap());
        assert_eq!(messages.len(), 1, "{command}");
        requests.extend(messages.pop().map(|message| (command, message)));
    }
    assert!(requests.len() > 45, "{}", requests.len());
    requests
}

fn answers(text: &str) -> Vec<Message> {
    text.lines().filter_map(|line| line.strip_prefix("< ")).flat_map(messages).collect()
}

/// The attributes in an order of no meaning, without those that only nft reads: comments and types in user data,
/// numbers of sets.
fn normal(command: u8, body: &[u8]) -> String {
    const USER_DATA_OF_SET: u16 = 13;
    const SET_ID: u16 = 4;
    let mut all: Vec<String> = attributes(&body[HEADER_LENGTH..])
        .map(Result::unwrap)
        .filter(|attribute| match command {
            message::NEWSET => ![USER_DATA_OF_SET, uapi::set::ID].contains(&attribute.kind),
            message::NEWSETELEM => attribute.kind != SET_ID,
            _ => true,
        })
        .map(|attribute| format!("{}: {:02x?}", attribute.kind, attribute.value))
        .collect();
    all.sort();
    format!("{:02x?} {all:#?}", &body[..HEADER_LENGTH])
}

/// Name and attributes of each expression of a rule, without the numbers by which nft also names sets, and without
/// the kind of a bitwise operation, 0, which nft writes in some rules alone.
fn steps(body: &[u8]) -> Vec<String> {
    let unequal = [("lookup", 4), ("bitwise", uapi::expression::bitwise::OPERATION)];
    let find = |bytes, kind| {
        attributes(bytes).map(Result::unwrap).find(|attribute| attribute.kind == kind).unwrap()
    };
    let list = find(&body[HEADER_LENGTH..], uapi::rule::EXPRESSIONS);
    let steps = list.nested().map(|expression| {
        let expression = expression.unwrap().value;
        let name = find(expression, uapi::expression::NAME).string().unwrap();
        let data = find(expression, uapi::expression::DATA).nested().map(Result::unwrap);
        let data: Vec<String> = data
            .filter(|it| !unequal.contains(&(name, it.kind)))
            .map(|attribute| format!("{}: {:02x?}", attribute.kind, attribute.value))
            .collect();
        format!("{name} {data:?}")
    });
    steps.collect()
}

fn of(family: Family) -> TableId {
    TableId::new(family, Name::new("zz").unwrap())
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn changes_are_written_as_nft_writes_them() {
    use Field::{Ipv4Address, Ipv6Address, Port, Protocol};
    let (ip, ip6) = (of(Family::Ipv4), of(Family::Ipv6));
    let key = DataType::new(&[Ipv4Address, Protocol, Port]);
    let frontend =
        Data::default().with_address([10, 96, 0, 10].into()).with_protocol(6).with_port(80);
    let shadow = Data::default().with_address([240, 96, 0, 10].into());
    let pod = [10, 244, 1, 5].into();
    let hairpin =
        Data::default().with_address(pod).with_protocol(6).with_port(8080).with_address(pod);
    let frontend6 =
        Data::default().with_address("fd00:96::a".parse().unwrap()).with_protocol(6).with_port(80);
    let nat = |hook, priority| BaseChain::new(ChainType::Nat, hook, priority);
    let mut written = Batch::new();
    written.create_table(&ip, TableFlags::empty());
    written.create_base_chain(&ip, &name("prerouting"), nat(Hook::PreRouting, -110));
    written.create_base_chain(&ip, &name("output"), nat(Hook::Output, -110));
    written.create_base_chain(&ip, &name("postrouting"), nat(Hook::PostRouting, 90));
    let forward = BaseChain::new(ChainType::Filter, Hook::Forward, 10);
    let forward = BaseChain { policy: Policy::Drop, ..forward };
    written.create_base_chain(&ip, &name("forward"), forward);
    written.create_chain(&ip, &name("cluster"));
    written.create_chain(&ip, &name("cluster-masquerade"));
    written.create_chain(&ip, &name("refuse"));
    written.create_set(&ip, &name("cluster-ips"), SetSpec::set(key));
    written.create_set(&ip, &name("addresses"), SetSpec::set(DataType::new(&[Ipv4Address])));
    written.create_set(&ip, &name("health-ports"), SetSpec::set(DataType::new(&[Port])));
    let with_source = DataType::new(&[Ipv4Address, Protocol, Port, Ipv4Address]);
    written.create_set(&ip, &name("hairpin"), SetSpec::set(with_source));
    let address = DataType::new(&[Ipv4Address]);
    written.create_set(&ip, &name("shadows"), SetSpec::map(key, address));
    written.create_flow_table(&ip, &name("flows"), 0, &["lo"]);
    written.add_elements(&ip, &name("cluster-ips"), &[Element::new(frontend.clone())]);
    let port = Data::default().with_port(30001);
    written.add_elements(&ip, &name("health-ports"), &[Element::new(port)]);
    written.add_elements(&ip, &name("hairpin"), &[Element::new(hairpin)]);
    let mapped = Element::with_value(frontend.clone(), shadow);
    written.add_elements(&ip, &name("shadows"), &[mapped]);
    written.create_table(&ip6, TableFlags::empty());
    written.create_base_chain(&ip6, &name("p"), nat(Hook::PreRouting, -110));
    let key6 = DataType::new(&[Ipv6Address, Protocol, Port]);
    written.create_set(&ip6, &name("cluster-ips"), SetSpec::set(key6));
    written.add_elements(&ip6, &name("cluster-ips"), &[Element::new(frontend6)]);
    written.create_chain(&ip6, &name("r"));
    written.delete_elements(&ip, &name("cluster-ips"), &[frontend]);
    written.flush_set(&ip, &name("cluster-ips"));
    written.flush_chain(&ip, &name("refuse"));
    written.delete_table(&ip6);

    let sent = requests();
    let sent = sent.iter().filter(|(_, (command, _))| *command != message::NEWRULE);
    let mut places = 0..written.len();
    for (command, (kind, body)) in sent {
        let place = places.next().unwrap();
        assert_eq!(written.commands[place], *kind, "{command}");
        let ours = written.wire.body(place + 1).unwrap();
        assert_eq!(normal(*kind, ours), normal(*kind, body), "{command}");
    }
    assert!(places.next().is_none(), "nft has a command for each");
}

#[test]
fn rules_are_written_as_nft_writes_them() {
    let rules = requests().into_iter().filter(|(_, (command, _))| *command == message::NEWRULE);
    let mut n_rules = 0;
    for (command, (kind, body)) in rules {
        let rule = decode_rule(&body).unwrap();
        let is_known = !rule.expressions.iter().any(|it| matches!(it, Expression::Other(_)));
        assert!(is_known, "{command}: {rule:?}");
        let family = Family::from_kernel(body[0]).unwrap();
        let mut batch = Batch::new();
        batch.append_rule(&of(family), &rule.chain, &rule.expressions);
        assert_eq!(steps(batch.wire.body(1).unwrap()), steps(&body), "{command}");
        assert_eq!(batch.commands, [kind]);
        n_rules += 1;
    }
    assert!(n_rules > 20, "{n_rules}");
}

#[test]
fn rules_are_what_nft_was_asked_for() {
    let requests = requests();
    let expressions = |line: &str| {
        let (_, (_, body)) = requests.iter().find(|(command, _)| *command == line).unwrap();
        decode_rule(body).unwrap().expressions
    };
    let daddr = |number| Expression::Payload {
        base: PayloadBase::Network,
        offset: 16,
        length: 4,
        to: Register::at(number),
    };
    let identity = Expression::Nat {
        kind: NatKind::Destination,
        family: Family::Ipv4,
        addresses: Some((Register::at(0), Register::at(0))),
        ports: None,
        flags: NatFlags::empty(),
    };
    assert_eq!(expressions("add rule ip zz cluster dnat to ip daddr"), [daddr(0), identity]);
    let looked_up = expressions(
        "add rule ip zz prerouting ip daddr . meta l4proto . th dport @cluster-ips goto cluster",
    );
    assert_eq!(looked_up[0], daddr(0));
    let lookup = Expression::Lookup {
        set: name("cluster-ips"),
        from: Register::at(0),
        is_inverted: false,
        value_to: None,
    };
    assert_eq!(looked_up[3..], [lookup, Expression::Verdict(Verdict::GoTo(name("cluster")))]);
    let reset = expressions("add rule ip zz refuse meta l4proto tcp reject with tcp reset");
    assert_eq!(reset.last(), Some(&Expression::Reject(Reject::TcpReset)));
    let unreachable = expressions("add rule ip6 zz r reject with icmpv6 port-unreachable");
    assert_eq!(unreachable, [Expression::Reject(Reject::IcmpUnreachable(4))]);
}

/// Rules that nft asked for, in the order of their chains' names.
fn requested_rules() -> Vec<(u8, Name, Vec<Expression>)> {
    let requests = requests().into_iter();
    let rules = requests.filter(|(_, (command, _))| *command == message::NEWRULE);
    let mut rules: Vec<(u8, Name, Vec<Expression>)> = rules
        .map(|(_, (_, body))| {
            let rule = decode_rule(&body).unwrap();
            (body[0], rule.chain, rule.expressions)
        })
        .collect();
    rules.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    rules
}

#[test]
fn answers_are_read_to_what_was_asked_for() {
    for (kernel, text) in ANSWERS {
        let answers = answers(text);
        let of_command = |command| {
            answers.iter().filter(move |(kind, _)| *kind == command).map(|(_, body)| &body[..])
        };
        let mut rules: Vec<(u8, Rule)> = of_command(message::NEWRULE)
            .map(|body| (body[0], decode_rule(body).unwrap()))
            .collect();
        rules.sort_by(|(family, one), (other_family, other)| {
            (family, &one.chain).cmp(&(other_family, &other.chain))
        });
        let listed: Vec<(u8, Name, Vec<Expression>)> = rules
            .iter()
            .map(|(family, rule)| (*family, rule.chain.clone(), rule.expressions.clone()))
            .collect();
        assert_eq!(listed, requested_rules(), "{kernel}");
        assert!(rules.iter().all(|(_, rule)| rule.handle > 0), "{kernel}");

        let chains = of_command(message::NEWCHAIN).map(|body| decode_chain(body).unwrap().unwrap());
        let forward = chains.into_iter().find(|chain| &chain.name == "forward").unwrap();
        let base = BaseChain::new(ChainType::Filter, Hook::Forward, 10);
        assert_eq!(forward.base, Some(BaseChain { policy: Policy::Drop, ..base }), "{kernel}");
        assert_eq!((forward.uses, forward.table), (2, of(Family::Ipv4)), "{kernel}");

        let sets: Vec<_> =
            of_command(message::NEWSET).map(|body| decode_set(body).unwrap()).collect();
        let shadows = sets.iter().find(|set| &set.name == "shadows").unwrap();
        use Field::{Ipv4Address, Port, Protocol};
        let key = DataType::new(&[Ipv4Address, Protocol, Port]);
        let spec = SetSpec::map(key, DataType::new(&[Ipv4Address]));
        assert_eq!(shadows.spec, spec, "{kernel}");

        let elements =
            of_command(message::NEWSETELEM).flat_map(|body| decode_elements(body).unwrap());
        let elements: Vec<String> =
            elements.map(|it| format!("{} {:?}", it.key, it.value)).collect();
        let mapped = "0x0a60000a0600000000500000 Some(0xf060000a)".to_owned();
        assert!(elements.contains(&mapped), "{kernel}: {elements:?}");

        let flow_table =
            decode_flow_table(of_command(message::NEWFLOWTABLE).next().unwrap()).unwrap();
        assert_eq!((flow_table.name.as_str(), flow_table.uses), ("flows", 1), "{kernel}");
        assert_eq!(flow_table.devices, ["lo"], "{kernel}");

        let tables = of_command(message::NEWTABLE).map(|body| decode_table(body).unwrap().unwrap());
        let tables: Vec<_> = tables.map(|table| (table.id.family, table.owner)).collect();
        assert_eq!(tables, [(Family::Ipv4, None), (Family::Ipv6, None)], "{kernel}");
    }
}

#[test]
fn a_change_says_what_it_tries() {
    let mut batch = Batch::new();
    let (table, set) = (of(Family::Ipv6), name("external"));
    let key = Data::default().with_address([10, 0, 0, 1].into()).with_protocol(6).with_port(80);
    batch.create_table(&table, TableFlags::OWNER | TableFlags::PERSIST);
    batch.add_elements(&table, &set, &[Element::new(key)]);
    batch.flush_chain(&table, &name("refuse"));
    let said: Vec<String> = (0..4).map(|place| batch.attempt(place).to_string()).collect();
    assert_eq!(
        said,
        [
            "create table ip6 zz",
            "add elements to set external of table ip6 zz, key 0x0a0000010600000000500000",
            "delete rules of chain refuse of table ip6 zz",
            "change nf_tables",
        ]
    );
}

/// Bytes that are nearly a message: any of those that kernels sent, with some bytes changed.
fn nearly_an_answer() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
    use proptest::prelude::*;
    let all: Vec<Message> = ANSWERS.iter().flat_map(|(_, text)| answers(text)).collect();
    (proptest::sample::select(all), proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8))
        .prop_map(|((_, mut body), changes)| {
            for (place, byte) in changes {
                let length = body.len();
                body[usize::from(place) % length] = byte;
            }
            body
        })
}

fn read_as_everything(body: &[u8]) {
    let _any = (decode_generation(body), decode_table(body), decode_chain(body));
    let _any = (decode_rule(body), decode_set(body), decode_elements(body));
    let _any = (decode_flow_table(body), disturbance(body), table_of(body));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120),
    ) {
        read_as_everything(&body);
    }

    #[test]
    fn a_damaged_answer_is_read_without_a_panic(body in nearly_an_answer()) {
        read_as_everything(&body);
    }
}
