//! Memory and processor time of the program itself, once it follows a cluster of so many Services.
//! `cargo xtask bench --what footprint [-- SERVICESxENDPOINTS…]`.
//!
//! The real program in a network namespace, fed by an API server over TLS; what is measured is
//! what `/proc` says of it when it is in sync. Processor times are of the machine: an emulated one
//! takes ten times as long and more. Memory is not.
//!
//! [`beside`] measures the program from outside, and another one beside it.
//!
//! Counts of what the memory is made of stand beside it: see [`held`]. That alone needs neither a
//! kernel nor root: `cargo bench --features kernel-tests --bench footprint -- held`.

mod beside;
mod cluster;
mod cost;
mod held;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::Credentials;
use bed::{Namespace, Proxy};

use cluster::Size;
use cost::Cost;

/// Two of them differ in the number of endpoints only, so that a Service and an endpoint can be
/// told apart.
const SIZES: [Size; 4] = [
    Size::EMPTY,
    Size { services: 1_000, endpoints: 10 },
    Size { services: 10_000, endpoints: 1 },
    Size { services: 10_000, endpoints: 10 },
];

/// The word before a size, the extent, another program and its flags.
const BESIDE: &str = "beside";

/// The largest takes minutes on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// `getconf CLK_TCK`, which Linux has fixed for user space (include/asm-generic/param.h, USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;

/// Resources that the program has used.
struct Footprint {
    size: Size,
    /// Resident memory, and the most that it ever was, in KiB.
    resident: u64,
    most: u64,
    /// Processor seconds, in the program and for it in the kernel.
    user: f64,
    system: f64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [held::COUNT, kubeconfig, mode] => held::count_here(PathBuf::from(kubeconfig), mode),
        [BESIDE, sizes, extent, path, ref flags @ ..] => measure_beside(sizes, extent, path, flags),
        _ => measure_all(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("footprint: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_beside(sizes: &str, extent: &str, path: &str, flags: &[&str]) -> Result<()> {
    let sizes: Option<Vec<Size>> = sizes.split(',').map(Size::parse).collect();
    let extent = if extent == "short" { beside::Extent::SHORT } else { beside::Extent::LONG };
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let peer = beside::Program { path: PathBuf::from(path), flags };
    beside::measure(&sizes.context("sizes are like 10000x10")?, extent, &peer)
}

fn measure_all(arguments: &[String]) -> Result<()> {
    let sizes: Vec<Size> = arguments.iter().filter_map(|text| Size::parse(text)).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if !arguments.iter().any(|argument| argument == "held") {
        println!("services  endpoints  resident MiB  at most MiB  user s  system s");
        let mut found = Vec::new();
        for size in &sizes {
            let footprint = measure(*size)?;
            footprint.print();
            found.push((*size, i64::try_from(footprint.resident * 1_024)?));
        }
        let Cost { service, endpoint } = Cost::between(found.into_iter())?;
        println!("resident: {service:.0} bytes a service, {endpoint:.0} bytes an endpoint");
    }
    held::print(&sizes)
}

fn measure(size: Size) -> Result<Footprint> {
    let node = Namespace::create("node")?;
    node.configure_links(&["link set lo up".to_owned()])?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 6443));
    let server = node.enter(|| cluster::serve(size, listen))??;
    let kubeconfig = tempfile::NamedTempFile::new()?;
    fs::write(kubeconfig.path(), server.kubeconfig(&Credentials::Anonymous))?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.path().display());
    let arguments = [&kubeconfig, "--hostname-override=node1", "--cluster-cidr=10.128.0.0/9"];
    let mut proxy = Proxy::start_with(&node, &arguments)?;
    proxy.wait_until_in_sync_within(PATIENCE)?;
    let process = proxy.process();
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // proc_pid_stat(5): after the name in parentheses, utime is the 12th and stime the 13th.
    let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has no name")?;
    let ticks = |index: usize| -> Result<f64> {
        let field = fields.split_whitespace().nth(index).context("/proc/PID/stat is short")?;
        Ok(field.parse::<f64>()? / TICKS_A_SECOND)
    };
    Ok(Footprint {
        size,
        resident: kibibytes(&status, "VmRSS:")?,
        most: kibibytes(&status, "VmHWM:")?,
        user: ticks(11)?,
        system: ticks(12)?,
    })
}

fn kibibytes(status: &str, field: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("/proc/PID/status has no {field}"))?.parse()?)
}

impl Footprint {
    fn print(&self) {
        let mebibytes = |kibibytes: u64| kibibytes as f64 / 1_024.0;
        println!(
            "{:>8}  {:>9}  {:>12.1}  {:>11.1}  {:>6.2}  {:>8.2}",
            self.size.services,
            self.size.all_endpoints(),
            mebibytes(self.resident),
            mebibytes(self.most),
            self.user,
            self.system,
        );
    }
}
