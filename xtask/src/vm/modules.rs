//! The kernel modules that a guest carries, with everything they depend on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel_package::KernelPackage;
use super::{host_tool, progress};

/// What the daemon, its tests and their networks use. A module that some kernel has built in or
/// does not have is no failure here: the test that needs it says so.
const WANTED: &[&str] = &[
    // IPVS with every scheduler.
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_wrr",
    "ip_vs_lc",
    "ip_vs_wlc",
    "ip_vs_sh",
    "ip_vs_dh",
    "ip_vs_sed",
    "ip_vs_nq",
    "ip_vs_mh",
    "ip_vs_fo",
    "ip_vs_ovf",
    "ip_vs_lblc",
    "ip_vs_lblcr",
    "ip_vs_ftp",
    "xt_ipvs",
    // Connection tracking and address translation.
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_log_syslog",
    // Sets.
    "ip_set",
    "ip_set_bitmap_ip",
    "ip_set_bitmap_port",
    "ip_set_hash_ip",
    "ip_set_hash_ipmark",
    "ip_set_hash_ipport",
    "ip_set_hash_ipportip",
    "ip_set_hash_ipportnet",
    "ip_set_hash_net",
    "ip_set_hash_netiface",
    "ip_set_hash_netnet",
    "ip_set_hash_netport",
    "ip_set_list_set",
    "xt_set",
    // iptables over its own tables.
    "ip_tables",
    "iptable_filter",
    "iptable_nat",
    "iptable_mangle",
    "iptable_raw",
    "ip6_tables",
    "ip6table_filter",
    "ip6table_nat",
    "ip6table_mangle",
    "ip6table_raw",
    // iptables over nftables, and nft itself.
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nft_counter",
    "nft_ct",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_hash",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_objref",
    "nft_redir",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    // Matches and targets of both.
    "ipt_REJECT",
    "ip6t_REJECT",
    "xt_CT",
    "xt_LOG",
    "xt_MASQUERADE",
    "xt_NFLOG",
    "xt_REDIRECT",
    "xt_TCPMSS",
    "xt_TPROXY",
    "xt_addrtype",
    "xt_bpf",
    "xt_comment",
    "xt_connmark",
    "xt_conntrack",
    "xt_hashlimit",
    "xt_limit",
    "xt_mac",
    "xt_mark",
    "xt_multiport",
    "xt_nat",
    "xt_owner",
    "xt_physdev",
    "xt_pkttype",
    "xt_recent",
    "xt_socket",
    "xt_state",
    "xt_statistic",
    "xt_string",
    "xt_tcpudp",
    // Links.
    "bonding",
    "br_netfilter",
    "bridge",
    "dummy",
    "fou",
    "gre",
    "ip6_gre",
    "ip6_tunnel",
    "ip_gre",
    "ipip",
    "ipvlan",
    "macvlan",
    "nlmon",
    "sit",
    "tun",
    "veth",
    "vxlan",
    "sch_netem",
    // Protocols and socket listings.
    "sctp",
    "sctp_diag",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "netlink_diag",
    "unix_diag",
    "af_packet_diag",
    // What those ask the crypto layer for by name, which no dependency tells.
    "crc32c_generic",
    "crc32c_intel",
    "hmac",
    "md5",
    "sha1_generic",
    "sha256_generic",
    // The machine the guest runs on.
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "virtio_net",
    "overlay",
];

