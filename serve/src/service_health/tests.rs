use std::io;
use std::net::{TcpListener, TcpStream};

use plan::mode::Mode;
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::*;
use crate::health::{Health, Moment};
use crate::tests::{ask, exchange, free_address, get};

/// Listeners that run, and the handle that updates them.
struct World {
    updates: CheckUpdates,
    health: SharedHealth,
    metrics: Arc<Metrics>,
    failures: mpsc::Receiver<ListenFailure>,
    task: JoinHandle<Infallible>,
}

impl World {
    /// Waiting shorter than `timeout` is healthy.
    fn new(families: &[Family], chosen: NodePortAddresses, timeout: Duration) -> Self {
        let health = SharedHealth::new(Health::new(families, timeout, Moment::now()));
        let metrics = Arc::new(Metrics::new(Mode::Ipvs, families).unwrap());
        let (sender, failures) = mpsc::channel(8);
        let scope = Scope {
            families: families.to_vec(),
            node_port_addresses: chosen,
            metrics: Arc::clone(&metrics),
            failures: sender,
        };
        let updates = CheckUpdates::default();
        let services = ServiceHealth::new(scope, health.clone(), updates.clone());
        Self { updates, health, metrics, failures, task: tokio::spawn(services.run()) }
    }

    /// On every IPv4 address.
    fn everywhere() -> Self {
        Self::new(&[Family::V4], NodePortAddresses::All, Duration::ZERO)
    }

    /// On the node's addresses inside 127.0.0.0/8.
    fn chosen() -> Self {
        let networks = NodePortAddresses::Networks(vec!["127.0.0.0/8".parse().unwrap()]);
        Self::new(&[Family::V4], networks, Duration::ZERO)
    }

    fn tell(&self, name: &str, port: u16, local_v4: usize) {
        self.updates.round([mk_check(name, port, local_v4)], None);
    }

    fn gone(&self, name: &str) {
        self.updates.round([(ServiceName::new("ns", name), None)], None);
    }

    fn moved(&self, addresses: &[[u8; 4]]) {
        let local = addresses.iter().map(|bytes| IpAddr::from(*bytes)).collect();
        self.updates.round([], Some(NodeAddresses { local, node: Vec::new() }));
    }

    /// A round in which nothing of interest changed.
    fn round(&self) {
        self.updates.round([], None);
    }

