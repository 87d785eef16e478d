//! A start on a node of kube-proxy with `serviceRoutes` by default: requests to the API server, and what
//! becomes of bound addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apiserver::{Credentials, Options, Release, Server, Verb};
use config::{Arguments, Configuration, cli};
use kernel::fake::Fake;
use kernel::linux::LocalServiceAddresses;
use plan::actual::Actual;
use plan::model::Family;
use reconcile::observer::{Observer, Report};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

use crate::app::changes::Changes;
use crate::app::orders::Orders;
use crate::app::service_routes::begin;
use crate::app::serving::ServingThread;
use crate::app::source::Source;
use crate::app::tenure::Threads;
use crate::app::tests::busy::free_address;
use crate::app::tests::mk_parts;
use crate::app::threads::TaskThread;

const TOKEN: &str = "good";

/// Longer than anything takes that goes well, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(45);

/// One more than may be bound one by one.
const MANY: u32 = 5_001;

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_1000 + number)
}

/// A server with Services, of a release that lists, and the default configuration for it.
fn mk_cluster(release: Release, n_services: u32) -> (Server, Configuration, TempDir) {
    let tokens = vec![TOKEN.to_owned()];
    let server = Server::start(Options { release, tokens, ..Options::default() }).unwrap();
    let apply = |object| assert!(server.apply(object).unwrap() > 0);
    apply(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]},
    }));
    apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]},
    }));
    for number in 0..n_services {
        let address = address(number);
        apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("s{number}"), "namespace": "default"},
            "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80}]},
        }));
    }
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig(&Credentials::Token(TOKEN.into()))).unwrap();
    let words = [
        "kube-ipvs",
        "--hostname-override=node-1",
        &format!("--healthz-bind-address={}", free_address()),
        &format!("--metrics-bind-address={}", free_address()),
        &format!("--kubeconfig={}", kubeconfig.display()),
    ];
    let arguments = cli::parse(words.map(Into::into)).unwrap();
    (server, Configuration::load(&arguments).unwrap(), folder)
}

/// The configuration that a start begins with, where the kernel has so many addresses bound and no route.
fn begun(
    configuration: Configuration,
    client: &TaskThread,
    source: &Source,
    n_bound: usize,
) -> Configuration {
    let n_bound = (n_bound > 0).then_some((Family::V4, n_bound)).into_iter().collect();
    let found = LocalServiceAddresses { routes: Vec::new(), n_bound };
    let cluster = source.cluster_questions(client.handle());
    client.handle().block_on(begin(configuration, found, cluster.as_ref()))
}

/// Requests for collections so far, as "list services"; a page is not counted again.
fn lists(server: &Server) -> BTreeMap<String, usize> {
    let mut lists = BTreeMap::new();
    for request in server.requests() {
        let (Verb::List, Some(resource)) = (request.verb, request.resource) else { continue };
        if request.parameter("continue").is_none() {
            *lists.entry(resource.plural().to_owned()).or_default() += 1;
        }
    }
    lists
}

fn counted(lists: &[(&str, usize)]) -> BTreeMap<String, usize> {
    lists.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

/// Counts takeovers: listings of all kernel state.
#[derive(Debug)]
struct Takeovers(mpsc::Sender<()>);

impl Observer for Takeovers {
    fn report(&mut self, report: &Report<'_>) {
        if matches!(report, Report::Listed) {
            // The test has ended otherwise.
            let _ = self.0.send(());
        }
    }
}

/// The node asks for ServiceCIDRs before it lists, so it begins with routes: one list, one takeover.
#[test]
fn a_takeover_of_many_bound_addresses_lists_once_and_reads_the_kernel_once() {
    let (server, configuration, _folder) = mk_cluster(Release::V1_33, MANY);
    let bound: Vec<IpAddr> = (0..MANY).map(|number| address(number).into()).collect();
    let kernel = Fake::new(Actual {
        local_addresses: [[192, 0, 2, 11].into()].into_iter().collect(),
        addresses: bound.iter().copied().collect(),
        ..Actual::default()
    });
    let client = TaskThread::start("client", ()).unwrap();
    let source = client.handle().block_on(Source::open(&configuration)).unwrap();
    let configuration = begun(configuration, &client, &source, bound.len());
    assert_eq!(configuration.settings.service_routes, ["10.96.0.0/16".parse().unwrap()]);
    assert_eq!(lists(&server), counted(&[("servicecidrs", 1)]), "what is bound is counted");

    let at_work = TaskTracker::new();
    let threads = Threads::start(&at_work, ServingThread::start().unwrap()).unwrap();
    let cluster = source.cluster_questions(client.handle());
    let (taken, takeovers) = mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let fake = kernel.clone();
    let running = thread::spawn(move || {
        let observer = Box::new(Takeovers(taken));
        let parts = mk_parts(&configuration, source, cluster, kernel, observer);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let shutdown = async {
            let _ = ended.await;
        };
        let (arguments, mut orders) = (Arguments::default(), Orders::default());
        let (arguments, orders) = (&arguments, &mut orders);
        let changes = Changes {
            arguments,
            configured: &configuration,
            rejected: None,
            is_rejected: std::sync::Arc::default(),
            orders,
        };
        runtime.block_on(parts.run(&threads, &at_work, shutdown, changes)).unwrap();
    });
    let started = std::time::Instant::now();
    loop {
        let Actual { routes, addresses, .. } = fake.actual();
        if routes.len() == 1 && addresses.is_empty() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{routes:?}, {} addresses", addresses.len());
        thread::sleep(Duration::from_millis(20));
    }
    end.send(()).unwrap();
    running.join().unwrap();
    assert_eq!(takeovers.iter().count(), 1);
    let lists = lists(&server);
    assert_eq!((lists["services"], lists["endpointslices"]), (1, 1), "{lists:?}");
}

/// A server without ServiceCIDRs is not asked for them as long as there are few Services.
#[test]
fn with_few_services_no_server_is_asked_for_networks() {
    for release in [Release::V1_30, Release::V1_33] {
        let (server, configuration, _folder) = mk_cluster(release, 3);
        let client = TaskThread::start("client", ()).unwrap();
        let source = client.handle().block_on(Source::open(&configuration)).unwrap();
        for (n_bound, asked) in [(3, &[][..]), (0, &[("services", 1)][..])] {
            let begun = begun(configuration.clone(), &client, &source, n_bound);
            assert!(begun.settings.service_routes.is_empty());
            assert_eq!(lists(&server), counted(asked), "{release:?}, {n_bound} bound");
        }
    }
}

/// With many, it is asked, and addresses are bound as before.
#[test]
fn without_service_cidrs_many_services_have_an_address_each() {
    let (server, configuration, _folder) = mk_cluster(Release::V1_30, 3);
    let client = TaskThread::start("client", ()).unwrap();
    let source = client.handle().block_on(Source::open(&configuration)).unwrap();
    let begun = begun(configuration, &client, &source, 6_000);
    assert_eq!(begun.service_routes.chosen, Some(Vec::new()));
    assert_eq!(lists(&server), counted(&[("servicecidrs", 1)]));
}