/// Lays out the wanted modules below `root` as `lib/modules/RELEASE`, uncompressed, with the index
/// files that modprobe needs.
pub(crate) fn lay_out(package: &KernelPackage, root: &Path) -> Result<()> {
    let release = package.release.as_str();
    // A package comes without the index: Debian makes it when the package is installed.
    host_tool::output(Command::new("depmod").arg("-b").arg(&package.directory).arg(release))?;
    // Without the host's own settings in /etc/modprobe.d, which may forbid modules there.
    let mut query = Command::new("modprobe");
    query.args(["-C", "/dev/null", "-S", release, "-a", "-q", "--show-depends", "-d"]);
    query.arg(&package.directory).args(WANTED);
    let output = host_tool::output_whatever_status(&mut query)?;
    let closure = Closure::parse(&String::from_utf8_lossy(&output.stdout));
    let missing = closure.missing();
    if !missing.is_empty() {
        progress!("kernel {release} has no modules {}", missing.join(" "));
    }

    let target = root.join("lib/modules").join(release);
    let mut compressed = Vec::new();
    for file in &closure.files {
        let inside = file
            .strip_prefix(package.modules())
            .with_context(|| format!("modprobe named a module elsewhere: {}", file.display()))?;
        let copy = target.join(inside);
        std::fs::create_dir_all(copy.parent().unwrap_or(&target))?;
        std::fs::copy(file, &copy)
            .with_context(|| format!("module {} cannot be copied", file.display()))?;
        if copy.extension().is_some_and(|extension| extension == "xz") {
            compressed.push(copy);
        }
    }
    if !compressed.is_empty() {
        host_tool::output(Command::new("xz").arg("-d").args(&compressed))?;
    }
    for index in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let source = package.modules().join(index);
        if source.is_file() {
            std::fs::copy(source, target.join(index))?;
        }
    }
    host_tool::output(Command::new("depmod").arg("-b").arg(root).arg(release))?;
    Ok(())
}

/// What modprobe would do to load all wanted modules.
#[derive(Debug, PartialEq)]
struct Closure {
    files: BTreeSet<PathBuf>,
    builtin: BTreeSet<String>,
}

impl Closure {
    /// From the output of `modprobe --show-depends`: `insmod PATH OPTIONS` and `builtin NAME`.
    fn parse(text: &str) -> Self {
        let mut closure = Self { files: BTreeSet::new(), builtin: BTreeSet::new() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("insmod"), Some(path)) => {
                    closure.files.insert(PathBuf::from(path));
                }
                (Some("builtin"), Some(name)) => {
                    closure.builtin.insert(name.replace('-', "_"));
                }
                _ => {}
            }
        }
        closure
    }

    /// The wanted modules that are neither files nor built in.
    fn missing(&self) -> Vec<&'static str> {
        let names: BTreeSet<String> =
            self.files.iter().filter_map(|file| module_name(file)).collect();
        let there = |wanted: &&&str| !names.contains(**wanted) && !self.builtin.contains(**wanted);
        WANTED.iter().filter(there).copied().collect()
    }
}

/// `xt_set` of `/…/xt_set.ko.xz`. File names may have dashes where modules have underscores.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    Some(name.split_once(".ko")?.0.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_builtins_are_told_apart() {
        let closure = Closure::parse(
            "insmod /k/lib/modules/6.1/net/nf_conntrack.ko \n\
             insmod /k/lib/modules/6.1/net/ip_vs.ko.xz conn_tab_bits=12\n\
             insmod /k/lib/modules/6.1/net/nf_conntrack.ko \n\
             builtin virtio-pci\n",
        );
        assert_eq!(closure.files.len(), 2);
        let missing = closure.missing();
        assert!(!missing.contains(&"ip_vs") && !missing.contains(&"nf_conntrack"));
        assert!(!missing.contains(&"virtio_pci") && missing.contains(&"dummy"));
    }

    #[test]
    fn module_names_of_file_names() {
        assert_eq!(
            module_name(Path::new("/a/crc32c-intel.ko.xz")).as_deref(),
            Some("crc32c_intel")
        );
        assert_eq!(module_name(Path::new("/a/modules.dep")), None);
    }

    #[test]
    fn no_module_is_wanted_twice() {
        let unique: BTreeSet<_> = WANTED.iter().collect();
        assert_eq!(unique.len(), WANTED.len());
    }
}
