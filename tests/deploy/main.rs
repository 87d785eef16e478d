//! Checks of `deploy/` and `vagrant/`: that an API server would take it as it is meant, that its
//! parts fit one another, and that the program understands what it is started with there.
//!
//! The module `rendered` needs Helm, kustomize and promtool: `cargo xtask chart` runs it.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a file that is not as expected is a failure like any other"
)]

mod chart;
mod observed;
mod program;
#[cfg(feature = "chart-tests")]
mod rendered;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Namespace, Node, Pod, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const BASE: &str = "deploy/kustomize/base";

/// Fields that are used of a kustomization; any other field is an error here.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "namespace", default)]
    _namespace: Option<String>,
    #[serde(default)]
    labels: Vec<Value>,
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
    #[serde(rename = "options", default)]
    _options: Option<Value>,
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

/// The YAML files of `deploy/` and `vagrant/`, from the root, but for the chart: its templates are no
/// YAML, and its values no objects.
fn yaml_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join("deploy"), root().join("vagrant")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // Hidden ones are what vagrant and an image build leave behind.
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
                || path == root().join(chart::FOLDER)
            {
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

/// Collects the places where `after` does not have what `before` has.
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

/// Reads an object and writes it again. The reader ignores a field that the API does not have, so
/// the written object lacks it.
fn survives<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    let object: T = match serde_json::from_value(document.clone()) {
        Ok(object) => object,
        Err(error) => return vec![error.to_string()],
    };
    let mut found = Vec::new();
    lost(document, &serde_json::to_value(object).unwrap(), "", &mut found);
    found
}

/// Returns what is wrong with an object of the Kubernetes API, or with another document that is
/// known.
fn problems(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "List") => document["items"].as_array().unwrap().iter().flat_map(problems).collect(),
        ("v1", "ConfigMap") => survives::<ConfigMap>(document),
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
        | ("monitoring.coreos.com/v1", "PodMonitor" | "PrometheusRule") => Vec::new(),
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
            let maker = match generator.name.as_str() {
                "kube-ipvs" => BASE,
                "kube-ipvs-dashboard" => "deploy/grafana",
                other => panic!("{shown}: {other}"),
            };
            let is_made = folder == root().join(maker);
            assert_eq!(generator.behavior.is_none(), is_made, "{shown}: only {maker} makes it");
        }
        for version in kustomization
            .labels
            .iter()
            .filter_map(|it| it["pairs"].get("app.kubernetes.io/version"))
        {
            assert_eq!(version, env!("CARGO_PKG_VERSION"), "{shown}");
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
        let mut expected = volumes.clone();
        // Only the one that serves is asked, and only a privileged one can load modules and set sysctls.
        let others: &[&str] =
            if container.name == "host" { &["console"] } else { &["modules", "record"] };
        assert!(others.iter().all(|other| expected.remove(*other)));
        assert_eq!(mounted, expected, "{}", container.name);
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

#[test]
fn a_label_chooses_one_of_the_two_proxies() {
    let ours: Value = parse("deploy/kustomize/components/by-label/daemonset.yaml").remove(0);
    let labels = ours["spec"]["template"]["spec"]["nodeSelector"].as_object().unwrap();
    let [label] = labels.keys().collect::<Vec<_>>()[..] else { panic!("{labels:?}") };
    let unless = json!({"key": label, "operator": "DoesNotExist"});
    let patch = |file: &str| -> json_patch::Patch { serde_json::from_str(&read(file)).unwrap() };

    let of_kubeadm = json!({"spec": {"template": {"spec": {"affinity": null}}}});
    let mut patched = of_kubeadm.clone();
    let alone = patch("deploy/kubeadm-patch/by-label.json");
    json_patch::patch(&mut patched, &alone).unwrap();
    assert_eq!(conditions(&patched), [[unless.clone()]]);

    let os = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [os]}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    let of_eks = json!({"spec": {"template": {"spec": {"affinity": affinity}}}});
    assert!(
        json_patch::patch(&mut of_eks.clone(), &alone).is_err(),
        "it would replace what is there"
    );
    let mut patched = of_eks;
    json_patch::patch(&mut patched, &patch("deploy/kubeadm-patch/by-label-too.json")).unwrap();
    assert_eq!(conditions(&patched), [[os, unless]]);

    let page = read("docs/migrate-by-daemonset.md");
    assert!(page.contains(&format!("kubectl label node NODE {label}=true")));
}

/// The expressions of each term of a DaemonSet's node affinity.
fn conditions(daemon_set: &Value) -> Vec<Vec<Value>> {
    let terms = "/spec/template/spec/affinity/nodeAffinity\
        /requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = daemon_set.pointer(terms).unwrap().as_array().unwrap();
    terms.iter().map(|term| term["matchExpressions"].as_array().unwrap().clone()).collect()
}

