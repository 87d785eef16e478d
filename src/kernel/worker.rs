//! The thread that owns the kernel's handles.
//!
//! ```text
//!   reconciler ──Request──▶ worker thread ──netlink, iptables──▶ kernel
//!              ◀──oneshot──
//! ```
//!
//! Netlink calls block, for milliseconds when a whole cluster is written; the event loop stays
//! awake meanwhile and gathers what comes in, which the next batch then carries.

use std::sync::Arc;
use std::thread;

use plan::actual::{ActualSet, ListedVirtualServer};
use plan::flows::FlowTargets;
use plan::kernel::Frontend;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;
use plan::sets::SetId;
use plan::settings::SchedulerName;
use tokio::sync::{mpsc, oneshot};

use super::sysctl::{Change, Sysctl, SysctlError};
use super::{Addresses, DriftCheck, Kernel, Listing, ReadError, Refusal, VirtualServerReading};

/// The event loop's end: sends requests to the worker and waits for the answers.
#[derive(Debug, Clone)]
pub struct KernelHandle {
    requests: mpsc::Sender<WorkerRequest>,
}

/// The worker is gone: it panicked, which a supervisor must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel worker thread has ended; this is a bug, please report the log above")]
pub struct WorkerGone;

type Reply<T> = oneshot::Sender<T>;

/// State that the kernel holds, or the reason why it could not be read.
type ReadResult<T> = Result<T, ReadError>;

/// The operations that were tried, and a result for each.
type Applied = (Vec<Op>, Vec<Result<(), Refusal>>);

/// Change made by setting a switch, or the reason why it could not be set.
type SysctlSet = Result<Option<Change>, SysctlError>;

#[derive(Debug)]
enum WorkerRequest {
    DriftCheck(Reply<ReadResult<DriftCheck>>),
    ListVirtualServers(Reply<ReadResult<Listing>>),
    ReadVirtualServers(Arc<[Frontend]>, Reply<ReadResult<Vec<VirtualServerReading>>>),
    ReadListed(Arc<[ListedVirtualServer]>, Reply<ReadResult<Vec<VirtualServerReading>>>),
    ReadSet(SetId, Reply<ReadResult<Option<ActualSet>>>),
    ReadAddresses(Reply<ReadResult<Addresses>>),
    ReadRuleSet(Family, Reply<ReadResult<bool>>),
    Prescribe(Box<RuleSet>),
    Apply(Vec<Op>, Reply<Applied>),
    LoadedSchedulers(Vec<SchedulerName>, Reply<Vec<SchedulerName>>),
    SetSysctl(Sysctl, Reply<SysctlSet>),
    RemoveFlows(Family, Arc<FlowTargets>, Reply<Result<u64, Refusal>>),
}

// === impl KernelHandle ===

impl KernelHandle {
    /// Starts the worker. It ends when the last handle is dropped.
    ///
    /// # Errors
    /// When the process may not have another thread.
    pub fn start(mut kernel: impl Kernel + 'static) -> std::io::Result<Self> {
        let (requests, mut inbox) = mpsc::channel(1);
        thread::Builder::new().name("kernel".into()).spawn(move || {
            while let Some(request) = inbox.blocking_recv() {
                serve(&mut kernel, request);
            }
        })?;
        Ok(Self { requests })
    }

