//! Balances a TCP address over real servers: adds what is missing, corrects what differs, deletes
//! what is too much, in one batch; connections to what stays are not disturbed.
//!
//! `cargo run -p ipvs-rs --example balance -- 10.96.0.1:80 10.0.0.1:8080 10.0.0.2:8080`, as root.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use ipvs::{Batch, Client, RealServer, Scheduler, VirtualServer, VirtualServerId};

fn main() -> ExitCode {
    match balance() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn balance() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<SocketAddr> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let (virtual_address, real_addresses) =
        addresses.split_first().ok_or("give a virtual address and the real ones")?;
    let id = VirtualServerId::tcp(virtual_address.ip(), virtual_address.port());
    let wanted = VirtualServer::new(id, Scheduler::ROUND_ROBIN);

    let mut client = Client::open()?;
    let mut batch = Batch::new();
    match client.service(&id) {
        Ok(found) if found.server.is_same_configuration(&wanted) => {}
        Ok(_) => {
            batch.set_service(&wanted);
        }
        Err(error) if error.is_no_such_service() => {
            batch.new_service(&wanted);
        }
        Err(error) => return Err(error.into()),
    }
    let found: Vec<RealServer> =
        client.list_destinations(&id)?.into_iter().map(|listed| listed.server).collect();
    for address in real_addresses {
        let wanted = RealServer::new(address.ip(), address.port());
        match found.iter().find(|server| server.socket_address() == *address) {
            Some(server) if *server == wanted => {}
            Some(_) => {
                batch.set_destination(&id, &wanted);
            }
            None => {
                batch.new_destination(&id, &wanted);
            }
        }
    }
    for server in found.iter().map(RealServer::socket_address) {
        if !real_addresses.contains(&server) {
            batch.delete_destination(&id, server);
        }
    }

    let results = client.send(&batch)?;
    let commands = results.len();
    // Every command was tried; the first that failed is reported.
    results.into_iter().collect::<Result<(), _>>()?;
    println!("{id}: {} real servers, {commands} changes", real_addresses.len());
    Ok(())
}
