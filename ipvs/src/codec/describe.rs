//! A request in words, for errors. It is read back from the request's own bytes, so that a
//! request that succeeds pays nothing for it.

use std::fmt;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::codec::decode::{ServiceFields, decode_real_server_id, inside};
use crate::id::VirtualServerId;
use crate::uapi::{attribute, command};

/// The subject of a request, for the text of an error.
pub(crate) struct Description<'a> {
    command: u8,
    server: Option<VirtualServerId>,
    real_server: Option<SocketAddr>,
    scheduler: Option<&'a str>,
    engine: Option<&'a str>,
}

impl<'a> Description<'a> {
    /// Describes a message that this crate wrote. Parts that the message lacks are left out.
    pub(crate) fn of(body: &'a [u8]) -> Self {
        let mut fields = ServiceFields::default();
        if let Ok(attributes) = inside(body, attribute::SERVICE, "request") {
            for attribute in attributes.map_while(Result::ok) {
                // What cannot be read is left out of the text.
                let _unreadable = fields.take(attribute);
            }
        }
        Self {
            command: body.first().copied().unwrap_or_default(),
            server: fields.id().ok(),
            real_server: decode_real_server_id(body).ok(),
            scheduler: fields.scheduler,
            engine: fields.engine,
        }
    }

    pub(crate) fn command(&self) -> u8 {
        self.command
    }

    /// Returns what an error number means for this request, and what can be done. Read off
    /// ip_vs_genl_set_cmd and the functions it calls (net/netfilter/ipvs/ip_vs_ctl.c).
    pub(crate) fn advice(&self, errno: i32) -> Option<String> {
        let is = |known: Errno| known.raw_os_error() == errno;
        if is(Errno::PERM) {
            return Some("CAP_NET_ADMIN in the initial user namespace is needed".to_owned());
        }
        if is(Errno::AFNOSUPPORT) {
            return Some("IPv6 is switched off in this kernel".to_owned());
        }
        let text = match self.command {
            command::NEW_SERVICE | command::SET_SERVICE if is(Errno::NOENT) => {
                return self.missing_module();
            }
            command::NEW_SERVICE if is(Errno::EXIST) => "the virtual server exists already",
            command::NEW_DEST if is(Errno::EXIST) => "the virtual server has it already",
            command::SET_DEST | command::DEL_DEST if is(Errno::NOENT) => {
                "the virtual server has no such real server"
            }
            command::NEW_DEST | command::SET_DEST if is(Errno::RANGE) => {
                "the weight is past 2147483647, or the lower threshold above the upper"
            }
            command::NEW_DEST if is(Errno::INVAL) => {
                "the address must be one that a packet can be sent to (is the loopback interface \
                 up?), of the virtual server's family unless tunnelled, and GUE needs a port"
            }
            command::DEL_DAEMON if is(Errno::SRCH) => "no such daemon runs",
            command::NEW_DAEMON if is(Errno::EXIST) => "such a daemon runs already",
            command::SET_CONFIG if is(Errno::INVAL) => "a timeout is too long",
            _ if is(Errno::SRCH) => "there is no such virtual server",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn missing_module(&self) -> Option<String> {
        let scheduler = self.scheduler?;
        let mut text =
            format!("the kernel has no scheduler `{scheduler}`: load module ip_vs_{scheduler}");
        if let Some(engine) = self.engine {
            text +=
                &format!(", or no persistence engine `{engine}`: load module ip_vs_pe_{engine}");
        }
        Some(text)
    }
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, between) = match (self.command, self.server.is_some()) {
            (command::NEW_SERVICE, _) => ("add virtual server", ""),
            (command::SET_SERVICE, _) => ("change virtual server", ""),
            (command::DEL_SERVICE, _) => ("delete virtual server", ""),
            (command::GET_SERVICE, true) => ("read virtual server", ""),
            (command::GET_SERVICE, false) => ("list the virtual servers", ""),
            (command::NEW_DEST, _) => ("add real server", " to"),
            (command::SET_DEST, _) => ("change real server", " of"),
            (command::DEL_DEST, _) => ("delete real server", " from"),
            (command::GET_DEST, _) => ("list the real servers of", ""),
            (command::NEW_DAEMON, _) => ("start a sync daemon", ""),
            (command::DEL_DAEMON, _) => ("stop a sync daemon", ""),
            (command::GET_DAEMON, _) => ("list the sync daemons", ""),
            (command::SET_CONFIG, _) => ("set the IPVS timeouts", ""),
            (command::GET_CONFIG, _) => ("read the IPVS timeouts", ""),
            (command::GET_INFO, _) => ("read the IPVS version", ""),
            (command::ZERO, true) => ("zero the counters of", ""),
            (command::ZERO, false) => ("zero every IPVS counter", ""),
            (command::FLUSH, _) => ("delete every virtual server", ""),
            _ => ("an IPVS command", ""),
        };
        f.write_str(before)?;
        if let Some(real_server) = self.real_server {
            write!(f, " {real_server}{between}")?;
        }
        match self.server {
            Some(server) => write!(f, " {server}"),
            None => Ok(()),
        }
    }
}
