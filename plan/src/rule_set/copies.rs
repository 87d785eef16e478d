//! Copies of the first packets of new connections, by which IPVS forgets former connections.
//!
//! While a node leaves IPVS mode, a client may use the port of a closed connection again that IPVS
//! still knows. Rules lead the new connection. When IPVS forgets the former one, it deletes the entry
//! of connection tracking between client and service address, which is the new one's by then
//! (`ip_vs_conn_drop_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c), and the new connection is cut.
//!
//! A copy of each SYN that begins a connection is shown to IPVS, before the answer comes. If the real
//! server of the former connection has weight 0, IPVS forgets that connection at once, and leaves
//! connection tracking alone, since the copy is not tracked (`ip_vs_in_hook` in
//! net/netfilter/ipvs/ip_vs_core.c). No real server is left for the copy itself, and IPVS drops it.
//!
//! IPVS answers a packet that it has no real server for by an ICMP error, which would refuse the
//! client. `icmp_send` in net/ipv4/icmp.c answers no packet that is routed to a broadcast address, so
//! copies of IPv4 are. There is no such address in IPv6. Its copies have a hop limit of their own, and
//! the error is known by the copy that it quotes.
//!
//! A copy that IPVS does not drop goes no further than `OUTPUT` of `filter`. It is known by a bit of
//! its mark, and because connection tracking has not seen it. The client's packet has that bit only
//! between two rules.

use super::jumps::{FORGET, SHOWN};
use super::{Chain, RuleSet, RuleSetSettings, Table};
use crate::facts::BoundAddresses;
use crate::model::Family;
use crate::sets::{SetId, SetKind};

/// Bits of the mark by which copies are known: the second one if the first one means "masquerade".
const MARKS: [u32; 2] = [1 << 27, 1 << 26];

/// Hop limit of the copies of IPv6. Hosts begin with 64, 128 or 255, and few packets have passed 80
/// routers.
const HOP_LIMIT: u8 = 173;

/// First packets of TCP connections.
const SYN: &str = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN";

impl RuleSet {
    /// The same with the copies, if these settings have them. Without, the jumps to them must not be
    /// there, unless the node leaves IPVS mode: then those of the process before go on.
    pub(crate) fn with_copies(mut self, family: Family, settings: &RuleSetSettings) -> Self {
        let Some(BoundAddresses { routes, copies, .. }) = &settings.bound else { return self };
        self.spares_copies = true;
        let Some(copies) = copies else { return self };
        let mut targets: Vec<String> = vec![format!(
            "{SYN} -m conntrack --ctstate NEW -m set --match-set {} dst",
            SetId { kind: SetKind::IpvsAddresses, family }
        )];
        targets.extend(
            routes
                .iter()
                .map(|route| format!("-d {} {SYN} -m conntrack --ctstate NEW", route.trunc())),
        );
        if copies.node_ports {
            let set = SetId { kind: SetKind::NodePortTcp, family };
            targets.push(format!(
                "{SYN} -m conntrack --ctstate NEW -m set --match-set {set} dst -m addrtype \
                 --dst-type LOCAL"
            ));
        }
        let bit = settings.copy_mark();
        // A packet to which the bit means something else keeps it.
        let copied = targets
            .into_iter()
            .map(|target| format!("{target} -m mark --mark 0x0/{bit:#x} -g {SHOWN}"));
        let mark = format!("{bit:#x}/{bit:#x}");
        let copy = format!("{SYN} -m mark --mark {mark} -m conntrack --ctstate UNTRACKED");
        let (gateway, stamp, answer) = match family {
            Family::V4 => ("127.255.255.255", None, None),
            Family::V6 => (
                "::1",
                Some(format!("{copy} -j HL --hl-set {HOP_LIMIT}")),
                // Port unreachable. Its 48 bytes are followed by the header of the copy: the next
                // header is TCP, and then comes the hop limit.
                Some(format!(
                    "-p ipv6-icmp -m icmp6 --icmpv6-type 1/4 -m u32 --u32 \"0x34&0xffff={:#x}\" \
                     -j DROP",
                    0x0600 | u16::from(HOP_LIMIT)
                )),
            ),
        };
        let show = vec![
            format!("-j MARK --set-xmark {mark}"),
            format!("-j TEE --gateway {gateway}"),
            format!("-j MARK --set-xmark 0x0/{bit:#x}"),
        ];
        let end = [Some(format!("{copy} -j DROP")), answer];
        let chain = |table, name, rules| Chain { table, name, rules };
        self.chains.extend([
            chain(Table::Mangle, FORGET, stamp.into_iter().chain(copied).collect()),
            chain(Table::Mangle, SHOWN, show),
            chain(Table::Filter, SHOWN, end.into_iter().flatten().collect()),
        ]);
        self.jumps.extend(super::COPY_JUMPS);
        self.has_copies = true;
        self
    }
}

impl RuleSetSettings {
    fn copy_mark(&self) -> u32 {
        let [first, second] = MARKS;
        if self.mark == first { second } else { first }
    }
}
