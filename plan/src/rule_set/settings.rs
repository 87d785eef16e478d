//! Settings and facts about the node that decide the constant rules.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{InvalidRuleSetSettings, LocalTraffic, OptionalRules, RuleSetSettings};
use crate::facts::NodeFacts;
use crate::hash::HashSet;
use crate::model::Family;
use crate::settings::{AcceptServiceTraffic, FastPath, Settings};

impl RuleSetSettings {
    /// The mark of traffic to be masqueraded, as `value/mask`.
    pub(crate) fn masquerade_mark(&self) -> String {
        format!("{mark:#x}/{mark:#x}", mark = self.mark)
    }

    /// The rules that mark, and that masquerade what is marked: of `KUBE-MARK-MASQ` and
    /// `KUBE-POSTROUTING`.
    pub(crate) fn masquerading(&self) -> [Vec<String>; 2] {
        let mark = self.masquerade_mark();
        let random_fully = if self.random_fully { " --random-fully" } else { "" };
        let masquerade = vec![
            format!("-m mark ! --mark {mark} -j RETURN"),
            // Cleared, so that a packet that passes here again is not masqueraded again.
            format!("-j MARK --set-xmark {:#x}/0x0", self.mark),
            format!(
                "-m comment --comment \"kubernetes service traffic requiring SNAT\" \
                 -j MASQUERADE{random_fully}"
            ),
        ];
        [vec![format!("-j MARK --set-xmark {mark}")], masquerade]
    }

    /// The rules that accept what is masqueraded, and answers: of `KUBE-FORWARD`.
    pub(crate) fn forwarding(&self) -> [String; 2] {
        [
            format!(
                "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {} -j ACCEPT",
                self.masquerade_mark()
            ),
            "-m comment --comment \"kubernetes forwarding conntrack rule\" \
             -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
                .to_owned(),
        ]
    }

    /// The optional rules of iptables mode.
    pub(crate) fn optional(&self) -> OptionalRules {
        self.optional
    }

    /// Makes the settings that decide the rules. `random_fully`: true if iptables knows that option
    /// (1.6.2 on).
    ///
    /// # Errors
    /// When the bit is not one of a mark's, or the interface name could be no interface's.
    pub fn new(
        masquerade_all: bool,
        masquerade_bit: u8,
        local: LocalTraffic,
        random_fully: bool,
    ) -> Result<Self, InvalidRuleSetSettings> {
        let mark = 1_u32
            .checked_shl(masquerade_bit.into())
            .ok_or(InvalidRuleSetSettings::MasqueradeBit(masquerade_bit))?;
        Ok(Self { masquerade_all, random_fully, ..Self::plain(mark, local.checked()?) })
    }

    /// The settings with this mark, and nothing that is a choice.
    pub(super) fn plain(mark: u32, local: LocalTraffic) -> Self {
        Self {
            masquerade_all: false,
            mark,
            local,
            random_fully: false,
            internal_frontend_network: None,
            fast_path: FastPath::Off,
            routes: Vec::new(),
            own: Vec::new(),
            accepted_node_ports: None,
            health_port: None,
            optional: OptionalRules::default(),
            bound: None,
        }
    }

    /// The same, with these optional rules of iptables mode.
    #[must_use]
    pub fn with_optional(self, optional: OptionalRules) -> Self {
        Self { optional, ..self }
    }

    /// The same, with internal frontends in this network, which is of the rules' family
    /// ([`InternalFrontendNetworks::of`](crate::settings::InternalFrontendNetworks::of)).
    #[must_use]
    pub fn with_internal_frontend_network(self, network: Option<IpNet>) -> Self {
        Self { internal_frontend_network: network.map(|net| net.trunc()), ..self }
    }

    /// The same, with new connections to frontends let in. NodePorts are served inside these networks.
    #[must_use]
    pub fn with_accepted_node_ports(self, networks: Option<Vec<IpNet>>) -> Self {
        Self { accepted_node_ports: networks, ..self }
    }

    /// The same, with a health server that listens at this port of all addresses.
    #[must_use]
    pub fn with_health_port(self, port: Option<u16>) -> Self {
        Self { health_port: port, ..self }
    }

    /// The same, with a way of established connections.
    #[must_use]
    pub fn with_fast_path(self, fast_path: FastPath) -> Self {
        Self { fast_path, ..self }
    }

    /// True if the flow table takes connections that are led to internal frontends.
    pub(super) fn offloads(&self) -> bool {
        self.internal_frontend_network.is_some() && self.fast_path == FastPath::Offload
    }

    /// The same, with these local routes, all of the rules' family. `local` are the addresses of
    /// all interfaces but `kube-ipvs0`.
    #[must_use]
    pub fn with_routes(self, routes: Vec<IpNet>, local: &HashSet<IpAddr>) -> Self {
        let is_inside = |address: &&IpAddr| routes.iter().any(|route| route.contains(*address));
        let mut own: Vec<IpAddr> = local.iter().filter(is_inside).copied().collect();
        own.sort_unstable();
        Self { routes, own, ..self }
    }

    /// Resolves the operator's settings for a family on this node.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn resolve(
        settings: &Settings,
        family: Family,
        facts: &NodeFacts,
    ) -> Result<Self, InvalidRuleSetSettings> {
        let local = LocalTraffic::resolve(settings, family, facts);
        let Settings { masquerade_all, masquerade_bit, random_fully, .. } = *settings;
        let rule_set = Self::new(masquerade_all, masquerade_bit, local, random_fully)?;
        let rule_set =
            rule_set.with_internal_frontend_network(settings.internal_frontend_networks.of(family));
        let rule_set = rule_set.with_fast_path(settings.fast_path_in_force());
        let rule_set = rule_set.with_optional(OptionalRules {
            drop_invalid: settings.drop_invalid,
            nfacct: settings.nfacct,
            localhost_node_ports: settings.iptables_localhost_node_ports,
        });
        let rule_set = rule_set.with_bound(facts.bound(family).cloned());
        let accepted = match settings.accept_service_traffic {
            AcceptServiceTraffic::Always => Some(facts.node_port_networks(settings, family)),
            AcceptServiceTraffic::Never => None,
        };
        let rule_set = rule_set.with_accepted_node_ports(accepted);
        let rule_set = rule_set.with_health_port(settings.health_port);
        Ok(rule_set.with_routes(settings.routes(family), facts.local_addresses()))
    }
}