    /// See [`Kernel::drift_check`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn drift_check(&self) -> Result<ReadResult<DriftCheck>, WorkerGone> {
        self.ask(WorkerRequest::DriftCheck).await
    }

    /// See [`Kernel::list_virtual_servers`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn list_virtual_servers(&self) -> Result<ReadResult<Listing>, WorkerGone> {
        self.ask(WorkerRequest::ListVirtualServers).await
    }

    /// See [`Kernel::read_virtual_servers`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner results are the kernel's.
    pub async fn read_virtual_servers(
        &self,
        frontends: Arc<[Frontend]>,
    ) -> Result<ReadResult<Vec<VirtualServerReading>>, WorkerGone> {
        self.ask(|reply| WorkerRequest::ReadVirtualServers(frontends, reply)).await
    }

    /// See [`Kernel::read_listed`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner results are the kernel's.
    pub async fn read_listed(
        &self,
        listed: Arc<[ListedVirtualServer]>,
    ) -> Result<ReadResult<Vec<VirtualServerReading>>, WorkerGone> {
        self.ask(|reply| WorkerRequest::ReadListed(listed, reply)).await
    }

    /// See [`Kernel::read_set`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn read_set(&self, set: SetId) -> Result<ReadResult<Option<ActualSet>>, WorkerGone> {
        self.ask(|reply| WorkerRequest::ReadSet(set, reply)).await
    }

    /// See [`Kernel::read_addresses`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn read_addresses(&self) -> Result<ReadResult<Addresses>, WorkerGone> {
        self.ask(WorkerRequest::ReadAddresses).await
    }

    /// See [`Kernel::read_rule_set`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn read_rule_set(&self, family: Family) -> Result<ReadResult<bool>, WorkerGone> {
        self.ask(|reply| WorkerRequest::ReadRuleSet(family, reply)).await
    }

    /// See [`Kernel::prescribe`].
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn prescribe(&self, rule_set: RuleSet) -> Result<(), WorkerGone> {
        self.requests
            .send(WorkerRequest::Prescribe(Box::new(rule_set)))
            .await
            .map_err(|_| WorkerGone)
    }

    /// See [`Kernel::apply`]. The operations come back with their results.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn apply(
        &self,
        ops: Vec<Op>,
    ) -> Result<(Vec<Op>, Vec<Result<(), Refusal>>), WorkerGone> {
        self.ask(|reply| WorkerRequest::Apply(ops, reply)).await
    }

    /// See [`Kernel::loaded_schedulers`].
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn loaded_schedulers(
        &self,
        names: Vec<SchedulerName>,
    ) -> Result<Vec<SchedulerName>, WorkerGone> {
        self.ask(|reply| WorkerRequest::LoadedSchedulers(names, reply)).await
    }

    /// See [`Kernel::set_sysctl`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn set_sysctl(&self, sysctl: Sysctl) -> Result<SysctlSet, WorkerGone> {
        self.ask(|reply| WorkerRequest::SetSysctl(sysctl, reply)).await
    }

    /// See [`Kernel::remove_flows`].
    ///
    /// # Errors
    /// [`WorkerGone`]; the inner result is the kernel's.
    pub async fn remove_flows(
        &self,
        family: Family,
        targets: Arc<FlowTargets>,
    ) -> Result<Result<u64, Refusal>, WorkerGone> {
        self.ask(|reply| WorkerRequest::RemoveFlows(family, targets, reply)).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> WorkerRequest,
    ) -> Result<T, WorkerGone> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| WorkerGone)?;
        answer.await.map_err(|_| WorkerGone)
    }
}

fn serve(kernel: &mut impl Kernel, request: WorkerRequest) {
    // A reply that cannot be sent is no loss: its caller is gone.
    match request {
        WorkerRequest::DriftCheck(reply) => drop(reply.send(kernel.drift_check())),
        WorkerRequest::ListVirtualServers(reply) => drop(reply.send(kernel.list_virtual_servers())),
        WorkerRequest::ReadVirtualServers(frontends, reply) => {
            drop(reply.send(kernel.read_virtual_servers(&frontends)));
        }
        WorkerRequest::ReadListed(listed, reply) => drop(reply.send(kernel.read_listed(&listed))),
        WorkerRequest::ReadSet(set, reply) => drop(reply.send(kernel.read_set(set))),
        WorkerRequest::ReadAddresses(reply) => drop(reply.send(kernel.read_addresses())),
        WorkerRequest::ReadRuleSet(family, reply) => drop(reply.send(kernel.read_rule_set(family))),
        WorkerRequest::Prescribe(rule_set) => kernel.prescribe(*rule_set),
        WorkerRequest::Apply(ops, reply) => {
            let results = kernel.apply(&ops);
            drop(reply.send((ops, results)));
        }
        WorkerRequest::LoadedSchedulers(names, reply) => {
            drop(reply.send(kernel.loaded_schedulers(names)));
        }
        WorkerRequest::SetSysctl(sysctl, reply) => drop(reply.send(kernel.set_sysctl(&sysctl))),
        WorkerRequest::RemoveFlows(family, targets, reply) => {
            drop(reply.send(kernel.remove_flows(family, &targets)));
        }
    }
}
