//! Cost of the console's answers on a large cluster: `cargo bench -p kube-ipvs --bench console`.
//!
//! A loop on a kernel in memory has 10,000 Services with 10 endpoints each. Each answer is asked for as a
//! command does, over the socket. Beside `status` stands the walk over all names, in 40 questions to the
//! loop. Nothing fails because of a time.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use criterion::Criterion;
use kube_ipvs::config::{Arguments, Configuration};
use kube_ipvs::console::answers::Content;
use kube_ipvs::console::answers::events::Events;
use kube_ipvs::console::answers::names::Names;
use kube_ipvs::console::answers::status::Status;
use kube_ipvs::console::client::Client;
use kube_ipvs::console::lately::Repairs;
use kube_ipvs::console::pods::PodFinder;
use kube_ipvs::console::{Desk, server};
use kube_ipvs::kernel::fake::Fake;
use kube_ipvs::kernel::linux::Versions;
use kube_ipvs::kernel::worker::KernelHandle;
use kube_ipvs::reconcile::inquiry::inquiries;
use kube_ipvs::reconcile::{Input, Pace, Reconciler};
use plan::actual::Actual;
use plan::event::Event;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort,
};
use plan::planner::Planner;
use plan::settings::Settings;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;

/// Longest time until the loop has planned and written all of them.
const PATIENCE: Duration = Duration::from_secs(120);

fn events() -> impl Iterator<Item = Event> {
    let port = |number| NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN);
    (0..SERVICES).flat_map(move |number| {
        let name = ObjectName::new("shop", format!("s{number}"));
        let mut service = Service::new(name.clone());
        service.cluster_v4 = Some(Ipv4Addr::from_bits(0x0a60_0000 + number));
        service.ports = vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: port(80),
            node_port: None,
        }];
        let endpoint = |each| Endpoint {
            address: IpAddr::from(Ipv4Addr::from_bits(0x0af4_0000 + (number * 7 + each) % 60_000)),
            conditions: Conditions::default(),
            node: Some("node-2".into()),
            zone: None,
            hints: None,
        };
        let slice = EndpointSlice {
            name: name.clone(),
            service: name,
            family: Family::V4,
            ports: vec![SlicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: port(8080),
            }],
            endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        };
        [Event::ServiceApplied(Box::new(service)), Event::SliceApplied(Box::new(slice))]
    })
}

/// Runs the loop and the console, for ever.
fn serve(socket: PathBuf, configuration: Configuration) -> Result<()> {
    let settings = Settings { families: vec![Family::V4], ..Settings::new("node-1") };
    let kernel = KernelHandle::start(Fake::new(Actual::default()), ())?;
    let (inquiries, questions) = inquiries();
    let planner = Planner::new(settings.clone());
    let reconciler = Reconciler::new(planner, kernel, Pace::default())?;
    let reconciler = reconciler.answering(questions);
    let desk = Arc::new(Desk {
        inquiries,
        journal: Default::default(),
        readings: Default::default(),
        configuration,
        settings,
        fallen_back: None,
        api: None,
        pods: PodFinder::Manifests(PathBuf::new()),
        repairs: Repairs::default(),
        versions: Versions::default(),
        since: (Instant::now(), SystemTime::now()),
    });
    let (inputs, inbox) = mpsc::channel(1_024);
    let asked = runtime()?;
    // On a thread of its own, as in the program.
    thread::spawn(move || asked.block_on(server::serve(&socket, desk)));
    runtime()?.block_on(async move {
        let _source = tokio::spawn(async move {
            for event in events() {
                inputs.send(Input::Change(event)).await?;
            }
            inputs.send(Input::Complete).await?;
            // The source stays.
            std::future::pending::<Result<()>>().await
        });
        Ok(reconciler.run(inbox, None, std::future::pending()).await?)
    })
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Waits until all Services are written.
fn wait_in_sync(client: &Client) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = client.get::<Status>("/v1/status", &[]);
        if status.is_ok_and(|it| it.kernel.in_sync_once && it.input.waiting == 0) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the loop is not in sync after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("console.sock");
    let configuration = Configuration::load(&Arguments::default())?;
    let place = socket.clone();
    thread::spawn(move || {
        if let Err(error) = serve(place, configuration) {
            eprintln!("the loop has ended: {error:#}");
        }
    });
    let client = Client::find(Some(Path::new(&socket)))?;
    wait_in_sync(&client)?;
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    measure::<Names>(&mut criterion, &client, "names", "/v1/names", &[("prefix", "none")]);
    measure::<Status>(&mut criterion, &client, "status", "/v1/status", &[]);
    measure::<Events>(&mut criterion, &client, "events", "/v1/events", &[("limit", "200")]);
    criterion.final_summary();
    Ok(())
}

fn measure<T: Content>(
    criterion: &mut Criterion,
    client: &Client,
    name: &str,
    path: &str,
    query: &[(&str, &str)],
) {
    criterion.bench_function(&format!("console/{name}"), |bencher| {
        bencher.iter(|| {
            let answer = client.get::<T>(path, query);
            assert!(answer.is_ok(), "{name}: {:?}", answer.err());
        });
    });
}
