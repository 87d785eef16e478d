use std::fs;

use clap::{CommandFactory as _, Parser};

use super::*;

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  externalTrafficPolicy: Local
  healthCheckNodePort: 30999
  loadBalancerSourceRanges: [172.16.0.0/12]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.11], nodeName: n1, targetRef: {kind: Pod, name: web-a}}
- {addresses: [10.244.2.11], nodeName: n2, targetRef: {kind: Pod, name: web-b}}
- {addresses: [10.244.2.12], nodeName: n2, conditions: {ready: false, serving: false}}
"#;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(words: &[&str]) -> Arguments {
    Line::try_parse_from([&["explain"], words].concat()).unwrap().arguments
}

/// Explains the manifests on a node whose cluster has this network of pods.
fn offline(words: &[&str]) -> Result<Explanation, Failure> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("web.yaml"), MANIFESTS).unwrap();
    fs::write(folder.path().join("notes.txt"), "no manifest").unwrap();
    let configuration = folder.path().join("kube-ipvs.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                mode: ipvs\nclusterCIDR: 10.244.0.0/16\n";
    fs::write(&configuration, text).unwrap();
    let asked = arguments(words).asked()?;
    offline::explain(folder.path(), Some("n1"), Some(&configuration), &asked)
}

fn plain(explanation: &Explanation) -> String {
    anstream::adapter::strip_str(&text(explanation)).to_string()
}

#[test]
fn sentences_say_who_gets_what_and_by_which_rule() {
    let explanation = offline(&["web:80"]).unwrap();
    let text = plain(&explanation);
    let expected = [
        "default/web, LoadBalancer, on node n1 in IPVS mode",
        "TCP 10.96.0.10:80, cluster IP, port http",
        "  internalTrafficPolicy Cluster: its clients get any endpoint; the scheduler rr chooses.",
        "  Session affinity: a client stays with its endpoint for 3h0m.",
        "  A pod of this node (such as 10.244.1.254) gets one of 10.244.1.11:8080, 10.244.2.11:8080, \
         which sees the client's own address.",
        "  10.244.2.12:8080 on node n2 is not used: not ready.",
        "TCP 203.0.113.10:80, load balancer IP, port http",
        "  externalTrafficPolicy Local: clients outside of the cluster get endpoints on this node only; \
         the scheduler rr chooses.",
        "  Source ranges: only clients in 172.16.0.0/12 are allowed.",
        "  A client outside of this node (such as 172.16.0.1) inside of the source ranges gets \
         10.244.1.11:8080, which sees the client's own address.",
        "  A client outside of this node (such as 192.0.2.254) outside of the source ranges is not \
         answered: its packets are dropped.",
        "  10.244.2.11:8080 on node n2 is not used for clients outside of the cluster: on another node, and the \
         traffic policy is Local.",
    ];
    for line in expected {
        assert!(text.lines().any(|it| it == line), "{line}\nis not in\n{text}");
    }
    let masqueraded = text.lines().find(|it| it.contains("KUBE-MARK-MASQ")).unwrap();
    assert!(masqueraded.starts_with("    by rule "), "{masqueraded}");
    assert!(
        masqueraded.ends_with(" [entry 10.96.0.10,tcp:80 of KUBE-CLUSTER-IP]"),
        "{masqueraded}"
    );
    let mut of_outside = text.lines().skip_while(|it| !it.contains("such as 192.0.2.254) outside"));
    let led = of_outside.nth(1).unwrap();
    assert!(
        led.ends_with(
            "KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL \
             [entry 203.0.113.10,tcp:80 of KUBE-LOAD-BALANCER-FW]"
        ),
        "{led}"
    );
    let dropped = of_outside.next().unwrap();
    assert!(
        dropped.ends_with("of KUBE-SOURCE-RANGES-FIREWALL in table filter: -j DROP"),
        "{dropped}"
    );
}

#[test]
fn a_client_of_whom_an_address_is_known_is_the_only_one() {
    let text = plain(&offline(&["default/web:http", "--from", "10.244.1.7"]).unwrap());
    let of_cluster_address = "  10.244.1.7, a pod of this node, gets one of 10.244.1.11:8080, \
                              10.244.2.11:8080, which sees the client's own address.";
    assert!(text.lines().any(|it| it == of_cluster_address), "{text}");
    assert!(!text.contains("such as"), "{text}");
    assert!(is_served(&offline(&["web", "--from", "172.16.3.4"]).unwrap()));
}

