//! Check of what the rules of the modes iptables and userspace are made of: targets and matches, each of which may be a
//! kernel module of its own.

use std::time::Duration;

use plan::mode::Mode;
use plan::model::Family;

use super::{Rules, RulesError};
use crate::kernel::nfacct::NfacctClient;
use crate::kernel::probe::ProbeError;

/// Chain that the check makes and removes. Nothing leads to it.
const CHAIN: &str = "KUBE-PROBE";

/// Counter that the check makes and removes.
const COUNTER: &str = "kube_ipvs_probe";

/// Attempts to remove the counter. One that stays until the next check harms nothing.
const RELEASE_ATTEMPTS: u32 = 20;
const RELEASE_WAIT: Duration = Duration::from_millis(10);

/// Something that rules are made of, and the module that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Feature {
    /// Name in a rule: a target's in capitals, a match's in small letters.
    name: &'static str,
    /// Module that has it, of IPv4 where the families differ.
    module: &'static str,
    table: &'static str,
    /// Rule that needs it; for IPv4 where the families differ.
    rule: &'static str,
    needed_by_userspace: bool,
}

/// Match that only mode userspace has.
const STATE: &str = "state";

const FEATURES: [Feature; 12] = [
    nat("DNAT", "xt_nat", "-p tcp -j DNAT --to-destination 192.0.2.1:1"),
    nat("MASQUERADE", "xt_MASQUERADE", "-j MASQUERADE").of_iptables(),
    nat("MARK", "xt_mark", "-j MARK --or-mark 0x1").of_iptables(),
    nat("comment", "xt_comment", "-m comment --comment probe"),
    nat("addrtype", "xt_addrtype", "-m addrtype --dst-type LOCAL"),
    nat("statistic", "xt_statistic", "-m statistic --mode random --probability 0.5").of_iptables(),
    nat("recent", "xt_recent", "-m recent --set --name KUBE-PROBE --rsource").of_iptables(),
    filter("conntrack", "xt_conntrack", "-m conntrack --ctstate INVALID"),
    filter("REJECT", "ipt_REJECT", "-j REJECT --reject-with icmp-port-unreachable"),
    nat("tcp", "xt_tcpudp", "-p tcp -m tcp --dport 1"),
    nat("udp", "xt_tcpudp", "-p udp -m udp --dport 1"),
    filter(STATE, "xt_state", "-m state --state NEW"),
];

/// The match that rules for ports of SCTP need, and no others.
const SCTP: Feature = nat("sctp", "xt_sctp", "-p sctp -m sctp --dport 1");

/// Features of the rules by which IPVS is shown copies of packets.
const OF_COPIES: [Feature; 3] = [
    mangle("MARK", "xt_mark", "-j MARK --or-mark 0x1"),
    mangle("TEE", "xt_TEE", "-j TEE --gateway 127.255.255.255"),
    filter("mark", "xt_mark", "-m mark --mark 0x1/0x1 -m conntrack --ctstate UNTRACKED"),
];

/// Further ones of IPv6.
const OF_COPIES_V6: [Feature; 2] = [
    mangle("HL", "xt_HL", "-j HL --hl-set 173"),
    filter("u32", "xt_u32", "-m u32 --u32 \"0x34&0xffff=0x6ad\""),
];

const fn nat(name: &'static str, module: &'static str, rule: &'static str) -> Feature {
    Feature { name, module, table: "nat", rule, needed_by_userspace: true }
}

const fn mangle(name: &'static str, module: &'static str, rule: &'static str) -> Feature {
    Feature { name, module, table: "mangle", rule, needed_by_userspace: true }
}

const fn filter(name: &'static str, module: &'static str, rule: &'static str) -> Feature {
    Feature { name, module, table: "filter", rule, needed_by_userspace: true }
}

impl Feature {
    /// Only mode iptables needs it.
    const fn of_iptables(self) -> Self {
        Self { needed_by_userspace: false, ..self }
    }

    fn rule(&self, family: Family) -> String {
        let rule = match family {
            Family::V4 => return self.rule.to_owned(),
            Family::V6 => self.rule.replace("192.0.2.1:1", "[2001:db8::1]:1"),
        };
        let rule = rule.replace("127.255.255.255", "::1");
        rule.replace("icmp-port", "icmp6-port")
    }

