//! What it costs to decode EndpointSlices: `cargo bench -p kube-ipvs --bench decoding`.
//!
//! The same hundred slices as JSON and as Protobuf, with what a real API server sends and nobody
//! here reads (owners, targets, `managedFields`). What follows from the figures is in
//! docs/decoding.md. Nothing fails because of a time.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use kube_ipvs::source::convert::Converter;
use kube_ipvs::source::object::{EndpointSlice, Service};
use plan::settings::SchedulerName;
use prost::Message as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const N_SLICES: usize = 100;
const SIZES: [usize; 3] = [10, 30, 100];

/// How often each is decoded for the table of ratios.
const ROUNDS: u32 = 20;

/// The messages, with the field numbers of `k8s.io/api/discovery/v1/generated.proto`,
/// `k8s.io/api/core/v1/generated.proto` (`ObjectReference`) and
/// `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`.
mod full {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct EndpointSliceList {
        #[prost(message, repeated, tag = "2")]
        pub(crate) items: Vec<EndpointSlice>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct EndpointSlice {
        #[prost(message, optional, tag = "1")]
        pub(crate) metadata: Option<ObjectMeta>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) endpoints: Vec<Endpoint>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) ports: Vec<super::minimal::Port>,
        #[prost(string, tag = "4")]
        pub(crate) address_type: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Endpoint {
        #[prost(string, repeated, tag = "1")]
        pub(crate) addresses: Vec<String>,
        #[prost(message, optional, tag = "2")]
        pub(crate) conditions: Option<super::minimal::Conditions>,
        #[prost(message, optional, tag = "4")]
        pub(crate) target_ref: Option<ObjectReference>,
        #[prost(string, optional, tag = "6")]
        pub(crate) node_name: Option<String>,
        #[prost(string, optional, tag = "7")]
        pub(crate) zone: Option<String>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ObjectReference {
        #[prost(string, tag = "1")]
        pub(crate) kind: String,
        #[prost(string, tag = "2")]
        pub(crate) namespace: String,
        #[prost(string, tag = "3")]
        pub(crate) name: String,
        #[prost(string, tag = "4")]
        pub(crate) uid: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ObjectMeta {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) generate_name: String,
        #[prost(string, tag = "3")]
        pub(crate) namespace: String,
        #[prost(string, tag = "5")]
        pub(crate) uid: String,
        #[prost(string, tag = "6")]
        pub(crate) resource_version: String,
        #[prost(int64, tag = "7")]
        pub(crate) generation: i64,
        #[prost(message, optional, tag = "8")]
        pub(crate) creation_timestamp: Option<Time>,
        #[prost(btree_map = "string, string", tag = "11")]
        pub(crate) labels: BTreeMap<String, String>,
        #[prost(btree_map = "string, string", tag = "12")]
        pub(crate) annotations: BTreeMap<String, String>,
        #[prost(message, repeated, tag = "13")]
        pub(crate) owner_references: Vec<OwnerReference>,
        #[prost(message, repeated, tag = "17")]
        pub(crate) managed_fields: Vec<ManagedFields>,
    }
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(crate) struct Time {
        #[prost(int64, tag = "1")]
        pub(crate) seconds: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct OwnerReference {
        #[prost(string, tag = "1")]
        pub(crate) kind: String,
        #[prost(string, tag = "3")]
        pub(crate) name: String,
        #[prost(string, tag = "4")]
        pub(crate) uid: String,
        #[prost(string, tag = "5")]
        pub(crate) api_version: String,
        #[prost(bool, tag = "6")]
        pub(crate) controller: bool,
        #[prost(bool, tag = "7")]
        pub(crate) block_owner_deletion: bool,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ManagedFields {
        #[prost(string, tag = "1")]
        pub(crate) manager: String,
        #[prost(string, tag = "2")]
        pub(crate) operation: String,
        #[prost(string, tag = "3")]
        pub(crate) api_version: String,
        #[prost(message, optional, tag = "4")]
        pub(crate) time: Option<Time>,
        #[prost(string, tag = "6")]
        pub(crate) fields_type: String,
        #[prost(message, optional, tag = "7")]
        pub(crate) fields: Option<Fields>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Fields {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) raw: Vec<u8>,
    }
}

/// Only the fields that `src/source/object.rs` has.
mod minimal {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct EndpointSliceList {
        #[prost(message, repeated, tag = "2")]
        pub(crate) items: Vec<EndpointSlice>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct EndpointSlice {
        #[prost(message, optional, tag = "1")]
        pub(crate) metadata: Option<Metadata>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) endpoints: Vec<Endpoint>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) ports: Vec<Port>,
        #[prost(string, tag = "4")]
        pub(crate) address_type: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Metadata {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "3")]
        pub(crate) namespace: String,
        #[prost(string, tag = "6")]
        pub(crate) resource_version: String,
        #[prost(btree_map = "string, string", tag = "11")]
        pub(crate) labels: BTreeMap<String, String>,
        #[prost(btree_map = "string, string", tag = "12")]
        pub(crate) annotations: BTreeMap<String, String>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Endpoint {
        #[prost(string, repeated, tag = "1")]
        pub(crate) addresses: Vec<String>,
        #[prost(message, optional, tag = "2")]
        pub(crate) conditions: Option<Conditions>,
        #[prost(string, optional, tag = "6")]
        pub(crate) node_name: Option<String>,
    }
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(crate) struct Conditions {
        #[prost(bool, optional, tag = "1")]
        pub(crate) ready: Option<bool>,
        #[prost(bool, optional, tag = "2")]
        pub(crate) serving: Option<bool>,
        #[prost(bool, optional, tag = "3")]
        pub(crate) terminating: Option<bool>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Port {
        #[prost(string, optional, tag = "1")]
        pub(crate) name: Option<String>,
        #[prost(string, optional, tag = "2")]
        pub(crate) protocol: Option<String>,
        #[prost(int32, optional, tag = "3")]
        pub(crate) port: Option<i32>,
    }
}

/// What the controller that writes slices owns of them.
const MANAGED: &str = r#"{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"7d6f0f6e-6a4e-4e0c-8f3e-2b1d7c5a9e10\"}":{}}},"f:ports":{}}"#;

const UID: &str = "7d6f0f6e-6a4e-4e0c-8f3e-2b1d7c5a9e10";
const TIME: &str = "2026-01-15T12:00:00Z";
const SECONDS: i64 = 1_768_478_400;

#[derive(Deserialize)]
struct List {
    items: Vec<EndpointSlice>,
}

/// Each object behind a frame of its own, as `src/source/kubernetes/decode.rs` has it.
#[derive(Deserialize)]
struct Frames<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

fn address(slice: usize, endpoint: usize) -> String {
    format!("10.{}.{}.{}", slice % 250, endpoint / 250, endpoint % 250)
}

fn node(endpoint: usize) -> String {
    format!("ip-10-0-{}-{}.eu-central-1.compute.internal", endpoint / 250, endpoint % 250)
}

fn zone(endpoint: usize) -> String {
    format!("eu-central-1{}", if endpoint.is_multiple_of(2) { "a" } else { "b" })
}

fn json_slice(slice: usize, n_endpoints: usize) -> Value {
    let managed: Value = serde_json::from_str(MANAGED).unwrap_or_default();
    let endpoint = |endpoint| {
        json!({
            "addresses": [address(slice, endpoint)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node(endpoint),
            "targetRef": {
                "kind": "Pod", "namespace": "shop", "uid": UID,
                "name": format!("service-{slice}-6d4cf56db6-{endpoint:05}"),
            },
            "zone": zone(endpoint),
        })
    };
    json!({
        "metadata": {
            "name": format!("service-{slice}-x7k2p"),
            "generateName": format!("service-{slice}-"),
            "namespace": "shop", "uid": UID, "resourceVersion": "123456789", "generation": 42,
            "creationTimestamp": TIME,
            "labels": {
                "app": format!("service-{slice}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": format!("service-{slice}"),
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": TIME},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": format!("service-{slice}"),
                "uid": UID, "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update",
                "apiVersion": "discovery.k8s.io/v1", "time": TIME, "fieldsType": "FieldsV1",
                "fieldsV1": managed,
            }],
        },
        "addressType": "IPv4",
        "endpoints": (0..n_endpoints).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

fn protobuf_slice(slice: usize, n_endpoints: usize) -> full::EndpointSlice {
    let text = str::to_owned;
    let service = format!("service-{slice}");
    let time = Some(full::Time { seconds: SECONDS });
    let endpoint = |endpoint| full::Endpoint {
        addresses: vec![address(slice, endpoint)],
        conditions: Some(minimal::Conditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        }),
        target_ref: Some(full::ObjectReference {
            kind: text("Pod"),
            namespace: text("shop"),
            name: format!("service-{slice}-6d4cf56db6-{endpoint:05}"),
            uid: text(UID),
        }),
        node_name: Some(node(endpoint)),
        zone: Some(zone(endpoint)),
    };
    let labels = [
        ("app", service.as_str()),
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"),
        ("kubernetes.io/service-name", service.as_str()),
    ];
    let annotations = [("endpoints.kubernetes.io/last-change-trigger-time", TIME)];
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (text(key), text(value))).collect()
    };
    full::EndpointSlice {
        metadata: Some(full::ObjectMeta {
            name: format!("service-{slice}-x7k2p"),
            generate_name: format!("service-{slice}-"),
            namespace: text("shop"),
            uid: text(UID),
            resource_version: text("123456789"),
            generation: 42,
            creation_timestamp: time,
            labels: map(&labels),
            annotations: map(&annotations),
            owner_references: vec![full::OwnerReference {
                kind: text("Service"),
                name: service.clone(),
                uid: text(UID),
                api_version: text("v1"),
                controller: true,
                block_owner_deletion: true,
            }],
            managed_fields: vec![full::ManagedFields {
                manager: text("kube-controller-manager"),
                operation: text("Update"),
                api_version: text("discovery.k8s.io/v1"),
                time,
                fields_type: text("FieldsV1"),
                fields: Some(full::Fields { raw: MANAGED.as_bytes().to_vec() }),
            }],
        }),
        endpoints: (0..n_endpoints).map(endpoint).collect(),
        ports: vec![minimal::Port {
            name: Some(text("http")),
            protocol: Some(text("TCP")),
            port: Some(8080),
        }],
        address_type: text("IPv4"),
    }
}

/// Its name, what it decodes, and how.
type Way<'a> = (&'static str, &'a [u8], fn(&[u8]) -> usize);

/// Each way to decode says how many endpoints it has found.
fn own(json: &[u8]) -> usize {
    let list: serde_json::Result<List> = serde_json::from_slice(json);
    list.map_or(0, |list| list.items.iter().map(|slice| slice.endpoints.len()).sum())
}

fn own_one_by_one(json: &[u8]) -> usize {
    let frames: serde_json::Result<Frames<'_>> = serde_json::from_slice(json);
    let slices = frames.map_or(Vec::new(), |frames| frames.items);
    let decode = |text: &&RawValue| serde_json::from_str::<EndpointSlice>(text.get());
    slices.iter().filter_map(|text| decode(text).ok()).map(|slice| slice.endpoints.len()).sum()
}

fn whole(json: &[u8]) -> usize {
    type Slice = k8s_openapi::api::discovery::v1::EndpointSlice;
    let list: serde_json::Result<k8s_openapi::List<Slice>> = serde_json::from_slice(json);
    list.map_or(0, |list| {
        list.items.iter().map(|slice| slice.endpoints.iter().flatten().count()).sum()
    })
}

fn protobuf(bytes: &[u8]) -> usize {
    let list = minimal::EndpointSliceList::decode(bytes);
    list.map_or(0, |list| list.items.iter().map(|slice| slice.endpoints.len()).sum())
}

fn time(mut work: impl FnMut() -> usize) -> Duration {
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        black_box(work());
    }
    begun.elapsed() / ROUNDS
}

/// A Service with so many external addresses and source ranges.
fn large_service(n: u32) -> Vec<u8> {
    let address = |first: u32| move |n| Ipv4Addr::from_bits(first + n).to_string();
    let ranges = (0..n).map(address(0x0c00_0000)).map(|address| address + "/32");
    serde_json::to_vec(&json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "large", "namespace": "default"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "externalIPs": (0..n).map(address(0x0d00_0000)).collect::<Vec<_>>(),
            "loadBalancerSourceRanges": ranges.collect::<Vec<_>>(),
            "ports": [{"port": 80, "protocol": "TCP"}],
        },
    }))
    .unwrap_or_default()
}

