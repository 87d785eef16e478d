//! Rules of other programs with a match or a target whose extension is not installed here, for which the
//! programs for saving end with an error.

use plan::rule_set::OptionalRules;
use tempfile::TempDir;

use super::*;
use crate::rules::fingerprint::RulesWatch;

/// Place of such a rule: table and chain, and the rule.
type Place = (&'static str, &'static str, &'static str);

const MATCH: &str = "-m length --length 10:20 -j RETURN";
const TARGET: &str = "-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu";
/// The libraries of these two.
const LIBRARIES: [&str; 2] = ["libxt_length.so", "libxt_TCPMSS.so"];

/// Places that `iptables-nft` can read around.
const APART_FROM_JUMPS: [Place; 4] = [
    ("filter", "HOSTFW", MATCH),
    ("mangle", "FORWARD", TARGET),
    // Chains of kube-ipvs, which are written whole.
    ("nat", "KUBE-MARK-MASQ", MATCH),
    ("filter", "KUBE-SERVICES", MATCH),
];
/// One in each table, in chains that have jumps.
const BESIDE_JUMPS: [Place; 3] =
    [("filter", "INPUT", MATCH), ("nat", "POSTROUTING", TARGET), ("mangle", "OUTPUT", TARGET)];

fn mk_rule_set_for(rules: &Rules, (table, chain, _): Place) -> RuleSet {
    let family = rules.family();
    if (table, chain) != ("filter", "KUBE-SERVICES") {
        return mk_rule_set(family);
    }
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::iptables(family, &settings.with_optional(OptionalRules::default()))
}

/// The same programs, without the extensions of these rules.
fn mk_lacking(rules: &Rules) -> (TempDir, Rules) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let Programs { plain, save, restore, .. } = &rules.programs;
    // A shell makes them: a file that this process has just written may still be open in a program that
    // another thread starts, and then it cannot be run.
    let script = format!(
        "cd {path} && mkdir extensions && ln -s /usr/lib/*/xtables/*.so extensions \
         && (cd extensions && rm {}) && for program in {plain} {save} {restore}; do \
         printf '#!/bin/sh\\nXTABLES_LIBDIR={path}/extensions exec %s \"$@\"\\n' $program >$program \
         && chmod +x $program || exit 1; done",
        LIBRARIES.join(" ")
    );
    succeed("sh", &["-ec", &script], "");
    let named = |program: &str| format!("{path}/{program}");
    let programs = Programs {
        plain: named(plain),
        save: named(save),
        restore: named(restore),
        ..rules.programs.clone()
    };
    let lacking = Rules { programs, ..rules.clone() };
    (folder, lacking)
}

fn add_rule(rules: &Rules, (table, chain, rule): Place) {
    let run = |command: &str| {
        let arguments: Vec<&str> =
            ["-w", "5", "-t", table].into_iter().chain(command.split(' ')).collect();
        crate::program::run(&rules.programs.plain, &arguments, "", TIMEOUT).unwrap()
    };
    // It may be there.
    run(&format!("-N {chain}"));
    let added = run(&format!("-A {chain} {rule}"));
    assert!(added.status.success(), "{}", added.stderr);
}

/// Runs a test at each `nth` of the places of each kind and family, each on a host of its own.
fn in_places(nth: usize, test: impl Fn(&Rules, &Rules, Place) + Sync) {
    for family in Family::BOTH {
        for variant in Variant::tested() {
            // A host takes ten seconds where it is emulated, and the tables of IPv6 are the same.
            let places = match (variant, family) {
                (Variant::Legacy, Family::V4) => [&APART_FROM_JUMPS[..], &BESIDE_JUMPS].concat(),
                (Variant::Legacy, Family::V6) => BESIDE_JUMPS[..1].to_vec(),
                (_, Family::V4) => APART_FROM_JUMPS.to_vec(),
                (_, Family::V6) => APART_FROM_JUMPS[..1].to_vec(),
            };
            for place in places.into_iter().step_by(nth) {
                Host::run(|| {
                    mk_sets(family);
                    let rules = Rules::open(family, variant).unwrap();
                    let (_folder, lacking) = mk_lacking(&rules);
                    test(&rules, &lacking, place);
                });
            }
        }
    }
}

fn is_there(rules: &Rules, (table, chain, rule): Place) -> bool {
    let saved = succeed(&rules.programs.save, &["-t", table], "");
    saved.contains(&format!("-A {chain} {rule}"))
}

