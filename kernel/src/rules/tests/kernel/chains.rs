//! Changes of chains of iptables mode.

use std::sync::Arc;
use std::time::Instant;

use plan::chains::{
    ActualChains, ChainHash, ChainId, ChainName, ChainOp, PortChain, ServicePortName, SharedChain,
};
use plan::iptables::constant::{INVALID_DROPPED, LOCALHOST_ACCEPTED};
use plan::mode::Mode;
use plan::model::{Protocol, ServiceName};
use plan::rule_set::OptionalRules;

use super::*;
use crate::Refusal;
use crate::RefusalClass;
use crate::nfacct::NfacctClient;

/// Chains that kube-proxy 1.36 left on a node with random Services: each kind of rule at least once,
/// and the chains that these lead to.
const IPV4: &str = include_str!("chains/ipv4.saved");
const IPV6: &str = include_str!("chains/ipv6.saved");

const EVERYTHING: OptionalRules =
    OptionalRules { drop_invalid: true, nfacct: true, localhost_node_ports: true };

fn mk_constant(family: Family) -> RuleSet {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::iptables(family, &settings.with_optional(EVERYTHING))
}

/// Runs a test on hosts with the constant rules.
fn on_every_ready_kind(test: impl Fn(&Rules) + Sync) {
    on_every_kind(|rules| {
        let mut counters = NfacctClient::open().unwrap();
        for name in [INVALID_DROPPED, LOCALHOST_ACCEPTED] {
            counters.ensure(name).unwrap();
        }
        rules.write(&mk_constant(rules.family())).unwrap();
        test(rules);
    });
}

fn saved_of(family: Family) -> &'static str {
    match family {
        Family::V4 => IPV4,
        Family::V6 => IPV6,
    }
}

/// The chains of a saved text, each with its rules.
fn chains_of(family: Family, saved: &str) -> BTreeMap<ChainId, Vec<Box<str>>> {
    let (mut table, mut chains) = (Table::Nat, BTreeMap::<_, Vec<Box<str>>>::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = Table::ALL.into_iter().find(|table| table.name() == name).unwrap();
            continue;
        }
        let declared = line.strip_prefix(':').map(|line| (line.split(' ').next().unwrap(), None));
        let rule =
            || line.strip_prefix("-A ")?.split_once(' ').map(|(chain, it)| (chain, Some(it)));
        let Some((chain, rule)) = declared.or_else(rule) else { continue };
        let name = ChainName::parse(table, chain).unwrap();
        let rules = chains.entry(ChainId { family, table, name }).or_default();
        rules.extend(rule.map(Box::from));
    }
    chains
}

fn writes(chains: &BTreeMap<ChainId, Vec<Box<str>>>) -> Vec<ChainOp> {
    let write = |(chain, rules): (&ChainId, &Vec<Box<str>>)| {
        ChainOp::Write(*chain, Arc::from(rules.clone()))
    };
    let mut ops: Vec<ChainOp> = chains.iter().map(write).collect();
    ops.sort_by_key(|op| (op.chain().table, op.phase()));
    ops
}

fn apply(rules: &Rules, ops: &[ChainOp]) -> Vec<Result<(), Refusal>> {
    let ops: Vec<&ChainOp> = ops.iter().collect();
    ops.chunk_by(|one, next| one.chain().table == next.chain().table)
        .flat_map(|ops| rules.write_chains(ops).results)
        .collect()
}

fn apply_all(rules: &Rules, ops: &[ChainOp]) {
    for (op, result) in ops.iter().zip(apply(rules, ops)) {
        assert_eq!(result, Ok(()), "{op}");
    }
}

fn mk_chain(family: Family, number: usize) -> ChainId {
    let name = ServiceName::new("ns", format!("svc{number}"));
    let hash = ChainHash::of_port(&ServicePortName::new(&name, ""), Protocol::Tcp);
    ChainId::of_port(family, PortChain::Cluster, hash)
}

fn mk_write(chain: ChainId, rule: &str) -> ChainOp {
    ChainOp::Write(chain, Arc::new([rule.into()]))
}

fn services(family: Family) -> ChainId {
    ChainId::shared(family, Table::Nat, SharedChain::Services)
}

