//! Memory stays flat under a tenant who changes the largest objects without end, in each mode.
//!
//! A program of its own, since it counts what is on the heap.

// Clippy takes it for a test only if it says so.
#![cfg(test)]

use std::alloc::System;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Mutex;

use cap::Cap;
use console::journal::{Happened, Journal, Origin, noted};
use kernel::fake::Fake;
use kernel::worker::KernelHandle;
use plan::actual::Actual;
use plan::event::Event;
use plan::mode::Mode;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort,
};
use plan::planner::Planner;
use plan::settings::{InternalFrontendNetworks, Settings};
use reconcile::{Input, Pace, Reconciler, Status};
use source::object as objects;
use source::object::Object as _;
use tokio::sync::{mpsc, watch};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Held by a test, since all have one heap.
static ALONE: Mutex<()> = Mutex::new(());

/// Endpoints of the Service. Each is a rule in mode iptables.
const ENDPOINTS: u8 = 200;
/// Changes after which everything that is used for a change has been allocated.
const WARM: u16 = 20;
/// Changes after that: with four notes each, more than the journal has.
const CHANGES: u16 = 1_200;
/// Bytes by which the heap may grow meanwhile: the journal's notes, a few hundred bytes each.
const GROWTH: usize = 4 << 20;
/// Bytes that the longest object may take while it is decoded.
const MOST_DECODED: usize = 80 << 20;
/// Annotation of the largest size that the API takes.
const ANNOTATION: usize = 256 << 10;

#[test]
fn a_tenant_who_changes_the_largest_objects_without_end_takes_no_memory() {
    let _alone = ALONE.lock();
    for mode in Mode::ALL {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let [warm, after] = runtime.block_on(heap_while_it_changes(mode));
        let grown = after.saturating_sub(warm);
        assert!(grown < GROWTH, "mode {mode}: {grown} bytes in {CHANGES} changes");
    }
}

/// Returns an object of 16 MiB, which is as long as one may be, with so many of these items in a list.
fn longest(begin: &str, item: &str, end: &str) -> String {
    let n_items = ((16 << 20) - begin.len() - end.len()) / (item.len() + 1);
    let items = format!("{item},").repeat(n_items);
    format!("{begin}{}{end}", items.trim_end_matches(','))
}

/// Returns the most bytes that the heap had above those before this object was decoded, if it ever had more.
fn taken_by<T: serde::de::DeserializeOwned>(text: &str) -> usize {
    let before = HEAP.allocated();
    drop(serde_json::from_str::<T>(text));
    HEAP.max_allocated().saturating_sub(before)
}

