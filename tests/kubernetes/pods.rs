//! A Pod's addresses, on demand, by a client of its own.

use apiserver::{Fault, On, Options, Resource, Server, Verb};
use serde_json::{Value, json};
use source::kubernetes::look_for_pod;
use source::pods::PodSearch;

use crate::world::{JSON, TOKEN, clients_of};

/// More slices than one answer has.
const SLICES: usize = 250;

fn mk_server() -> Server {
    let options = Options { tokens: vec![TOKEN.to_owned()], ..Options::default() };
    let server = Server::start(options).unwrap();
    for number in 0..SLICES {
        server.apply(slice_of(number, "shop", &format!("cart-{number}"))).unwrap();
    }
    server.apply(slice_of(7, "other", "elsewhere")).unwrap();
    server
}

/// A slice with an endpoint that is a Pod.
fn slice_of(number: usize, namespace: &str, pod: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("slice-{number}"), "namespace": namespace},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": [format!("10.244.0.{number}")], "nodeName": "n2",
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod},
        }],
    })
}

async fn look(server: &Server, name: &str) -> Result<PodSearch, String> {
    let clients = clients_of(server).await;
    look_for_pod(&clients.questions, PodSearch::new("shop", name)).await
}

#[tokio::test]
async fn a_pod_is_found_in_any_part_of_a_long_list() {
    let server = mk_server();
    for number in [0, 120, SLICES - 1] {
        let found = look(&server, &format!("cart-{number}")).await.unwrap().end().unwrap();
        let address: std::net::IpAddr = format!("10.244.0.{number}").parse().unwrap();
        assert_eq!((found.addresses, found.node.as_deref()), (vec![address], Some("n2")));
    }
    server.clear_requests();
    let missing = look(&server, "elsewhere").await.unwrap().end().unwrap_err();
    assert_eq!((missing.n_slices, missing.n_endpoints), (SLICES, SLICES));
    assert_eq!(missing.names.len(), SLICES);
    let requests = server.requests();
    let lists = requests.iter().filter(|it| it.verb == Verb::List);
    assert_eq!(lists.count(), 3, "{requests:?}");
    // Nothing but slices of the namespace, as `system:node-proxier` allows.
    let path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    assert!(requests.iter().all(|it| it.path == path), "{requests:?}");
    assert!(requests.iter().all(|it| it.accept == JSON), "{requests:?}");
}

#[tokio::test]
async fn a_server_that_refuses_is_an_error_in_words() {
    let server = mk_server();
    server.inject(Fault::Forbidden, On::list(Resource::EndpointSlices).times(1));
    let refused = look(&server, "cart-1").await.unwrap_err();
    assert!(refused.contains("403"), "{refused}");
    server.inject(
        Fault::Status { code: 503, retry_after: None },
        On::list(Resource::EndpointSlices).times(1),
    );
    let busy = look(&server, "cart-1").await.unwrap_err();
    assert!(busy.contains("503"), "{busy}");
    server.close();
    let away = look(&server, "cart-1").await.unwrap_err();
    assert!(away.contains("no connection"), "{away}");
}
