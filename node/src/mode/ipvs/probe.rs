//! Attempts at IPVS, sets and the interface. Each removes what it has made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use plan::scheduler::SchedulerName;
use plan::settings::{RuleForm, Settings};
use tracing::info;

use crate::mode::TryRules;
use kernel::linux::Linux;
use kernel::modules;
use kernel::probe::{self, Attempts, Facts, IpvsAttempts, ProcRoot};
use kernel::sysctl::Sysctl;

/// TEST-NET-2 (RFC 5737), where no cluster has a Service. kube-proxy probes with the same address.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0));
/// The same in the documentation prefix of IPv6 (RFC 3849).
const ADDRESS_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xc633, 0x6400));
const PORT: u16 = 20_000;

/// Asks the host about all that the mode needs.
pub(super) fn gather(
    settings: &Settings,
    sysctls: &[Sysctl],
    iptables: &mut TryRules<'_>,
) -> Facts {
    let ipset = || ipset::Client::open().map(drop).map_err(|error| error.to_string());
    gather_beside(ipset, settings, sysctls, iptables)
}

/// The same for sets and rules in nf_tables, where it is iptables that needs `CAP_NET_RAW`.
pub(super) fn gather_with_tables(
    settings: &Settings,
    sysctls: &[Sysctl],
    tables: &mut TryRules<'_>,
) -> Facts {
    let facts = gather_beside(|| Ok(()), settings, sysctls, tables);
    Facts { net_raw: None, rule_form: RuleForm::Nftables, ..facts }
}

fn gather_beside(
    mut ipset: impl FnMut() -> Result<(), String>,
    settings: &Settings,
    sysctls: &[Sysctl],
    rules: &mut TryRules<'_>,
) -> Facts {
    let of_ipvs = IpvsAttempts {
        scheduler: &settings.scheduler,
        try_scheduler: &mut |scheduler| {
            try_virtual_server(scheduler, ADDRESS).map_err(|error| format!("{error:#}"))
        },
        try_ipv6: &mut |scheduler| try_ipv6(scheduler),
        unbalanced: &mut || modules::unbalanced_protocols(Path::new(modules::SYMBOLS)),
        ipset: &mut ipset,
        dummy: &mut || Linux::try_dummy().map_err(|error| error.to_string()),
    };
    let mut attempts = Attempts { of_ipvs: Some(of_ipvs), iptables: rules };
    probe::gather(&ProcRoot::default(), sysctls, &mut attempts)
}

/// A kernel with `CONFIG_IP_VS_IPV6` takes a virtual server of IPv6; one without answers
/// `EAFNOSUPPORT` (`ip_vs_genl_parse_service` in net/netfilter/ipvs/ip_vs_ctl.c). Another refusal is not
/// the family's: operations meet it again, and retry.
fn try_ipv6(scheduler: &SchedulerName) -> Result<(), String> {
    let Err(error) = try_virtual_server(scheduler, ADDRESS_V6) else { return Ok(()) };
    let errno = error.downcast_ref::<ipvs::Error>().and_then(ipvs::Error::raw_os_error);
    if errno == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) {
        return Err(format!("{error:#}"));
    }
    info!("cannot test an IPv6 virtual server: {error:#}");
    Ok(())
}

/// A kernel that has the module, or may load it, takes the scheduler.
fn try_virtual_server(scheduler: &SchedulerName, address: IpAddr) -> anyhow::Result<()> {
    let mut client = ipvs::Client::open()?;
    let wanted = ipvs::Scheduler::new(scheduler.as_str())?;
    let id = ipvs::VirtualServerId::tcp(address, PORT);
    let shows = |service: &ipvs::VirtualServerStatus| {
        service.server.scheduler == wanted && service.server.id.family() == id.family()
    };
    if client.list_services()?.iter().any(shows) {
        return Ok(());
    }
    let probe = ipvs::VirtualServer::new(id, wanted);
    match client.new_service(&probe) {
        // A process was killed while it tried another scheduler.
        Err(error) if error.is_exists() => {
            client.delete_service(&id)?;
            client.new_service(&probe)?;
        }
        tried => tried?,
    }
    Ok(client.delete_service(&id)?)
}