#[test]
fn every_kind_of_rule_is_read_as_it_was_written() {
    on_every_ready_kind(|rules| {
        let (family, saved) = (rules.family(), saved_of(rules.family()));
        let chains = chains_of(family, saved);
        let desired = ActualChains::parse(Mode::Iptables, family, saved);
        assert!(desired.own.len() > 50 && desired.shared.len() == 6);
        let ops = writes(&chains);
        let ops: Vec<&ChainOp> = ops.iter().collect();
        for ops in ops.chunk_by(|one, next| one.chain().table == next.chain().table) {
            let written = rules.write_chains(ops);
            assert!(written.results.iter().all(Result::is_ok));
            assert_eq!(written.transactions, Some(1));
        }
        assert_eq!(rules.chains(Mode::Iptables).unwrap(), desired);
        assert!(rules.check(&mk_constant(family)).unwrap().matches());

        // Every rule of the shared chains can be deleted by its text.
        let shared =
            || chains.iter().filter(|(chain, _)| matches!(chain.name, ChainName::Shared(_)));
        let deletions = shared().flat_map(|(chain, rules)| {
            rules.iter().map(|rule| ChainOp::Delete(*chain, (&**rule).into()))
        });
        apply_all(rules, &deletions.collect::<Vec<_>>());
        assert!(rules.chains(Mode::Iptables).unwrap().shared.values().all(Vec::is_empty));
        let insertions = shared().flat_map(|(chain, rules)| {
            rules.iter().rev().map(|rule| ChainOp::Insert(*chain, (&**rule).into()))
        });
        apply_all(rules, &insertions.collect::<Vec<_>>());
        assert_eq!(rules.chains(Mode::Iptables).unwrap(), desired);

        // Writing the constant rules again leaves all of them.
        iptables(rules, "-t nat -F KUBE-POSTROUTING");
        rules.write(&mk_constant(family)).unwrap();
        assert_eq!(rules.chains(Mode::Iptables).unwrap(), desired);

        let own = chains.keys().filter(|chain| !matches!(chain.name, ChainName::Shared(_)));
        let emptied = shared().map(|(chain, _)| ChainOp::Write(*chain, Arc::new([])));
        let removals = own.map(|chain| ChainOp::Remove(*chain));
        let mut ops: Vec<ChainOp> = emptied.chain(removals).collect();
        ops.sort_by_key(|op| (op.chain().table, op.phase()));
        apply_all(rules, &ops);
        let left = rules.chains(Mode::Iptables).unwrap();
        assert!(left.own.is_empty() && left.shared.values().all(Vec::is_empty));
    });
}

fn iptables(rules: &Rules, arguments: &str) {
    let arguments: Vec<&str> = ["-w", "5"].into_iter().chain(arguments.split(' ')).collect();
    succeed(&rules.programs.plain, &arguments, "");
}

#[test]
fn one_bad_rule_among_a_hundred_chains_is_refused_alone() {
    // The kernel refuses the first, iptables itself the others.
    for bad in [
        "-m nfacct --nfacct-name  nothing -j RETURN",
        "-p tcp -j DNAT --to-destination 10.0.0.1:99999",
        "-j KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-m nonsense -j RETURN",
    ] {
        on_every_ready_kind(|rules| {
            let family = rules.family();
            let chain = |number| mk_chain(family, number);
            let rule = |number| if number == 37 { bad } else { "-j RETURN" };
            let mut ops: Vec<ChainOp> =
                (0..100).map(|number| mk_write(chain(number), rule(number))).collect();
            let jump = format!("-j {}", chain(3).name);
            ops.push(ChainOp::Insert(services(family), jump.as_str().into()));
            let results = apply(rules, &ops);
            let refused: Vec<usize> = (0..101).filter(|at| results[*at].is_err()).collect();
            assert_eq!(refused, [37], "{bad}");
            let refusal = results[37].clone().unwrap_err();
            let class = match bad {
                bad if bad.contains("KUBE-SVC") => RefusalClass::Conflict,
                bad if bad.contains("99999") => RefusalClass::Other,
                _ => RefusalClass::NotSupported,
            };
            assert_eq!(refusal.class, class, "{refusal}");
            println!("{} {bad}: {refusal}", rules.backend());
            let found = rules.chains(Mode::Iptables).unwrap();
            assert_eq!(found.own.len(), 99);
            assert_eq!(found.shared[&services(family)], [jump.into()]);
        });
    }
}

#[test]
fn what_is_gone_is_removed_and_what_is_in_use_is_not() {
    on_every_ready_kind(|rules| {
        let family = rules.family();
        let (one, other) = (mk_chain(family, 1), mk_chain(family, 2));
        let jump = format!("-j {}", one.name);
        apply_all(rules, &[mk_write(one, "-j RETURN"), mk_write(other, &jump)]);
        let results = apply(
            rules,
            &[
                ChainOp::Delete(services(family), "-j RETURN".into()),
                ChainOp::Delete(other, "-j ACCEPT".into()),
                ChainOp::Remove(one),
                ChainOp::Remove(mk_chain(family, 3)),
            ],
        );
        let classes = results.into_iter().map(|result| result.err().map(|refusal| refusal.class));
        assert_eq!(classes.collect::<Vec<_>>(), [None, None, Some(RefusalClass::Conflict), None]);
        let found = rules.chains(Mode::Iptables).unwrap();
        assert_eq!(found.own.len(), 2);
        let missing = ChainOp::Insert(mk_chain(family, 4), "-j RETURN".into());
        let refusal = apply(rules, &[missing]).remove(0).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Conflict, "{refusal}");
        apply_all(rules, &[ChainOp::Remove(other), ChainOp::Remove(one)]);
        assert_eq!(rules.chains(Mode::Iptables).unwrap().own.len(), 0);
    });
}

