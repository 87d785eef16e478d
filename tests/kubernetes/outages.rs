use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apiserver::{Authorization, Credentials, Fault, On, Options, Release, Resource, Server};
use futures::future::join_all;

use crate::world::{TOKEN, World, as_of, on_each_release, on_releases, service, service_at};

/// After an outage of a few seconds a pause is as long as that; the rest is for a busy machine.
const QUICK: Duration = Duration::from_secs(20);

#[test]
fn a_server_that_is_away_and_comes_back() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.server.apply(service("a")).unwrap();
        world.server.close();
        world.follow().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.server.reopen().unwrap();
        world.until_complete().await;
        world.server.close();
        world.server.apply(service_at("a", 81)).unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let back = Instant::now();
        world.server.reopen().unwrap();
        world.until("the change", |said, _| said.ports == [81]).await;
        assert!(back.elapsed() < QUICK, "{:?}", back.elapsed());
        assert_eq!(world.said.removed, Vec::<String>::new());
        assert_eq!(world.said.complete, 1);
    });
}

#[tokio::test]
async fn a_server_that_answers_with_errors() {
    let faults = [
        Fault::Status { code: 500, retry_after: None },
        Fault::Status { code: 503, retry_after: Some(1) },
        Fault::Status { code: 429, retry_after: Some(1) },
        Fault::Forbidden,
        Fault::NotServed,
    ];
    join_all(faults.map(async |fault| {
        let mut world = World::new(Options::default());
        world.server.apply(service("a")).unwrap();
        let on = || On::resource(Resource::Services).times(3);
        let first = world.server.inject(fault.clone(), on());
        world.follow().await;
        world.until_complete().await;
        assert_eq!(first.hits(), 3);
        // The pauses begin anew.
        world.until_following("Service", true).await;
        let second = world.server.inject(fault.clone(), on());
        world.server.disconnect();
        world.until("errors", |_, _| second.hits() == 3).await;
        world.server.apply(service_at("a", 81)).unwrap();
        world.until("the change", |said, _| said.ports == [81]).await;
        assert_eq!(world.said.removed, Vec::<String>::new(), "{fault:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_token_that_is_replaced() {
    let mut world = World::new(Options::default());
    world.server.add_token("first");
    let path = world.file("token", "first\n");
    world.follow_with(&Credentials::TokenFile(path)).await;
    world.until_complete().await;
    world.server.add_token("second");
    world.file("token", "second\n");
    world.server.remove_token("first");
    world.server.clear_requests();
    world.server.disconnect();
    world.catch_up().await;
    for request in world.server.requests() {
        assert_eq!(request.authorization, Authorization::Token("second".to_owned()));
        assert_eq!(request.status, 200);
    }
}

#[tokio::test]
async fn a_token_that_is_refused_until_it_is_replaced() {
    let mut world = World::new(Options::default());
    let path = world.file("token", "expired");
    world.follow_with(&Credentials::TokenFile(path)).await;
    world
        .until("refusals", |_, server| {
            server.requests().iter().filter(|request| request.status == 401).count() >= 6
        })
        .await;
    world.file("token", TOKEN);
    world.until_complete().await;
}

#[tokio::test]
async fn a_client_certificate() {
    let mut world = World::new(Options::default());
    let certificate = world.server.client_certificate("system:kube-proxy").unwrap();
    world.follow_with(&Credentials::Certificate(certificate)).await;
    world.until_complete().await;
    for request in world.server.requests() {
        let expected = Authorization::Certificate("system:kube-proxy".to_owned());
        assert_eq!(request.authorization, expected);
    }
}

/// A cluster from a backup has other objects, versions that are older than what was seen, and a new
/// certificate authority.
#[test]
fn a_cluster_that_was_restored() {
    on_releases(&[Release::V1_36], async |release| {
        let bookmark_period = Duration::from_millis(50);
        let mut world = World::new(Options { bookmark_period, ..as_of(release) });
        for name in ["a", "b", "c", "d"] {
            world.server.apply(service(name)).unwrap();
        }
        let authority = world.file("ca.crt", &world.server.authority());
        let kubeconfig = world.server.kubeconfig(&Credentials::Token(TOKEN.to_owned()));
        let lines = kubeconfig.lines().map(|line| {
            if line.contains("certificate-authority-data") {
                format!("    certificate-authority: {}\n", authority.display())
            } else {
                format!("{line}\n")
            }
        });
        world.follow_by(&lines.collect::<String>()).await;
        world.until_complete().await;
        for kind in ["Service", "EndpointSlice", "Node"] {
            world.until_following(kind, true).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        world.server.close();
        let listen = world.server.address();
        let tokens = vec![TOKEN.to_owned()];
        world.server = Server::start(Options { listen, tokens, ..as_of(release) }).unwrap();
        world.server.apply(service("a")).unwrap();
        world.file("ca.crt", &world.server.authority());
        // The new authority is noticed after a minute. Then nothing is sent of versions before the one
        // that is watched from, until all is listed again.
        let step = Duration::from_secs(61);
        world.pass_until(step, "removals", |said, _| said.removed.len() == 3).await;
        world.server.apply(service("e")).unwrap();
        world.until_applied("Service default/e").await;
    });
}

/// Both ways in which a replaced certificate is noticed: the former is refused, or time has passed.
#[tokio::test]
async fn a_client_certificate_that_is_replaced() {
    for is_revoked in [true, false] {
        let mut world = World::new(Options::default());
        let write = |world: &World, name: &str| {
            let client = world.server.client_certificate(name).unwrap();
            world.file("client.key", &client.key);
            world.file("client.crt", &client.certificate)
        };
        let certificate = write(&world, "first");
        let key = certificate.with_file_name("client.key");
        let user = serde_json::json!({"client-certificate": certificate, "client-key": key});
        world.follow_with(&Credentials::User(user)).await;
        world.until_complete().await;
        write(&world, "second");
        world.server.clear_requests();
        if is_revoked {
            world.server.revoke("first");
        } else {
            world.pass(Duration::from_secs(61)).await;
        }
        world.server.disconnect();
        world.catch_up().await;
        let requests = world.server.requests();
        let refused = requests.iter().filter(|request| request.status == 401).count();
        assert_eq!(refused > 0, is_revoked, "{requests:?}");
        let second = Authorization::Certificate("second".to_owned());
        let accepted = requests.iter().filter(|request| request.status == 200);
        assert!(accepted.clone().count() > 0);
        assert!(accepted.clone().all(|request| request.authorization == second), "{requests:?}");
    }
}

/// Writes what a program prints for a status, and returns the path.
fn write_credential(world: &World, status: &serde_json::Value) -> PathBuf {
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    });
    world.file("credential", &credential.to_string())
}

/// Credentials of a program that prints this file.
fn printed_by_a_program(path: &Path) -> Credentials {
    Credentials::User(serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [path],
        "interactiveMode": "Never",
    }}))
}

