//! Errors, in a type that callers branch on by asking it.

use std::fmt;

use rustix::io::Errno;

use crate::codec::Description;
use crate::uapi::command;

/// A command that the kernel refused, or whose answer could not be had.
///
/// It displays as a sentence: what was tried, on what, the kernel's answer, and what to do where
/// that is known: `add real server 10.0.0.1:80 to TCP 10.96.0.1:80: No such process (os error 3):
/// there is no such virtual server`.
///
/// The kernel's answers (`ip_vs_genl_set_cmd` and `ip_vs_genl_get_cmd` in
/// net/netfilter/ipvs/ip_vs_ctl.c, `start_sync_thread` and `stop_sync_thread` in ip_vs_sync.c):
///
/// | command | answer | when |
/// | --- | --- | --- |
/// | any | `EPERM` | without `CAP_NET_ADMIN` in the initial user namespace |
/// | any on an IPv6 virtual server | `EAFNOSUPPORT` | IPv6 is switched off |
/// | new service | `EEXIST` | it exists |
/// | | `ENOENT` | scheduler or persistence engine unknown, their module not found |
/// | | `EINVAL` | IPv6 prefix length not 1 to 128 |
/// | set service | `ESRCH`, `ENOENT`, `EINVAL` | it does not exist; as above |
/// | delete service, get service, zero service | `ESRCH` | it does not exist |
/// | new destination | `ESRCH` | the virtual server does not exist |
/// | | `EEXIST` | the virtual server has it |
/// | | `EINVAL` | no unicast or own address (any, when the loopback interface is down); another address family without a tunnel, or beside a sync daemon; GUE without a port |
/// | | `ERANGE` | weight past `i32::MAX`, lower threshold above the upper |
/// | set destination | `ESRCH`, `ENOENT` | no such virtual server; no such real server |
/// | | `EINVAL`, `ERANGE` | as above, but for the address |
/// | delete destination | `ESRCH`, `ENOENT` | no such virtual server; no such real server |
/// | list services, list destinations | none | a virtual server that does not exist has an empty list |
/// | set timeouts | `EINVAL` | past `i32::MAX` ticks of the kernel's clock |
/// | new daemon | `EEXIST`, `ENODEV`, `EINVAL` | one runs; no such interface; no multicast group, or real servers of both address families |
/// | | `ENETUNREACH` | the interface has no route for the multicast group |
/// | delete daemon | `ESRCH` | none runs |
/// | | no answer ([`Error::is_answer_lost`]), and it stops | it was started a moment ago, and its thread had not yet run |
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
enum Kind {
    NotLoaded,
    Reloaded,
    Failed { command: Option<u8>, what: String, advice: Option<String>, source: netlink::Error },
}

impl Error {
    /// Makes the error of opening a client.
    pub(crate) fn open(source: netlink::Error) -> Self {
        if source.refusal().is_some() && is(&source, Errno::NOENT) {
            return Self(Box::new(Kind::NotLoaded));
        }
        Self::failed("reach IPVS over netlink".to_owned(), source)
    }

    /// Makes the error of a request made while IPVS was not loaded.
    pub(crate) fn not_loaded() -> Self {
        Self(Box::new(Kind::NotLoaded))
    }

    /// Makes the error of a request not done because `ip_vs` was unloaded and loaded again.
    pub(crate) fn reloaded() -> Self {
        Self(Box::new(Kind::Reloaded))
    }

    /// Makes the error of a request, given without its header.
    pub(crate) fn request(body: &[u8], source: netlink::Error) -> Self {
        let description = Description::of(body);
        let advice = source.refusal().and_then(|refusal| description.advice(refusal.errno));
        let (command, what) = (Some(description.command()), description.to_string());
        Self(Box::new(Kind::Failed { command, what, advice, source }))
    }

    /// Makes the error of a batch whose socket failed.
    pub(crate) fn batch(requests: usize, source: netlink::Error) -> Self {
        Self::failed(format!("send {requests} IPVS commands"), source)
    }

    /// Makes the error of counting virtual servers.
    pub(crate) fn count(source: netlink::Error) -> Self {
        Self::failed("count virtual servers (IP_VS_SO_GET_INFO)".to_owned(), source)
    }

