//! Sysctls: read, set and kept. Each mode of the proxy has its list (`node/src/mode/`).
//!
//! Each is read first and written only if it differs, at the start and every second from then on:
//! `sysctl --system` sets them anew, and a module that was unloaded forgets them. None is reset on
//! exit, because the next proxy needs them too. IPv6 forwarding is left alone: with it on, the
//! kernel ignores router advertisements, which may have given the node its own routes.

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use plan::model::Family;

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// Directory of the sysctls.
pub const ROOT: &str = "/proc/sys";

/// ARP requests for addresses on `kube-ipvs0` that this node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceAddressesArp {
    /// All of them, unless the operator has set the kernel's sysctls otherwise.
    #[default]
    Answered,
    /// None, and those for the node's own addresses only on the interface that has the address.
    Strict,
    /// None, and those for the node's own addresses on every interface.
    Quiet,
}

/// A sysctl and the value that it should have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sysctl {
    /// Its path below [`ROOT`].
    pub path: &'static str,
    /// Its value, as the kernel prints it.
    pub value: String,
    /// True if Services do not work without it.
    pub required: bool,
    /// Reason for the value.
    pub why: &'static str,
}

/// Visibility of a bridge's packets to connection tracking and IPVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bridged {
    /// Visible: the sysctl is on.
    Shown,
    /// Hidden: the sysctl is off.
    Hidden,
    /// Hidden: `br_netfilter` is not loaded.
    NoModule,
}

/// Major and minor version of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

/// `disable_ipv6` of the interface [`LINK`](plan::kernel_objects::LINK).
const LINK_DISABLE_IPV6: &str = "net/ipv6/conf/kube-ipvs0/disable_ipv6";

/// Result of setting sysctls.
#[derive(Debug, Default)]
pub struct SysctlOutcome {
    /// Sysctls that had another value.
    pub changed: Vec<SysctlChange>,
    /// Sysctls that could not be set.
    pub failed: Vec<SysctlError>,
}

/// A sysctl that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlChange {
    /// The sysctl, with its new value.
    pub sysctl: Sysctl,
    /// The old value, as the kernel printed it.
    pub before: String,
}

/// A sysctl that could not be set.
#[derive(Debug)]
pub struct SysctlError {
    /// The sysctl, with the value that it should have.
    pub sysctl: Sysctl,
    /// The value that it has, if it could be read.
    pub found: Option<String>,
    /// Error that the kernel reported.
    pub source: io::Error,
}

/// Returns the sysctl by which the dummy interface takes addresses of IPv6. A new interface has the value
/// of `net.ipv6.conf.default.disable_ipv6`, which hardened hosts set to 1 and leave 0 for the interfaces
/// that are to have IPv6 (`addrconf_init_net` in net/ipv6/addrconf.c). Netlink has no attribute for it.
#[must_use]
pub fn ipv6_of_link() -> Sysctl {
    let why = "kube-ipvs0 accepts the IPv6 addresses of Services";
    Sysctl::new(LINK_DISABLE_IPV6, 0, false, why)
}

/// Returns the sysctl by which node ports on loopback addresses work in mode iptables. Without the
/// rule that drops what comes from outside, neighbours could reach what listens on loopback
/// addresses only.
#[must_use]
pub fn local_networks_routed() -> Sysctl {
    let why = "NodePorts on loopback addresses reach endpoints on other nodes";
    Sysctl::new(ROUTE_LOCALNET, 1, false, why)
}

/// Sets the sysctls that differ. `root` is [`ROOT`] except in tests.
pub fn apply(root: &Path, wanted: &[Sysctl]) -> SysctlOutcome {
    let mut outcome = SysctlOutcome::default();
    for sysctl in wanted {
        match set(root, sysctl) {
            Ok(None) => {}
            Ok(Some(change)) => outcome.changed.push(change),
            Err(error) => outcome.failed.push(error),
        }
    }
    outcome
}

/// Sets a sysctl, and returns what changed; nothing if it has its value already.
pub fn set(root: &Path, sysctl: &Sysctl) -> Result<Option<SysctlChange>, SysctlError> {
    let path = root.join(sysctl.path);
    let found = read(&path);
    if found.as_ref() == Ok(&sysctl.value) {
        return Ok(None);
    }
    let (sysctl, found) = (sysctl.clone(), found.ok());
    match fs::write(&path, &sysctl.value) {
        Ok(()) => Ok(Some(SysctlChange { sysctl, before: found.unwrap_or_default() })),
        Err(source) => Err(SysctlError { sysctl, found, source }),
    }
}

