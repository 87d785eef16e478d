use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;

use plan::chains::{ChainHash, PortChain, ServicePortName, SharedChain};
use plan::model::{Family, Protocol, ServiceName};

use super::*;
use crate::program::Finished;

/// Programs that refuse what is bad, in the words of either kind.
#[derive(Default)]
struct FakePrograms {
    /// Beginning of rules that are refused.
    bad: Vec<&'static str>,
    /// True if the line is named that is refused.
    names_lines: bool,
    /// The chains, each with its rules.
    chains: BTreeMap<String, Vec<String>>,
    /// Words of a failure that is nothing's fault.
    broken: Option<&'static str>,
    inputs: Vec<String>,
}

impl FakePrograms {
    fn failed(&self, input: &str, stderr: String, status: i32) -> RulesError {
        let (status, stdout) = (ExitStatus::from_raw(status), String::new());
        RulesError::failed("iptables-restore", &[], input, Finished { status, stdout, stderr })
    }

    fn refused_line(&self, chains: &mut BTreeMap<String, Vec<String>>, line: &str) -> bool {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let rule = rule.strip_prefix("1 ").unwrap_or(rule);
        if self.bad.iter().any(|bad| rule.starts_with(bad)) {
            return true;
        }
        match first {
            "-A" | "-I" => {
                let Some(rules) = chains.get_mut(chain) else { return true };
                let at = if first == "-A" { rules.len() } else { 0 };
                rules.insert(at, rule.to_owned());
            }
            "-D" => {
                let rules = chains.entry(chain.to_owned()).or_default();
                let Some(at) = rules.iter().position(|found| found == rule) else { return true };
                rules.remove(at);
            }
            "-X" => drop(chains.remove(chain)),
            other => {
                if let Some(name) = other.strip_prefix(':') {
                    chains.insert(name.to_owned(), Vec::new());
                }
            }
        }
        false
    }
}

impl ChainPrograms for FakePrograms {
    fn most_chains(&self) -> usize {
        MOST_CHAINS
    }

    fn restore(&mut self, input: &str) -> Result<(), RulesError> {
        self.inputs.push(input.to_owned());
        if let Some(words) = self.broken {
            return Err(self.failed(input, words.to_owned(), 0x100));
        }
        let mut chains = self.chains.clone();
        let refused = (1..).zip(input.lines()).find(|(_, it)| self.refused_line(&mut chains, it));
        let Some((number, line)) = refused else {
            self.chains = chains;
            return Ok(());
        };
        let is_parsed_first = line.starts_with("-D") || line.starts_with("-X");
        let number =
            if self.names_lines || is_parsed_first { number } else { input.lines().count() };
        Err(self.failed(input, format!("iptables-restore: line {number} failed\n"), 0x100))
    }

    fn rules_of(&mut self, _: Table, chain: &str) -> Result<Option<Vec<String>>, RulesError> {
        Ok(self.chains.get(chain).cloned())
    }
}

fn mk_chain(number: usize) -> ChainId {
    let name = ServiceName::new("ns", format!("svc{number}"));
    let hash = ChainHash::of_port(&ServicePortName::new(&name, ""), Protocol::Tcp);
    ChainId::of_port(Family::V4, PortChain::Cluster, hash)
}

const SERVICES: ChainId = ChainId::shared(Family::V4, Table::Nat, SharedChain::Services);

fn mk_write(number: usize, rule: &str) -> ChainOp {
    ChainOp::Write(mk_chain(number), Arc::new([rule.into()]))
}

fn run(programs: &mut FakePrograms, ops: &[ChainOp]) -> Vec<Option<RefusalClass>> {
    let ops: Vec<&ChainOp> = ops.iter().collect();
    let written = write(programs, &ops);
    assert_eq!(written.results.len(), ops.len());
    written.results.into_iter().map(|it| it.err().map(|refusal| refusal.class)).collect()
}

fn mk_programs(names_lines: bool) -> FakePrograms {
    let chains = BTreeMap::from([("KUBE-SERVICES".to_owned(), vec!["-j OLD".to_owned()])]);
    FakePrograms { bad: vec!["-m bad"], names_lines, chains, ..FakePrograms::default() }
}