/// The largest Services that anybody could write: twice as much takes twice the time.
fn large_services() {
    for n in [10_000, 20_000, 40_000] {
        let json = large_service(n);
        let Ok(object) = serde_json::from_slice::<Service>(&json) else { continue };
        let decoding = time(|| serde_json::from_slice::<Service>(&json).map_or(0, |_| 1));
        let mut converter = Converter::new(SchedulerName::default());
        let converting = time(|| usize::from(converter.service(&object).is_ok()));
        println!(
            "a Service of {n} external addresses and {n} source ranges, {} KiB: decoded in \
             {decoding:.2?}, converted in {converting:.2?}",
            json.len() / 1024
        );
    }
}

fn main() {
    large_services();
    let mut criterion = Criterion::default().configure_from_args();
    for n_endpoints in SIZES {
        let json = serde_json::to_vec(&json!({
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": "123456789"},
            "items": (0..N_SLICES).map(|slice| json_slice(slice, n_endpoints)).collect::<Vec<_>>(),
        }))
        .unwrap_or_default();
        let items = (0..N_SLICES).map(|slice| protobuf_slice(slice, n_endpoints)).collect();
        let bytes = full::EndpointSliceList { items }.encode_to_vec();
        let ways: [Way<'_>; 4] = [
            ("JSON, own types", &json, own),
            ("JSON, own types, one by one", &json, own_one_by_one),
            ("JSON, k8s-openapi", &json, whole),
            ("Protobuf, minimal messages", &bytes, protobuf),
        ];
        let reference = time(|| own_one_by_one(&json));
        for (name, input, decode) in ways {
            assert_eq!(decode(input), N_SLICES * n_endpoints, "{name}");
            let took = time(|| decode(input));
            println!(
                "{N_SLICES} slices of {n_endpoints}: {name}: {} KiB, {took:?}, {:.2} of what is used",
                input.len() / 1024,
                took.as_secs_f64() / reference.as_secs_f64(),
            );
        }
        let mut group = criterion.benchmark_group(format!("{N_SLICES} slices of {n_endpoints}"));
        group.throughput(Throughput::Elements((N_SLICES * n_endpoints) as u64));
        for (name, input, decode) in ways {
            group.bench_function(name, |bencher| bencher.iter(|| decode(black_box(input))));
        }
        group.finish();
    }
    criterion.final_summary();
}
