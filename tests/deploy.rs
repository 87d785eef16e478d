//! What is in `deploy/` and `vagrant/`: that an API server would take it as it is meant, that its
//! parts fit one another, and that the program understands what it is started with there.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a file that is not as expected is a failure like any other"
)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube_ipvs::config::{Action, Configuration};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const BASE: &str = "deploy/kustomize/base";

/// What is used of a kustomization; any other field is an error here.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "namespace", default)]
    _namespace: Option<String>,
    #[serde(rename = "labels", default)]
    _labels: Vec<Value>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default)]
    images: Vec<Image>,
    #[serde(default)]
    config_map_generator: Vec<Generator>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: String,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Generator {
    name: String,
    #[serde(rename = "namespace", default)]
    _namespace: Option<String>,
    #[serde(default)]
    behavior: Option<String>,
    files: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse<T: DeserializeOwned>(path: impl AsRef<Path>) -> Vec<T> {
    let path = path.as_ref();
    serde_saphyr::from_multiple(&read(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The YAML files of `deploy/` and `vagrant/`, from the root.
fn yaml_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join("deploy"), root().join("vagrant")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Hidden ones are what vagrant and an image build leave behind.
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                files.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

fn daemon_set() -> DaemonSet {
    parse(Path::new(BASE).join("daemonset.yaml")).remove(0)
}

fn containers(daemon_set: &DaemonSet) -> Vec<Container> {
    let pod = daemon_set.spec.template.spec.as_ref().unwrap();
    pod.init_containers.iter().flatten().chain(&pod.containers).cloned().collect()
}

/// Where `after` does not have what `before` has.
fn lost(before: &Value, after: &Value, at: &str, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let below = format!("{at}.{key}");
                lost(value, after.get(key).unwrap_or(&Value::Null), &below, found);
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                lost(before, after, &format!("{at}[{index}]"), found);
            }
        }
        _ if before == after => {}
        _ => found.push(format!("{at}: {before} became {after}")),
    }
}

/// A field that the API does not have is ignored by whoever reads an object, and then missing when
/// the object is written again.
fn survives<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    let object: T = match serde_json::from_value(document.clone()) {
        Ok(object) => object,
        Err(error) => return vec![error.to_string()],
    };
    let mut found = Vec::new();
    lost(document, &serde_json::to_value(object).unwrap(), "", &mut found);
    found
}

/// What is wrong with an object of the Kubernetes API, or with another document that is known.
fn problems(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "List") => document["items"].as_array().unwrap().iter().flat_map(problems).collect(),
        ("v1", "Namespace") => survives::<Namespace>(document),
        ("v1", "Node") => survives::<Node>(document),
        ("v1", "Pod") => survives::<Pod>(document),
        ("v1", "Service") => survives::<Service>(document),
        ("v1", "ServiceAccount") => survives::<ServiceAccount>(document),
        ("v1", "Config") => survives::<kube::config::Kubeconfig>(document),
        ("apps/v1", "DaemonSet") => survives::<DaemonSet>(document),
        ("apps/v1", "Deployment") => survives::<Deployment>(document),
        ("discovery.k8s.io/v1", "EndpointSlice") => survives::<EndpointSlice>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => survives::<ClusterRole>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            survives::<ClusterRoleBinding>(document)
        }
        // These have a test of their own below.
        ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        | ("kustomize.config.k8s.io/v1alpha1", "Component")
        | ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration")
        | ("kube-ipvs.io/v1alpha1", "KubeIpvsConfiguration")
        | ("monitoring.coreos.com/v1", "PodMonitor") => Vec::new(),
        (version, kind) => vec![format!("{version} {kind} is not known to this test")],
    }
}