#[test]
fn neighbours_are_one_transaction() {
    let ops = [
        mk_write(1, "-j ACCEPT"),
        mk_write(2, "-j RETURN"),
        ChainOp::Insert(SERVICES, "-j NEW".into()),
        ChainOp::Delete(SERVICES, "-j OLD".into()),
        ChainOp::Remove(mk_chain(3)),
    ];
    let mut programs = mk_programs(true);
    assert_eq!(run(&mut programs, &ops), [None; 5]);
    let [one, two, three] = [1, 2, 3].map(|number| mk_chain(number).name);
    assert_eq!(
        programs.inputs,
        [format!(
            "*nat\n:{one} - [0:0]\n:{two} - [0:0]\n:{three} - [0:0]\n-A {one} -j ACCEPT\n\
             -A {two} -j RETURN\n-I KUBE-SERVICES 1 -j NEW\n-D KUBE-SERVICES -j OLD\n\
             -X {three}\nCOMMIT\n"
        )]
    );
    let input = Input::new(&[&ops[0]], &[0]);
    assert_eq!(input.number_of("COMMIT"), Some(4));
}

#[test]
fn one_bad_change_harms_no_other() {
    for names_lines in [true, false] {
        for bad in [0, 57, 99] {
            let rule = |number| if number == bad { "-m bad -j X" } else { "-j ACCEPT" };
            let mut ops: Vec<ChainOp> =
                (0..100).map(|number| mk_write(number, rule(number))).collect();
            ops.push(ChainOp::Insert(SERVICES, "-j NEW".into()));
            let mut programs = mk_programs(names_lines);
            let results = run(&mut programs, &ops);
            let refused: Vec<usize> = (0..ops.len()).filter(|at| results[*at].is_some()).collect();
            assert_eq!(refused, [bad]);
            assert_eq!(results[bad], Some(RefusalClass::NotSupported));
            assert_eq!(programs.chains.len(), 100);
            assert_eq!(programs.chains["KUBE-SERVICES"], ["-j NEW", "-j OLD"], "and only once");
            assert!(programs.inputs.len() <= if names_lines { 2 } else { 16 });
        }
    }
}

#[test]
fn many_bad_changes_cost_a_bounded_number_of_programs() {
    let ops: Vec<ChainOp> = (0..1_000).map(|number| mk_write(number, "-m bad -j X")).collect();
    for names_lines in [true, false] {
        let mut programs = mk_programs(names_lines);
        let results = run(&mut programs, &ops);
        assert_eq!(programs.inputs.len(), ATTEMPTS);
        assert!(results.iter().all(Option::is_some));
        assert_eq!(results[999], Some(RefusalClass::Exhausted));
    }
}

#[test]
fn a_rule_that_is_gone_is_deleted() {
    for names_lines in [true, false] {
        let mut programs = mk_programs(names_lines);
        let ops = [
            mk_write(1, "-j ACCEPT"),
            ChainOp::Delete(SERVICES, "-j GONE".into()),
            ChainOp::Delete(SERVICES, "-j OLD".into()),
            ChainOp::Delete(SERVICES, "-j GONE TOO".into()),
        ];
        assert_eq!(run(&mut programs, &ops), [None; 4]);
        assert_eq!(programs.inputs.len(), 2);
        assert!(programs.chains["KUBE-SERVICES"].is_empty());
    }
}

#[test]
fn an_insertion_into_a_chain_that_is_gone_is_a_conflict() {
    let mut programs = mk_programs(true);
    programs.chains.clear();
    let ops = [mk_write(1, "-j ACCEPT"), ChainOp::Insert(SERVICES, "-j NEW".into())];
    assert_eq!(run(&mut programs, &ops), [None, Some(RefusalClass::Conflict)]);
}

#[test]
fn what_is_nobodys_fault_is_not_looked_for() {
    for (words, class) in [
        ("Another app is currently holding the xtables lock.", RefusalClass::Exhausted),
        ("line 3: RULE_APPEND failed (Cannot allocate memory)", RefusalClass::Exhausted),
        ("Could not fetch rule set generation id: Permission denied", RefusalClass::NotPermitted),
        ("iptables-restore: unable to initialize table 'nat'", RefusalClass::NotInstalled),
    ] {
        let mut programs = FakePrograms { broken: Some(words), ..mk_programs(true) };
        let ops = [mk_write(1, "-j ACCEPT"), mk_write(2, "-j ACCEPT")];
        assert_eq!(run(&mut programs, &ops), [Some(class); 2], "{words}");
        assert_eq!(programs.inputs.len(), 1, "{words}");
    }
}