/// True if a sysctl has its value, or this process may set it. In a container `/proc/sys` is read-only
/// as a rule.
#[must_use]
pub fn can_have(root: &Path, sysctl: &Sysctl) -> bool {
    let path = root.join(sysctl.path);
    read(&path).as_ref() == Ok(&sysctl.value)
        || fs::OpenOptions::new().write(true).open(&path).is_ok()
}

/// Returns those that this kernel has.
#[must_use]
pub fn existing(root: &Path, sysctls: Vec<Sysctl>) -> Vec<Sysctl> {
    sysctls.into_iter().filter(|sysctl| root.join(sysctl.path).exists()).collect()
}

/// Returns those with another value.
#[must_use]
pub fn differing(root: &Path, wanted: &[Sysctl]) -> Vec<Sysctl> {
    let differs = |sysctl: &&Sysctl| match read(&root.join(sysctl.path)) {
        Ok(value) => value != sysctl.value,
        // There is none without the interface.
        Err(_) => sysctl.path != LINK_DISABLE_IPV6,
    };
    wanted.iter().filter(differs).cloned().collect()
}

/// True if packets with loopback addresses may pass every interface.
#[must_use]
pub fn routes_local_networks(root: &Path) -> bool {
    read(&root.join(ROUTE_LOCALNET)).as_deref() == Ok("1")
}

/// True if IPVS answers for connections to its real servers that it does not know, which the rules
/// of another mode led there (`nat_icmp_send`).
#[must_use]
pub fn answers_for_real_servers(root: &Path) -> bool {
    let value = fs::read_to_string(root.join("net/ipv4/vs/nat_icmp_send"));
    value.is_ok_and(|value| value.trim() != "0")
}

/// True if connection tracking takes TCP packets outside of the window for valid. An unreadable
/// sysctl counts as off, as with kube-proxy.
#[must_use]
pub fn is_tcp_liberal(root: &Path) -> bool {
    let value = read(&root.join("net/netfilter/nf_conntrack_tcp_be_liberal"));
    value.is_ok_and(|value| value != "0")
}

/// The sysctl, below [`ROOT`], that shows a family's packets within bridges.
#[must_use]
pub const fn bridged_sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    }
}

/// The running kernel's version; none if it says nothing that looks like one.
#[must_use]
pub fn kernel_version(root: &Path) -> Option<KernelVersion> {
    KernelVersion::parse(&read(&root.join("kernel/osrelease")).ok()?)
}

fn read(path: &Path) -> Result<String, io::ErrorKind> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| error.kind())
}

impl Bridged {
    /// Reads the present visibility. `root` is [`ROOT`] except in tests.
    #[must_use]
    pub fn read(root: &Path, family: Family) -> Self {
        match read(&root.join(bridged_sysctl(family))).as_deref() {
            Ok("1") => Self::Shown,
            Ok(_) => Self::Hidden,
            Err(_) => Self::NoModule,
        }
    }
}

impl Sysctl {
    /// A sysctl to set.
    pub fn new(
        path: &'static str,
        value: impl fmt::Display,
        required: bool,
        why: &'static str,
    ) -> Self {
        Self { path, value: value.to_string(), required, why }
    }

    /// Its name, as the program `sysctl` writes it.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.replace('/', ".")
    }
}

impl fmt::Display for Sysctl {
    /// As the program `sysctl` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name(), self.value)
    }
}

impl KernelVersion {
    /// `6.1.0-18-cloud-amd64`
    fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|character: char| !character.is_ascii_digit());
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for SysctlChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (it was {}): {}", self.sysctl, self.before, self.sysctl.why)
    }
}

impl std::error::Error for SysctlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl fmt::Display for SysctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sysctl, found, source } = self;
        write!(f, "cannot set {sysctl}")?;
        if let Some(found) = found {
            write!(f, " (it is {found})")?;
        }
        write!(f, ": {source}. It is needed so that {}. ", sysctl.why)?;
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => write!(
                f,
                "/proc/sys is mounted read-only: run the container privileged, or set it on the \
                 host (sysctl -w {sysctl})"
            ),
            io::ErrorKind::PermissionDenied => write!(
                f,
                "Root in the user namespace that owns the network namespace may set it: run the \
                 container privileged, or set it on the host (sysctl -w {sysctl})"
            ),
            io::ErrorKind::NotFound if sysctl.path.starts_with("net/ipv4/vs/") => f.write_str(
                "The kernel has it only with IPVS: load the module on the host (modprobe ip_vs)",
            ),
            _ if sysctl.path.starts_with("net/netfilter/nf_conntrack") && found.is_none() => {
                write!(
                    f,
                    "The kernel has it only with conntrack: load the module on the host (modprobe \
                     nf_conntrack), then set it there (sysctl -w {sysctl})"
                )
            }
            _ => write!(f, "Set it on the host (sysctl -w {sysctl})"),
        }
    }
}