    fn assert_counted(&self, checks: u32, failing: u32) {
        let text = self.metrics.text().unwrap();
        for line in [
            format!("kube_ipvs_service_health_checks {checks}\n"),
            format!("kube_ipvs_service_health_check_listen_failures {failing}\n"),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn mk_check(name: &str, port: u16, local_v4: usize) -> (ServiceName, Option<HealthCheck>) {
    let port = NonZeroU16::new(port).unwrap();
    (
        ServiceName::new("ns", name),
        Some(HealthCheck { port, local_v4: Some(local_v4), local_v6: Some(9) }),
    )
}

/// Waits until an address has a status. A listener that ends meanwhile resets the connection.
/// Rounds go on: a connection of another process may hold the port for a moment.
async fn until_answering(world: &World, address: SocketAddr, status: u16) {
    let request = "GET / HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n";
    while !exchange(address, request).await.is_ok_and(|answer| answer.status == status) {
        world.round();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until no process listens.
async fn until_closed(address: SocketAddr) {
    while TcpStream::connect(address).is_ok() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_answer_is_kube_proxys_to_the_letter() {
    let world = World::everywhere();
    let address = free_address();
    world.tell("web", address.port(), 2);
    until_answering(&world, address, 200).await;
    let yes = get(address, "/anything?at=all").await;
    let body = "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\
                \"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!((yes.status, yes.body.as_str()), (200, body));
    assert_eq!(
        yes.headers[..3],
        [
            "Content-Type: application/json",
            "X-Content-Type-Options: nosniff",
            "X-Load-Balancing-Endpoint-Weight: 2",
        ]
    );
    assert_eq!(ask(address, "POST", "/").await.status, 200);

    world.tell("web", address.port(), 0);
    until_answering(&world, address, 503).await;
    let no = get(address, "/").await;
    assert_eq!(no.body, body.replace("\"localEndpoints\": 2", "\"localEndpoints\": 0"));
    assert!(no.headers.contains(&"X-Load-Balancing-Endpoint-Weight: 0".to_owned()), "{no:?}");

    world.tell("web", address.port(), 2);
    until_answering(&world, address, 200).await;
    world.health.lock().node_leaving(true);
    assert_eq!(get(address, "/").await.status, 200, "what the node is about to do does not count");
    world.health.lock().waiting(1, Moment::now());
    let unhealthy = get(address, "/").await;
    assert_eq!(unhealthy.status, 503);
    assert_eq!(unhealthy.body, body.replace("true", "false"));
}

#[tokio::test]
async fn listeners_follow_ports_and_end_with_their_services() {
    let world = World::everywhere();
    let [first, second] = [free_address(), free_address()];
    world.tell("web", first.port(), 1);
    world.tell("api", second.port(), 0);
    until_answering(&world, first, 200).await;
    until_answering(&world, second, 503).await;
    world.assert_counted(2, 0);
    // Both change places in one round: each takes over what the other gives up.
    world
        .updates
        .round([mk_check("web", second.port(), 1), mk_check("api", first.port(), 0)], None);
    until_answering(&world, first, 503).await;
    until_answering(&world, second, 200).await;
    assert!(get(first, "/").await.body.contains("\"api\""));
    let third = free_address();
    world.tell("web", third.port(), 1);
    until_answering(&world, third, 200).await;
    assert!(TcpStream::connect(second).is_err());
    world.gone("web");
    world.gone("api");
    until_closed(first).await;
    until_closed(third).await;
}

#[tokio::test]
async fn connections_end_with_their_listener() {
    let world = World::everywhere();
    let address = free_address();
    world.tell("web", address.port(), 1);
    until_answering(&world, address, 200).await;
    // It asks, and keeps the connection: its answer ends only with the listener.
    let kept = tokio::spawn(exchange(address, "GET / HTTP/1.1\r\nHost: n1\r\n\r\n"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!kept.is_finished());
    world.gone("web");
    assert_eq!(kept.await.unwrap().unwrap().status, 200);
}

#[tokio::test]
async fn a_port_that_is_taken_is_reported_once_and_tried_again_in_each_round() {
    let mut world = World::everywhere();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    world.tell("web", address.port(), 1);
    let failure = world.failures.recv().await.unwrap();
    assert_eq!(failure.service, ServiceName::new("ns", "web"));
    assert_eq!(failure.address, SocketAddr::from(([0, 0, 0, 0], address.port())));
    let in_use = io::Error::from(Errno::ADDRINUSE).to_string();
    assert!(failure.reason.contains(&in_use), "{failure:?}");
    assert!(failure.to_string().starts_with("Service ns/web: cannot listen on 0.0.0.0:"));
    world.assert_counted(1, 1);
    // Another Service is updated after the round in which the first one failed again.
    let other = free_address();
    world.round();
    world.tell("api", other.port(), 1);
    until_answering(&world, other, 200).await;
    world.failures.try_recv().unwrap_err();
    drop(taken);
    world.round();
    until_answering(&world, address, 200).await;
    world.assert_counted(2, 0);
}

#[tokio::test]
async fn only_chosen_addresses_are_listened_on_and_they_may_change() {
    let world = World::chosen();
    let port = free_address().port();
    let [one, two] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|bytes| SocketAddr::from((bytes, port)));
    world.tell("web", port, 1);
    world.moved(&[[192, 0, 2, 7], [127, 0, 0, 1]]);
    until_answering(&world, one, 200).await;
    TcpStream::connect(two).unwrap_err();
    world.moved(&[[127, 0, 0, 2]]);
    until_answering(&world, two, 200).await;
    TcpStream::connect(one).unwrap_err();
    world.assert_counted(1, 0);
    world.moved(&[]);
    until_closed(two).await;
}

#[tokio::test]
async fn each_family_has_its_own_listener_and_count() {
    let has_v6 = TcpListener::bind("[::1]:0").is_ok();
    let families = if has_v6 { &Family::BOTH[..] } else { &[Family::V4] };
    let world = World::new(families, NodePortAddresses::All, Duration::ZERO);
    let address = free_address();
    world.tell("web", address.port(), 0);
    until_answering(&world, address, 503).await;
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    if has_v6 {
        until_answering(&world, v6, 200).await;
        assert!(get(v6, "/").await.body.contains("\"localEndpoints\": 9,"));
    } else {
        TcpStream::connect(v6).unwrap_err();
    }
    assert!(get(address, "/").await.body.contains("\"localEndpoints\": 0,"));
    world.assert_counted(1, 0);
}

#[tokio::test]
async fn the_nodes_own_addresses_are_the_first_of_each_family() {
    let world = World::new(&Family::BOTH, NodePortAddresses::Primary(Vec::new()), Duration::ZERO);
    let port = free_address().port();
    let node = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
    let addresses = NodeAddresses { local: Vec::new(), node };
    world.updates.round([mk_check("web", port, 0)], Some(addresses));
    // The node's first address of the family, and no IPv6 address since it has none.
    until_answering(&world, SocketAddr::from(([127, 0, 0, 3], port)), 503).await;
    TcpStream::connect(("127.0.0.4", port)).unwrap_err();
    world.assert_counted(1, 0);
}

#[tokio::test]
async fn a_thousand_services_are_a_matter_of_moments() {
    listen::raise_open_files();
    let world = World::chosen();
    // No other test uses this address, nor these ports of all addresses: the ports of other tests
    // are chosen by the kernel, from 32768 on.
    world.moved(&[[127, 1, 0, 1]]);
    let addresses = (20_000..32_768).map(|port| SocketAddr::from(([127, 1, 0, 1], port)));
    let free = addresses.filter(|address| TcpListener::bind(address).is_ok());
    let addresses: Vec<SocketAddr> = free.take(1_000).collect();
    assert_eq!(addresses.len(), 1_000);
    let check = |(n, address): (usize, &SocketAddr)| mk_check(&n.to_string(), address.port(), 1);
    world.updates.round(addresses.iter().enumerate().map(check), None);
    for address in [addresses[0], addresses[500], addresses[999]] {
        until_answering(&world, address, 200).await;
    }
    world.assert_counted(1_000, 0);
    world.updates.round((0..1_000).map(|n| (ServiceName::new("ns", n.to_string()), None)), None);
    for address in addresses {
        until_closed(address).await;
    }
}

#[tokio::test]
async fn only_the_services_families_are_answered() {
    let world = World::new(&Family::BOTH, NodePortAddresses::All, Duration::ZERO);
    let v4 = free_address();
    let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), v4.port());
    let (name, check) = mk_check("web", v4.port(), 1);
    let dual = check.unwrap();
    world.updates.round([(name.clone(), Some(HealthCheck { local_v6: None, ..dual }))], None);
    until_answering(&world, v4, 200).await;
    assert!(TcpStream::connect(v6).is_err(), "the Service has no IPv6 address");
    world.updates.round([(name.clone(), Some(dual))], None);
    until_answering(&world, v6, 200).await;
    // `spec.ipFamilies` may lose its second entry again.
    world.updates.round([(name, Some(HealthCheck { local_v6: None, ..dual }))], None);
    until_closed(v6).await;
    assert_eq!(get(v4, "/").await.status, 200);
}