#[tokio::test]
async fn a_program_whose_token_is_refused_is_asked_again() {
    let mut world = World::new(Options::default());
    let write = |world: &World, token: &str| {
        world.server.add_token(token);
        write_credential(world, &serde_json::json!({"token": token}))
    };
    let path = write(&world, "first");
    world.follow_with(&printed_by_a_program(&path)).await;
    world.until_complete().await;
    write(&world, "second");
    world.server.remove_token("first");
    world.server.clear_requests();
    world.server.disconnect();
    world.catch_up().await;
    let requests = world.server.requests();
    let last = requests.last().unwrap();
    assert_eq!(last.authorization, Authorization::Token("second".to_owned()), "{requests:?}");
}

/// To a server that no longer knows its certificate, a client is anonymous, and may do nothing (403).
#[tokio::test]
async fn a_program_whose_certificate_is_forbidden_is_asked_again() {
    let mut world = World::new(Options::default());
    let write = |world: &World, name: &str| {
        let client = world.server.client_certificate(name).unwrap();
        let status = serde_json::json!({
            "clientCertificateData": client.certificate,
            "clientKeyData": client.key,
        });
        write_credential(world, &status)
    };
    let path = write(&world, "first");
    world.follow_with(&printed_by_a_program(&path)).await;
    world.until_complete().await;
    let named = |name: &str| Authorization::Certificate(name.to_owned());
    let requests = world.server.requests();
    assert!(requests.iter().all(|request| request.authorization == named("first")), "{requests:?}");
    write(&world, "second");
    world.server.clear_requests();
    world.server.inject(Fault::Forbidden, On::watch(Resource::Services).times(1));
    world.server.disconnect();
    let of_services = |server: &Server| -> Vec<_> {
        let mut requests = server.requests();
        requests.retain(|request| request.resource == Some(Resource::Services));
        requests.into_iter().map(|it| (it.status, it.authorization)).collect()
    };
    world
        .until("the second is accepted", |_, server| {
            of_services(server).last() == Some(&(200, named("second")))
        })
        .await;
    let found = of_services(&world.server);
    assert_eq!(found.first(), Some(&(403, named("first"))), "{found:?}");
    world.catch_up().await;
}

