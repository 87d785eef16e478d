mod busy;
mod metrics;
mod rerouting;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use super::input::{InputPump, Unchecked, event_of};
use super::localhost::NodePortsOnLocalhost;
use super::logging::directives;
use super::service_routes::{LastChanges, RouteWatch};
use super::source::{ClusterQuestions, Source};
use super::tenure::Parts;
use super::threads::TaskThread;
use crate::events::{EventRecorder, Regarding};
use config::Configuration;
use config::cli;
use config::warnings::Mismatch;
use kernel::fake::Fake;
use plan::event::Event;
use plan::model::{Family, Node, ObjectName};
use reconcile::inquiry;
use reconcile::observer::Observer;
use serve::health::{Health, Moment, SharedHealth};
use source::manifests::Manifests;
use source::{Options, SourceEvent, Warning, WarningSubject};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;

/// The parts of a run in one mode, with a kernel in memory.
fn mk_parts(
    configuration: &Configuration,
    source: Source,
    cluster: Option<ClusterQuestions>,
    kernel: Fake,
    observer: Box<dyn Observer>,
) -> Parts<Fake> {
    let (inquiries, questions) = inquiry::inquiries();
    Parts {
        settings: configuration.settings.clone(),
        configuration: configuration.clone(),
        former: None,
        relay: None,
        localhost: NodePortsOnLocalhost::new().unwrap(),
        fallen_back: None,
        dropped_families: Vec::new(),
        limits: Vec::new(),
        source,
        pages: axum::Router::new(),
        route_watch: RouteWatch {
            configuration: configuration.clone(),
            settings: configuration.settings.clone(),
            cluster,
            inquiries: inquiries.clone(),
            last_changes: LastChanges::default(),
        },
        inquiries,
        questions,
        kernel,
        backends: None,
        observers: vec![observer],
        set_verbosity: Box::new(|_| Ok(())),
    }
}

#[test]
fn every_verbosity_is_a_filter() {
    for verbosity in 0..=u8::MAX {
        assert!(EnvFilter::try_new(directives(verbosity)).is_ok(), "{verbosity}");
    }
}

/// Returns two bools: true if DEBUG lines are written, of our own and of a library.
fn debug_lines(verbosity: u8) -> (bool, bool) {
    let filter = EnvFilter::new(directives(verbosity));
    let subscriber = tracing_subscriber::registry().with(filter);
    tracing::subscriber::with_default(subscriber, || {
        let ours = tracing::enabled!(target: "kube_ipvs_reconcile", tracing::Level::DEBUG);
        let theirs = tracing::enabled!(target: "kube_client::client", tracing::Level::DEBUG);
        (ours, theirs)
    })
}

#[test]
fn verbosity_four_adds_our_own_debug_lines_and_nine_those_of_libraries() {
    let told: Vec<(bool, bool)> = [3, 4, 7, 9].into_iter().map(debug_lines).collect();
    assert_eq!(told, [(false, false), (true, false), (true, false), (true, true)]);
}

#[test]
fn a_warning_about_an_object_is_an_event_about_it() {
    let about = |kind| Warning {
        subject: WarningSubject::Object { kind, name: Arc::from("ns/web") },
        text: "spec.ports[0].port: 70000 is not a port number".into(),
    };
    let said = event_of(about("Service")).unwrap();
    assert_eq!(said.regarding, Regarding::Service(ObjectName::new("ns", "web")));
    assert!(said.note.contains("spec.ports[0]"));
    assert_eq!(event_of(about("Node")), None);
    let path = Warning { subject: WarningSubject::Path("/x".into()), text: String::new() };
    assert_eq!(event_of(path), None);
}

#[test]
fn without_a_cluster_a_node_is_not_about_to_leave_it() {
    let now = Moment::now();
    let health = SharedHealth::new(Health::new(&[], Duration::from_secs(60), now));
    assert!(!health.lock().healthz(now).good);
    let folder = tempfile::tempdir().unwrap();
    Source::Manifests(Manifests::new(folder.path(), &Options::new("node1")).unwrap())
        .mark_not_leaving(&health);
    assert!(health.lock().healthz(now).good);
}

/// However long the event loop's thread is busy, tasks beside it go on: health is among them.
#[test]
fn a_busy_loop_holds_up_no_other_thread() {
    let beside = TaskThread::start("beside", ()).unwrap();
    let (asked, mut asking) = mpsc::channel::<std::sync::mpsc::Sender<&str>>(1);
    let (answers, answered) = std::sync::mpsc::channel();
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    event_loop.block_on(async {
        beside.spawn(async move {
            while let Some(asker) = asking.recv().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
                asker.send("alive").unwrap();
            }
        });
        asked.send(answers).await.unwrap();
        // As planning does: no other task of this runtime gets its turn meanwhile.
        assert_eq!(answered.recv_timeout(Duration::from_secs(60)), Ok("alive"));
    });
}

/// With an external cloud provider, the Node is there before its addresses.
#[tokio::test]
async fn a_node_is_looked_at_once_it_has_addresses() {
    let words = ["kube-ipvs", "--cluster-cidr=fd00:244::/48"];
    let configuration = Configuration::load(&cli::parse(words.map(Into::into)).unwrap()).unwrap();
    let health = SharedHealth::new(Health::new(&[], Duration::from_secs(60), Moment::now()));
    let ended = async |addresses: &[&str]| {
        let (inputs, mut outbox) = mpsc::channel(16);
        let (events, inbox) = mpsc::channel(16);
        let families = vec![Family::V6];
        let unchecked = Unchecked { configuration: configuration.clone(), families };
        let input_pump =
            InputPump::new(inputs, EventRecorder::disabled(), health.clone(), unchecked);
        for address in addresses {
            let addresses = address.parse().into_iter().collect();
            let node = Node { addresses, ..Node::default() };
            events.send(SourceEvent::Change(Event::NodeApplied(Box::new(node)))).await.unwrap();
        }
        drop(events);
        let ended = input_pump.run(inbox).await;
        let mut passed = 0;
        while outbox.recv().await.is_some() {
            passed += 1;
        }
        (ended, passed)
    };
    assert_eq!(ended(&["", "2001:db8::10"]).await, (Ok(()), 2));
    let (mismatch, _) = ended(&["", "192.0.2.10"]).await;
    assert_eq!(mismatch, Err(Mismatch::PrimaryFamily(Family::V4)));
}
