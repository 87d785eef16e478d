//! Bridges whose packets bypass connection tracking and IPVS.
//!
//! If a pod reaches another pod on its bridge through a Service, the answer goes over the bridge
//! with the two pods' addresses. Only `br_netfilter` shows such an answer to IPVS, which restores
//! the Service's address; without it, the client drops the answer. Setting the sysctl is left to
//! the host, since it applies to all bridges.

use std::path::{Path, PathBuf};

use plan::model::Family;

use crate::link::{Link, LinkAddress, Links};
use crate::sysctl::{self, Bridged};

/// Detector of such bridges, which warns once for each family.
#[derive(Debug)]
pub(super) struct Bridges {
    proc_sys: PathBuf,
    /// Families without a warning so far.
    families: Vec<Family>,
    /// The rules, which have the kernel load the module (`physdev_mt_check` in
    /// net/netfilter/xt_physdev.c), may not be written yet.
    is_first: bool,
}

impl Bridges {
    pub(super) fn new(proc_sys: impl Into<PathBuf>, families: Vec<Family>) -> Self {
        Self { proc_sys: proc_sys.into(), families, is_first: true }
    }

    /// Looks for such bridges. `addresses` are those of all interfaces.
    pub(super) fn check(&mut self, links: &mut Links, addresses: &[LinkAddress]) {
        let hidden = self.hidden();
        if hidden.is_empty() {
            return;
        }
        // If this fails, the next check lists them.
        let Ok(bridges) = links.bridges() else { return };
        for warning in self.warnings(&hidden, &bridges, addresses) {
            tracing::warn!("{warning}");
        }
    }

    /// Returns the families whose packets are hidden and that have no warning so far.
    fn hidden(&mut self) -> Vec<(Family, Bridged)> {
        let is_first = std::mem::take(&mut self.is_first);
        let read = |family: &Family| (*family, Bridged::read(&self.proc_sys, *family));
        let families = self.families.iter().map(read);
        families
            .filter(|(_, bridged)| match bridged {
                Bridged::Shown => false,
                Bridged::Hidden => true,
                Bridged::NoModule => !is_first,
            })
            .collect()
    }

    /// Returns warnings about bridges that have an address of the family.
    fn warnings(
        &mut self,
        hidden: &[(Family, Bridged)],
        bridges: &[Link],
        addresses: &[LinkAddress],
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        for (family, bridged) in hidden {
            let names = with_address(bridges, *family, addresses);
            if !names.is_empty() {
                let hidden = HiddenBridges::new(*family, *bridged, &names.join(", "));
                warnings.push(format!("{}. {}", hidden.what, hidden.remedy));
                self.families.retain(|it| it != family);
            }
        }
        warnings
    }
}

/// Bridges whose packets IPVS does not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenBridges {
    /// Family whose packets are hidden.
    pub family: Family,
    /// Sysctl that hides them, and what follows.
    pub what: String,
    /// Advice on what to do.
    pub remedy: String,
}

/// Returns the bridges with an address whose packets are hidden, by family.
///
/// # Errors
/// When the interfaces cannot be read.
pub fn hidden(
    proc_sys: &Path,
    links: &mut Links,
    addresses: &[LinkAddress],
) -> Result<Vec<HiddenBridges>, netlink::Error> {
    let bridges = links.bridges()?;
    let mut hidden = Vec::new();
    for family in Family::BOTH {
        let bridged = Bridged::read(proc_sys, family);
        let names = with_address(&bridges, family, addresses).join(", ");
        if bridged != Bridged::Shown && !names.is_empty() {
            hidden.push(HiddenBridges::new(family, bridged, &names));
        }
    }
    Ok(hidden)
}

