//! Facts of the kernel on which a switch between IPVS mode and iptables mode on a live node rests.
//!
//! The tests set up virtual servers and rules by hand, as both modes have them, and open connections
//! before and after the rules change. "Old" is a connection that IPVS made, "new" one that DNAT made.
//!
//! Each row held in IPv4 and IPv6, on 5.10, 6.1 and 6.12 in virtual machines, with iptables for
//! nf_tables and for x_tables, and on 6.12 in user mode with x_tables. Settings: `vs/conntrack` 1,
//! `vs/expire_nodest_conn` 1, `vs/conn_reuse_mode` 0. Rows without a test were measured.
//!
//! | Fact | Evidence |
//! | --- | --- |
//! | A rule for DNAT leaves old connections to IPVS, and its removal leaves new ones to DNAT: of clients outside, pods and the node, masqueraded or not, also where `INVALID` is dropped in FORWARD. | `rules::connections_stay_…` |
//! | The first rule of a namespace that tracks connections resets old ones, the last one that goes resets new ones. One other such rule, at any time before, is enough to prevent it. | `rules::connections_do_not_survive_…` |
//! | A removed real server resets its old connections within a tick of the clock. That a virtual server of the family is left does not help, and that it was the last one does no other harm. If the same request (`ipvsadm -R`) adds them again, the connections live. | `removal::a_connection_of_ipvs_…` |
//! | Weight 0: old connections live; new ones that reach IPVS fail. A SYN on the tuple of an old connection is dropped, and the next one, a second later, goes by DNAT. | `removal::a_real_server_of_weight_0_…` |
//! | Without its address on the node, an old connection waits until the address is back. A masqueraded one of a client outside is reset: connection tracking forgets what changes its interface. | `removal::without_its_address_…` |
//! | A datagram to a removed real server within a tick of the clock (4 ms or 10 ms) is dropped, so each flow that never pauses loses one or more. A flow that pauses so long loses none. At weight 0 none is lost, and flows stay. | `datagrams::flows_stay_…` |
//! | A client's port used again by DNAT: when IPVS forgets the former connection, the latter is cut off, and reset unless the rules choose the same endpoint. | `ports::a_port_used_again_…` |
//! | A set of IPVS's clients, kept current by a rule, leaves such ports to IPVS. | `ports::a_set_…` |
//! | An untracked copy of each SYN (`TEE`) has IPVS forget the former connection of a real server of weight 0 at once, and leave connection tracking alone. IPVS answers no copy that is routed to a broadcast address (IPv4); its answer to others quotes the copy's hop limit (IPv6). | `ports::an_untracked_copy_…` |
//! | Answers by DNAT from a real server of the former connection bring that back, in the state SYN_SENT, which counts as active: with clients that use ports again, a real server's active connections do not become 0. | `ports::answers_by_dnat_…` |
//! | While a Service's address is bound, the node's own connections have it as their source, also with DNAT. The answer of an endpoint on another node is lost, unless a rule has such sources masqueraded. | `source::the_node_sends_…` |
//! | A connection of the node with such a source is lost when the address goes. If a local route with another source takes the address's place, new connections have that source, and old ones go on. | `leaving_ipvs::the_nodes_own_…` |
//! | `vs/nat_icmp_send` 1 cuts what DNAT sends to a real server. | `source::nat_icmp_send_…` |
//! | Connections through an internal frontend (pods and node, `externalTrafficPolicy: Local`) outlive their virtual servers: their entry in connection tracking has another tuple than the one that IPVS deletes. | `load::the_load_notices_…` |
//!
//! Resets of reused ports, measured with 8 connections at a time of 100 ms each, 320 ports in turn and 3 endpoints: 2 to
//! 8 connections in all, of those that live at the removal, on each kernel. It made no difference whether the removal came at once or 14 s after the
//! rules. With retransmitted SYNs: none, of 937 to 1,347 connections.
//!
//! Datagrams that a flow loses at a removal, if it sends one every 2 ms: 0 to 2.

mod datagrams;
mod ground;
mod ports;
mod removal;
mod rules;
mod source;
