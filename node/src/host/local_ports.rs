//! Ports from which the node itself connects, as far as they may be NodePorts.
//!
//! IPVS looks at an answer to the node's own connection before the socket does. Where the port is a
//! NodePort, it takes the answer for a new connection: `tcp_conn_schedule` in
//! net/netfilter/ipvs/ip_vs_proto_tcp.c schedules a SYN with ACK, too. Ports that masquerading
//! chose are no matter: connection tracking has put back the client's own before IPVS looks.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::mode::HostMode;

/// The range of NodePorts, unless kube-apiserver is told otherwise (`--service-node-port-range`).
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Checks that the kernel chooses no such port, where the mode takes packets at INPUT; none: rules lead to Services,
/// and no answer meets them. The error is a warning; `proc_sys` is `/proc/sys`, but for tests.
pub(super) fn check(mode: &HostMode, proc_sys: &Path) -> Option<Result<(), String>> {
    mode.takes_at_input.then(|| warning(proc_sys).map_or(Ok(()), Err))
}

fn warning(proc_sys: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(proc_sys.join("net/ipv4").join(name));
    let chosen = range(read("ip_local_port_range").ok()?.split_whitespace())?;
    let reserved = read("ip_local_reserved_ports").unwrap_or_default();
    let reserved: Vec<RangeInclusive<u16>> =
        reserved.trim().split(',').filter_map(|ports| range(ports.split('-'))).collect();
    let is_free = |port: &u16| !reserved.iter().any(|ports| ports.contains(port));
    NODE_PORTS.filter(|port| chosen.contains(port)).find(is_free).map(|_| {
        format!(
            "net.ipv4.ip_local_port_range ({} to {}) overlaps NodePorts: a process on this node \
             that connects from such a port gets no answer, because IPVS takes the answer for a \
             new connection. Reserve the ports: sysctl -w net.ipv4.ip_local_reserved_ports={}-{} \
             (the range of kube-apiserver's --service-node-port-range)",
            chosen.start(),
            chosen.end(),
            NODE_PORTS.start(),
            NODE_PORTS.end()
        )
    })
}

/// One number is the first and the last.
fn range<'a>(mut numbers: impl Iterator<Item = &'a str>) -> Option<RangeInclusive<u16>> {
    let first = numbers.next()?.trim().parse().ok()?;
    Some(first..=numbers.next().map_or(Some(first), |last| last.trim().parse().ok())?)
}

#[cfg(test)]
mod tests {
    use plan::mode::Mode;
    use plan::op::PartKind;

    use super::*;
    use crate::mode;

    #[test]
    fn only_ipvs_takes_an_answer_for_a_new_connection() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net/ipv4");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ip_local_port_range"), "1024\t65535\n").unwrap();
        for mode in Mode::ALL {
            let warned = check(mode::of(mode), root.path()).is_some_and(|checked| checked.is_err());
            assert_eq!(warned, mode.uses(PartKind::VirtualServers), "{mode}");
        }
    }

    #[test]
    fn node_ports_that_the_kernel_may_choose_are_warned_of() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(warning(root.path()), None);
        let folder = root.path().join("net/ipv4");
        fs::create_dir_all(&folder).unwrap();
        for (chosen, reserved, is_told) in [
            ("32768\t60999\n", "\n", false),
            ("1024\t65535\n", "\n", true),
            ("32767\t32768\n", "\n", true),
            ("1024\t29999\n", "\n", false),
            ("1024\t65535\n", "30000-32767\n", false),
            ("1024\t65535\n", "8080,30000-31000,31001-32767\n", false),
            ("1024\t65535\n", "30000-32766\n", true),
            ("31000\t65535\n", "31000-32766,32767\n", false),
        ] {
            fs::write(folder.join("ip_local_port_range"), chosen).unwrap();
            fs::write(folder.join("ip_local_reserved_ports"), reserved).unwrap();
            assert_eq!(warning(root.path()).is_some(), is_told, "{chosen:?} {reserved:?}");
        }
    }
}
