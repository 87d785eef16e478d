//! A server behind a proxy.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver::{Credentials, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::world::{TOKEN, World, service};

/// Protocol in which clients ask for a way.
#[derive(Clone, Copy)]
enum Protocol {
    /// `CONNECT` (RFC 9110, 9.3.6).
    Http,
    /// SOCKS 5 (RFC 1928), for addresses of IPv4.
    Socks,
}

/// A proxy that makes ways to wherever it is asked to, and keeps the requests.
struct Proxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    /// Every change freezes the ways that there are.
    freeze: watch::Sender<()>,
}

impl Proxy {
    async fn start(protocol: Protocol) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&requests);
        let (freeze, frozen) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (kept, mut frozen) = (Arc::clone(&kept), frozen.clone());
                frozen.mark_unchanged();
                tokio::spawn(async move {
                    let (request, target) = match protocol {
                        Protocol::Http => connect(&mut client).await,
                        Protocol::Socks => socks(&mut client).await,
                    };
                    kept.lock().unwrap().push(request);
                    let mut server = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        // An error is one of both having gone.
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        Ok(()) = frozen.changed() => pending().await,
                    }
                });
            }
        });
        Self { address, requests, freeze }
    }

    /// Holds the ways that there are, and forwards nothing on them: as a balancer that has lost the
    /// server behind it.
    fn freeze(&self) {
        self.freeze.send_replace(());
    }

    /// Follows a server with this proxy in its kubeconfig, until a Service is there.
    async fn follow(&self, scheme_and_user: &str) -> (World, Vec<String>) {
        let mut world = World::new(Options::default());
        world.server.apply(service("a")).unwrap();
        let kubeconfig = world.server.kubeconfig(&Credentials::Token(TOKEN.to_owned()));
        let cluster = format!("  cluster:\n    proxy-url: {scheme_and_user}{}\n", self.address);
        world.follow_by(&kubeconfig.replace("  cluster:\n", &cluster)).await;
        world.until_applied("Service default/a").await;
        let requests = self.requests.lock().unwrap().clone();
        (world, requests)
    }
}

/// Reads the head of a request, and grants it.
async fn connect(client: &mut TcpStream) -> (String, SocketAddr) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().parse().unwrap();
    (head, target)
}

async fn socks(client: &mut TcpStream) -> (String, SocketAddr) {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).await.unwrap();
    let mut methods = vec![0; usize::from(greeting[1])];
    client.read_exact(&mut methods).await.unwrap();
    // No credentials are asked for.
    client.write_all(&[5, 0]).await.unwrap();
    let mut request = [0; 10];
    client.read_exact(&mut request).await.unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    let [5, 1, 0, 1, a, b, c, d, high, low] = request else { panic!("{request:?}") };
    let target = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
    (format!("{request:?}"), target)
}

#[tokio::test]
async fn a_server_is_followed_through_the_proxy_of_its_kubeconfig() {
    let proxy = Proxy::start(Protocol::Http).await;
    let (world, requests) = proxy.follow("http://me:secret@").await;
    assert!(!requests.is_empty());
    for request in requests {
        assert!(request.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", world.server.address())));
        let credentials = "proxy-authorization: basic bwu6c2vjcmv0\r\n";
        assert!(request.to_lowercase().contains(credentials), "{request}");
        assert!(!request.contains(TOKEN), "a proxy sees no token");
    }
}

#[tokio::test]
async fn a_server_is_followed_through_a_socks_proxy() {
    let proxy = Proxy::start(Protocol::Socks).await;
    let (_world, requests) = proxy.follow("socks5://").await;
    assert!(!requests.is_empty());
}

#[tokio::test]
async fn a_connection_whose_server_does_not_answer_is_given_up() {
    let proxy = Proxy::start(Protocol::Http).await;
    let (mut world, _) = proxy.follow("http://").await;
    world.until_complete().await;
    proxy.freeze();
    world.server.apply(service("b")).unwrap();
    // Nothing comes but by another connection, and a silent watch would take longer to be given up.
    let step = Duration::from_secs(16);
    let mut passed = Duration::ZERO;
    while !world.said.applied.contains_key("Service default/b") {
        assert!(passed < Duration::from_secs(120), "no ping was missed");
        world.pass(step).await;
        world.listen(Duration::from_millis(300)).await;
        passed += step;
    }
}
