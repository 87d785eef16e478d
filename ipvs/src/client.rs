//! The connection to the kernel.

use std::net::SocketAddr;

use netlink::{DecodeError, Namespace, Socket, Traffic, generic};
use rustix::io::Errno;

use crate::batch::Batch;
use crate::codec::{
    Request, decode_info, decode_real_server, decode_sync_daemon, decode_timeouts,
    decode_virtual_server,
};
use crate::error::Error;
use crate::id::VirtualServerId;
use crate::real_server::{RealServer, RealServerStatus};
use crate::settings::{Info, SyncDaemon, SyncRole, Timeouts};
use crate::uapi::FAMILY_NAME;
use crate::virtual_server::{VirtualServer, VirtualServerStatus};

/// IPVS in one network namespace.
///
/// Every method waits for the kernel's answer, which takes microseconds. The kernel works on one
/// command at a time, so that several clients gain nothing.
///
/// The family's number is asked for once, and again when the module `ip_vs` has been unloaded and
/// loaded, which the kernel allows only while there is no virtual server. What was sent with the
/// former number is refused, as [`Error::is_reloaded`] tells; the next command has the new one.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    family: u16,
}

/// A virtual server with its real servers, as the kernel lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The virtual server.
    pub virtual_server: VirtualServerStatus,
    /// Its real servers, in the kernel's order: the one added last comes first.
    pub real_servers: Vec<RealServerStatus>,
}

