use super::*;

const PROXY: &str = "http://proxy.corp:3128";

/// Proxy that these variables lead to.
fn chosen(server: &str, variables: &[(&str, &str)]) -> Result<Option<String>, &'static str> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let proxy = from_environment(&server.parse().unwrap(), variable)?;
    Ok(proxy.map(|proxy| proxy.uri().to_string()))
}

#[test]
fn a_server_is_reached_by_the_variable_for_its_scheme() {
    let proxy = |url: &str| Ok(Some(format!("{url}/")));
    let server = "https://192.0.2.1:6443";
    assert_eq!(chosen(server, &[]), Ok(None));
    assert_eq!(chosen(server, &[("HTTPS_PROXY", PROXY)]), proxy(PROXY));
    assert_eq!(chosen(server, &[("https_proxy", PROXY)]), proxy(PROXY));
    assert_eq!(chosen(server, &[("HTTPS_PROXY", ""), ("https_proxy", PROXY)]), proxy(PROXY));
    let both = [("HTTPS_PROXY", PROXY), ("https_proxy", "http://other")];
    assert_eq!(chosen(server, &both), proxy(PROXY));
    assert_eq!(chosen(server, &[("HTTP_PROXY", PROXY), ("ALL_PROXY", PROXY)]), Ok(None));
    assert_eq!(chosen("http://192.0.2.1:8080", &[("http_proxy", PROXY)]), proxy(PROXY));
    assert_eq!(chosen(server, &[("HTTPS_PROXY", "proxy.corp:3128")]), proxy(PROXY));
    assert_eq!(
        chosen(server, &[("HTTPS_PROXY", "socks5://proxy:1080")]),
        proxy("socks5://proxy:1080")
    );
    for unusable in ["ftp://proxy", "socks4://proxy", "not a proxy"] {
        assert_eq!(chosen(server, &[("HTTPS_PROXY", unusable)]), Err("HTTPS_PROXY"), "{unusable}");
    }
}

/// Rows of Go's own test (`UseProxyTests` in golang.org/x/net/http/httpproxy/proxy_test.go), with
/// its `NO_PROXY`, and more with entries of clusters.
#[test]
fn no_proxy_is_read_as_go_reads_it() {
    const GO: &str = "foobar.com, .barbaz.net, *.quux.dev, 192.168.1.1, 192.168.1.2:81, \
                      192.168.1.3:80, 10.0.0.0/30, 2001:db8::52:0:1, [2001:db8::52:0:2]:443, \
                      [2001:db8::52:0:3]:80, 2002:db8:a::45/64";
    const CLUSTER: &str = "10.96.0.0/12,.svc,.cluster.local,fd00:96::/112,api.corp:6443,";
    for (entries, host, is_proxied) in [
        (GO, "localhost", false),
        (GO, "LOCALHOST", false),
        (GO, "127.0.0.1", false),
        (GO, "127.0.0.2:6443", false),
        (GO, "[::1]", false),
        (GO, "[::2]", true),
        (GO, "192.168.1.1", false),
        (GO, "192.168.1.2:80", true),
        (GO, "192.168.1.2:81", false),
        (GO, "192.168.1.3:80", false),
        (GO, "192.168.1.3", true),
        (GO, "192.168.1.4", true),
        (GO, "10.0.0.2", false),
        (GO, "10.0.0.4", true),
        (GO, "[2001:db8::52:0:1]", false),
        (GO, "[2001:db8::52:0:2]:443", false),
        (GO, "[2001:db8::52:0:2]:6443", true),
        (GO, "[2002:db8:a::123]", false),
        (GO, "[fe80::424b:c8be:1643:a1b6]", true),
        (GO, "foobar.com", false),
        (GO, "www.foobar.com", false),
        (GO, "foofoobar.com", true),
        (GO, "barbaz.net", true),
        (GO, "www.barbaz.net", false),
        (GO, "quux.dev", true),
        (GO, "www.quux.dev", false),
        ("*", "192.0.2.1", false),
        ("", "192.0.2.1", true),
        (",", "192.0.2.1", true),
        (CLUSTER, "10.96.0.1", false),
        (CLUSTER, "10.112.0.1", true),
        (CLUSTER, "[fd00:96::1]", false),
        (CLUSTER, "kubernetes.default.svc", false),
        (CLUSTER, "api.corp:6443", false),
        (CLUSTER, "api.corp", true),
        (CLUSTER, "proxy.corp:6443", true),
    ] {
        let variables = [("HTTPS_PROXY", PROXY), ("NO_PROXY", entries)];
        let proxy = chosen(&format!("https://{host}"), &variables).unwrap();
        assert_eq!(proxy.is_some(), is_proxied, "{host}, NO_PROXY={entries}");
    }
}

#[test]
fn credentials_of_a_proxy_are_not_part_of_its_address() {
    let server = "https://192.0.2.1".parse().unwrap();
    let http = named("http://me:pa%40ss@proxy.corp:3128", &server).unwrap();
    assert_eq!(http.uri(), "http://proxy.corp:3128/");
    assert_eq!(http.basic_auth().unwrap(), "Basic bWU6cGFAc3M=");
    let socks = named("socks5://me:pa%40ss@proxy.corp:1080", &server).unwrap();
    assert_eq!(socks.raw_auth(), Some(("me", "pa@ss")));
    assert!(named("ftp://proxy.corp", &server).is_none());
}