#[test]
fn the_image_is_put_where_kube_proxy_is_and_a_rollout_waits_for_it() {
    let patch: DaemonSet = parse("deploy/kubeadm-patch/readiness.yaml").remove(0);
    let [container] = &containers(&patch)[..] else { panic!("{patch:?}") };
    let page = read("docs/migrate-by-image.md");
    for command in ["set image daemonset/kube-proxy ", "patch daemonset kube-proxy --patch-file"] {
        assert!(page.contains(command), "{command}");
    }
    assert!(page.contains(&format!(" {}=registry.example/kube-ipvs", container.name)));
    assert_eq!(container.image, None, "`kubectl set image` is the way, and the way back");
    let probe = container.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap();
    assert_eq!(probe.path.as_deref(), Some("/readyz"));
    let page = read("docs/roll-back.md");
    assert!(page.contains("\"readinessProbe\":null"), "a rollback takes the probe out");
}

/// Targets of kubeadm's patches as of 1.37, and the kinds of patches (`KnownTargets` and `parseFilename` in
/// cmd/kubeadm/app/util/patches/patches.go).
const TARGETS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubeletconfiguration",
    "corednsdeployment",
    "kubeproxydaemonset",
];
const KINDS: [&str; 3] = ["json", "merge", "strategic"];

/// Reads the name of a file as kubeadm does: target, suffix, `+` and a kind of patch, extension. None: kubeadm ignores it.
fn target_and_kind(file: &str) -> Option<(&str, &str)> {
    let name = file.strip_suffix(".yaml").or_else(|| file.strip_suffix(".json"))?;
    let target = TARGETS.into_iter().find(|target| name.starts_with(target))?;
    match name.split_once('+') {
        None => Some((target, "strategic")),
        Some((_, kind)) => Some((target, KINDS.into_iter().find(|it| kind == *it)?)),
    }
}

#[test]
fn an_upgrade_of_kubeadm_keeps_the_image() {
    const FOLDER: &str = "deploy/kubeadm-patch";
    let files = fs::read_dir(root().join(FOLDER)).unwrap();
    let files: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let known: Vec<&String> = files.iter().filter(|it| target_and_kind(it).is_some()).collect();
    let [file] = known[..] else { panic!("kubeadm would apply {known:?}") };
    assert_eq!(target_and_kind(file), Some(("kubeproxydaemonset", "strategic")));

    let patch: DaemonSet = parse(Path::new(FOLDER).join(file)).remove(0);
    let readiness: DaemonSet = parse(Path::new(FOLDER).join("readiness.yaml")).remove(0);
    let overlay: Kustomization =
        parse("deploy/kustomize/overlays/kubeadm/kustomization.yaml").remove(0);
    let Image { new_name, new_tag, .. } = &overlay.images[0];
    let ours = containers(&daemon_set()).remove(1);
    // A strategic merge finds containers by their names and leaves alone what it does not name: the command, which leads
    // to this program in the image, its flags, and the volumes.
    let mut expected = readiness;
    let containers = &mut expected.spec.template.spec.as_mut().unwrap().containers;
    containers[0].image = Some(format!("{new_name}:{new_tag}"));
    let probe = |it: &Container| it.readiness_probe.clone().unwrap();
    let (there, here) = (probe(&containers[0]), probe(&ours));
    assert_eq!(there.http_get.as_ref().unwrap().path, here.http_get.as_ref().unwrap().path);
    assert_eq!(
        (there.period_seconds, there.timeout_seconds, there.failure_threshold),
        (here.period_seconds, here.timeout_seconds, here.failure_threshold)
    );
    assert_eq!(patch, expected);

    let page = read("docs/platforms.md");
    assert!(page.contains(&format!("`{FOLDER}/{file}`")), "{file}");
    assert!(
        page.contains("- target: kubeproxydaemonset"),
        "kubespray writes the file by its variable"
    );
}

#[test]
fn names_of_patches_are_read_as_kubeadm_reads_them() {
    for (file, expected) in [
        ("kubeproxydaemonset+strategic.yaml", Some(("kubeproxydaemonset", "strategic"))),
        ("kubeproxydaemonset0.json", Some(("kubeproxydaemonset", "strategic"))),
        ("kubeproxydaemonset1+json.yaml", Some(("kubeproxydaemonset", "json"))),
        ("kubeproxydaemonset.txt", None),
        ("kube-proxy+strategic.yaml", None),
        ("readiness.yaml", None),
    ] {
        assert_eq!(target_and_kind(file), expected, "{file}");
    }
}
