use super::*;
use crate::kubernetes::clients;

fn options(kubeconfig: Option<PathBuf>, master: Option<&str>) -> ClientOptions {
    ClientOptions {
        kubeconfig,
        master: master.map(str::to_owned),
        qps: 0.0,
        burst: 0,
        user_agent: "kube-ipvs/test".to_owned(),
        only_json: false,
    }
}

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]
users: [{name: u, user: {tokenFile: token}}]
";

fn write(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_kubeconfig_and_a_master_that_overrides_its_server() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory, "token", "secret\n");
    let path = write(&directory, "kubeconfig", KUBECONFIG);
    let server = async |master| {
        find(&options(Some(path.clone()), master)).await.unwrap().config.cluster_url.to_string()
    };
    assert_eq!(server(None).await, "https://192.0.2.1:6443/");
    assert_eq!(server(Some("")).await, "https://192.0.2.1:6443/");
    assert_eq!(server(Some("https://203.0.113.1")).await, "https://203.0.113.1/");
    assert_eq!(server(Some("203.0.113.1:8443")).await, "https://203.0.113.1:8443/");
    clients(&options(Some(path), None)).await.unwrap();
}

#[tokio::test]
async fn a_master_alone_needs_no_credentials() {
    for (master, url) in [
        ("127.0.0.1:8001", "http://127.0.0.1:8001/"),
        ("https://[::1]:6443", "https://[::1]:6443/"),
    ] {
        let ServerAccess { config, .. } = find(&options(None, Some(master))).await.unwrap();
        assert_eq!(config.cluster_url.to_string(), url);
        assert!(config.auth_info.token_file.is_none());
    }
}

#[tokio::test]
async fn errors_say_which_file_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let error = async |options: &ClientOptions| match clients(options).await {
        Ok(_) => panic!("{options:?}"),
        Err(error) => error.to_string(),
    };
    let absent = directory.path().join("absent");
    let said = error(&options(Some(absent.clone()), None)).await;
    assert!(said.contains(absent.to_str().unwrap()) && said.contains("No such file"), "{said}");
    assert_eq!(check(&options(Some(absent), None)).unwrap_err().to_string(), said);

    let no_token = write(&directory, "kubeconfig", KUBECONFIG);
    let options_of_it = options(Some(no_token), None);
    let said = error(&options_of_it).await;
    assert!(said.starts_with("cannot read the token file /") && said.contains("No such"), "{said}");
    assert_eq!(check(&options_of_it).unwrap_err().to_string(), said);
    write(&directory, "token", "secret\n");
    check(&options_of_it).unwrap();
    std::fs::remove_file(directory.path().join("token")).unwrap();

    let no_context = write(&directory, "b", &KUBECONFIG.replace("current-context: here", ""));
    let said = error(&options(Some(no_context), None)).await;
    assert!(said.contains("current context") && said.contains("/b:"), "{said}");

    let odd = write(&directory, "c", "{");
    let said = error(&options(Some(odd), None)).await;
    assert!(said.contains("/c: "), "{said}");

    for master in ["ftp://x", "https://", "a b", "http:///path"] {
        let said = error(&options(None, Some(master))).await;
        assert!(said.contains("is not an API server's URL"), "{said}");
    }
    let agent = ClientOptions { user_agent: "\n".to_owned(), ..options(None, Some("http://a")) };
    assert!(error(&agent).await.contains("User-Agent"));
}

/// Made by `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp521r1 -nodes -days 36500`.
#[tokio::test]
async fn a_key_that_cannot_be_used_is_refused_with_those_that_can() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory, "cert.pem", include_str!("p521/cert.pem"));
    write(&directory, "key.pem", include_str!("p521/key.pem"));
    let user = "{client-certificate: cert.pem, client-key: key.pem}";
    let text = KUBECONFIG.replace("{tokenFile: token}", user);
    let path = write(&directory, "kubeconfig", &text);
    let Err(error) = clients(&options(Some(path), None)).await else { panic!("it is used") };
    let error = error.to_string();
    let begin = "cannot use the credentials for the API server at 192.0.2.1:6443: ";
    assert!(error.starts_with(begin), "{error}");
    assert!(
        error.ends_with("a client's key is RSA, ECDSA with P-256 or P-384, or Ed25519"),
        "{error}"
    );
}

#[tokio::test]
async fn neither_kubeconfig_nor_master_means_a_pod() {
    let Err(error) = clients(&options(Some(PathBuf::new()), Some(""))).await else {
        panic!("this test does not run in a pod")
    };
    let error = error.to_string();
    assert!(
        error.contains("with a pod's service account") && error.contains("--kubeconfig"),
        "{error}"
    );
}

#[tokio::test]
async fn a_program_ends_when_its_credentials_are_no_longer_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let child = directory.path().join("child");
    let script = format!("sleep 1000 & echo $! > {}; wait", child.display());
    let user = format!("{{exec: {{command: sh, args: ['-c', '{script}']}}}}");
    let text = KUBECONFIG.replace("{tokenFile: token}", &user);
    let path = write(&directory, "kubeconfig", &text);
    let options = options(Some(path), None);
    let begun = std::time::Instant::now();
    let child = {
        let waiting = clients(&options);
        tokio::pin!(waiting);
        loop {
            let pause = std::time::Duration::from_millis(20);
            assert!(tokio::time::timeout(pause, &mut waiting).await.is_err(), "it has ended");
            let text = std::fs::read_to_string(&child).unwrap_or_default();
            if text.ends_with('\n') {
                break text;
            }
            assert!(begun.elapsed().as_secs() < 30, "the program is not asked");
        }
    };
    let stat = format!("/proc/{}/stat", child.trim());
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(begun.elapsed().as_secs() < 60, "what it has started is left");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