    /// Makes the error of listing virtual servers as an option of a socket.
    pub(crate) fn list(source: netlink::Error) -> Self {
        Self::failed("list virtual servers of IPv4 (IP_VS_SO_GET_SERVICES)".to_owned(), source)
    }

    fn failed(what: String, source: netlink::Error) -> Self {
        Self(Box::new(Kind::Failed { command: None, what, advice: None, source }))
    }

    /// True if the kernel has no IPVS: the module `ip_vs` is not loaded.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(*self.0, Kind::NotLoaded)
    }

    /// True if the module `ip_vs` was unloaded and loaded again: the command was not carried out,
    /// and all virtual servers are gone.
    #[must_use]
    pub fn is_reloaded(&self) -> bool {
        matches!(*self.0, Kind::Reloaded)
    }

    /// True if the virtual server, real server or sync daemon to be added exists (`EEXIST`).
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.is_refusal(Errno::EXIST)
    }

    /// True if the virtual server, real server or sync daemon that the command is about does not
    /// exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let is_about_real_server =
            matches!(self.command(), Some(command::SET_DEST | command::DEL_DEST));
        self.is_refusal(Errno::SRCH) || (is_about_real_server && self.is_refusal(Errno::NOENT))
    }

    /// True if the virtual server does not exist, be the command about itself or about a real
    /// server of it (`ESRCH`).
    #[must_use]
    pub fn is_no_such_service(&self) -> bool {
        self.command() != Some(command::DEL_DAEMON) && self.is_refusal(Errno::SRCH)
    }

    /// True if the kernel does not have the virtual server's scheduler or persistence engine, and
    /// found no module that has it (`ENOENT`).
    #[must_use]
    pub fn is_unknown_scheduler(&self) -> bool {
        matches!(self.command(), Some(command::NEW_SERVICE | command::SET_SERVICE))
            && self.is_refusal(Errno::NOENT)
    }

    /// True if `CAP_NET_ADMIN` in the initial user namespace is missing (`EPERM`, `EACCES`).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        [Errno::PERM, Errno::ACCESS].into_iter().any(|errno| self.is_refusal(errno))
    }

    /// True if the kernel will refuse the command again as long as its surroundings stay the same
    /// (`EINVAL`, `ERANGE`, `EAFNOSUPPORT`).
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        [Errno::INVAL, Errno::RANGE, Errno::AFNOSUPPORT].iter().any(|errno| self.is_refusal(*errno))
    }

    /// True if the command may or may not have been carried out: its answer did not arrive.
    #[must_use]
    pub fn is_answer_lost(&self) -> bool {
        self.netlink().is_some_and(netlink::Error::is_answer_lost)
    }

    /// True if an answer came that cannot be read.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        self.netlink().is_some_and(netlink::Error::is_undecodable)
    }

    /// The error number: the kernel's refusal, or the failed system call's.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match &*self.0 {
            Kind::NotLoaded | Kind::Reloaded => Some(Errno::NOENT.raw_os_error()),
            Kind::Failed { source, .. } => source.raw_os_error(),
        }
    }

    fn netlink(&self) -> Option<&netlink::Error> {
        match &*self.0 {
            Kind::NotLoaded | Kind::Reloaded => None,
            Kind::Failed { source, .. } => Some(source),
        }
    }

    fn command(&self) -> Option<u8> {
        match *self.0 {
            Kind::Failed { command, .. } => command,
            Kind::NotLoaded | Kind::Reloaded => None,
        }
    }

    fn is_refusal(&self, errno: Errno) -> bool {
        self.netlink().is_some_and(|error| error.refusal().is_some() && is(error, errno))
    }
}

fn is(error: &netlink::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::NotLoaded => {
                f.write_str("the kernel has no IPVS: load the module ip_vs (modprobe ip_vs)")
            }
            Kind::Reloaded => {
                f.write_str("the module ip_vs was unloaded and loaded again, this was not done")
            }
            Kind::Failed { what, advice, source, .. } => {
                write!(f, "{what}: {source}")?;
                match advice {
                    Some(advice) => write!(f, ": {advice}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The netlink error is part of the text already; what is behind it is not lost.
        self.netlink().and_then(std::error::Error::source)
    }
}