#[test]
fn rules_are_written_checked_and_repaired_beside_a_rule_with_an_unknown_extension() {
    in_places(1, |rules, lacking, place| {
        let (table, chain, _) = place;
        let rule_set = mk_rule_set_for(rules, place);
        add_rule(rules, place);
        assert!(installed::run(&lacking.programs.save, &["-t", table], "").is_err(), "{place:?}");
        lacking.probe(None).unwrap();
        lacking.write(&rule_set).unwrap();
        let found = lacking.check(&rule_set).unwrap();
        assert!(found.matches(), "{place:?}: {found}");
        let found = rules.check(&rule_set).unwrap();
        assert!(found.matches(), "{place:?}: {found}");
        let is_of_kube_ipvs = chain.starts_with("KUBE-");
        assert_eq!(is_there(rules, place), !is_of_kube_ipvs, "{place:?}");

        // Started first, and the rule comes then.
        add_rule(rules, place);
        let mut watch = RulesWatch::open(lacking).unwrap();
        let mut look = || {
            let found = watch.check(lacking, &rule_set).unwrap();
            if rule_set.mode() == Mode::Iptables {
                watch.read_chains(lacking, Mode::Iptables).unwrap();
            }
            watch.end_pause();
            (found.matches(), watch.untouched().unwrap())
        };
        // What is written whole has the rule that was added to it.
        assert_eq!(look().0, !is_of_kube_ipvs, "{place:?}");
        let jumps = rule_set.jumps();
        let is_beside = |jump: &&Jump| (jump.table.name(), jump.from) == (table, chain);
        let jump = jumps.iter().find(is_beside).unwrap_or(&jumps[0]);
        let (of, from, rule) = (jump.table, jump.from, jump.rule());
        let damage =
            format!("*nat\n-F KUBE-POSTROUTING\nCOMMIT\n*{of}\n-D {from} {rule}\nCOMMIT\n");
        restore(rules, &damage);
        assert_eq!(look(), (false, false), "{place:?}");
        let found = lacking.check(&rule_set).unwrap();
        assert_eq!(found.missing_jumps, [*jump], "{place:?}: {found}");
        lacking.write(&rule_set).unwrap();
        assert_eq!(look(), (true, true), "{place:?}: a reading changes nothing");
        let found = rules.check(&rule_set).unwrap();
        assert!(found.matches(), "{place:?}: {found}");
    });
}

#[test]
fn a_survey_shows_what_leads_to_chains_of_kubernetes_beside_an_unknown_extension() {
    in_places(3, |rules, lacking, place| {
        let (table, chain, _) = place;
        rules.write(&mk_rule_set_for(rules, place)).unwrap();
        add_rule(rules, place);
        let of_kubernetes = |text: &str| {
            let is_shown = |line: &&str| {
                let is_unshown =
                    chain.starts_with("KUBE-") && line.contains(&format!("A {chain} "));
                line.starts_with("-A ") && line.contains(" -j KUBE-") && !is_unshown
            };
            let mut rules: Vec<String> = text.lines().filter(is_shown).map(str::to_owned).collect();
            rules.sort();
            rules
        };
        let saved = lacking.saved().unwrap();
        assert!(saved.contains(&format!("{READ_BY_CHAIN}{table}\n")), "{saved}");
        assert_eq!(of_kubernetes(&saved), of_kubernetes(&rules.saved().unwrap()));
    });
}

#[test]
fn chains_of_services_are_written_read_and_removed_beside_an_unknown_extension() {
    in_places(3, |rules, lacking, place| {
        add_rule(rules, place);
        beside_nft::serve(lacking);
        assert_eq!(is_there(rules, place), !place.1.starts_with("KUBE-"), "{place:?}");
    });
}

/// `iptables-nft -C` reads the rules of the chain one after the other.
#[test]
fn iptables_nft_says_what_it_lacks_where_such_a_rule_stands_before_a_jump() {
    Host::run(|| {
        mk_sets(Family::V4);
        let rules = Rules::open(Family::V4, Variant::Nft).unwrap();
        let (_folder, lacking) = mk_lacking(&rules);
        let rule_set = mk_rule_set(Family::V4);
        rules.write(&rule_set).unwrap();
        add_rule(&rules, BESIDE_JUMPS[0]);
        succeed("iptables-nft", &["-I", "INPUT", "1", "-m", "length", "--length", "9"], "");
        let error = lacking.check(&rule_set).unwrap_err();
        assert!(error.to_string().contains("install its extension"), "{error}");
        assert!(lacking.saved().unwrap().contains(&format!("{UNREAD}filter\n")));
    });
}
