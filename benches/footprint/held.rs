//! Memory that is held for a cluster, by its owner: counted, not estimated.
//!
//! A process of its own follows an API server in this one, so that nothing but what is to be
//! counted is allocated there. It needs neither a kernel nor root.

use std::alloc::System;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use apiserver::Credentials;
use cap::Cap;
use plan::mode::Mode;
use plan::planner::Planner;
use plan::settings::{InternalFrontendNetworks, Settings};
use source::kubernetes::{ClientOptions, Kubernetes, clients};
use source::{Options, SourceEvent};
use tokio::sync::mpsc::channel;

use crate::cluster::{self, Size};
use crate::cost::Cost;

/// Counts what is allocated in this process.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// The argument that makes this program the process that is counted in.
pub(crate) const COUNT: &str = "count-what-is-held";

/// Owners of the memory: names that the source knows, Services and slices as the planner knows
/// them, what the kernel should have. The last one is the most that there was besides, while
/// everything was read and planned in one go.
const OWNERS: [&str; 4] = ["source", "input", "desired", "for a moment"];

/// Prints who holds how much in the modes whose state differs.
pub(crate) fn print(sizes: &[Size]) -> Result<()> {
    [Mode::Ipvs, Mode::Iptables].into_iter().try_for_each(|mode| print_in(mode, sizes))
}

fn print_in(mode: Mode, sizes: &[Size]) -> Result<()> {
    let counted = sizes.iter().map(|size| Ok((*size, count(*size, mode)?)));
    let counted: Vec<(Size, [i64; 4])> = counted.collect::<Result<_>>()?;
    println!("\nheld in mode {mode:<8}  a service  an endpoint   (bytes)");
    for (index, owner) in OWNERS.into_iter().enumerate() {
        let bytes = counted.iter().filter_map(|(size, held)| Some((*size, *held.get(index)?)));
        println!("{owner:<20}  {}", Cost::between(bytes)?);
    }
    Ok(())
}

/// Counts in another process.
fn count(size: Size, mode: Mode) -> Result<[i64; 4]> {
    let server = cluster::serve(size, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let kubeconfig = tempfile::NamedTempFile::new()?;
    std::fs::write(kubeconfig.path(), server.kubeconfig(&Credentials::Anonymous))?;
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.arg(COUNT).arg(kubeconfig.path()).arg(mode.name()).output()?;
    if !output.status.success() {
        bail!("counting failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<i64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| anyhow::anyhow!("not the numbers that were asked for: {text}"))
}

/// The process that is counted in: prints bytes, in the order of [`OWNERS`].
pub(crate) fn count_here(kubeconfig: PathBuf, mode: &str) -> Result<()> {
    let mode = Mode::ALL.into_iter().find(|it| it.name() == mode).context("no such mode")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let [source, input, desired, most] = runtime.block_on(follow(kubeconfig, mode))?;
    println!("{source} {input} {desired} {most}");
    Ok(())
}

async fn follow(kubeconfig: PathBuf, mode: Mode) -> Result<[i64; 4]> {
    let options = ClientOptions {
        kubeconfig: Some(kubeconfig),
        master: None,
        qps: -1.0,
        burst: 0,
        user_agent: "kube-ipvs/footprint".to_owned(),
        only_json: false,
    };
    let clients = clients(&options).await?;
    let before = held();
    let internal_frontend_networks = match mode {
        Mode::Ipvs => InternalFrontendNetworks::default(),
        Mode::Iptables | Mode::Userspace => InternalFrontendNetworks::NONE,
    };
    let settings = Settings { mode, internal_frontend_networks, ..Settings::new("node1") };
    let mut planner = Planner::new(settings);
    let (sink, mut events) = channel(1_024);
    let source = tokio::spawn(Kubernetes::new(&clients, Options::new("node1")).run(sink));
    loop {
        match events.recv().await.context("the source has ended")? {
            SourceEvent::Change(event) => planner.apply(event),
            SourceEvent::Complete => break,
            SourceEvent::Warning(warning) => eprintln!("{warning}"),
            SourceEvent::Triggered(..)
            | SourceEvent::NodeLeaving(_)
            | SourceEvent::RepeatedWarning(_) => {}
        }
    }
    let read = held();
    drop(planner.plan());
    let planned = held();
    let most = i64::try_from(HEAP.max_allocated())?;
    drop(events);
    source.await?;
    let source = planned - held();
    Ok([source, read - before - source, planned - read, most - planned])
}

fn held() -> i64 {
    i64::try_from(HEAP.allocated()).unwrap_or(i64::MAX)
}
