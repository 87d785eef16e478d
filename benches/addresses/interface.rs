//! A dummy interface and what makes addresses local, by plain netlink messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use netlink::{Batch, DecodeError, Protocol, Socket};
use plan::model::Family;

/// The interface's index: chosen, so that nothing has to be asked.
const INDEX: u32 = 1_000;
/// The loopback interface's, in every network namespace (`LOOPBACK_IFINDEX`, include/net/flow.h).
const LOOPBACK: u32 = 1;
// include/uapi/linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTN_LOCAL: u8 = 2;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_HOST: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// `struct rtmsg`: family, lengths of both prefixes, tos, table, protocol, scope, type, flags (u32).
const ROUTE_TYPE: usize = 7;
// include/uapi/linux/netlink.h
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
// include/uapi/linux/if_link.h and if.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFF_UP: u32 = 1;
// include/uapi/linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

const PATIENCE: Duration = Duration::from_secs(120);

/// `ifa_flags` (include/uapi/linux/if_addr.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u32);

/// Scope in which an address is valid.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope {
    Universe,
    Host,
}

/// The interface, in the network namespace that it was created in.
pub(crate) struct Interface {
    socket: Socket,
}

// === impl Flags ===

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// `IFA_F_NODAD`
    pub(crate) const NODAD: Self = Self(0x02);
    /// `IFA_F_NOPREFIXROUTE`
    pub(crate) const NOPREFIXROUTE: Self = Self(0x200);

    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

// === impl Interface ===

impl Interface {
    pub(crate) fn create(up: bool) -> Result<Self> {
        let mut interface = Self { socket: Socket::open(Protocol::Route)? };
        let flags = if up { IFF_UP } else { 0 };
        let mut batch = Batch::new();
        for (index, flags) in [(LOOPBACK, IFF_UP), (INDEX, flags)] {
            let request = if index == INDEX { NLM_F_CREATE | NLM_F_EXCL } else { 0 };
            batch.push(RTM_NEWLINK, request, |message| {
                // struct ifinfomsg: family, padding, type (u16), index, flags, change mask.
                let body = message.body();
                body.extend_from_slice(&[0; 4]);
                body.extend_from_slice(&index.to_ne_bytes());
                body.extend_from_slice(&flags.to_ne_bytes());
                body.extend_from_slice(&flags.to_ne_bytes());
                if index == INDEX {
                    let mut attributes = message.attributes();
                    attributes.string(IFLA_IFNAME, plan::kernel::LINK);
                    attributes.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
                }
            });
        }
        interface.carry_out(&batch).context("make the interface")?;
        Ok(interface)
    }

