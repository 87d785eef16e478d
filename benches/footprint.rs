//! What the program itself needs: memory and processor time, once it follows a cluster of so many
//! Services. `cargo xtask bench --what footprint [-- SERVICES…]`, ten endpoints each.
//!
//! The real program in a network namespace, fed by an API server over TLS; what is measured is
//! what `/proc` says of it when it is in sync. Processor times are of the machine: an emulated one
//! takes ten times as long and more. Memory is not.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver::{Credentials, Options, Server};
use bed::{Namespace, Proxy};
use serde_json::{Value, json};

const SIZES: [u32; 3] = [0, 1_000, 10_000];
const ENDPOINTS: u32 = 10;

/// The largest takes minutes on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// `getconf CLK_TCK`, which Linux has fixed for user space (include/asm-generic/param.h, USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;

/// What the program has used.
struct Footprint {
    services: u32,
    /// Resident memory, and the most that it ever was, in KiB.
    resident: u64,
    most: u64,
    /// Processor seconds, in the program and for it in the kernel.
    user: f64,
    system: f64,
}

fn main() -> ExitCode {
    let sizes: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    println!("services  endpoints  resident MiB  at most MiB  user s  system s");
    match sizes.into_iter().try_for_each(|services| measure(services).map(|found| found.print())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("footprint: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(services: u32) -> Result<Footprint> {
    let node = Namespace::create("node")?;
    node.configure_links(&["link set lo up".to_owned()])?;
    let options = Options {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
        anonymous: true,
        managed_fields: true,
        ..Options::default()
    };
    let server = node.enter(|| Server::start(options))??;
    for number in 0..services {
        server.apply(service(number))?;
        server.apply(slice(number))?;
    }
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
        services,
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

fn service(number: u32) -> Value {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": "default"},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "selector": {"app": format!("app-{number}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

fn slice(number: u32) -> Value {
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|endpoint| {
            let pod = number * ENDPOINTS + endpoint;
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + pod);
            json!({
                "addresses": [address.to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node{}", pod % 100 + 1), "zone": "zone-a",
                "targetRef": {
                    "kind": "Pod", "namespace": "default", "name": format!("pod-{pod}"),
                    "uid": format!("00000000-0000-0000-0000-{pod:012}"),
                },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("service-{number}-abcde"), "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": format!("service-{number}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}

// === impl Footprint ===

impl Footprint {
    fn print(&self) {
        let mebibytes = |kibibytes: u64| kibibytes as f64 / 1_024.0;
        println!(
            "{:>8}  {:>9}  {:>12.1}  {:>11.1}  {:>6.2}  {:>8.2}",
            self.services,
            self.services * ENDPOINTS,
            mebibytes(self.resident),
            mebibytes(self.most),
            self.user,
            self.system,
        );
    }
}
