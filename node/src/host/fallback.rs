//! Decision about a host that cannot do the preferred mode.
//!
//! It falls before anything is changed. A node whose traffic mode ipvs carries does not change its
//! mode because a module could not be loaded for a moment: there kube-ipvs exits, and its
//! supervisor tries again.

use std::fmt;

use anyhow::bail;
use plan::mode::Mode;

use crate::cleanup::IpvsState;
use config::mode::ModeChoice;

/// A node that serves in another mode than the preferred one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallenBack {
    /// Mode that it should serve in.
    pub preferred: Mode,
    /// Mode that it serves in.
    pub mode: Mode,
    /// Missing prerequisites as texts, at least one.
    pub missing: Vec<String>,
}

/// Decides for a host on which so much is `missing` of what the preferred mode needs. Returns none if
/// the preferred mode is to be served in; or if it cannot be, and there is no other.
///
/// # Errors
/// When the node must not change its mode.
pub(super) fn decide(
    choice: &ModeChoice,
    missing: &[String],
    ipvs_state: impl FnOnce() -> Result<IpvsState, String>,
) -> anyhow::Result<Option<FallenBack>> {
    let Some(fallback) = choice.fallback.filter(|_| !missing.is_empty()) else { return Ok(None) };
    let (preferred, mode) = (choice.preferred, fallback.mode);
    let lacks = missing.join("\n- ");
    match ipvs_state() {
        Ok(state) if state.is_empty() => {
            Ok(Some(FallenBack { preferred, mode, missing: missing.to_vec() }))
        }
        Ok(state) => bail!(
            "this host does not support {} now, and does not fall back to {}, because it has state \
             of IPVS mode: {state}. To leave IPVS mode for good, run --cleanup or reboot the host. \
             Missing prerequisites:\n- {lacks}",
            preferred.title(),
            mode.title()
        ),
        Err(error) => bail!(
            "this host does not support {} now, and does not fall back to {}, because kube-ipvs \
             cannot read whether it has state of IPVS mode: {error}. Missing prerequisites:\n- {lacks}",
            preferred.title(),
            mode.title()
        ),
    }
}

impl fmt::Display for FallenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preferred, mode, missing } = self;
        let missing = missing.join("; ");
        let (preferred, mode) = (preferred.title(), mode.title());
        write!(f, "this host does not support {preferred}; falling back to {mode}: {missing}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use config::mode::Fallback;
    use config::words::OnReturn;

    const NONE: IpvsState = IpvsState { addresses: 0, virtual_servers: 0, routes: 0 };

    fn mk_choice(has_fallback: bool) -> ModeChoice {
        let fallback = Fallback {
            mode: Mode::Iptables,
            retry: Duration::from_secs(300),
            on_return: OnReturn::Stay,
        };
        ModeChoice { preferred: Mode::Ipvs, fallback: has_fallback.then_some(fallback) }
    }

    fn mk_missing() -> Vec<String> {
        ["no ip_vs", "no ip_set"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_node_falls_back_only_if_something_is_missing_and_it_may() {
        for (has_fallback, missing, falls_back) in [
            (true, mk_missing(), true),
            (true, Vec::new(), false),
            (false, mk_missing(), false),
            (false, Vec::new(), false),
        ] {
            let decided = decide(&mk_choice(has_fallback), &missing, || Ok(NONE)).unwrap();
            let expected = falls_back.then(|| FallenBack {
                preferred: Mode::Ipvs,
                mode: Mode::Iptables,
                missing: missing.clone(),
            });
            assert_eq!(decided, expected);
        }
    }

    #[test]
    fn a_node_that_ipvs_has_served_does_not_change_its_mode() {
        for state in [
            IpvsState { addresses: 1, ..NONE },
            IpvsState { virtual_servers: 1, ..NONE },
            IpvsState { routes: 1, ..NONE },
        ] {
            let said =
                decide(&mk_choice(true), &mk_missing(), || Ok(state)).unwrap_err().to_string();
            assert!(said.contains("does not fall back to iptables mode"), "{said}");
            assert!(said.contains("- no ip_vs\n- no ip_set"), "{said}");
            // Without missing prerequisites, the kernel is not read.
            assert_eq!(decide(&mk_choice(true), &[], || Ok(state)).unwrap(), None);
        }
        let unread = || Err("said no".to_owned());
        let said = decide(&mk_choice(true), &mk_missing(), unread).unwrap_err().to_string();
        assert!(said.contains("cannot read whether") && said.contains("said no"), "{said}");
    }

    #[test]
    fn the_reason_names_modes_and_what_is_missing() {
        let fallen =
            decide(&mk_choice(true), &mk_missing(), || Ok(NONE)).unwrap().unwrap().to_string();
        assert_eq!(
            fallen,
            "this host does not support IPVS mode; falling back to iptables mode: no ip_vs; no ip_set"
        );
    }
}
