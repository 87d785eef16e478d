//! The chart renders what the kustomization builds to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{HELM, config_map, helm_with, kustomize, understood, values_files};
use crate::{BASE, chart, read, root};

/// Labels about the release, which kustomize has none of.
const OF_HELM: [&str; 3] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"];

/// Objects by kind and name, comparable: the name of the ConfigMap without its hash, and the content as the
/// program and its client understand it.
fn comparable(objects: &[Value]) -> BTreeMap<String, Value> {
    let config_map = config_map(objects);
    let name = config_map["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("kube-ipvs-") && name.len() == 20, "{name}");
    let kubeconfig = config_map["data"]["kubeconfig.yaml"].as_str().unwrap();
    let kubeconfig: Value = serde_saphyr::from_str(kubeconfig).unwrap();
    assert_eq!(config_map["data"].as_object().unwrap().len(), 2);
    let configurations = understood(objects);
    let keyed = objects.iter().map(|object| {
        let mut object = object.clone();
        for place in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(Value::Object(labels)) = object.pointer_mut(place) {
                labels.retain(|label, _| !OF_HELM.contains(&label.as_str()));
            }
        }
        if object.pointer("/data/config.yaml").is_some() {
            object["metadata"]["name"] = "kube-ipvs".into();
            object["data"]["kubeconfig.yaml"] = kubeconfig.clone();
            object["data"]["config.yaml"] = configurations[0].to_yaml().unwrap().into();
        }
        if object["kind"] == "DaemonSet" {
            let volumes = &mut object["spec"]["template"]["spec"]["volumes"];
            let volumes = volumes.as_array_mut().unwrap();
            let config = volumes.iter_mut().find(|volume| volume["name"] == "config").unwrap();
            assert_eq!(config["configMap"]["name"], name);
            config["configMap"]["name"] = "kube-ipvs".into();
        }
        let key = format!("{} {}", object["kind"], object["metadata"]["name"]);
        (key, object)
    });
    let keyed: BTreeMap<String, Value> = keyed.collect();
    assert_eq!(keyed.len(), objects.len());
    keyed
}

#[track_caller]
fn assert_same(of_helm: &[Value], of_kustomize: &[Value], what: &str) {
    let (ours, theirs) = (comparable(of_helm), comparable(of_kustomize));
    let names =
        |objects: &BTreeMap<String, Value>| -> Vec<String> { objects.keys().cloned().collect() };
    assert_eq!(names(&ours), names(&theirs), "{what}");
    for (name, object) in &ours {
        let text = |object: &Value| serde_json::to_string_pretty(object).unwrap();
        assert_eq!(text(object), text(&theirs[name]), "{what}: {name}");
    }
}

#[test]
fn values_render_what_their_overlay_builds_to() {
    let files = values_files();
    assert!(files.len() >= 6, "{files:?}");
    for (name, file) in files {
        let folder =
            if name == "base" { BASE.to_owned() } else { format!("{}/{name}", chart::OVERLAYS) };
        let built = kustomize(&root().join(folder));
        for program in HELM {
            let rendered = helm_with(program, std::slice::from_ref(&file)).unwrap();
            assert_same(&rendered, &built, &format!("{program}, {name}"));
        }
    }
}

/// Builds the base with all components, and metrics that Prometheus can reach.
fn with_all_components(folder: &Path) -> Vec<Value> {
    copy(&root().join("deploy/kustomize"), folder);
    copy(&root().join("deploy/grafana"), &folder.with_file_name("grafana"));
    let overlay = folder.join("overlays/all");
    fs::create_dir_all(&overlay).unwrap();
    let config = read(format!("{BASE}/config.yaml"));
    let config = config.replace("mode: ipvs", "mode: ipvs\nmetricsBindAddress: 0.0.0.0:10249");
    fs::write(overlay.join("config.yaml"), config).unwrap();
    let kustomization = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../base]
components: [../../components/by-label, ../../components/cluster-role, ../../components/prometheus, ../../../grafana]
configMapGenerator:
  - {name: kube-ipvs, namespace: kube-system, behavior: merge, files: [config.yaml]}
";
    fs::write(overlay.join("kustomization.yaml"), kustomization).unwrap();
    let components = fs::read_dir(folder.join("components")).unwrap().count();
    assert_eq!(components, 3, "components that are not compared");
    kustomize(&overlay)
}

#[test]
fn every_component_is_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let built = with_all_components(&folder.path().join("kustomize"));
    assert!(built.iter().any(|object| object["kind"] == "PrometheusRule"));
    assert!(built.iter().any(|object| object["metadata"]["name"] == "kube-ipvs-dashboard"));
    let file = folder.path().join("values.yaml");
    let values = "\
byLabel: true
rbac: {clusterRole: true}
podMonitor: {enabled: true, additionalLabels: {release: prometheus}}
prometheusRule: {enabled: true, additionalLabels: {release: prometheus}}
grafanaDashboard: {enabled: true}
kubeProxyConfiguration: {metricsBindAddress: '0.0.0.0:10249'}
";
    fs::write(&file, values).unwrap();
    let base = root().join(chart::FOLDER).join("values/base.yaml");
    for program in HELM {
        let rendered = helm_with(program, &[base.clone(), file.clone()]).unwrap();
        assert_same(&rendered, &built, program);
    }
}

/// Copies a folder.
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
