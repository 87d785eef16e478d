//! Prints what `ipvsadm -L -n` prints: every virtual server with its real servers.
//!
//! `cargo run -p ipvs-rs --example list`, as root.

use ipvs::{Client, Flags, Protocol, RealServerStatus, VirtualServer, VirtualServerId};

fn main() -> Result<(), ipvs::Error> {
    let mut client = Client::open()?;
    let info = client.info()?;
    println!("IP Virtual Server version {} (size={})", info.version, info.connection_table_size);
    println!("Prot LocalAddress:Port Scheduler Flags");
    println!("  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn");
    for listing in client.list_all()? {
        println!("{}", virtual_server_line(&listing.virtual_server.server));
        for real_server in &listing.real_servers {
            println!("{}", real_server_line(real_server));
        }
    }
    Ok(())
}

fn virtual_server_line(server: &VirtualServer) -> String {
    let mut line = match server.id {
        VirtualServerId::Address { protocol, address, port } => {
            let protocol = match protocol {
                Protocol::TCP | Protocol::UDP | Protocol::SCTP => protocol.to_string(),
                Protocol(number) => number.to_string(),
            };
            format!("{protocol:<4} {}", std::net::SocketAddr::new(address, port))
        }
        VirtualServerId::FirewallMark { mark, .. } => format!("FWM  {mark}"),
    };
    line += &format!(" {}", server.scheduler);
    if server.flags.contains(Flags::PERSISTENT) {
        line += &format!(" persistent {}", server.persistence_timeout);
    }
    if let Some(engine) = server.persistence_engine {
        line += &format!(" pe {engine}");
    }
    if server.flags.contains(Flags::ONE_PACKET) {
        line += " ops";
    }
    line
}

fn real_server_line(listed: &RealServerStatus) -> String {
    format!(
        "  -> {:<28} {:<7} {:<6} {:<10} {}",
        listed.server.socket_address(),
        listed.server.forwarding,
        listed.server.weight,
        listed.active_connections,
        listed.inactive_connections,
    )
}
