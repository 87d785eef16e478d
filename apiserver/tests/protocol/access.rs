//! Certificates and tokens.

use apiserver::{Authorization, Credentials, Fault, On, Options, Resource, Verb};
use serde_json::json;

use crate::SERVICES;
use crate::client::{Client, TOKEN, server};

#[tokio::test]
async fn tokens_come_and_go() {
    let server = server(Options::default());
    let mut client = Client::new(&server).await.with_token("another");
    let (status, answer) = client.get(SERVICES).await;
    assert_eq!(status, 401);
    assert_eq!(
        answer,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
        })
    );
    server.add_token("another");
    client.good(SERVICES).await;
    server.remove_token("another");
    assert_eq!(client.get(SERVICES).await.0, 401);
    let mut client = client.with_token(TOKEN);
    client.good(&format!("{SERVICES}?limit=1")).await;

    let requests = server.requests();
    let statuses: Vec<u16> = requests.iter().map(|request| request.status).collect();
    assert_eq!(statuses, [401, 200, 401, 200]);
    let last = &requests[3];
    assert_eq!(last.path, SERVICES);
    assert_eq!((last.resource, last.verb), (Some(Resource::Services), Verb::List));
    assert_eq!(last.authorization, Authorization::Token(TOKEN.to_owned()));
    assert_eq!(last.user_agent, "protocol-test");
    assert_eq!(last.parameter("limit").as_deref(), Some("1"));
    server.clear_requests();
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn client_certificates_are_trusted_until_revoked() {
    let server = server(Options::default());
    let certificate = server.client_certificate("system:node").unwrap();
    let connect = || Client::connect(&server, "127.0.0.1", Some(&certificate));
    connect().await.unwrap().good(SERVICES).await;
    let named = Authorization::Certificate("system:node".to_owned());
    assert_eq!(server.requests()[0].authorization, named);
    server.revoke("system:node");
    assert_eq!(connect().await.unwrap().get(SERVICES).await.0, 401);

    let foreign = apiserver::Server::start(Options::default()).unwrap();
    let foreign = foreign.client_certificate("system:node").unwrap();
    let mut client = Client::connect(&server, "127.0.0.1", Some(&foreign)).await.unwrap();
    assert_eq!(client.get(SERVICES).await.0, 401);
    assert_eq!(server.requests()[2].authorization, Authorization::UnknownCertificate);
}

#[tokio::test]
async fn anonymous_requests() {
    for anonymous in [false, true] {
        let server = server(Options { anonymous, ..Options::default() });
        let mut client = Client::connect(&server, "localhost", None).await.unwrap();
        assert_eq!(client.get(SERVICES).await.0, if anonymous { 200 } else { 401 });
    }
}

#[tokio::test]
async fn the_certificate_has_the_names_of_this_host() {
    let server = server(Options::default());
    for name in ["localhost", "127.0.0.1", "::1"] {
        Client::connect(&server, name, None).await.expect(name);
    }
    assert!(Client::connect(&server, "example.net", None).await.is_err());
}

#[tokio::test]
async fn what_is_not_there_and_what_is_not_allowed() {
    let server = server(Options::default());
    let mut client = Client::new(&server).await;
    assert_eq!(client.open("/api/v1/pods").await.status, 404);
    let answer = client.send(http::Method::DELETE, SERVICES, ("", String::new())).await.unwrap();
    assert_eq!(answer.status, 405);
    assert_eq!(answer.json().await["reason"], "MethodNotAllowed");
}

#[tokio::test]
async fn some_resources_may_be_forbidden() {
    let server = server(Options::default());
    let forbidden = server.inject(Fault::Forbidden, On::resource(Resource::Nodes));
    let mut client = Client::new(&server).await;
    client.good(SERVICES).await;
    for verb in ["list", "watch"] {
        let path = format!("/api/v1/nodes?watch={}", verb == "watch");
        let (status, answer) = client.get(&path).await;
        assert_eq!((status, &answer["reason"]), (403, &json!("Forbidden")));
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with("nodes is forbidden: User "), "{message}");
        let what =
            format!("cannot {verb} resource \"nodes\" in API group \"\" at the cluster scope");
        assert!(message.ends_with(&what), "{message}");
    }
    assert_eq!(forbidden.hits(), 2);
    forbidden.lift();
    client.good("/api/v1/nodes").await;
}

#[test]
fn kubeconfigs_say_who() {
    let server = apiserver::Server::start(Options::default()).unwrap();
    let user = |credentials| {
        let text = server.kubeconfig(&credentials);
        assert!(text.contains(&format!("server: {}\n", server.url())), "{text}");
        text.lines().find_map(|line| line.strip_prefix("  user: ")).unwrap().to_owned()
    };
    assert_eq!(user(Credentials::Anonymous), "{}");
    assert_eq!(user(Credentials::Token("t".to_owned())), r#"{"token":"t"}"#);
    assert_eq!(user(Credentials::TokenFile("/t".into())), r#"{"tokenFile":"/t"}"#);
    assert_eq!(user(Credentials::User(json!({"exec": {}}))), r#"{"exec":{}}"#);
}
