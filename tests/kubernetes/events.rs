//! Events about what is wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apiserver::{Credentials, Options, Resource, Server, Verb};
use kube_ipvs::events::{EventRecorder, EventReporter, Publisher};
use plan::model::ServiceName;
use plan::problem::Problem;
use serde_json::Value;
use source::kubernetes::{ClientOptions, clients};

use crate::world::{TOKEN, World, service};

impl World {
    /// Lets time pass, slowly enough for requests, for as long as publishing an Event may take.
    async fn pass_delays(&self, is_over: impl Fn(&Server) -> bool) {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            if is_over(&self.server) {
                return;
            }
            self.pass(Duration::from_secs(3)).await;
        }
    }

    /// Lets the hour pass after which Events are published again, and the delays after it.
    async fn pass_an_hour(&self, is_over: impl Fn(&Server) -> bool) {
        self.server.clear_requests();
        self.pass(Duration::from_secs(4_301)).await;
        self.pass_delays(is_over).await;
    }

    /// Takes the only Event away. Its name, and the uid that it is about.
    fn take_event(&self) -> [String; 2] {
        let events = self.server.events();
        let [event] = &events[..] else { panic!("{events:?}") };
        let text = |pointer| event.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        let [name, uid] = ["/metadata/name", "/regarding/uid"].map(text);
        assert!(self.server.delete(Resource::Events, "default", &name));
        [name, uid]
    }
}

fn has_event(server: &Server) -> bool {
    !server.events().is_empty()
}

/// An Event was made, or was there already: with this status.
fn answered(server: &Server, status: u16) -> bool {
    let requests = server.requests();
    requests.iter().any(|request| request.verb == Verb::Create && request.status == status)
}

#[tokio::test]
async fn the_event_of_a_problem_that_lasts_is_published_again_when_it_has_expired() {
    let world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    let kubeconfig = world.server.kubeconfig(&Credentials::Token(TOKEN.to_owned()));
    let options = ClientOptions {
        kubeconfig: Some(world.file("kubeconfig", &kubeconfig)),
        master: None,
        qps: 5.0,
        burst: 10,
        user_agent: "kube-ipvs/test".to_owned(),
        only_json: false,
    };
    let clients = clients(&options).await.unwrap();
    let reporter = EventReporter {
        controller: "kube-proxy",
        node_name: "n".to_owned(),
        host_name: "n".to_owned(),
    };
    let n_nodes = Arc::clone(&clients.n_nodes);
    let publisher = Publisher { client: clients.events, reporter, n_nodes: Arc::clone(&n_nodes) };
    let (recorder, queue) = EventRecorder::new();
    tokio::spawn(publisher.publish(queue));

    let (name, problems) = (ServiceName::new("default", "a"), [Problem::More { count: 3 }]);
    recorder.set_problems(&name, &problems);
    recorder.record_problems(&name, &problems);
    world.pass_delays(has_event).await;
    // An Event that is still there is left alone.
    world.pass_an_hour(|server| answered(server, 409)).await;
    assert!(answered(&world.server, 409), "{:?}", world.server.requests());
    let before = world.take_event();
    world.pass_an_hour(has_event).await;
    assert_eq!(world.take_event(), before);

    // Of very many nodes this is none of the few that try.
    n_nodes.store(usize::MAX, Ordering::Relaxed);
    world.pass_an_hour(has_event).await;
    assert!(!has_event(&world.server), "{:?}", world.server.events());

    // A solved problem leads to no further Event, one that lasts does.
    n_nodes.store(1, Ordering::Relaxed);
    recorder.set_problems(&name, &[]);
    world.pass_an_hour(has_event).await;
    assert!(!has_event(&world.server), "{:?}", world.server.events());
    recorder.set_problems(&name, &problems);
    world.pass_an_hour(has_event).await;
    assert_eq!(world.take_event(), before);
}