#[test]
fn objects_have_only_fields_that_the_api_has() {
    let mut found = Vec::new();
    let files = yaml_files();
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        for document in parse::<Value>(&file) {
            found.extend(
                problems(&document).iter().map(|text| format!("{}: {text}", file.display())),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_misspelt_field_is_found() {
    let mut document: Value = parse(Path::new(BASE).join("daemonset.yaml")).remove(0);
    document["spec"]["template"]["spec"]["hostNetwrk"] = true.into();
    assert_eq!(problems(&document), [".spec.template.spec.hostNetwrk: true became null"]);
    document["spec"]["template"]["spec"]["hostNetwork"] = "yes".into();
    assert!(problems(&document)[0].contains("expected a boolean"), "{:?}", problems(&document));
}

#[test]
fn kustomizations_name_what_is_there_and_leave_nothing_out() {
    let kustomizations: Vec<PathBuf> =
        yaml_files().into_iter().filter(|file| file.ends_with("kustomization.yaml")).collect();
    assert!(kustomizations.len() >= 4, "{kustomizations:?}");
    for file in kustomizations {
        let shown = file.display();
        let folder = root().join(&file).parent().unwrap().to_owned();
        let kustomization: Kustomization = parse(&file).remove(0);
        let generated = kustomization.config_map_generator.iter().flat_map(|one| &one.files);
        let patches = kustomization.patches.iter().map(|patch| &patch.path);
        let files = kustomization.resources.iter().chain(generated).chain(patches);
        let mut named: BTreeSet<PathBuf> = files.map(|name| folder.join(name)).collect();
        for name in named.iter().chain(&folders(&folder, &kustomization.components)) {
            assert!(name.exists(), "{shown}: {} does not exist", name.display());
        }
        named.insert(root().join(&file));
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(named.contains(&path), "{shown} leaves out {}", path.display());
        }
        for generator in &kustomization.config_map_generator {
            assert_eq!(generator.name, "kube-ipvs", "{shown}");
            let own = folder == root().join(BASE);
            assert_eq!(generator.behavior.is_none(), own, "{shown}: only the base makes it");
        }
        for image in &kustomization.images {
            assert_eq!(image.name, "kube-ipvs", "{shown}");
            // What is built where it is used has no version.
            let released = !image.new_name.starts_with("localhost/");
            assert_eq!(image.new_tag == env!("CARGO_PKG_VERSION"), released, "{shown}");
        }
    }
}

fn folders(folder: &Path, names: &[String]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.join(name)).collect()
}

#[test]
fn the_daemon_set_runs_this_version_and_is_not_privileged() {
    let daemon_set = daemon_set();
    let containers = containers(&daemon_set);
    let names: Vec<&str> = containers.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["host", "kube-ipvs"]);
    for container in &containers {
        let image = concat!("kube-ipvs:", env!("CARGO_PKG_VERSION"));
        assert_eq!(container.image.as_deref(), Some(image), "{}", container.name);
    }
    let running = containers[1].security_context.as_ref().unwrap();
    assert_eq!(running.privileged, None);
    assert_eq!(running.allow_privilege_escalation, Some(false));
    assert_eq!(running.read_only_root_filesystem, Some(true));
    let capabilities = running.capabilities.as_ref().unwrap();
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
}

#[test]
fn what_is_mounted_is_there_and_the_configuration_is_where_the_arguments_say() {
    let daemon_set = daemon_set();
    let pod = daemon_set.spec.template.spec.clone().unwrap();
    let volumes: BTreeSet<String> =
        pod.volumes.iter().flatten().map(|volume| volume.name.clone()).collect();
    for container in containers(&daemon_set) {
        let mounts = container.volume_mounts.unwrap();
        let mounted: BTreeSet<String> = mounts.iter().map(|mount| mount.name.clone()).collect();
        assert_eq!(mounted, volumes, "{}", container.name);
        let folder = mounts.iter().find(|mount| mount.name == "config").unwrap();
        let arguments = container.command.unwrap();
        let config = arguments.iter().find_map(|one| one.strip_prefix("--config=")).unwrap();
        let file = config.strip_prefix(&format!("{}/", folder.mount_path)).unwrap();
        assert!(root().join(BASE).join(file).exists(), "{config}");
    }
}

#[test]
fn the_account_is_bound_to_a_role() {
    let account = daemon_set().spec.template.spec.unwrap().service_account_name.unwrap();
    for file in [
        "deploy/kustomize/base/rbac.yaml",
        "deploy/kustomize/components/cluster-role/cluster-role.yaml",
    ] {
        let documents = parse::<Value>(file);
        let binding = documents.iter().find(|one| one["kind"] == "ClusterRoleBinding").unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(binding.clone()).unwrap();
        let subjects = binding.subjects.unwrap();
        assert_eq!(subjects.len(), 1, "{file}");
        assert_eq!(subjects[0].name, account, "{file}");
        assert_eq!(subjects[0].namespace.as_deref(), Some("kube-system"), "{file}");
        let role = binding.role_ref.name;
        let here = documents
            .iter()
            .any(|one| one["kind"] == "ClusterRole" && one["metadata"]["name"] == role.as_str());
        assert!(here || role == "system:node-proxier", "{file}: {role}");
    }
}

