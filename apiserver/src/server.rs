//! The server as a test holds it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::connection;
use crate::faults::{Fault, Faults, Injected, On};
use crate::handler::Handler;
use crate::kubeconfig::{self, Credentials};
use crate::object::{self, Identity};
use crate::options::{Options, Release};
use crate::requests::{Log, LoggedRequest};
use crate::resource::Resource;
use crate::store::Store;
use crate::tls::{Authority, ClientCertificate};
use crate::usage::{Meter, Usage};

/// A server that runs, in a thread of its own; it ends when this is dropped.
///
/// No method waits for a client; all may be called from synchronous and asynchronous tests.
pub struct Server {
    address: SocketAddr,
    handler: Arc<Handler>,
    acceptor: TlsAcceptor,
    runtime: Handle,
    /// Every change cuts the connections that are open.
    cut: watch::Sender<u64>,
    /// The task that accepts connections, while the listener is open.
    listening: Mutex<Option<Listening>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Listening {
    stop: watch::Sender<bool>,
    closed: std::sync::mpsc::Receiver<()>,
}

impl Server {
    /// Starts a server in the calling thread's network namespace; it listens when this returns.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub fn start(options: Options) -> Result<Self> {
        let listener = bind(options.listen)?;
        let address = listener.local_addr().context("the listener has no address")?;
        let authority = Authority::new().context("no certificate authority")?;
        let mut tls = authority.server_config(address.ip())?;
        if options.http2 {
            tls.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).to_vec();
        }
        let meter = Arc::new(Meter::default());
        let handler = Handler {
            store: Arc::new(Store::new(options.managed_fields, options.history)),
            faults: Arc::new(Faults::new()),
            access: Access::new(options.anonymous, options.tokens),
            authority,
            log: Log::default(),
            meter: Arc::clone(&meter),
            watches: std::array::from_fn(|_| Arc::new(AtomicUsize::new(0))),
            connections: Arc::new(AtomicUsize::new(0)),
            bookmark_period: options.bookmark_period,
            has_protobuf: options.protobuf,
            has_content_type: options.content_type,
            release: Mutex::new(options.release),
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("apiserver".to_owned())
            .spawn(move || {
                meter.measure_this_thread();
                // An error is the handle dropped, which is the end as well.
                let _ = runtime.block_on(ended);
            })
            .context("no thread for the server")?;
        let server = Self {
            address,
            handler: Arc::new(handler),
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            runtime: handle,
            cut: watch::channel(0).0,
            listening: Mutex::new(None),
            end: Some(end),
            thread: Some(thread),
        };
        server.listen(listener)?;
        Ok(server)
    }

    /// Returns the address the server listens on, or will again after [`Server::close`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://` and the address.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of the authority, PEM.
    pub fn authority(&self) -> String {
        self.handler.authority.pem()
    }

    /// The text of a kubeconfig for this server.
    pub fn kubeconfig(&self, credentials: &Credentials) -> String {
        kubeconfig::text(&self.url(), &self.authority(), credentials)
    }

    /// A client certificate that this server trusts.
    ///
    /// # Errors
    ///
    /// The common name does not fit a certificate.
    pub fn client_certificate(&self, common_name: &str) -> Result<ClientCertificate> {
        self.handler.authority.issue(common_name)
    }

    /// No longer trusts the certificates of a common name, from the next connection on.
    pub fn revoke(&self, common_name: &str) {
        self.handler.authority.revoke(common_name);
    }

    /// Answers as another release from the next request on, as an upgrade of the cluster has it.
    pub fn set_release(&self, release: Release) {
        *self.handler.release.lock() = release;
    }

    /// Accepts a bearer token from now on.
    pub fn add_token(&self, token: &str) {
        self.handler.access.add(token);
    }

    /// Refuses a bearer token from the next request on.
    pub fn remove_token(&self, token: &str) {
        self.handler.access.remove(token);
    }