impl Client {
    /// A client for the calling thread's network namespace.
    ///
    /// Linux 6.1 loads the module `ip_vs` when it is asked for like this, 5.10 does not: there
    /// `modprobe ip_vs` comes first.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] when the kernel has no IPVS; or the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Self::with(Socket::open(netlink::Protocol::Generic))
    }

    /// A client for another network namespace.
    ///
    /// # Errors
    /// As [`Client::open`], and when the namespace may not be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Self::with(Socket::open_in(namespace, netlink::Protocol::Generic))
    }

    fn with(socket: Result<Socket, netlink::Error>) -> Result<Self, Error> {
        let mut socket = socket.map_err(Error::open)?;
        let family = generic::family(&mut socket, FAMILY_NAME).map_err(Error::open)?;
        Ok(Self { socket, family })
    }

    /// Sends the commands of a batch, hundreds in a send, and returns a result for each, in their
    /// order. The batch is left as it was, and may be sent again.
    ///
    /// A refused command does not keep the ones behind it from being tried.
    ///
    /// # Errors
    /// When the socket itself fails; it is then unknown which commands were carried out.
    pub fn send(&mut self, batch: &Batch) -> Result<Vec<Result<(), Error>>, Error> {
        let former = self.family;
        let requests = batch.requests();
        let results = self
            .socket
            .send_to_family(former, requests)
            .map_err(|error| Error::batch(requests.len(), error))?;
        let doubt = results.iter().flat_map(|result| result.as_ref().err()).any(may_lack_family);
        let family = if doubt { self.ask_for_family() } else { Ok(former) };
        let is_known = matches!(family, Ok(family) if family == former);
        Ok(results
            .into_iter()
            .enumerate()
            .map(|(index, result)| {
                result.map_err(|error| match &family {
                    Err(_) if may_lack_family(&error) => Error::not_loaded(),
                    Ok(_) if may_lack_family(&error) && !is_known => Error::reloaded(),
                    _ => Error::request(requests.body(index).unwrap_or_default(), error),
                })
            })
            .collect())
    }

    /// Version and size of IPVS.
    ///
    /// # Errors
    /// The kernel's refusal, or the socket's failure.
    pub fn info(&mut self) -> Result<Info, Error> {
        self.read_one(&Request::GetInfo, decode_info)
    }

    /// The timeouts of connections.
    ///
    /// # Errors
    /// The kernel's refusal, or the socket's failure.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.read_one(&Request::GetTimeouts, decode_timeouts)
    }

    /// Sets the timeouts of connections; those that are 0 stay as they are.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.execute(&Request::SetTimeouts(timeouts))
    }

    /// Adds a virtual server.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn new_service(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute(&Request::NewService(server))
    }

    /// Changes everything but a virtual server's identity; its connections stay.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn set_service(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute(&Request::SetService(server))
    }

    /// Deletes a virtual server and its real servers.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn delete_service(&mut self, id: &VirtualServerId) -> Result<(), Error> {
        self.execute(&Request::DeleteService(id))
    }

    /// Reads one virtual server.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`] when it does not exist; or the socket's failure.
    pub fn service(&mut self, id: &VirtualServerId) -> Result<VirtualServerStatus, Error> {
        self.read_one(&Request::GetService(id), decode_virtual_server)
    }

    /// Reads virtual servers, many in a send: a result for each, in the same order.
    ///
    /// # Errors
    /// When the socket fails. The inner errors are those of [`Client::service`].
    pub fn services(
        &mut self,
        ids: &[VirtualServerId],
    ) -> Result<Vec<Result<VirtualServerStatus, Error>>, Error> {
        let questions = |family| {
            let mut batch = netlink::Batch::new();
            for id in ids {
                batch.push(family, 0, |message| Request::GetService(id).encode(message));
            }
            batch
        };
        let failed = |error| Error::batch(ids.len(), error);
        let former = self.family;
        let mut batch = questions(former);
        let mut answers = self.socket.ask(&batch, decode_virtual_server).map_err(failed)?;
        let doubt = answers.iter().filter_map(|answer| answer.as_ref().err()).any(may_lack_family);
        if doubt && self.ask_for_family()? != former {
            batch = questions(self.family);
            answers = self.socket.ask(&batch, decode_virtual_server).map_err(failed)?;
        }
        let request = |index| batch.body(index).unwrap_or_default();
        let told = answers.into_iter().enumerate();
        Ok(told
            .map(|(index, answer)| answer.map_err(|error| Error::request(request(index), error)))
            .collect())
    }

    /// Adds a real server.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn new_destination(
        &mut self,
        id: &VirtualServerId,
        server: &RealServer,
    ) -> Result<(), Error> {
        self.execute(&Request::NewDestination(id, server))
    }

    /// Changes everything but a real server's address and port; its connections stay.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn set_destination(
        &mut self,
        id: &VirtualServerId,
        server: &RealServer,
    ) -> Result<(), Error> {
        self.execute(&Request::SetDestination(id, server))
    }

    /// Deletes a real server.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn delete_destination(
        &mut self,
        id: &VirtualServerId,
        server: SocketAddr,
    ) -> Result<(), Error> {
        self.execute(&Request::DeleteDestination(id, server))
    }

    /// Every virtual server of the namespace.
    ///
    /// A listing comes in parts, and the kernel does not say when something changed in between:
    /// what is added or deleted meanwhile may be there or not, and may hide a neighbour. List
    /// while nothing else writes, or list again.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that cannot be read, or the socket's failure.
    pub fn list_services(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.read_all(&Request::ListServices, decode_virtual_server)
    }

    /// Every virtual server that can be decoded, and the errors of the others: one that another program
    /// made with attributes unknown to this crate does not hide the rest.
    ///
    /// # Errors
    /// The kernel's refusal, or the socket's failure.
    pub fn list_decodable_services(
        &mut self,
    ) -> Result<(Vec<VirtualServerStatus>, Vec<DecodeError>), Error> {
        let listed =
            self.read_all(&Request::ListServices, |body| Ok(decode_virtual_server(body)))?;
        let (mut services, mut errors) = (Vec::with_capacity(listed.len()), Vec::new());
        for decoded in listed {
            match decoded {
                Ok(service) => services.push(service),
                Err(error) => errors.push(error),
            }
        }
        Ok((services, errors))
    }

    /// The real servers of a virtual server. One that does not exist has none, says the kernel;
    /// [`Client::service`] tells the two apart.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that cannot be read, or the socket's failure.
    pub fn list_destinations(
        &mut self,
        id: &VirtualServerId,
    ) -> Result<Vec<RealServerStatus>, Error> {
        let family = id.family();
        self.read_all(&Request::ListDestinations(id), |body| decode_real_server(body, family))
    }

    /// Every virtual server with its real servers.
    ///
    /// The kernel lists the real servers of one virtual server at a time, so this costs a request
    /// for each (some 50 µs), and a second one for each that has none, to tell it from one that
    /// was deleted meanwhile and is left out.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that cannot be read, or the socket's failure.
    pub fn list_all(&mut self) -> Result<Vec<Listing>, Error> {
        let services = self.list_services()?;
        let mut listings = Vec::with_capacity(services.len());
        for virtual_server in services {
            let id = virtual_server.server.id;
            let real_servers = self.list_destinations(&id)?;
            if real_servers.is_empty() {
                match self.service(&id) {
                    Err(error) if error.is_no_such_service() => continue,
                    Err(error) => return Err(error),
                    Ok(_) => {}
                }
            }
            listings.push(Listing { virtual_server, real_servers });
        }
        Ok(listings)
    }

    /// Deletes every virtual server of the namespace, also those of other programs.
    ///
    /// # Errors
    /// The kernel's refusal, or the socket's failure.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.execute(&Request::Flush)
    }

    /// Zeroes the counters of a virtual server and of its real servers.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`] when it does not exist; or the socket's failure.
    pub fn zero_service(&mut self, id: &VirtualServerId) -> Result<(), Error> {
        self.execute(&Request::ZeroService(id))
    }

    /// Zeroes every counter of the namespace.
    ///
    /// # Errors
    /// The kernel's refusal, or the socket's failure.
    pub fn zero_all(&mut self) -> Result<(), Error> {
        self.execute(&Request::ZeroAll)
    }

    /// Starts a sync daemon.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn new_daemon(&mut self, daemon: &SyncDaemon) -> Result<(), Error> {
        self.execute(&Request::NewDaemon(daemon))
    }

    /// Stops a sync daemon.
    ///
    /// # Errors
    /// The kernel's refusal, see the table at [`Error`]; or the socket's failure.
    pub fn delete_daemon(&mut self, role: SyncRole) -> Result<(), Error> {
        self.execute(&Request::DeleteDaemon(role))
    }

    /// The sync daemons that run: none, one, or one of each role.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that cannot be read, or the socket's failure.
    pub fn list_daemons(&mut self) -> Result<Vec<SyncDaemon>, Error> {
        self.read_all(&Request::ListDaemons, decode_sync_daemon)
    }

    /// Returns the traffic over the socket, for measurements.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.socket.traffic()
    }

    fn execute(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(request);
        self.send(&batch)?.into_iter().collect()
    }

    /// Asks the kernel for the family's number, which is another one if the module was loaded
    /// again. The kernel may load it upon this.
    fn ask_for_family(&mut self) -> Result<u16, Error> {
        self.family = generic::family(&mut self.socket, FAMILY_NAME).map_err(Error::open)?;
        Ok(self.family)
    }

    /// Reads something, and once more if the family's number was not right any more.
    fn reading<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, netlink::Error>,
    ) -> Result<Result<T, netlink::Error>, Error> {
        let former = self.family;
        match read(self) {
            Err(error) if may_lack_family(&error) && self.ask_for_family()? != former => {
                Ok(read(self))
            }
            result => Ok(result),
        }
    }

    fn read_one<T>(
        &mut self,
        request: &Request<'_>,
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let answers = self.reading(|client| {
            let mut batch = netlink::Batch::new();
            batch.push(client.family, 0, |message| request.encode(message));
            client.socket.request(&batch, |body| decode(body).map(Some))
        })?;
        answers.map_err(|error| failed(request, error))?.into_iter().next().ok_or_else(|| {
            let problem = "the kernel said yes and nothing else";
            failed(request, DecodeError::new("answer", problem).into())
        })
    }

    fn read_all<T>(
        &mut self,
        request: &Request<'_>,
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, Error> {
        let found = self.reading(|client| {
            let write = |message: &mut netlink::MessageWriter<'_>| request.encode(message);
            client.socket.dump(client.family, write, |body| decode(body).map(Some))
        })?;
        found.map_err(|error| failed(request, error))
    }
}

fn failed(request: &Request<'_>, error: netlink::Error) -> Error {
    let mut batch = Batch::new();
    batch.push(request);
    Error::request(batch.requests().body(0).unwrap_or_default(), error)
}

/// True if the kernel may mean that there is no family of this number (`genl_rcv_msg` in
/// net/netlink/genetlink.c says `ENOENT`). The kernel says the same of schedulers and real servers.
fn may_lack_family(error: &netlink::Error) -> bool {
    error.refusal().is_some_and(|refusal| refusal.errno == Errno::NOENT.raw_os_error())
}