#[test]
fn what_is_scraped_is_a_port_of_the_daemon_set() {
    let file = "deploy/kustomize/components/prometheus/pod-monitor.yaml";
    let monitor: Value = parse(file).remove(0);
    let daemon_set = daemon_set();
    let labels = daemon_set.spec.template.metadata.clone().unwrap().labels;
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        let has = labels.as_ref().unwrap().get(label).map(String::as_str);
        assert_eq!(has, value.as_str(), "{label}");
    }
    let ports = containers(&daemon_set).remove(1).ports.unwrap();
    for endpoint in monitor["spec"]["podMetricsEndpoints"].as_array().unwrap() {
        let wanted = endpoint["port"].as_str();
        let port = ports.iter().find(|port| port.name.as_deref() == wanted).unwrap();
        assert_eq!(port.container_port, 10_249);
    }
}

// === the program, as it is started there ===

/// What kubeadm writes into the ConfigMap `kube-proxy` for a cluster in IPVS mode (the file
/// `config.conf`; the values are those of Kubernetes 1.30).
const KUBEADM: &str = r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: true
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ipvs
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;

/// What the program makes of a command line whose `--config` is this file. Nothing in the file may
/// be without effect.
fn understood(command: &[String], file: &Path) -> Configuration {
    let shown = file.display();
    let words = command.iter().map(|word| match word.strip_prefix("--config=") {
        Some(_) => format!("--config={shown}"),
        // The kubelet puts the node's name there.
        None => word.replace("$(NODE_NAME)", "Node-1"),
    });
    let arguments = kube_ipvs::cli::parse(words.map(OsString::from))
        .unwrap_or_else(|answer| panic!("{shown}: {answer:?}"));
    let configuration =
        Configuration::load(&arguments).unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(configuration.notes.is_empty(), "{shown}: {:?}", configuration.notes);
    assert_eq!(&*configuration.settings.node_name, "node-1", "{shown}");
    configuration
}

#[test]
fn the_program_understands_what_it_is_started_with() {
    let daemon_set = daemon_set();
    let ports: Vec<u16> = containers(&daemon_set)[1]
        .ports
        .iter()
        .flatten()
        .map(|port| port.container_port.try_into().unwrap())
        .collect();
    for folder in [BASE, "deploy/kustomize/overlays/example", "vagrant/overlay"] {
        let file = root().join(folder).join("config.yaml");
        let of = |container: &Container| understood(container.command.as_ref().unwrap(), &file);
        let [prepares, runs] = &containers(&daemon_set)[..] else { panic!("two containers") };
        assert_eq!(of(prepares).action, Action::InitOnly);
        let configuration = of(runs);
        assert_eq!(configuration.action, Action::Run);
        // Where the DaemonSet has the ConfigMap, and which ports it declares and probes.
        let kubeconfig = Path::new("/etc/kube-ipvs/kubeconfig.yaml");
        assert_eq!(configuration.api_server.kubeconfig.as_deref(), Some(kubeconfig), "{folder}");
        let healthz = configuration.served.healthz.unwrap();
        assert!(healthz.ip().is_unspecified(), "{folder}: the kubelet asks the node's address");
        assert_eq!(ports, [healthz.port(), configuration.served.metrics.port()], "{folder}");
    }
}

#[test]
fn the_program_understands_what_kubeadm_starts_kube_proxy_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.conf");
    fs::write(&file, KUBEADM).unwrap();
    let command = [
        "/usr/local/bin/kube-proxy",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=$(NODE_NAME)",
    ];
    let configuration = understood(&command.map(str::to_owned), &file);
    assert_eq!(configuration.action, Action::Run);
    assert!(configuration.strict_arp);
    let kubeconfig = Path::new("/var/lib/kube-proxy/kubeconfig.conf");
    assert_eq!(configuration.api_server.kubeconfig.as_deref(), Some(kubeconfig));
}

