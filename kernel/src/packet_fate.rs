//! Fate of a packet that no rule of a chain names, in nf_tables and in x_tables.

use std::collections::BTreeSet;

/// Chains that are read at most, one after the other, and one in the other.
const MAX_CHAINS: usize = 256;
/// `NFT_JUMP_STACK_SIZE` (include/net/netfilter/nf_tables.h). x_tables has no limit.
const MAX_DEPTH: usize = 16;

/// Action of a rule on packets that no rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Drops or rejects every packet.
    Refuse,
    /// Accepts every packet, or leaves it to another program.
    Accept,
    /// Sends every packet back to where the chain was led to from.
    Return,
    /// Sends some packets back. So the chain does not decide about all of them.
    ReturnSome,
    /// Leads every packet to a chain, and goes on if it comes back.
    Jump(String),
    /// Leads every packet to a chain for good.
    GoTo(String),
}

/// End of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Refused,
    Accepted,
}

/// A walk through the chains that every packet comes to.
struct Walk<R> {
    read: R,
    seen: BTreeSet<String>,
}

/// Returns the fate of a packet that comes to a base chain and that no rule names; none if the chain's policy
/// decides, or if that is too much to read. `read` returns what the rules of a chain do.
///
/// # Errors
/// Those of `read`.
pub(crate) fn of_unnamed<E>(
    chain: &str,
    read: impl FnMut(&str) -> Result<Vec<Step>, E>,
) -> Result<Option<Fate>, E> {
    Walk { read, seen: BTreeSet::new() }.fate(chain, 0)
}

impl<E, R: FnMut(&str) -> Result<Vec<Step>, E>> Walk<R> {
    /// None if the packet comes back. A chain that was read before is one from which it came back.
    fn fate(&mut self, chain: &str, depth: usize) -> Result<Option<Fate>, E> {
        let is_too_far = depth >= MAX_DEPTH || self.seen.len() >= MAX_CHAINS;
        if is_too_far || !self.seen.insert(chain.to_owned()) {
            return Ok(None);
        }
        for step in (self.read)(chain)? {
            let (to, is_last) = match step {
                Step::Refuse => return Ok(Some(Fate::Refused)),
                Step::Accept => return Ok(Some(Fate::Accepted)),
                Step::Return => return Ok(None),
                // From a base chain to its policy: such packets are named.
                Step::ReturnSome if depth == 0 => continue,
                Step::ReturnSome => return Ok(None),
                Step::Jump(to) => (to, false),
                Step::GoTo(to) => (to, true),
            };
            let fate = self.fate(&to, depth + 1)?;
            if fate.is_some() || is_last {
                return Ok(fate);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Fate from the chain `0`, where a chain's name is its place.
    fn fate(chains: &[&[Step]]) -> Option<Fate> {
        let read =
            |chain: &str| Ok::<_, Infallible>(chains[chain.parse::<usize>().unwrap()].into());
        of_unnamed("0", read).unwrap()
    }

    fn jump(to: usize) -> Step {
        Step::Jump(to.to_string())
    }

    fn go_to(to: usize) -> Step {
        Step::GoTo(to.to_string())
    }

    #[test]
    fn the_first_rule_that_decides_about_every_packet_decides() {
        use Step::{Accept, Refuse, Return, ReturnSome};
        let (refused, accepted) = (Some(Fate::Refused), Some(Fate::Accepted));
        assert_eq!(fate(&[&[]]), None);
        assert_eq!(fate(&[&[Refuse, Accept]]), refused);
        assert_eq!(fate(&[&[Accept, Refuse]]), accepted);
        assert_eq!(fate(&[&[Return, Refuse]]), None, "the policy");
        assert_eq!(fate(&[&[ReturnSome, Refuse]]), refused, "some are named");
        assert_eq!(fate(&[&[jump(1)], &[Refuse]]), refused);
        assert_eq!(fate(&[&[jump(1), Refuse], &[Accept]]), accepted);
        assert_eq!(fate(&[&[jump(1), Refuse], &[Return]]), refused);
        assert_eq!(fate(&[&[jump(1), go_to(2)], &[ReturnSome, Refuse], &[Refuse]]), refused);
        assert_eq!(fate(&[&[jump(1)], &[ReturnSome, Refuse]]), None, "some come back");
        assert_eq!(fate(&[&[go_to(1), Refuse], &[]]), None, "the policy");
    }

    #[test]
    fn the_walk_ends_where_chains_lead_to_one_another() {
        assert_eq!(fate(&[&[jump(1), Step::Refuse], &[jump(0), jump(1)]]), Some(Fate::Refused));
        // As deep and as wide as anyone wants.
        let read = |chain: &str| {
            let at: usize = chain.parse().unwrap();
            Ok::<_, Infallible>(
                (1..9_999).map(|next| jump(at.wrapping_mul(9_999).wrapping_add(next))).collect(),
            )
        };
        let mut n_read = 0;
        let counting = |chain: &str| {
            n_read += 1;
            read(chain)
        };
        assert_eq!(of_unnamed("0", counting).unwrap(), None);
        assert_eq!(n_read, MAX_CHAINS);
    }
}