/// Chains and rules of so many Services with two endpoints each.
fn mk_services(n: usize) -> BTreeMap<ChainId, Vec<Box<str>>> {
    let family = Family::V4;
    let mut chains = BTreeMap::<_, Vec<Box<str>>>::new();
    for number in 0..n {
        let name = ServicePortName::new(&ServiceName::new("ns", format!("svc{number}")), "");
        let hash = ChainHash::of_port(&name, Protocol::Tcp);
        let service = ChainId::of_port(family, PortChain::Cluster, hash);
        let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
        for last in [1, 2] {
            let address = std::net::SocketAddr::from(([10, 128 + last, high, low], 8080));
            let hash = ChainHash::of_endpoint(&name, Protocol::Tcp, address);
            let endpoint = ChainId::of_port(family, PortChain::Endpoint, hash);
            let comment = format!("-m comment --comment \"{name}\"");
            chains.insert(
                endpoint,
                vec![
                    format!("-s {}/32 {comment} -j KUBE-MARK-MASQ", address.ip()).into(),
                    format!("-p tcp {comment} -m tcp -j DNAT --to-destination {address}").into(),
                ],
            );
            let half = "-m statistic --mode random --probability 0.50000000000 ";
            let half = if last == 1 { half } else { "" };
            let rule =
                format!("-m comment --comment \"{name} -> {address}\" {half}-j {}", endpoint.name);
            chains.entry(service).or_default().push(rule.into());
        }
        let frontend = format!(
            "-d 10.96.{high}.{low}/32 -p tcp -m comment --comment \"{name} cluster IP\" -m tcp \
             --dport 80 -j {}",
            service.name
        );
        chains.entry(services(family)).or_default().push(frontend.into());
    }
    chains
}

/// Printed, and not asserted: what a change costs beside the chains of other Services, and beside
/// an `iptables-restore` that changes next to nothing. These many Services have more chains than one
/// COMMIT takes with nf_tables. `cargo xtask bench` measures with more.
#[test]
fn what_one_change_costs() {
    let n = std::env::var("KUBE_IPVS_SERVICES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for variant in Variant::tested() {
        Host::run(|| {
            let rules = Rules::open(Family::V4, variant).unwrap();
            let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
            let rule_set = RuleSet::iptables(Family::V4, &settings);
            let mut watch = fingerprint::RulesWatch::open(&rules).unwrap();
            rules.write_checked_by(&rule_set, None, || watch.check(&rules, &rule_set)).unwrap();
            let chains = mk_services(n);
            let begin = Instant::now();
            apply_all(&rules, &writes(&chains));
            let first = begin.elapsed();
            let begin = Instant::now();
            watch.check(&rules, &rule_set).unwrap();
            let check = begin.elapsed();
            let begin = Instant::now();
            let found = watch.read_chains(&rules, Mode::Iptables).unwrap();
            let read = begin.elapsed();
            assert_eq!(found.own.len(), 3 * n);
            let (chain, of_chain) = chains.iter().next().unwrap();
            let times = |work: &mut dyn FnMut()| {
                let begin = Instant::now();
                (0..5).for_each(|_| work());
                begin.elapsed() / 5
            };
            let mut one = |op: &ChainOp| {
                let before = watch.generation();
                let written = rules.write_chains(&[op]);
                assert_eq!(written.results, [Ok(())]);
                let begin = Instant::now();
                watch.wrote(&[op], &written, before);
                assert!(watch.untouched().unwrap());
                begin.elapsed()
            };
            let write = ChainOp::Write(*chain, Arc::from(of_chain.clone()));
            let written = times(&mut || _ = one(&write));
            let rule = "-d 10.97.0.1/32 -p tcp -m tcp --dport 80 -j RETURN";
            let insert = ChainOp::Insert(services(Family::V4), rule.into());
            let delete = ChainOp::Delete(services(Family::V4), rule.into());
            let shared = times(&mut || {
                one(&insert);
                one(&delete);
            }) / 2;
            let looked = one(&write);
            let empty = times(&mut || rules.restore("*nat\nCOMMIT\n").unwrap());
            let other = times(&mut || rules.restore("*nat\n:OTHER - [0:0]\nCOMMIT\n").unwrap());
            println!(
                "{} {n} Services: all {first:?}, check {check:?}, read {read:?}, a chain \
                 {written:?}, a shared rule {shared:?}, the look after a change {looked:?}, an \
                 empty restore {empty:?}, one of a foreign chain {other:?}",
                rules.backend()
            );
        });
    }
}
