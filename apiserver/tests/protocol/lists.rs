//! "Retrieving large results sets in chunks" and "Resource versions" for get and list.

use apiserver::{Options, Resource};
use serde_json::{Value, json};

use crate::client::{Client, server};
use crate::{SERVICES, names, service};

#[tokio::test]
async fn a_list_has_its_kind_and_its_items_have_none() {
    let server = server(Options::default());
    let version = server.apply(service("web", "10.96.0.1")).unwrap();
    let mut client = Client::new(&server).await;
    let list = client.good(SERVICES).await;
    assert_eq!(list["kind"], "ServiceList");
    assert_eq!(list["apiVersion"], "v1");
    assert_eq!(list["metadata"], json!({"resourceVersion": version.to_string()}));
    let item = &list["items"][0];
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none(), "{item}");
    assert_eq!(item["metadata"]["resourceVersion"], version.to_string());
    assert_eq!(item["metadata"]["uid"].as_str().unwrap().len(), 36);
    let created = item["metadata"]["creationTimestamp"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.len() == 20, "{created}");

    let one = client.good("/api/v1/namespaces/shop/services/web").await;
    assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("Service"), &json!("v1")));
    let (status, missing) = client.get("/api/v1/namespaces/shop/services/none").await;
    assert_eq!((status, &missing["reason"]), (404, &json!("NotFound")));
    assert_eq!(missing["message"], "services \"none\" not found");
}