    fn module(&self, family: Family) -> String {
        match family {
            Family::V4 => self.module.to_owned(),
            Family::V6 => self.module.replace("ipt_", "ip6t_"),
        }
    }
}

impl Rules {
    /// Checks that the kernel and iptables have everything that the rules of a mode are made of, of
    /// iptables or of userspace: writes such rules into a chain that nothing leads to, and removes it.
    ///
    /// # Errors
    /// When something is missing: in words, with the names of modules.
    pub fn try_features(&self, mode: Mode) -> Result<(), ProbeError> {
        let relays = mode.properties().relays;
        let is_needed =
            |it: &Feature| if relays { it.needed_by_userspace } else { it.name != STATE };
        let features: Vec<Feature> = FEATURES.into_iter().filter(is_needed).collect();
        self.try_each(&features)
    }

    /// Checks that rules can match ports of SCTP, in the same way.
    pub fn try_sctp(&self) -> Result<(), ProbeError> {
        self.try_each(&[SCTP])
    }

    /// Checks that the kernel and iptables can show IPVS copies of packets, in the same way.
    ///
    /// # Errors
    /// When something is missing, with the names of modules, or that could not be tried.
    pub fn try_copies(&self) -> Result<(), ProbeError> {
        let mut features = OF_COPIES.to_vec();
        if self.family == Family::V6 {
            features.extend(OF_COPIES_V6);
        }
        self.try_each(&features)
    }

    fn try_each(&self, features: &[Feature]) -> Result<(), ProbeError> {
        let Err(all) = self.try_rules(features) else { return Ok(()) };
        let all = ProbeError::from(all);
        if all.is_momentary {
            return Err(all);
        }
        let mut missing = Vec::new();
        for feature in features {
            // Another process may probe at the same time, with the same chain.
            let mut tried = self.try_rules(std::slice::from_ref(feature));
            if tried.is_err() {
                tried = self.try_rules(std::slice::from_ref(feature));
            }
            let Err(error) = tried else { continue };
            let error = ProbeError::from(error);
            if error.is_momentary {
                return Err(error);
            }
            missing.push(format!("{} (module {})", feature.name, feature.module(self.family)));
        }
        // If each is taken by itself, something was in the way of all.
        if missing.is_empty() {
            return Err(ProbeError { is_momentary: true, ..all });
        }
        let missing = missing.join(", ");
        Err(format!("no rule can have {missing}; of all together: {}", all.words).into())
    }

    /// Checks that rules can count packets by name: makes a counter and a rule that names it, and
    /// removes both.
    pub fn try_counters(&self) -> Result<(), ProbeError> {
        let mut counters = NfacctClient::open()?;
        counters.ensure(COUNTER)?;
        let rule = format!("-m nfacct --nfacct-name {COUNTER}");
        let tried = self.restore(&input("filter", &[rule]));
        // nf_tables lets go of a rule's counter a moment after the rule.
        for _ in 0..RELEASE_ATTEMPTS {
            if counters.remove(COUNTER).is_ok() {
                break;
            }
            std::thread::sleep(RELEASE_WAIT);
        }
        Ok(tried?)
    }

    fn try_rules(&self, features: &[Feature]) -> Result<(), RulesError> {
        let of_table = |table: &str| {
            let features = features.iter().filter(|feature| feature.table == table);
            let rules: Vec<String> = features.map(|feature| feature.rule(self.family)).collect();
            if rules.is_empty() { String::new() } else { input(table, &rules) }
        };
        self.restore(&(of_table("nat") + &of_table("mangle") + &of_table("filter")))
    }
}

/// Returns the restore input that writes rules into the chain and then removes it.
pub(super) fn input(table: &str, rules: &[String]) -> String {
    let rules: String = rules.iter().map(|rule| format!("-A {CHAIN} {rule}\n")).collect();
    format!("*{table}\n:{CHAIN} - [0:0]\n{rules}COMMIT\n*{table}\n-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n")
}
