//! Comparison of the state that kube-proxy leaves in the kernel for a cluster with the desired state of kube-ipvs.
//!
//! Each folder beside this file is a cluster in several stages: objects as kube-apiserver 1.36.2 gave
//! them, and what kube-proxy 1.36.2 left for them in its modes ipvs and iptables: the output of
//! `ipvsadm -Sn`, `ipset save`, `iptables-save` and `ip6tables-save` (1.8.9, nf_tables), and the
//! addresses. It ran on Linux 6.1 without a restart from the first stage on, with
//! `--hostname-override=node1 --cluster-cidr=10.128.0.0/9,fd00:10::/64` and, in mode ipvs,
//! `--ipvs-scheduler=rr`. Counters are zero, and comments with dates are left out. The first stage of
//! `random-101` has no IPv6 rules of mode iptables: kube-proxy had not written any when they were to
//! be saved.
//!
//! A folder that is put beside `random-101` is compared as well. Exceptions are functions, each with
//! its reason; `docs/compatibility.md` lists them.
//!
//! - `cluster`: reads the folders; `saved`: rules as text;
//! - `ipvs`, `iptables`: what each mode has; `lint`: what is wrong with rules whatever they are for;
//! - `tracer`: the fate of a packet by the text of rules; `fates`: of the same packets in both;
//!   `flows`: of packets in small clusters, in tables;
//! - `texts`: rules that the clusters have no reason for.

// Clippy takes it for a test only if it says so.
#![cfg(test)]

mod cluster;
mod fates;
mod flows;
mod iptables;
mod ipvs;
mod lint;
mod saved;
mod texts;
mod tracer;