/// A port is written in two bytes, and takes 64 once it is decoded.
#[test]
fn an_object_takes_a_few_times_its_text_whatever_is_in_it() {
    let _alone = ALONE.lock();
    let addresses = vec![r#""a""#; 100].join(",");
    let hints = vec![r#"{"name":"a"}"#; 100].join(",");
    let endpoint = format!(r#"{{"addresses":[{addresses}],"hints":{{"forZones":[{hints}]}}}}"#);
    for (begin, item, end) in [
        (r#"{"ports":["#, "{}", "]}"),
        (r#"{"endpoints":["#, "{}", "]}"),
        (r#"{"endpoints":["#, endpoint.as_str(), "]}"),
        (r#"{"spec":{"ports":["#, "{}", "]}}"),
        (r#"{"spec":{"externalIPs":["#, r#""a""#, "]}}"),
        (r#"{"spec":{"taints":["#, r#"{"key":"a"}"#, "]}}"),
        (r#"{"status":{"loadBalancer":{"ingress":["#, "{}", "]}}}"),
    ] {
        let text = longest(begin, item, end);
        let slice = taken_by::<objects::EndpointSlice>(&text);
        let service = taken_by::<objects::Service>(&text);
        let node = taken_by::<objects::Node>(&text);
        let most = slice.max(service).max(node);
        assert!(most < MOST_DECODED, "{begin}{item:.20}: {most} bytes");
    }
}

/// A field of a message, with this content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(content);
    field
}

/// Returns a message of 16 MiB, which has so many of these fields inside of fields with these numbers.
fn longest_message(path: &[u8], item: &[u8]) -> Vec<u8> {
    let items = item.repeat(((16 << 20) - 32) / item.len());
    path.iter().rev().fold(items, |content, number| field(*number, &content))
}

fn taken_by_message<T: objects::Object>(message: &[u8]) -> usize {
    let before = HEAP.allocated();
    drop(T::from_protobuf(message));
    HEAP.max_allocated().saturating_sub(before)
}

/// In Protobuf, a port may be two bytes too, and an address.
#[test]
fn a_message_takes_a_few_times_its_bytes_whatever_is_in_it() {
    let _alone = ALONE.lock();
    let addresses = field(1, &[]).repeat(100);
    let hints = |number| field(number, &field(1, &[])).repeat(100);
    let endpoint = [addresses, field(8, &[hints(1), hints(2)].concat())].concat();
    let most = objects::EndpointSlice::from_protobuf(&field(2, &endpoint)).unwrap();
    let endpoint_of_most = &most.endpoints[0];
    assert_eq!(
        (endpoint_of_most.addresses.len(), endpoint_of_most.hints.for_nodes.len()),
        (100, 100)
    );
    for (path, item) in [
        (&[][..], field(3, &[])),
        (&[], field(2, &[])),
        (&[], field(2, &endpoint)),
        // labels
        (&[1], field(11, &[])),
        (&[2], field(1, &[])),
        (&[2], field(5, &[])),
        (&[2], field(5, &field(1, b"a"))),
        (&[3, 1], field(1, &[])),
    ] {
        let message = longest_message(path, &item);
        let slice = taken_by_message::<objects::EndpointSlice>(&message);
        let service = taken_by_message::<objects::Service>(&message);
        let node = taken_by_message::<objects::Node>(&message);
        let most = slice.max(service).max(node);
        assert!(most < MOST_DECODED, "{path:?}, items of {} bytes: {most} bytes", item.len());
    }
}

/// Returns the heap's size after the first changes, and after all.
async fn heap_while_it_changes(mode: Mode) -> [usize; 2] {
    let internal_frontend_networks = match mode {
        Mode::Ipvs => InternalFrontendNetworks::default(),
        Mode::Iptables | Mode::Userspace => InternalFrontendNetworks::NONE,
    };
    let settings = Settings {
        mode,
        internal_frontend_networks,
        families: vec![Family::V4],
        ..Settings::new("node-1")
    };
    let journal = Journal::default();
    let local_addresses = [IpAddr::from([192, 0, 2, 11]), IpAddr::from([127, 0, 0, 1])];
    let fake = Fake::new(Actual {
        local_addresses: local_addresses.into_iter().collect(),
        ..Actual::default()
    });
    let kernel = KernelHandle::start(fake.clone(), ()).unwrap();
    let reconciler = Reconciler::new(Planner::new(settings), kernel, Pace::default())
        .unwrap()
        .observed_by(vec![Box::new(journal.observer())]);
    let (inputs, inbox) = mpsc::channel(16);
    let mut status = reconciler.status();
    let running = tokio::spawn(reconciler.run(inbox, None, std::future::pending())).abort_handle();
    let say = async |event| inputs.send(Input::Change(event)).await.unwrap();
    say(Event::ServiceApplied(Box::new(service()))).await;
    say(Event::SliceApplied(Box::new(slice(0)))).await;
    inputs.send(Input::Complete).await.unwrap();
    until(&mut status, |status| status.in_sync_once).await;
    let mut sizes = Vec::new();
    for changes in [1..WARM, WARM..WARM + CHANGES] {
        for number in changes {
            let before = status.borrow().operations;
            say(Event::SliceApplied(Box::new(slice(number)))).await;
            // Only a relay makes rules of mode userspace.
            if mode != Mode::Userspace {
                until(&mut status, |status| status.operations > before).await;
            }
            let text = "\u{1}".repeat(ANNOTATION);
            journal.note(Happened::Failed { origin: Origin::Source, text: noted(&text) });
        }
        fake.take_log();
        sizes.push(HEAP.allocated());
    }
    running.abort();
    [sizes[0], sizes[1]]
}

async fn until(status: &mut watch::Receiver<Status>, is_so: impl Fn(&Status) -> bool) {
    while !is_so(&status.borrow_and_update()) {
        status.changed().await.unwrap();
    }
}

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn service() -> Service {
    let http = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: port(80),
        node_port: None,
    };
    Service {
        cluster_v4: Some([10, 96, 0, 10].into()),
        ports: vec![http],
        ..Service::new(ObjectName::new("ns", "x".repeat(63)))
    }
}

/// All endpoints but one, which is another one each time.
fn slice(number: u16) -> EndpointSlice {
    let left_out = 1 + u8::try_from(number % u16::from(ENDPOINTS)).unwrap();
    let endpoint = |last: u8| Endpoint {
        address: [10, 244, 0, last].into(),
        conditions: Conditions::default(),
        node: Some("node-2".into()),
        zone: None,
        hints: None,
    };
    let service = service();
    EndpointSlice {
        name: service.name.clone(),
        service: service.name,
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: port(8080) }],
        endpoints: (1..=ENDPOINTS).filter(|last| *last != left_out).map(endpoint).collect(),
    }
}
