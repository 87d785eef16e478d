//! The pages for a browser, of the real program: what they show, beside what the kernel has, and who gets
//! them.

use bed::{Protocol, Service, eventually};

use super::run;
use crate::cluster::{get, status};
use crate::fixture::{Bed, PATIENCE, TARGET, ip};

const HERE: &str = "127.0.0.1:10249";

fn mk_bed() -> Bed {
    let bed = Bed::new();
    let service = Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed
}

/// Returns a page's HTML.
fn page(bed: &Bed, path: &str) -> String {
    let answer = get(bed.node(), HERE, path).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    assert!(answer.contains("Content-Security-Policy: default-src 'none'"), "{path}: {answer}");
    let (_, html) = answer.split_once("\r\n\r\n").unwrap();
    assert!(html.contains("<!doctype html>"), "{path}: {html}");
    html.to_owned()
}

/// Waits until a page has a text: live pages share an answer for two seconds.
fn wait_for(bed: &Bed, path: &str, expected: &str) {
    let shown = eventually(PATIENCE, "the page shows it", || {
        let html = page(bed, path);
        anyhow::ensure!(html.contains(expected), "{path} has no {expected}: {html}");
        Ok(())
    });
    shown.unwrap();
}

#[test]
fn pages_show_what_the_kernel_has() {
    let bed = mk_bed();
    let proxy = bed.start(&["--console-page=loopback"]);
    let kernel = bed.virtual_servers();
    let count = |word: &str| kernel.lines().filter(|line| line.trim().starts_with(word)).count();
    let counted = |noun: &str, number: usize| match number {
        1 => format!("</span>, 1 {noun}, "),
        number => format!(", {number} {noun}s, "),
    };
    let status = page(&bed, "/console/");
    for expected in [
        counted("virtual server", count("TCP")),
        counted("real server", count("->") - 1),
        "<dt>Services</dt><dd>1, ".to_owned(),
    ] {
        assert!(status.contains(&expected), "{expected}: {status}\n{kernel}");
    }
    let services = page(&bed, "/console/services");
    assert!(services.contains("/console/service?name=default%2Fweb"), "{services}");
    assert!(services.contains("<td>2/2</td><td>2</td>"), "{services}");
    let service = page(&bed, "/console/service?name=default/web");
    let (svg, table) = service.split_once("</svg>").unwrap();
    assert!(svg.contains(">TCP 10.96.0.10:80</text>"), "{svg}");
    let real_servers = kernel.lines().filter_map(|line| line.trim().strip_prefix("-> 10."));
    let real_servers: Vec<String> =
        real_servers.map(|it| format!("10.{}", it.split(' ').next().unwrap())).collect();
    assert_eq!(real_servers.len(), 2, "{kernel}");
    for real_server in real_servers {
        assert!(svg.contains(&format!(">{real_server}</text>")), "{real_server}: {svg}");
        assert!(table.contains(&format!(">{real_server}</td>")), "{real_server}: {table}");
    }
    let form = page(&bed, "/console/trace");
    assert!(form.contains("<form") && !form.contains("Its path"), "{form}");
    let trace = page(&bed, "/console/trace?source=outside&destination=10.96.0.10:80");
    for text in ["Service default/web", "KUBE-CLUSTER-IP", "10.96.0.10:80, scheduler rr"] {
        assert!(trace.contains(text), "{text}: {trace}");
    }
    assert!(trace.contains("10.244.1.11:8080</td>") && trace.contains("50%"), "{trace}");
    let drained = run(&bed, &["drain", "10.244.1.11:8080", "--for", "5m"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    wait_for(&bed, "/console/", "<span class=\"notable\">1 endpoint by hand</span>");
    wait_for(&bed, "/console/service?name=default/web", "not used: drained manually");
    assert!(bed.virtual_servers().contains("10.244.1.11:8080             Masq    0"));
    let unknown = get(bed.node(), HERE, "/console/service?name=default/wed").unwrap();
    assert!(unknown.starts_with("HTTP/1.1 404 ") && unknown.contains("default/web"), "{unknown}");
    proxy.stop().unwrap();
}

#[test]
fn pages_are_off_unless_chosen_and_then_for_the_node_itself() {
    let bed = mk_bed();
    let proxy = bed.start(&[]);
    assert_eq!(status(bed.node(), HERE, "/metrics"), "200");
    assert_eq!(status(bed.node(), HERE, "/console/"), "404", "off by default");
    proxy.stop().unwrap();
    let everywhere = "--metrics-bind-address=0.0.0.0:10249";
    let from_outside = |path: &str| status(bed.client(), "192.168.0.11:10249", path);
    let proxy = bed.start(&[everywhere, "--console-page=loopback"]);
    assert_eq!(status(bed.node(), HERE, "/console/"), "200");
    assert_eq!(from_outside("/metrics"), "200");
    for path in ["/console/", "/console/services", "/console/trace", "/console/live.js"] {
        assert_eq!(from_outside(path), "403", "{path}");
    }
    // By an address of the node, it is not by loopback either.
    assert_eq!(status(bed.node(), "192.168.0.11:10249", "/console/"), "403");
    proxy.stop().unwrap();
    let proxy = bed.start(&[everywhere, "--console-page=network"]);
    assert_eq!(from_outside("/console/"), "200");
    proxy.stop().unwrap();
}