/// Neither what it says on stderr, which may be the server's answer with a token in it, nor what it prints.
#[test]
fn nothing_that_a_program_says_gets_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: c, user: u}}]\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
        users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, \
        interactiveMode: Never, command: sh, env: [{name: KEY, value: swordfish}], \
        args: ['-c', 'echo printed; echo said to $KEY >&2; exit 3']}}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_kube-ipvs"))
        .args(["--proxy-mode=ipvs", "--v=9", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .unwrap();
    let log = String::from_utf8([program.stdout, program.stderr].concat()).unwrap();
    assert!(!program.status.success() && log.contains("ended with exit status: 3"), "{log}");
    for word in ["printed;", "printed\n", "said to", "swordfish"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
}

#[tokio::test]
async fn a_token_that_a_program_prints() {
    let mut world = World::new(Options::default());
    let user = serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [format!(
            r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{TOKEN}"}}}}"#
        )],
        "interactiveMode": "Never",
    }});
    world.follow_with(&Credentials::User(user)).await;
    world.until_complete().await;
}

/// True if a process runs. A zombie does not.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z"))
}

/// kube-ipvs is told to end, or killed, while a credential plugin does not answer.
#[tokio::test]
async fn kube_ipvs_ends_without_credentials_and_its_plugin_with_it() {
    for signal in ["-TERM", "-KILL"] {
        let world = World::new(Options::default());
        let asked = world.file("asked", "");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, \
             interactiveMode: Never, command: sh, \
             args: ['-c', 'sleep 60 & echo $$ $! > {}; wait']}}}}}}]\n",
            asked.display()
        );
        let kubeconfig = world.file("kubeconfig", &kubeconfig);
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_kube-ipvs"))
            .args(["--proxy-mode=ipvs", "--kubeconfig"])
            .arg(kubeconfig)
            .spawn()
            .unwrap();
        let waiting = Instant::now();
        let plugin = loop {
            let text = std::fs::read_to_string(&asked).unwrap();
            if text.ends_with('\n') {
                break text;
            }
            assert!(waiting.elapsed() < QUICK, "the plugin is not asked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let (plugin, child) = plugin.trim().split_once(' ').unwrap();
        assert!(is_running(plugin) && is_running(child));
        let told = Instant::now();
        let id = program.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        let status = program.wait().unwrap();
        assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
        assert_eq!(status.success(), signal == "-TERM", "{status}");
        // One that is killed can kill nothing. The kernel then kills the plugin, and no child of it.
        let left = if signal == "-TERM" { vec![plugin, child] } else { vec![plugin] };
        while left.iter().any(|process| is_running(process)) {
            assert!(told.elapsed() < QUICK, "{left:?} outlive kube-ipvs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if signal == "-KILL" {
            let _ = std::process::Command::new("kill").arg(child).status().unwrap();
        }
    }
}
