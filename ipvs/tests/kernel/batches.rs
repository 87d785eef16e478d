//! Many commands at once, and a result for each.

use std::net::Ipv4Addr;

use ipvs::{Batch, RealServer, Scheduler, VirtualServer, VirtualServerId};

use crate::Network;

const VIRTUAL_SERVERS: u16 = 1_000;
const REAL_SERVERS: u8 = 10;

fn server(number: u16) -> VirtualServer {
    let [high, low] = number.to_be_bytes();
    let id = VirtualServerId::tcp(Ipv4Addr::new(10, 96, high, low), 80);
    VirtualServer::new(id, Scheduler::ROUND_ROBIN)
}

#[test]
fn thousands_go_in_and_out_in_a_few_sends() {
    let network = Network::new("thousands");
    let mut client = network.client();
    let mut batch = Batch::new();
    for server in (0..VIRTUAL_SERVERS).map(server) {
        batch.new_service(&server);
        for last in 1..=REAL_SERVERS {
            batch.new_destination(&server.id, &RealServer::new([10, 0, 0, last], 8080));
        }
    }
    let (count, before) = (batch.len(), client.traffic());
    assert_eq!(count, 11_000);
    let results = client.send(&batch).unwrap();
    assert_eq!(results.len(), count);
    assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|r| r.is_err()));
    let after = client.traffic();
    assert_eq!(after.requests - before.requests, 11_000);
    assert!(after.sends - before.sends <= 60, "{after:?}");

    let snapshot = client.list_all().unwrap();
    assert_eq!(snapshot.len(), usize::from(VIRTUAL_SERVERS));
    for listing in &snapshot {
        assert_eq!(listing.real_servers.len(), usize::from(REAL_SERVERS));
    }
    assert_eq!(network.saved().len(), count);

    // Many are read at once, and one that is not there harms only itself.
    let ids: Vec<_> = (0..=VIRTUAL_SERVERS).map(|number| server(number).id).collect();
    let before = client.traffic();
    let mut found = client.services(&ids).unwrap();
    assert!(client.traffic().sends - before.sends <= 5, "{:?}", client.traffic());
    assert!(found.pop().unwrap().is_err_and(|error| error.is_no_such_service()));
    let found: Vec<_> = found.into_iter().map(|found| found.unwrap().server.id).collect();
    assert_eq!(Some(&*found), ids.split_last().map(|(_, others)| others));

    // The same once more: every one is there already, and each says so.
    let results = client.send(&batch).unwrap();
    assert_eq!(results.len(), count);
    assert!(results.iter().all(|result| result.as_ref().is_err_and(ipvs::Error::is_exists)));

    batch.clear();
    for number in 0..VIRTUAL_SERVERS {
        batch.delete_service(&server(number).id);
    }
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    assert_eq!(client.list_services().unwrap(), []);
}

#[test]
fn a_refused_command_has_its_own_place_and_does_not_stop_the_others() {
    let network = Network::new("places");
    let mut client = network.client();
    let (first, second) = (server(1), server(2));
    let real_server = RealServer::new([10, 0, 0, 1], 80);
    let mut batch = Batch::new();
    let added = batch.new_service(&first);
    let orphan = batch.new_destination(&second.id, &real_server);
    let adopted = batch.new_destination(&first.id, &real_server);
    let twice = batch.new_destination(&first.id, &real_server);
    let gone = batch.delete_service(&second.id);
    let changed = batch.set_destination(&first.id, &real_server.with_weight(5));
    let unknown = batch.delete_destination(&first.id, "10.0.0.9:80".parse().unwrap());
    let last = batch.new_service(&second);
    let results = client.send(&batch).unwrap();
    for index in [added, adopted, changed, last] {
        assert!(results[index].is_ok(), "{index}: {:?}", results[index]);
    }
    let text = |index: usize| results[index].as_ref().unwrap_err().to_string();
    assert_eq!(
        text(orphan),
        "add real server 10.0.0.1:80 to TCP 10.96.0.2:80: No such process (os error 3): \
         there is no such virtual server"
    );
    assert_eq!(
        text(twice),
        "add real server 10.0.0.1:80 to TCP 10.96.0.1:80: File exists (os error 17): \
         the virtual server has it already"
    );
    assert!(results[gone].as_ref().unwrap_err().is_no_such_service());
    assert_eq!(
        text(unknown),
        "delete real server 10.0.0.9:80 from TCP 10.96.0.1:80: No such file or directory \
         (os error 2): the virtual server has no such real server"
    );
    assert_eq!(client.list_destinations(&first.id).unwrap()[0].server.weight, 5);
}
