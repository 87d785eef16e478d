//! Rates of requests.

use std::sync::Mutex;

use apiserver::{Credentials, Options};
use kube::api::{Api, ListParams, WatchParams};
use source::kubernetes::{ClientOptions, clients};

use crate::world::{TOKEN, World};

type Services = Api<k8s_openapi::api::core::v1::Service>;

#[tokio::test]
async fn events_and_watches_do_not_delay_lists() {
    let world = World::new(Options::default());
    let kubeconfig = world.server.kubeconfig(&Credentials::Token(TOKEN.to_owned()));
    let options = ClientOptions {
        kubeconfig: Some(world.file("kubeconfig", &kubeconfig)),
        master: None,
        qps: 1.0,
        burst: 1,
        user_agent: "kube-ipvs/test".to_owned(),
        only_json: false,
    };
    let clients = clients(&options).await.unwrap();
    let (objects, events) = (Services::all(clients.objects), Services::all(clients.events));
    let order = Mutex::new(Vec::new());
    let event = async || {
        events.list(&ListParams::default()).await.unwrap();
        order.lock().unwrap().push("event");
    };
    let list = async || {
        for _ in 0..20 {
            objects.watch(&WatchParams::default(), "0").await.map(drop).unwrap();
        }
        objects.list(&ListParams::default()).await.unwrap();
        order.lock().unwrap().push("list");
    };
    // Three of a bucket that holds one take two seconds.
    tokio::join!(event(), event(), event(), list());
    let order = order.into_inner().unwrap();
    assert!(order[..2].contains(&"list"), "{order:?}");
}