#[test]
fn the_exit_code_says_if_a_client_is_kept_out() {
    assert!(!is_served(&offline(&["web", "--from", "198.51.100.7"]).unwrap()));
    // Those that the ranges keep out are examples of what should be so; pods are not in the ranges.
    assert!(is_served(&offline(&["web", "--from", "outside"]).unwrap()));
}

#[test]
fn mistakes_are_told_apart_by_their_kind() {
    assert!(
        matches!(offline(&["wed"]), Err(Failure::NotFound(text)) if text.contains("default/web"))
    );
    assert!(matches!(offline(&["web:81"]), Err(Failure::NotFound(_))));
    assert!(matches!(offline(&["web", "--from", "me"]), Err(Failure::Asked(_))));
    let nowhere = offline::explain(
        "/nonexistent".as_ref(),
        None,
        None,
        &arguments(&["web"]).asked().unwrap(),
    );
    assert!(matches!(nowhere, Err(Failure::Asked(text)) if text.contains("/nonexistent")));
}

#[test]
fn a_node_is_for_manifests_only() {
    let mistake = Line::try_parse_from(["explain", "web", "--node", "n1"]).unwrap_err();
    assert!(mistake.to_string().contains("--manifests"), "{mistake}");
    Line::command().debug_assert();
}

#[test]
fn a_pod_by_its_name_is_where_its_slice_says() {
    let explanation = offline(&["web", "--from", "pod", "web-a"]).unwrap();
    let text = plain(&explanation);
    assert!(text.contains("The pod default/web-a is 10.244.1.11, on this node.\n"), "{text}");
    assert!(text.contains("10.244.1.11, a pod of this node, gets"), "{text}");
    let explanation = offline(&["--from", "pod", "default/web-b", "default/web:80"]).unwrap();
    let text = plain(&explanation);
    assert!(text.contains("on node n2: run the command there."), "{text}");
    let clients = explanation.frontends.iter().flat_map(|it| &it.clients);
    let places: Vec<ClientPlace> = clients.map(|it| it.client).collect();
    assert_eq!(places, [ClientPlace::Outside, ClientPlace::Outside]);
    let Err(Failure::NotFound(missing)) = offline(&["web", "--from", "pod", "web-c"]) else {
        panic!("it is no endpoint")
    };
    let words =
        ["default/web-c", "1 EndpointSlice with 3 endpoints", "nearest: web-a, web-b", "-o wide"];
    assert!(words.iter().all(|word| missing.contains(word)), "{missing}");
    let wrong = offline(&["web", "--from", "pod", "no name"]);
    assert!(matches!(wrong, Err(Failure::Asked(_))), "{wrong:?}");
}

#[test]
fn an_option_with_two_values_does_not_hide_the_service() {
    let asked = |words: &[&str]| arguments(words).asked();
    let alone = asked(&["--from", "outside", "web:80"]).unwrap();
    assert_eq!((&*alone.name, alone.from.as_deref()), ("default/web", Some("outside")));
    let kind = asked(&["--from", "pod", "shop/web"]).unwrap();
    assert_eq!((&*kind.name, kind.pod), ("shop/web", None));
    let named = asked(&["shop/web", "--from", "pod", "cart-1"]).unwrap();
    assert_eq!(named.pod.as_deref(), Some("shop/cart-1"));
    let elsewhere = asked(&["shop/web", "--from", "pod", "other/cart-1"]).unwrap();
    assert_eq!(elsewhere.pod.as_deref(), Some("other/cart-1"));
    for words in [&["--from", "node"][..], &["web", "--from", "node", "n1"], &[]] {
        assert!(matches!(asked(words), Err(Failure::Asked(_))), "{words:?}");
    }
}

#[test]
fn endpoints_that_are_left_out_are_counted_in_words() {
    let mut explanation = offline(&["web:80", "--from", "10.244.1.7"]).unwrap();
    let frontend = &mut explanation.frontends[0];
    frontend.clients[0].outcomes[0].more_endpoints = 998;
    (frontend.more_unused, frontend.more_endpoints) = (1, 5_000);
    let text = plain(&explanation);
    for expected in [
        "10.244.2.11:8080 and 998 more, which sees",
        "  Not explained: 1 more endpoint that no client gets.",
        "  Not explained: 5000 more endpoints (the Service has too many).",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
