//! A tenant changes the largest objects that the API takes, one after the other: the program's memory
//! stays flat in every mode, and other Services' changes get through.
//!
//! `cargo xtask soak tenant` does it for an hour, twenty minutes in each mode.

use std::fs;
use std::time::{Duration, Instant};

use bed::{Protocol, Proxy};
use serde_json::{Value, json};

use crate::churn::amount;
use crate::cluster::{Cluster, mk_web};
use crate::fixture::{assert_shares, ip};

/// Bytes of all annotations of an object (TotalAnnotationSizeLimitB in
/// apimachinery/pkg/api/validation/objectmeta.go).
const ANNOTATIONS: usize = 256 << 10;
/// Endpoints of a slice (maxEndpoints in pkg/apis/discovery/validation/validation.go).
const ENDPOINTS: u16 = 1_000;
/// Zones of an endpoint's hints (maxZoneHints there), of 63 characters each.
const ZONES: usize = 8;
/// Time between two changes: twice as many as a client of the API makes unless told otherwise (DefaultQPS in
/// client-go/rest/config.go).
const PACE: Duration = Duration::from_millis(100);
/// Changes that the API server remembers. A node that is further behind has to list again.
const HISTORY: usize = 40;
/// Longest time until another Service's change is there: what the API server remembers comes first, of which a
/// build that is not optimised reads some a second, on a processor that the API server shares.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that may be resident above what was after the first third: the allocator keeps what it has had.
const GROWTH: u64 = 24 << 20;

/// The tenant's Service, with an annotation that is wrong and as long as can be.
fn service(number: u64) -> Value {
    let text = format!("{number}-");
    let text = text.repeat((ANNOTATIONS - 64) / text.len());
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "large", "namespace": "tenant",
            "annotations": {"kube-ipvs.io/scheduler": text},
        },
        "spec": {
            "clusterIP": "10.96.7.7", "type": "NodePort", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1 + number % 86_000}},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30_777}],
        },
    })
}

/// Its only slice, with other endpoints each time.
fn slice(number: u64) -> Value {
    let zone = |which: usize| json!({"name": format!("{number}-{which}-{:-<60}", "zone")[..63]});
    let zones: Vec<Value> = (0..ZONES).map(zone).collect();
    let [second, _] = number.to_be_bytes()[6..] else { unreachable!() };
    let endpoint = |which: u16| {
        let [third, fourth] = which.to_be_bytes();
        json!({
            "addresses": [format!("10.{}.{}.{fourth}", 128 + second % 64, 4 * (number % 64) + u64::from(third))],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node2", "zone": "zone", "hints": {"forZones": zones},
        })
    };
    let endpoints: Vec<Value> = (0..ENDPOINTS).map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "large-1", "namespace": "tenant",
            "labels": {"kubernetes.io/service-name": "large"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8_080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Bytes of a process that are resident.
fn resident(proxy: &mut Proxy) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", proxy.process())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn memory_stays_flat(mode: &str) {
    let cluster = Cluster::remembering(HISTORY);
    if mode != "ipvs" {
        cluster.configure("mode: ipvs", &format!("mode: {mode}"));
    }
    cluster.apply_service(&mk_web(&cluster.bed, &[(1, 1)]));
    let mut proxy = cluster.start(1);
    let lasts = Duration::from_secs(amount(9, 1_200));
    let (began, mut number, mut samples) = (Instant::now(), 0, Vec::new());
    while began.elapsed() < lasts {
        number += 1;
        cluster.apply(&if number % 2 == 0 { service(number) } else { slice(number) });
        std::thread::sleep(PACE);
        let due = lasts / 30 * u32::try_from(samples.len()).unwrap();
        if began.elapsed() >= due {
            samples.push(resident(&mut proxy));
        }
    }
    let in_mib: Vec<u64> = samples.iter().map(|bytes| bytes >> 20).collect();
    println!("mode {mode}: {number} changes in {:?}, resident MiB {in_mib:?}", began.elapsed());
    let (first, rest) = samples.split_at(samples.len() / 3);
    let (first, rest) = (first.iter().max().unwrap(), rest.iter().max().unwrap());
    assert!(*rest < first + GROWTH, "mode {mode}: resident MiB {in_mib:?}");
    // Changes of others get through.
    cluster.apply_service(&mk_web(&cluster.bed, &[(2, 1)]));
    let applied = Instant::now();
    let target = (ip("10.96.0.10"), 80);
    let ask = |count| cluster.bed.ask(cluster.bed.client(), Protocol::Tcp, target, count);
    cluster.bed.wait_for(PATIENCE, "the other Service's change is there", || {
        ask(1).servers().into_iter().eq(["pod2-1"])
    });
    println!("mode {mode}: another Service's change was there after {:?}", applied.elapsed());
    assert_shares(&ask(4), &[("pod2-1", 4)]);
    proxy.stop().unwrap();
}

#[test]
fn the_largest_objects_that_change_without_end_leave_memory_flat_in_mode_ipvs() {
    memory_stays_flat("ipvs");
}

#[test]
fn the_largest_objects_that_change_without_end_leave_memory_flat_in_mode_iptables() {
    memory_stays_flat("iptables");
}

#[test]
fn the_largest_objects_that_change_without_end_leave_memory_flat_in_mode_userspace() {
    memory_stays_flat("userspace");
}
