use super::*;

#[test]
fn a_bucket_is_full_at_first_and_fills_again() {
    let start = Instant::now();
    let mut bucket = Bucket { per_request: Duration::from_secs(1), burst: 3, full_at: None };
    let after = |at: Instant| at.duration_since(start).as_secs();
    let waits: Vec<_> = (0..5).map(|_| after(bucket.take(start))).collect();
    assert_eq!(waits, [0, 0, 0, 1, 2]);
    let later = start + Duration::from_secs(4);
    assert_eq!(after(bucket.take(later)), 4, "two tokens are back");
    assert_eq!(after(bucket.take(later)), 4);
    assert_eq!(after(bucket.take(later)), 5);
    let much_later = start + Duration::from_secs(1_000);
    let waits: Vec<_> = (0..4).map(|_| after(bucket.take(much_later))).collect();
    assert_eq!(waits, [1_000, 1_000, 1_000, 1_001], "it holds no more than its burst");
}

#[test]
fn rates_as_an_operator_writes_them() {
    let bucket = |qps, burst| {
        Rate::new(qps, burst).bucket.map(|bucket| {
            let bucket = bucket.lock();
            (bucket.per_request.as_millis(), bucket.burst)
        })
    };
    assert_eq!(bucket(0.0, 0), Some((200, 10)));
    assert_eq!(bucket(50.0, 100), Some((20, 100)));
    assert_eq!(bucket(-1.0, 5), None);
    assert_eq!(bucket(f32::NAN, 5), None);
    assert_eq!(bucket(f32::INFINITY, -5), Some((0, 10)));
}

#[test]
fn urls_get_the_port_that_they_lack() {
    for (url, expected) in [
        ("socks5://proxy", "socks5://proxy:1080/"),
        ("socks5://proxy:9", "socks5://proxy:9/"),
        ("http://[2001:db8::1]", "http://[2001:db8::1]:1080/"),
    ] {
        assert_eq!(with_port(&url.parse().unwrap(), 1080).to_string(), expected);
    }
}

#[test]
fn a_token_file_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    assert!(TokenFile::open(path.clone()).is_err());
    std::fs::write(&path, "\n").unwrap();
    assert!(TokenFile::open(path.clone()).is_err());
    std::fs::write(&path, "first\n").unwrap();
    let file = TokenFile::open(path.clone()).unwrap();
    assert_eq!(file.header(), "Bearer first");
    assert!(file.header().is_sensitive());
    std::fs::write(&path, "second").unwrap();
    assert_eq!(file.header(), "Bearer second");
    std::fs::write(&path, "").unwrap();
    assert_eq!(file.header(), "Bearer second", "half-written");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.header(), "Bearer second");
}

/// One that accepts for a server which is dead, and a proxy that takes a request for a tunnel and says nothing.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_never_ready_fails_in_ten_seconds() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let server: Uri = format!("https://{address}").parse().unwrap();
    let other: Uri = "https://192.0.2.1:6443".parse().unwrap();
    let tunnel = Tunnel::new(format!("http://{address}").parse().unwrap(), tcp());
    let config = Config::new(server.clone());
    let direct = within(CONNECT_PATIENCE, tls(&config, tcp()).unwrap()).oneshot(server);
    let tunnelled = within(CONNECT_PATIENCE, tls(&config, tunnel).unwrap()).oneshot(other);
    let begun = Instant::now();
    let errors = tokio::join!(direct, tunnelled);
    assert_eq!(begun.elapsed().as_secs(), CONNECT_PATIENCE.as_secs());
    for error in [errors.0.err(), errors.1.err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("not ready for requests within 10s"), "{error}");
    }
}