#[test]
fn a_program_that_was_killed_may_have_done_its_work() {
    let killed = mk_programs(true).failed("", String::new(), 9);
    assert_eq!(of_all(&killed).map(|it| it.class), Some(RefusalClass::AnswerLost));
    let hung = RulesError::Hung { command: "iptables-restore".to_owned() };
    assert_eq!(of_all(&hung).map(|it| it.class), Some(RefusalClass::AnswerLost));
}

#[test]
fn the_words_of_nft_name_every_refused_change() {
    let ops = [
        mk_write(1, "-j KUBE-NONE"),
        mk_write(2, "-m recent --rcheck -j REJECT"),
        ChainOp::Remove(mk_chain(3)),
        mk_write(4, "-j RETURN"),
    ];
    let ops: Vec<&ChainOp> = ops.iter().collect();
    let input = Input::new(&ops, &[0, 1, 2, 3]);
    let failed = |stderr: &str| mk_programs(true).failed(&input.text, stderr.to_owned(), 0x400);
    let refused = |error: &RulesError| {
        let refused = input.refused(&ops, &[0, 1, 2, 3], error);
        let refusal =
            |(at, said): (usize, Option<String>)| (at, of_one(ops[at], said.as_deref(), error));
        refused.into_iter().map(refusal).collect::<Vec<_>>()
    };
    let error = failed(
        "iptables-nft-restore v1.8.9 (nf_tables): \n\
         line 7: RULE_APPEND failed (No such file or directory): rule in chain KUBE-SVC-X\n\
         line 8: CHAIN_DEL failed (Device or resource busy): chain KUBE-SVC-Y\n",
    );
    let found = refused(&error);
    let classes: Vec<_> = found.iter().map(|(at, refusal)| (*at, refusal.class)).collect();
    assert_eq!(classes, [(1, RefusalClass::NotSupported), (2, RefusalClass::Conflict)]);
    let reason = &found[0].1.reason;
    assert!(reason.ends_with("It needs the kernel modules ipt_REJECT, xt_recent"), "{reason}");
    let error =
        failed("x: Chain 'KUBE-NONE' does not exist\nError occurred at line: 10\nTry `x`\n");
    let found = refused(&error);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0, found[0].1.class), (0, RefusalClass::Conflict));
    let error = failed("x: Port `99999' not valid\nError occurred at line: 9\nTry `x -h'\n");
    let found = refused(&error);
    assert_eq!((found[0].0, found[0].1.class), (3, RefusalClass::Other));
    assert!(found[0].1.reason.contains("Port `99999' not valid"));
}

#[test]
fn of_very_many_chains_some_go_ahead_and_what_leads_to_them_does_not() {
    let mut ops: Vec<ChainOp> = (0..2_500).map(|number| mk_write(number, "-j RETURN")).collect();
    ops.push(ChainOp::Insert(SERVICES, "-j NEW".into()));
    ops.extend((3_000..5_000).map(|number| ChainOp::Remove(mk_chain(number))));
    let mut programs = mk_programs(true);
    assert!(run(&mut programs, &ops).iter().all(Option::is_none));
    let lines: Vec<usize> = programs.inputs.iter().map(|input| input.lines().count()).collect();
    assert_eq!(lines, [2_002, 2_002, 2 + 2 * 500 + 1 + 2 * 2_000]);
}

#[test]
fn a_chain_that_comes_again_begins_another_transaction() {
    let ops = [
        ChainOp::Insert(SERVICES, "-j NEW".into()),
        mk_write(1, "-j ACCEPT"),
        ChainOp::Remove(mk_chain(1)),
        mk_write(1, "-j RETURN"),
        ChainOp::Write(SERVICES, Arc::new(["-j LAST".into()])),
    ];
    let mut programs = mk_programs(true);
    assert_eq!(run(&mut programs, &ops), [None; 5]);
    assert_eq!(programs.inputs.len(), 3);
    assert_eq!(programs.chains["KUBE-SERVICES"], ["-j LAST"]);
    assert_eq!(programs.chains[&mk_chain(1).name.to_string()], ["-j RETURN"]);
    assert_eq!(write(&mut programs, &[]).results, []);
}
