//! The kernel modules that a guest carries, with everything they depend on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::host_packages::find_program;
use super::kernel_package::KernelPackage;
use super::{host_tool, progress};

/// Families of modules that come whole: whatever starts like this.
const FAMILIES: &[&str] = &[
    "ip_vs",
    "ip_set",
    "nf_conntrack",
    "nf_flow_table",
    "nf_log",
    "nf_nat",
    "nf_reject",
    "nft_",
    "xt_",
    "ipt_",
    "ip6t_",
    "iptable_",
    "ip6table_",
    "virtio_",
];

/// Single modules that the daemon, its tests and their networks use. One that a kernel has built in
/// or does not have is no failure here: the test that needs it says so.
const SINGLES: &[&str] = &[
    // Packet filters: iptables with tables of its own, and over nftables.
    "ip_tables",
    "ip6_tables",
    "nf_tables",
    // Links.
    "8021q",
    "bonding",
    "br_netfilter",
    "bridge",
    "dummy",
    "fou",
    "geneve",
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
    "wireguard",
    // Traffic control.
    "act_gact",
    "cls_matchall",
    "sch_ingress",
    "sch_netem",
    // IPsec.
    "esp4",
    "esp6",
    "xfrm_user",
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
    "aes_generic",
    "crc32c_generic",
    "crc32c_intel",
    "ctr",
    "drbg",
    "gcm",
    "ghash_generic",
    "hmac",
    "jitterentropy_rng",
    "md5",
    "seqiv",
    "sha1_generic",
    "sha256_generic",
    "sha512_generic",
    "overlay",
];

/// Lays out the wanted modules below `root` as `lib/modules/RELEASE`, uncompressed, with the index
/// files that modprobe needs.
pub(crate) fn lay_out(package: &KernelPackage, root: &Path) -> Result<()> {
    let release = package.release.as_str();
    // A package comes without the index: Debian makes it when the package is installed.
    host_tool::output(
        Command::new(find_program("depmod")?).arg("-b").arg(&package.directory).arg(release),
    )?;
    let index = package.modules().join("modules.dep");
    let index = std::fs::read_to_string(&index)
        .with_context(|| format!("depmod wrote no {}", index.display()))?;
    let wanted = wanted(&index);
    // Without the host's own settings in /etc/modprobe.d, which may forbid modules there.
    let mut query = Command::new(find_program("modprobe")?);
    query.args(["-C", "/dev/null", "-S", release, "-a", "-q", "--show-depends", "-d"]);
    query.arg(&package.directory).args(&wanted);
    let output = host_tool::output_whatever_status(&mut query)?;
    let closure = Closure::parse(&String::from_utf8_lossy(&output.stdout));
    let missing = closure.missing(&wanted);
    if !missing.is_empty() {
        progress!("kernel {release} lacks these modules: {}", missing.join(" "));
    }

    let target = root.join("lib/modules").join(release);
    let mut compressed = Vec::new();
    for file in &closure.files {
        let inside = file.strip_prefix(package.modules()).with_context(|| {
            format!("modprobe printed a path outside of the kernel's folder: {}", file.display())
        })?;
        let copy = target.join(inside);
        std::fs::create_dir_all(copy.parent().unwrap_or(&target))?;
        std::fs::copy(file, &copy)
            .with_context(|| format!("cannot copy the module {}", file.display()))?;
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
    host_tool::output(Command::new(find_program("depmod")?).arg("-b").arg(root).arg(release))?;
    Ok(())
}

/// Files that modprobe would load for all wanted modules, and built-in modules that it would find.
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
    fn missing(&self, wanted: &BTreeSet<String>) -> Vec<String> {
        let files: BTreeSet<String> =
            self.files.iter().filter_map(|file| module_name(file)).collect();
        let is_there = |name: &String| files.contains(name) || self.builtin.contains(name);
        wanted.iter().filter(|name| !is_there(name)).cloned().collect()
    }
}

/// The names of all modules to carry, from the index `modules.dep`: `PATH: DEPENDENCIES`.
fn wanted(index: &str) -> BTreeSet<String> {
    let names = index
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(path, _)| module_name(Path::new(path)));
    names
        .filter(|name| FAMILIES.iter().any(|family| name.starts_with(family)))
        .chain(SINGLES.iter().map(|&name| name.to_owned()))
        .collect()
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
        let wanted = ["dummy", "ip_vs", "nf_conntrack", "virtio_pci"].map(str::to_owned);
        assert_eq!(closure.missing(&wanted.into()), ["dummy"]);
    }

    #[test]
    fn families_come_whole_and_singles_always() {
        let index = "kernel/net/netfilter/ipvs/ip_vs_mh.ko.xz: kernel/net/netfilter/ipvs/ip_vs.ko.xz\n\
            kernel/net/netfilter/xt_sctp.ko:\n\
            kernel/drivers/net/tap.ko: kernel/net/ipv4/xt_none.ko\n";
        let wanted = wanted(index);
        assert!(wanted.contains("ip_vs_mh") && wanted.contains("xt_sctp"));
        assert!(!wanted.contains("tap") && !wanted.contains("xt_none"));
        assert_eq!(wanted.len(), SINGLES.len() + 2);
    }

    #[test]
    fn module_names_of_file_names() {
        assert_eq!(
            module_name(Path::new("/a/crc32c-intel.ko.xz")).as_deref(),
            Some("crc32c_intel")
        );
        assert_eq!(module_name(Path::new("/a/modules.dep")), None);
    }
}
