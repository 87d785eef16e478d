//! Changes that a [`RulesWatch`] notices, on a real kernel.

use std::time::Instant;

use super::super::super::fingerprint::RulesWatch;
use super::*;

/// The rules written, and found complete.
fn mk_complete(rules: &Rules) -> (RulesWatch, RuleSet) {
    let rule_set = mk_rule_set(rules.family());
    let mut watch = RulesWatch::open(rules).unwrap();
    assert!(!watch.untouched().unwrap(), "nothing was ever complete");
    write(&mut watch, rules, &rule_set);
    (watch, rule_set)
}

fn write(watch: &mut RulesWatch, rules: &Rules, rule_set: &RuleSet) {
    rules.write_checked_by(rule_set, None, || watch.check(rules, rule_set)).unwrap();
    assert!(watch.untouched().unwrap());
}

fn iptables(rules: &Rules, arguments: &str) {
    let arguments: Vec<&str> = ["-w", "5"].into_iter().chain(arguments.split(' ')).collect();
    succeed(&rules.programs.plain, &arguments, "");
}

#[test]
fn what_others_do_beside_our_rules_is_no_damage() {
    on_every_kind(|rules| {
        let (mut watch, rule_set) = mk_complete(rules);
        for beside in [
            "-t nat -N OTHERS",
            "-t nat -I OUTPUT 1 -j OTHERS",
            "-t nat -A OTHERS -p tcp --dport 80 -j RETURN",
            "-t filter -I INPUT 2 -m comment --comment others -j ACCEPT",
            "-t filter -P FORWARD DROP",
            "-t mangle -A OUTPUT -j MARK --set-xmark 0x1",
            "-t nat -D OUTPUT -j OTHERS",
            "-t raw -A OUTPUT -j ACCEPT",
        ] {
            iptables(rules, beside);
            assert!(watch.untouched().unwrap(), "{beside}");
        }
        assert!(rules.check(&rule_set).unwrap().matches());
    });
}

#[test]
fn damage_is_noticed_once_and_repaired_rules_are_watched_again() {
    on_every_kind(|rules| {
        let (mut watch, rule_set) = mk_complete(rules);
        let everywhere =
            ["-t nat -D KUBE-MARK-MASQ 1", "-t filter -D INPUT 2", "-t mangle -F OUTPUT"];
        // A family's rules are compared by the same code: one has all of these.
        let further = [
            "-t nat -F KUBE-SERVICES",
            "-t filter -A KUBE-IPVS-OUT-FILTER -j DROP",
            "-t filter -R KUBE-SOURCE-RANGES-FIREWALL 3 -j ACCEPT",
            "-t nat -F",
        ];
        let further = further.into_iter().filter(|_| rules.family() == Family::V4);
        for damage in everywhere.into_iter().chain(further) {
            iptables(rules, damage);
            assert!(!watch.untouched().unwrap(), "{damage}");
            assert!(!watch.untouched().unwrap(), "{damage}: until it is repaired");
            write(&mut watch, rules, &rule_set);
        }
    });
}

#[test]
fn rules_written_anew_by_somebody_else_are_ours_again() {
    on_every_kind(|rules| {
        let (mut watch, rule_set) = mk_complete(rules);
        iptables(rules, "-t nat -D KUBE-MARK-MASQ 1");
        iptables(rules, "-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000");
        assert!(watch.untouched().unwrap(), "it is the same rule");
        iptables(rules, "-t nat -I KUBE-MARK-MASQ 1 -j MARK --or-mark 0x4000");
        assert!(!watch.untouched().unwrap());
        iptables(rules, "-t nat -D KUBE-MARK-MASQ 1");
        assert!(watch.check(rules, &rule_set).unwrap().matches());
        assert!(watch.untouched().unwrap());
    });
}

#[test]
fn other_rules_are_wanted_from_now_on() {
    on_every_kind(|rules| {
        let (mut watch, _) = mk_complete(rules);
        watch.forget();
        assert!(!watch.untouched().unwrap());
    });
}

#[test]
fn differences_are_known_until_any_program_writes() {
    on_every_kind(|rules| {
        let rule_set = mk_rule_set(rules.family());
        let mut watch = RulesWatch::open(rules).unwrap();
        // The first check may make tables.
        watch.check(rules, &rule_set).unwrap();
        let found = watch.check(rules, &rule_set).unwrap();
        assert!(!found.matches());
        assert_eq!(watch.take_differences(), Some(found));
        assert_eq!(watch.take_differences(), None, "they are about to be repaired");
        watch.check(rules, &rule_set).unwrap();
        iptables(rules, "-t nat -A OUTPUT -j ACCEPT");
        assert_eq!(watch.take_differences(), None);
        let found = watch.check(rules, &rule_set).unwrap();
        iptables(rules, "-t nat -R OUTPUT 1 -j RETURN");
        assert_eq!(watch.take_differences(), None, "a rule in the place of another");
        watch.check(rules, &rule_set).unwrap();
        watch.forget();
        assert_eq!(watch.take_differences(), None, "they were those from other rules");
        rules.write_checked_by(&rule_set, Some(found), || watch.check(rules, &rule_set)).unwrap();
        assert!(watch.untouched().unwrap());
        assert_eq!(watch.take_differences(), None, "there are none");
    });
}

/// Printed, and not asserted: what a look costs, beside 500 chains of others.
#[test]
fn a_look_takes_no_process() {
    on_every_kind(|rules| {
        let (mut watch, rule_set) = mk_complete(rules);
        let mut input = "*nat\n".to_owned();
        for number in 0..500 {
            input += &format!(":OTHERS-{number} - [0:0]\n-A OTHERS-{number} -j RETURN\n");
        }
        rules.restore(&(input + "COMMIT\n")).unwrap();
        let begin = Instant::now();
        assert!(watch.untouched().unwrap());
        let changed = begin.elapsed();
        let begin = Instant::now();
        for _ in 0..100 {
            assert!(watch.untouched().unwrap());
        }
        let unchanged = begin.elapsed() / 100;
        let begin = Instant::now();
        rules.check(&rule_set).unwrap();
        println!(
            "{} {}: a look {unchanged:?}, after a change by others {changed:?}, by the program {:?}",
            rules.backend(),
            rules.family(),
            begin.elapsed()
        );
    });
}