    /// Creates or replaces an object; returns the resource version that it has then. An object
    /// that does not change keeps its version, and no watch hears of it.
    ///
    /// # Errors
    ///
    /// It has no name, or its apiVersion and kind are not served.
    pub fn apply(&self, object: Value) -> Result<u64> {
        let identity = Identity::of(&object)?;
        let written = self.handler.store.put(&identity, object, false);
        written
            .map(|written| written.version)
            .ok_or_else(|| anyhow!("{} {}: no JSON object", identity.resource, identity.name))
    }

    /// Deletes an object; says whether there was one. The namespace of a resource without
    /// namespaces is empty.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        self.handler.store.remove(&Identity {
            resource,
            namespace: resource.is_namespaced().then(|| namespace.to_owned()),
            name: name.to_owned(),
        })
    }

    /// Makes all earlier resource versions unavailable: they get a 410. Watches that have begun go
    /// on. Returns the version that is the oldest now.
    pub fn compact(&self) -> u64 {
        self.handler.store.compact()
    }

    /// The current resource version.
    pub fn resource_version(&self) -> u64 {
        self.handler.store.version()
    }

    /// The objects of a resource, with kind and apiVersion, in the order of their keys.
    pub fn list(&self, resource: Resource) -> Vec<Value> {
        let snapshot = self.handler.store.snapshot(resource, None);
        let objects = snapshot.map(|snapshot| snapshot.objects).unwrap_or_default();
        objects.values().map(|object| object::typed(resource, object)).collect()
    }

    /// The events that clients have recorded.
    pub fn events(&self) -> Vec<Value> {
        self.list(Resource::Events)
    }

    /// Number of connections that it has accepted.
    pub fn accepted(&self) -> u64 {
        self.handler.meter.connections()
    }

    /// Its use of the machine since its start.
    ///
    /// # Errors
    ///
    /// There is no /proc that tells the thread's processor time.
    pub fn usage(&self) -> Result<Usage> {
        self.handler.meter.usage()
    }

    /// The requests so far, in the order of their answers.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.handler.log.all()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.handler.log.clear();
    }

    /// Returns the number of running watches of a resource.
    pub fn watches(&self, resource: Resource) -> usize {
        self.handler.running(resource).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.handler.connections.load(Ordering::SeqCst)
    }

    /// Makes something go wrong from now on, until it has struck as often as asked for or is
    /// lifted. Of several faults the first injected strikes first.
    pub fn inject(&self, fault: Fault, on: On) -> Injected {
        self.handler.faults.inject(fault, on)
    }

    /// Cuts all connections; new ones are accepted.
    pub fn disconnect(&self) {
        self.cut.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Closes the listener and cuts all connections: clients are refused when this returns.
    pub fn close(&self) {
        let mut listening = self.listening.lock();
        if let Some(open) = listening.take() {
            open.stop.send_replace(true);
            // An error is the task having ended, and with it the listener.
            let _ = open.closed.recv();
        }
        self.disconnect();
    }

    /// Listens again, at the same port.
    ///
    /// # Errors
    ///
    /// Another process has taken the port.
    pub fn reopen(&self) -> Result<()> {
        self.listen(bind(self.address)?)
    }

    fn listen(&self, listener: TcpListener) -> Result<()> {
        let mut listening = self.listening.lock();
        listener.set_nonblocking(true).context("the listener cannot be made non-blocking")?;
        let listener = {
            let _entered = self.runtime.enter();
            tokio::net::TcpListener::from_std(listener)
                .context("the runtime does not take the listener")?
        };
        let (stop, stopped) = watch::channel(false);
        let (ended, closed) = std::sync::mpsc::channel();
        let (acceptor, handler) = (self.acceptor.clone(), Arc::clone(&self.handler));
        let cut = self.cut.subscribe();
        self.runtime.spawn(async move {
            connection::accept(listener, acceptor, handler, stopped, cut).await;
            // The receiver may be gone: no caller waits then.
            let _ = ended.send(());
        });
        *listening = Some(Listening { stop, closed });
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            // An error is the thread having ended.
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the API server's thread has panicked");
        }
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    // The standard library sets SO_REUSEADDR, without which the port could not be had again.
    TcpListener::bind(address).with_context(|| format!("{address} cannot be listened on"))
}