#[tokio::test]
async fn namespaces_bound_a_list() {
    let server = server(Options::default());
    server.apply(service("web", "10.96.0.1")).unwrap();
    let mut other = service("web", "10.96.0.2");
    other["metadata"]["namespace"] = json!("bank");
    server.apply(other).unwrap();
    let mut client = Client::new(&server).await;
    // In the order of the store: namespace, then name.
    let all = client.good(SERVICES).await;
    assert_eq!(all["items"][0]["metadata"]["namespace"], "bank");
    assert_eq!(names(&all).len(), 2);
    let shop = client.good("/api/v1/namespaces/shop/services").await;
    assert_eq!(shop["items"][0]["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(names(&shop).len(), 1);
    let empty = client.good("/apis/discovery.k8s.io/v1/endpointslices").await;
    assert_eq!((&empty["kind"], &empty["items"]), (&json!("EndpointSliceList"), &json!([])));
}

#[tokio::test]
async fn selectors_select() {
    let server = server(Options::default());
    server.apply(service("headless", "None")).unwrap();
    server.apply(service("web", "10.96.0.1")).unwrap();
    let mut foreign = service("foreign", "10.96.0.2");
    foreign["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    server.apply(foreign).unwrap();
    let mut client = Client::new(&server).await;
    let query = "?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
                 &fieldSelector=spec.clusterIP%21%3DNone&limit=1";
    let list = client.good(&format!("{SERVICES}{query}")).await;
    assert_eq!(names(&list), ["web"]);
    assert_eq!(list["metadata"].get("continue"), None);
    let list = client.good(&format!("{SERVICES}?fieldSelector=metadata.name%3Dforeign")).await;
    assert_eq!(names(&list), ["foreign"]);
    for wrong in ["fieldSelector=spec.ports%3Dx", "labelSelector=a%20b", "limit=many"] {
        let (status, answer) = client.get(&format!("{SERVICES}?{wrong}")).await;
        assert_eq!((status, &answer["reason"]), (400, &json!("BadRequest")), "{wrong}");
    }
}

/// The names of all pages, the version and what remains of each.
async fn pages(client: &mut Client, between: impl Fn(usize)) -> Vec<(Vec<String>, String, Value)> {
    let mut pages = Vec::new();
    let mut token = String::new();
    loop {
        let list = client.good(&format!("{SERVICES}?limit=2&continue={token}")).await;
        let metadata = &list["metadata"];
        pages.push((
            names(&list).into_iter().map(str::to_owned).collect(),
            metadata["resourceVersion"].as_str().unwrap().to_owned(),
            metadata["remainingItemCount"].clone(),
        ));
        match metadata["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => return pages,
        }
        between(pages.len());
    }
}

#[tokio::test]
async fn pages_show_one_snapshot() {
    let server = server(Options::default());
    for name in ["a", "b", "c", "d", "e"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    let version = server.resource_version().to_string();
    let mut client = Client::new(&server).await;
    let pages = pages(&mut client, |page| {
        // What changes meanwhile is not seen: not the new, not the deleted, not the moved.
        server.apply(service(&format!("bb{page}"), "10.96.0.2")).unwrap();
        server.delete(Resource::Services, "shop", "d");
        server.apply(service("e", &format!("10.96.1.{page}"))).unwrap();
    })
    .await;
    let page = |names: &[&str], remaining: Value| {
        (names.iter().map(|name| (*name).to_owned()).collect(), version.clone(), remaining)
    };
    assert_eq!(
        pages,
        [page(&["a", "b"], json!(3)), page(&["c", "d"], json!(1)), page(&["e"], json!(null))]
    );
}

#[tokio::test]
async fn an_old_token_has_expired_and_comes_with_another() {
    let server = server(Options::default());
    for name in ["a", "b", "c", "d"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    let mut client = Client::new(&server).await;
    let first = client.good(&format!("{SERVICES}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    server.apply(service("e", "10.96.0.1")).unwrap();
    let oldest = server.compact();
    let (status, answer) = client.get(&format!("{SERVICES}?limit=2&continue={token}")).await;
    assert_eq!((status, &answer["reason"]), (410, &json!("Expired")));
    assert_eq!((&answer["code"], &answer["status"]), (&json!(410), &json!("Failure")));
    // The rest, from the present.
    let next = answer["metadata"]["continue"].as_str().unwrap();
    let rest = client.good(&format!("{SERVICES}?continue={next}")).await;
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(rest["metadata"]["resourceVersion"], oldest.to_string());

    let (status, _) = client.get(&format!("{SERVICES}?continue=nonsense")).await;
    assert_eq!(status, 400);
    let both = format!("{SERVICES}?continue={next}&resourceVersion=3");
    assert_eq!(client.get(&both).await.0, 400);
}

/// The table "resourceVersionMatch and paging parameters for list".
#[tokio::test]
async fn resource_versions_of_lists() {
    let server = server(Options::default());
    let old = server.apply(service("a", "10.96.0.1")).unwrap();
    let new = server.apply(service("b", "10.96.0.1")).unwrap();
    let mut client = Client::new(&server).await;
    for (query, count, version) in [
        (String::new(), 2, new),
        ("resourceVersion=0".to_owned(), 2, new),
        // The watch cache answers, and passes over the limit.
        ("resourceVersion=0&limit=1".to_owned(), 2, new),
        (format!("resourceVersion={old}"), 2, new),
        (format!("resourceVersion={old}&limit=5"), 1, old),
        (format!("resourceVersion={old}&resourceVersionMatch=Exact"), 1, old),
        (format!("resourceVersion={old}&resourceVersionMatch=Exact&limit=5"), 1, old),
        (format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan"), 2, new),
        (format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan&limit=1"), 1, new),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(), 2, new),
    ] {
        let list = client.good(&format!("{SERVICES}?{query}")).await;
        assert_eq!(names(&list).len(), count, "{query}");
        assert_eq!(list["metadata"]["resourceVersion"], version.to_string(), "{query}");
    }
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Older",
        "resourceVersion=soon",
        "sendInitialEvents=true",
    ] {
        let (status, answer) = client.get(&format!("{SERVICES}?{query}")).await;
        assert_eq!((status, &answer["reason"]), (422, &json!("Invalid")), "{query}");
    }
    server.compact();
    let gone = format!("{SERVICES}?resourceVersion={old}&resourceVersionMatch=Exact");
    let (status, answer) = client.get(&gone).await;
    assert_eq!((status, &answer["reason"]), (410, &json!("Expired")));
    let list = client.good(&format!("{SERVICES}?resourceVersion={old}")).await;
    assert_eq!(names(&list).len(), 2, "not older than: a compacted version is no obstacle");
}

/// "Unavailable resource versions".
#[tokio::test]
async fn a_version_from_the_future_is_waited_for_and_then_refused() {
    let server = server(Options::default());
    let mut client = Client::new(&server).await;
    let answer = client.open(&format!("{SERVICES}?resourceVersion=1000")).await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.headers["retry-after"], "1");
    let answer = answer.json().await;
    assert_eq!(answer["reason"], "Timeout");
    assert_eq!(answer["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(answer["details"]["retryAfterSeconds"], 1);

    let next = server.resource_version() + 1;
    let path = format!("{SERVICES}?resourceVersion={next}");
    let apply = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        server.apply(service("a", "10.96.0.1")).unwrap();
    };
    let (list, ()) = tokio::join!(client.good(&path), apply);
    assert_eq!(names(&list), ["a"]);
}

#[tokio::test]
async fn an_object_that_does_not_change_keeps_its_version() {
    let server = server(Options { managed_fields: true, ..Options::default() });
    let version = server.apply(service("a", "10.96.0.1")).unwrap();
    assert_eq!(server.apply(service("a", "10.96.0.1")).unwrap(), version);
    let first = server.list(Resource::Services);
    let fields = &first[0]["metadata"]["managedFields"][0];
    assert_eq!(fields["fieldsV1"]["f:metadata"]["f:labels"]["f:app"], json!({}));
    assert_eq!(fields["fieldsV1"]["f:spec"]["f:clusterIP"], json!({}));
    assert!(server.apply(service("a", "10.96.0.2")).unwrap() > version);
    let second = server.list(Resource::Services);
    assert_eq!(first[0]["metadata"]["uid"], second[0]["metadata"]["uid"]);
    assert!(server.apply(json!({"apiVersion": "v1", "kind": "Pod"})).is_err());
}
