//! Base chains of other programs at a hook of the filter, and whether they let a packet pass that none of their rules names.

use nftables::{BaseChain, Chain, Client, Error, Expression, Family, Hook, Name, Policy, Verdict};

use super::none_if_unsupported;
use crate::packet_fate::{self, Fate, Step};

/// Tables of iptables-nft.
const OF_IPTABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];

/// A base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilterChain {
    pub(crate) hook: FilterHook,
    pub(crate) table: String,
    pub(crate) name: String,
    /// The end of a packet that no rule names; none if it passes.
    pub(crate) closing: Option<Closing>,
}

/// Refusal of every packet that a chain does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Its policy is to drop.
    Policy,
    /// A rule of it, or of a chain that it leads every packet to, drops or rejects every packet.
    Rule,
}

/// A hook at which packets are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterHook {
    /// Packets to the node, of clients to Services among them.
    Input,
    /// Packets through the node, of endpoints to clients among them.
    Forward,
}

/// Returns the base chains of a hook, those in iptables' tables as well if they are asked for.
///
/// # Errors
/// When chains or rules could not be listed. A kernel without nf_tables has none.
pub(crate) fn filter_chains(
    hook: FilterHook,
    with_iptables: bool,
) -> Result<Vec<FilterChain>, Error> {
    let chains = none_if_unsupported(Client::open().and_then(|mut client| client.list_chains()))?;
    let mut found = Vec::new();
    for chain in &chains {
        let Some(base) = of_hook(chain, hook, with_iptables) else { continue };
        let closing = match base.policy {
            Policy::Drop => Some(Closing::Policy),
            _ => refuses_by_rule(chain)?.then_some(Closing::Rule),
        };
        let (table, name) = (chain.table.name.to_string(), chain.name.to_string());
        found.push(FilterChain { hook, table, name, closing });
    }
    Ok(found)
}

/// Returns the hook's side of a chain that is a base chain of the hook.
fn of_hook(chain: &Chain, hook: FilterHook, with_iptables: bool) -> Option<BaseChain> {
    let (family, table) = (chain.table.family, chain.table.name.as_str());
    let is_ip = [Family::Inet, Family::Ipv4, Family::Ipv6].contains(&family);
    let is_of_iptables = family != Family::Inet && OF_IPTABLES.contains(&table);
    let hook = match hook {
        FilterHook::Input => Hook::Input,
        FilterHook::Forward => Hook::Forward,
    };
    let is_asked = is_ip && (with_iptables || !is_of_iptables);
    chain.base.filter(|base| is_asked && base.hook == hook)
}

fn refuses_by_rule(chain: &Chain) -> Result<bool, Error> {
    let mut client = Client::open()?;
    let read = |name: &str| {
        // A chain that a rule leads to has a name.
        let Ok(name) = Name::new(name) else { return Ok(Vec::new()) };
        let rules = client.list_rules(&chain.table, Some(&name))?;
        Ok(rules.iter().filter_map(|rule| step(&rule.expressions)).collect())
    };
    Ok(packet_fate::of_unnamed(chain.name.as_str(), read)? == Some(Fate::Refused))
}

/// Action of a rule on packets that no rule names.
fn step(expressions: &[Expression]) -> Option<Step> {
    let mut names_packets = false;
    for expression in expressions {
        let step = match expression {
            Expression::Reject(_) => Some(Step::Refuse),
            Expression::Verdict(verdict) => of_verdict(verdict),
            // What comes next needs the value, and decides about no packet but its own.
            Expression::Immediate { .. } => None,
            Expression::Other(name) => match name.as_str() {
                "reject" => Some(Step::Refuse),
                // To a queue, or a verdict that is one.
                "queue" | "immediate" => Some(Step::Accept),
                // Every packet passes these.
                "counter" | "log" => continue,
                _ => {
                    names_packets = true;
                    continue;
                }
            },
            _ => {
                names_packets = true;
                continue;
            }
        };
        return match step {
            Some(Step::Return) if names_packets => Some(Step::ReturnSome),
            step => step.filter(|_| !names_packets),
        };
    }
    None
}

fn of_verdict(verdict: &Verdict) -> Option<Step> {
    Some(match verdict {
        Verdict::Drop => Step::Refuse,
        Verdict::Return => Step::Return,
        Verdict::Jump(chain) => Step::Jump(chain.to_string()),
        Verdict::GoTo(chain) => Step::GoTo(chain.to_string()),
        Verdict::Accept => Step::Accept,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use nftables::{MetaKey, Register, Reject};

    use super::*;

    fn other(name: &str) -> Expression {
        Expression::Other(Name::new(name).unwrap())
    }

    fn ends(verdict: Verdict) -> Expression {
        Expression::Verdict(verdict)
    }

    #[test]
    fn a_rule_decides_about_every_packet_if_it_names_none() {
        assert_eq!(step(&[ends(Verdict::Drop)]), Some(Step::Refuse));
        assert_eq!(step(&[Expression::Reject(Reject::TcpReset)]), Some(Step::Refuse));
        assert_eq!(step(&[other("reject")]), Some(Step::Refuse));
        let logged = [other("counter"), other("log"), ends(Verdict::Drop)];
        assert_eq!(step(&logged), Some(Step::Refuse));
        assert_eq!(step(&[ends(Verdict::Accept)]), Some(Step::Accept));
        assert_eq!(step(&[other("queue")]), Some(Step::Accept));
        assert_eq!(step(&[ends(Verdict::Return)]), Some(Step::Return));
        assert_eq!(step(&[ends(Verdict::Continue)]), None);
        let chain = |name| Name::new(name).unwrap();
        let jump = step(&[ends(Verdict::Jump(chain("zones")))]);
        assert_eq!(jump, Some(Step::Jump("zones".into())));
        let go_to = step(&[ends(Verdict::GoTo(chain("public")))]);
        assert_eq!(go_to, Some(Step::GoTo("public".into())));
        assert_eq!(step(&[other("counter")]), None);
    }

    #[test]
    fn of_a_rule_that_names_packets_only_a_return_matters() {
        let named = Expression::Meta { key: MetaKey::Mark, to: Register::at(0) };
        let verdicts = [
            (Verdict::Drop, None),
            (Verdict::Accept, None),
            (Verdict::Return, Some(Step::ReturnSome)),
        ];
        for (verdict, expected) in verdicts {
            assert_eq!(step(&[named.clone(), ends(verdict.clone())]), expected);
            assert_eq!(step(&[other("match"), ends(verdict)]), expected);
        }
        assert_eq!(step(&[named, other("reject")]), None);
    }
}