/// Returns the names of the bridges that have an address of the family, as pods' bridges have.
fn with_address<'a>(
    bridges: &'a [Link],
    family: Family,
    addresses: &[LinkAddress],
) -> Vec<&'a str> {
    let has_address = |bridge: &&Link| {
        let mut own = addresses.iter().filter(|it| it.index == bridge.index);
        own.any(|it| Family::of(it.address) == family && !it.is_link_local_v6())
    };
    bridges.iter().filter(has_address).map(|bridge| bridge.name.as_str()).collect()
}

impl HiddenBridges {
    fn new(family: Family, bridged: Bridged, bridges: &str) -> Self {
        let sysctl = sysctl::bridged_sysctl(family).replace('/', ".");
        let (is, load) = match bridged {
            Bridged::NoModule => ("is not there", "modprobe br_netfilter && "),
            _ => ("is not 1", ""),
        };
        Self {
            family,
            what: format!(
                "{sysctl} {is}: IPVS does not see packets within a bridge ({bridges}). A pod that \
                 reaches a pod on the same bridge through a Service gets no answer"
            ),
            remedy: format!(
                "If pods of this node are on a bridge, set it on the host ({load}sysctl -w \
                 {sysctl}=1)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::IpAddr;

    use super::*;

    fn address(index: u32, address: &str) -> LinkAddress {
        let address: IpAddr = address.parse().unwrap();
        LinkAddress {
            index,
            address,
            prefix: 24,
            scope: 0,
            is_deprecated: false,
            is_secondary: false,
        }
    }

    /// Looks once, as [`Bridges::check`] does.
    fn look(bridges: &mut Bridges, kind: &[Link], addresses: &[LinkAddress]) -> Vec<String> {
        let hidden = bridges.hidden();
        bridges.warnings(&hidden, kind, addresses)
    }

    #[test]
    fn a_bridge_whose_packets_are_not_shown_is_reported_once() {
        let root = tempfile::tempdir().unwrap();
        let both = || Bridges::new(root.path(), Family::BOTH.to_vec());
        let addresses = [
            address(1, "127.0.0.1"),
            address(2, "192.0.2.1"),
            address(7, "fe80::1"),
            address(7, "10.244.1.1"),
        ];
        let cni = [Link { index: 7, name: "cni0".to_owned(), kind: "bridge".to_owned() }];
        let mut bridges = both();
        assert!(look(&mut bridges, &cni, &addresses).is_empty(), "the module may still come");
        let [warning] = &look(&mut bridges, &cni, &addresses)[..] else { panic!("one family") };
        let start = "net.bridge.bridge-nf-call-iptables is not there: ";
        assert!(warning.starts_with(start) && warning.contains("(cni0)"), "{warning}");
        assert!(warning.contains("(modprobe br_netfilter && sysctl -w net.bridge."), "{warning}");

        let folder = root.path().join("net/bridge");
        fs::create_dir_all(&folder).unwrap();
        let set = |v4: &str, v6: &str| {
            fs::write(folder.join("bridge-nf-call-iptables"), v4).unwrap();
            fs::write(folder.join("bridge-nf-call-ip6tables"), v6).unwrap();
        };
        set("0\n", "0\n");
        let mut bridges = both();
        assert!(look(&mut bridges, &cni, &addresses[..3]).is_empty(), "it has no address");
        assert!(look(&mut bridges, &[], &addresses).is_empty(), "there is none");
        let [warning] = &look(&mut bridges, &cni, &addresses)[..] else { panic!("one family") };
        assert!(warning.starts_with("net.bridge.bridge-nf-call-iptables is not 1: "), "{warning}");
        assert!(look(&mut bridges, &cni, &addresses).is_empty(), "it has been said");
        let dual = [&addresses[..], &[address(7, "fd00:244:1::1")]].concat();
        let [warning] = &look(&mut bridges, &cni, &dual)[..] else { panic!("the other family") };
        assert!(warning.starts_with("net.bridge.bridge-nf-call-ip6tables is not 1: "), "{warning}");

        set("1\n", "1\n");
        assert!(both().hidden().is_empty());
    }
}