    pub(crate) fn delete(mut self) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_DELLINK, 0, |message| {
            let body = message.body();
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&INDEX.to_ne_bytes());
            body.extend_from_slice(&[0; 8]);
        });
        self.carry_out(&batch).context("delete the interface")
    }

    pub(crate) fn add(
        &mut self,
        numbers: &[u32],
        family: Family,
        scope: Scope,
        flags: Flags,
        twice: bool,
    ) -> Result<()> {
        let scope = match scope {
            Scope::Universe => 0,
            Scope::Host => RT_SCOPE_HOST,
        };
        let mut batch = Batch::new();
        for number in numbers {
            let address = address(family, *number);
            batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
                // struct ifaddrmsg: family, prefix length, flags, scope, index.
                message.body().extend_from_slice(&[number_of(family), bits(family), 0, scope]);
                message.body().extend_from_slice(&INDEX.to_ne_bytes());
                let mut attributes = message.attributes();
                attributes.address(IFA_LOCAL, address);
                if twice {
                    attributes.address(IFA_ADDRESS, address);
                }
                attributes.u32(IFA_FLAGS, flags.0);
            });
        }
        self.carry_out(&batch).context("add addresses")
    }

    /// An IPv6 address becomes local some time after it was acknowledged, one after the other
    /// (`addrconf_dad_work` in net/ipv6/addrconf.c).
    pub(crate) fn wait_until_local(&mut self, number: Option<u32>, family: Family) -> Result<()> {
        let Some(number) = number.filter(|_| family == Family::V6) else { return Ok(()) };
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let mut batch = Batch::new();
            batch.push(RTM_GETROUTE, 0, |message| {
                let route = [number_of(family), bits(family), 0, 0, 0, 0, 0, 0];
                message.body().extend_from_slice(&route);
                message.body().extend_from_slice(&[0; 4]);
                message.attributes().address(RTA_DST, address(family, number));
            });
            let kind = |body: &[u8]| Ok::<_, DecodeError>(body.get(ROUTE_TYPE).copied());
            // Before, there is no route at all.
            if self.socket.request(&batch, kind).is_ok_and(|kinds| kinds.contains(&RTN_LOCAL)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the last address has not become local within {PATIENCE:?}")
    }

    pub(crate) fn remove(&mut self, numbers: &[u32], family: Family) -> Result<()> {
        let mut batch = Batch::new();
        for number in numbers {
            batch.push(RTM_DELADDR, 0, |message| {
                message.body().extend_from_slice(&[number_of(family), bits(family), 0, 0]);
                message.body().extend_from_slice(&INDEX.to_ne_bytes());
                message.attributes().address(IFA_LOCAL, address(family, *number));
            });
        }
        self.carry_out(&batch).context("remove addresses")
    }

    pub(crate) fn add_routes(&mut self, numbers: &[u32], family: Family) -> Result<()> {
        self.routes(RTM_NEWROUTE, numbers, family, bits(family)).context("add routes")
    }

    pub(crate) fn remove_routes(&mut self, numbers: &[u32], family: Family) -> Result<()> {
        self.routes(RTM_DELROUTE, numbers, family, bits(family)).context("remove routes")
    }

    pub(crate) fn add_range(&mut self, family: Family) -> Result<()> {
        self.routes(RTM_NEWROUTE, &[0], family, range(family)).context("add the route")
    }

    pub(crate) fn remove_range(&mut self, family: Family) -> Result<()> {
        self.routes(RTM_DELROUTE, &[0], family, range(family)).context("remove the route")
    }

    fn routes(&mut self, request: u16, numbers: &[u32], family: Family, bits: u8) -> Result<()> {
        // The kernel has IPv6 routes only for interfaces that are up (`fib6_nh_init` in
        // net/ipv6/route.c), which the loopback interface is.
        let index = match family {
            Family::V4 => INDEX,
            Family::V6 => LOOPBACK,
        };
        let flags = if request == RTM_NEWROUTE { NLM_F_CREATE | NLM_F_EXCL } else { 0 };
        let mut batch = Batch::new();
        for number in numbers {
            batch.push(request, flags, |message| {
                message.body().extend_from_slice(&[
                    number_of(family),
                    bits,
                    0,
                    0,
                    RT_TABLE_LOCAL,
                    RTPROT_STATIC,
                    RT_SCOPE_HOST,
                    RTN_LOCAL,
                ]);
                message.body().extend_from_slice(&[0; 4]);
                let mut attributes = message.attributes();
                attributes.address(RTA_DST, address(family, *number));
                attributes.u32(RTA_OIF, index);
            });
        }
        self.carry_out(&batch)
    }

    fn carry_out(&mut self, batch: &Batch) -> Result<()> {
        Ok(self.socket.send(batch)?.into_iter().collect::<Result<(), _>>()?)
    }
}

/// `AF_INET`, `AF_INET6` (include/linux/socket.h).
const fn number_of(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

const fn bits(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// The length of a service range's prefix, as kubeadm has it by default.
const fn range(family: Family) -> u8 {
    match family {
        Family::V4 => 12,
        Family::V6 => 108,
    }
}

fn address(family: Family, number: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 0, 0).to_bits() + number).into(),
        Family::V6 => {
            let first = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0).to_bits();
            Ipv6Addr::from_bits(first + u128::from(number)).into()
        }
    }
}