#[test]
fn the_role_allows_what_the_program_asks_for() {
    let documents = parse::<Value>("deploy/kustomize/components/cluster-role/cluster-role.yaml");
    let role: ClusterRole = serde_json::from_value(documents[0].clone()).unwrap();
    let rules = role.rules.unwrap();
    let allows = |group: &str, resource: &str, verb: &str| {
        let has = |words: &Option<Vec<String>>, word| words.iter().flatten().any(|one| one == word);
        rules.iter().any(|rule| {
            has(&rule.api_groups, group)
                && has(&rule.resources, resource)
                && rule.verbs.iter().any(|one| one == verb)
        })
    };
    // Where the program follows objects, every path is in this file.
    let source = read("src/source/kubernetes/kind.rs");
    let paths: Vec<&str> = source.split('"').filter(|text| text.starts_with("/api")).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (group, resource) = match parts[..] {
            ["api", "v1", resource] => ("", resource),
            ["apis", group, _, resource] => (group, resource),
            _ => panic!("{path} is no path of a list"),
        };
        for verb in ["list", "watch"] {
            assert!(allows(group, resource, verb), "{verb} {path}");
        }
    }
    assert!(allows("events.k8s.io", "events", "create"));
}

#[test]
fn a_label_chooses_one_of_the_two_proxies() {
    let patch = |file: &str| parse::<Value>(file).remove(0)["spec"]["template"]["spec"].take();
    let ours = patch("deploy/kustomize/components/by-label/daemonset.yaml");
    let theirs = patch("deploy/kubeadm-patch/by-label.yaml");
    let selector = ours["nodeSelector"].as_object().unwrap();
    let terms = &theirs["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let unless: Vec<&str> = terms
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|term| term["matchExpressions"].as_array().unwrap())
        .filter(|expression| expression["operator"] == "DoesNotExist")
        .map(|expression| expression["key"].as_str().unwrap())
        .collect();
    assert_eq!(selector.keys().collect::<Vec<_>>(), unless);
    let page = read("docs/replace-kube-proxy.md");
    assert!(page.contains(&format!("kubectl label node NODE {}=true", unless[0])));
}

// === the image ===

/// The instructions of the Containerfile, continued lines joined.
fn instructions() -> Vec<String> {
    let text = read("deploy/image/Containerfile").replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_image_is_pinned_and_starts_the_program_without_a_shell() {
    let instructions = instructions();
    let known = ["ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENTRYPOINT"];
    for line in &instructions {
        assert!(known.contains(&line.split(' ').next().unwrap()), "{line}");
        if let Some(default) = line.strip_prefix("ARG ") {
            let (_, tag) = default.split_once('=').expect("a default");
            assert!(tag.starts_with(|first: char| first.is_ascii_digit()), "{line}");
        }
        if let Some(base) = line.strip_prefix("FROM ") {
            assert!(base.contains(":${"), "{line}: no tag");
        }
    }
    let has = |line: &str| instructions.iter().any(|one| one == line);
    assert!(has("ENTRYPOINT [\"/usr/local/bin/kube-ipvs\"]"));
    assert!(has("COPY --from=build /out/kube-ipvs /usr/local/bin/kube-ipvs"));
    assert!(has("RUN ln -s kube-ipvs /usr/local/bin/kube-proxy"));
    // The compiler that the image uses must not be older than what the workspace asks for.
    let minor = |text: &str| text.split('.').nth(1).unwrap().parse::<u32>().unwrap();
    let compiler = instructions.iter().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    assert!(minor(compiler) >= minor(env!("CARGO_PKG_RUST_VERSION")), "{compiler}");
}

#[test]
fn what_is_copied_into_the_image_is_a_whole_workspace() {
    let folder = tempfile::tempdir().unwrap();
    for line in instructions() {
        let Some(words) = line.strip_prefix("COPY ").filter(|line| !line.starts_with("--")) else {
            continue;
        };
        let words: Vec<&str> = words.split(' ').collect();
        let (target, sources) = words.split_last().unwrap();
        for source in sources {
            let target = if *target == "./" { source } else { target };
            copy(&root().join(source), &folder.path().join(target));
        }
    }
    let answer = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version=1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        copy(&path, &to.join(path.file_name().unwrap()));
    }
}
