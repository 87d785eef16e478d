//! Rendered objects are those that an API server takes and the program understands, with no more privileges than
//! needed.

use config::document::KubeProxyConfiguration;
use config::kube_ipvs::KubeIpvsConfiguration;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::{
    HELM, config_map, daemon_set, helm, helm_with, kustomize, only, understood, values_files,
};
use crate::program::KUBEADM;
use crate::{chart, containers, observed, problems, read, root};

/// Values of every kind.
const EVERYTHING: &str = "\
image: {tag: '9', digest: 'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', pullPolicy: Always}
imagePullSecrets: [{name: registry}]
kubeProxyConfiguration:
  healthzBindAddress: '[::]:20256'
  metricsBindAddress: '0.0.0.0:20249'
  logging: {format: json, verbosity: 2}
  conntrack: {min: 1048576}
kubeIpvsConfiguration: {drainDeadline: 5m, limits: {setSize: 16777216}}
extraArgs: [--v=4]
extraEnv: [{name: RUST_LOG, value: debug}]
byLabel: true
nodeSelector: {disk: ssd}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}]
tolerations: [{key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 5}]
updateStrategy: {type: OnDelete}
resources: {limits: {memory: 256Mi}, requests: {cpu: '1'}}
commonLabels: {owner: platform}
podLabels: {team: network}
podAnnotations: {note: a}
initContainer: {enabled: false}
podSecurityContext: {seLinuxOptions: null}
livenessProbe: {failureThreshold: 9}
readinessProbe: null
serviceAccount: {name: proxy, annotations: {note: b}, automount: false}
hostAliases: [{ip: 192.0.2.10, hostnames: [api.example]}]
dnsConfig: {searches: [example], options: [{name: ndots, value: '1'}]}
rbac: {clusterRole: true}
podMonitor:
  enabled: true
  additionalLabels: {release: prometheus}
  interval: 30s
  scrapeTimeout: 10s
  relabelings: [{targetLabel: zone, replacement: a}]
  metricRelabelings: [{sourceLabels: [__name__], regex: rest_client_.*, action: drop}]
prometheusRule: {enabled: true, additionalLabels: {release: prometheus}, runbookUrl: 'https://wiki.example/runbook'}
grafanaDashboard: {enabled: true, labels: {dashboards: a}, annotations: {grafana_folder: Network}}
extraVolumes: [{name: credentials, hostPath: {path: /opt/credentials}}]
extraVolumeMounts: [{name: credentials, mountPath: /opt/credentials, readOnly: true}]
";

/// Everything that is rendered or built here.
fn all() -> Vec<(String, Vec<Value>)> {
    let mut all = Vec::new();
    for overlay in chart::overlays() {
        let built = kustomize(&root().join(chart::OVERLAYS).join(&overlay));
        all.push((format!("kustomize, {overlay}"), built));
    }
    for program in HELM {
        for (name, file) in values_files() {
            all.push((format!("{program}, {name}"), helm_with(program, &[file]).unwrap()));
        }
        all.push((format!("{program}, everything"), helm(program, EVERYTHING).unwrap()));
    }
    all
}

#[test]
fn objects_have_only_fields_that_the_api_has() {
    for (what, objects) in all() {
        let kinds = ["ServiceAccount", "DaemonSet"];
        assert!(config_map(&objects).is_object());
        assert!(kinds.iter().all(|kind| only(&objects, kind).is_object()));
        for object in objects {
            assert_eq!(problems(&object), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn the_program_understands_the_file_and_has_the_ports_that_are_probed() {
    for (what, objects) in all() {
        for configuration in understood(&objects) {
            let declared: Vec<i32> = containers(&daemon_set(&objects))
                .iter()
                .flat_map(|container| container.ports.clone().unwrap_or_default())
                .map(|port| port.container_port)
                .collect();
            let served = [configuration.served.healthz.unwrap(), configuration.served.metrics];
            assert!(served[0].ip().is_unspecified(), "{what}");
            assert_eq!(declared, served.map(|address| i32::from(address.port())), "{what}");
        }
    }
}

#[test]
fn one_container_is_privileged_and_only_for_the_host() {
    for (what, objects) in all() {
        let daemon_set = daemon_set(&objects);
        for container in containers(&daemon_set) {
            let Container { name, security_context, .. } = container;
            let granted = serde_json::to_value(security_context).unwrap();
            let expected = match name.as_str() {
                "host" => json!({"privileged": true, "readOnlyRootFilesystem": true}),
                _ => json!({
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
                }),
            };
            assert_eq!(granted, expected, "{what}: {name}");
        }
        let pod = daemon_set.spec.template.spec.unwrap();
        let host = pod.volumes.iter().flatten().filter_map(|volume| volume.host_path.as_ref());
        let host: Vec<&str> = host.map(|path| path.path.as_str()).collect();
        let expected: &[&str] = if pod.init_containers.is_some() {
            &["/run/xtables.lock", "/run/kube-ipvs", "/lib/modules"]
        } else {
            &["/run/xtables.lock", "/opt/credentials"]
        };
        assert_eq!(host, expected, "{what}");
        assert_eq!((pod.host_pid, pod.host_ipc), (None, None), "{what}");
    }
}

#[test]
fn every_value_gets_where_it_belongs() {
    for program in HELM {
        let objects = helm(program, EVERYTHING).unwrap();
        let configuration = understood(&objects).remove(0);
        assert_eq!(configuration.document.conntrack.min, Some(1_048_576));
        assert_eq!(configuration.own.limits.set_size, Some(16_777_216));
        let daemon_set = only(&objects, "DaemonSet");
        let pod = &daemon_set["spec"]["template"]["spec"];
        let selected =
            json!({"kubernetes.io/os": "linux", "kube-ipvs.io/enabled": "true", "disk": "ssd"});
        assert_eq!(pod["nodeSelector"], selected, "{program}");
        assert_eq!(pod["initContainers"], Value::Null);
        assert_eq!(pod["securityContext"], json!({"seccompProfile": {"type": "RuntimeDefault"}}));
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(pod["tolerations"][0]["tolerationSeconds"], 5);
        assert_eq!(pod["hostAliases"][0]["hostnames"], json!(["api.example"]));
        assert_eq!(pod["dnsConfig"]["options"], json!([{"name": "ndots", "value": "1"}]));
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(only(&objects, "ServiceAccount")["automountServiceAccountToken"], false);
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
            /nodeSelectorTerms/0/matchExpressions/0/key";
        assert_eq!(pod.pointer(terms), Some(&json!("pool")));
        assert_eq!(daemon_set["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
        let container = &pod["containers"][0];
        let image = container["image"].as_str().unwrap();
        assert!(image.starts_with("registry.example/kube-ipvs@sha256:0123"), "{image}");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["command"][3], "--v=4");
        assert_eq!(container["env"][1], json!({"name": "RUST_LOG", "value": "debug"}));
        let resources =
            json!({"limits": {"memory": "256Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}});
        assert_eq!(container["resources"], resources);
        let metadata = &daemon_set["spec"]["template"]["metadata"];
        assert_eq!(
            (&metadata["labels"]["team"], &metadata["annotations"]["note"]),
            (&json!("network"), &json!("a"))
        );
        assert_eq!(metadata["labels"]["owner"], "platform");
        for object in &objects {
            assert_eq!(object["metadata"]["labels"]["owner"], "platform", "{}", object["kind"]);
        }
        for kind in ["PodMonitor", "PrometheusRule"] {
            assert_eq!(only(&objects, kind)["metadata"]["labels"]["release"], "prometheus");
        }
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
        assert_eq!(container["livenessProbe"]["failureThreshold"], 9);
        assert_eq!(container["livenessProbe"]["periodSeconds"], 10);
        assert_eq!(container["readinessProbe"], Value::Null);
        let mount =
            json!({"name": "credentials", "mountPath": "/opt/credentials", "readOnly": true});
        assert!(container["volumeMounts"].as_array().unwrap().contains(&mount));
        let monitor = &only(&objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0];
        assert_eq!(
            (&monitor["interval"], &monitor["scrapeTimeout"]),
            (&json!("30s"), &json!("10s"))
        );
        assert_eq!(monitor["relabelings"][0]["replacement"], "kube-proxy");
        assert_eq!(monitor["relabelings"][2]["targetLabel"], "zone");
        assert_eq!(monitor["metricRelabelings"][0]["action"], "drop");
        let rule = &only(&objects, "PrometheusRule")["spec"]["groups"][0]["rules"][0];
        assert_eq!(
            rule["annotations"]["runbook_url"],
            "https://wiki.example/runbook#kubeipvsabsent"
        );
    }
}

#[test]
fn a_configuration_that_is_in_use_is_taken_as_it_is() {
    let full = KubeProxyConfiguration::default().with_defaults();
    let own = KubeIpvsConfiguration::default().with_defaults();
    let full = json!({"kubeProxyConfiguration": full, "kubeIpvsConfiguration": own}).to_string();
    let indented = KUBEADM.replace('\n', "\n  ");
    let of_kubeadm = format!("kubeProxyConfiguration:\n  {indented}");
    for program in HELM {
        for values in [&full, &of_kubeadm] {
            let objects = helm(program, values).unwrap();
            let configuration = understood(&objects).remove(0);
            let kubeconfig = &configuration.document.client_connection.kubeconfig;
            assert_eq!(kubeconfig, "/etc/kube-ipvs/kubeconfig.yaml", "{program}");
        }
    }
}

#[test]
fn only_a_change_of_the_configuration_is_another_config_map() {
    let name = |values: &str| {
        let objects = helm("helm-4", values).unwrap();
        config_map(&objects)["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let before = name("{}");
    assert_eq!(name("{podLabels: {a: b}, extraArgs: [--v=2]}"), before);
    assert_ne!(name("{kubeProxyConfiguration: {ipvs: {scheduler: lc}}}"), before);
    assert_ne!(name("{apiServer: 'https://192.0.2.11:6443'}"), before);
}

#[test]
fn the_account_has_one_name_everywhere() {
    let subjects = |objects: &[Value]| -> Vec<String> {
        let bindings = objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding");
        bindings.map(|it| it["subjects"][0]["name"].as_str().unwrap().to_owned()).collect()
    };
    let account =
        |objects: &[Value]| daemon_set(objects).spec.template.spec.unwrap().service_account_name;
    let has = |objects: &[Value], kind: &str| objects.iter().any(|object| object["kind"] == kind);
    for program in HELM {
        let objects = helm(program, EVERYTHING).unwrap();
        assert_eq!(
            (subjects(&objects), account(&objects)),
            (vec!["proxy".to_owned(); 2], Some("proxy".to_owned()))
        );
        let made = only(&objects, "ServiceAccount");
        assert_eq!(
            (&made["metadata"]["name"], &made["metadata"]["annotations"]["note"]),
            (&json!("proxy"), &json!("b"))
        );
        let values = "{serviceAccount: {create: false, name: given}, rbac: {create: false}}";
        let objects = helm(program, values).unwrap();
        assert!(
            !has(&objects, "ServiceAccount") && !has(&objects, "ClusterRoleBinding"),
            "{program}"
        );
        assert_eq!(account(&objects).as_deref(), Some("given"), "{program}");
    }
}

#[test]
fn every_object_has_the_standard_labels_and_selectors_have_one() {
    let name = json!({"app.kubernetes.io/name": "kube-ipvs"});
    for (what, objects) in all() {
        for object in &objects {
            let labels = object["metadata"]["labels"].as_object().unwrap();
            let mut wanted = vec![
                ("app.kubernetes.io/component", "service-proxy"),
                ("app.kubernetes.io/name", "kube-ipvs"),
                ("app.kubernetes.io/part-of", "kube-ipvs"),
                ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION")),
            ];
            if what.starts_with("helm") {
                wanted.extend([
                    ("app.kubernetes.io/instance", "kube-ipvs"),
                    ("app.kubernetes.io/managed-by", "Helm"),
                    ("helm.sh/chart", concat!("kube-ipvs-", env!("CARGO_PKG_VERSION"))),
                ]);
            }
            for (label, value) in wanted {
                assert_eq!(
                    labels.get(label),
                    Some(&json!(value)),
                    "{what}: {}: {label}",
                    object["kind"]
                );
            }
            if let Some(selector) = object.pointer("/spec/selector/matchLabels") {
                assert_eq!(selector, &name, "{what}: a selector can never change");
            }
        }
    }
}

#[test]
fn the_dashboard_is_a_config_map_that_a_sidecar_selects() {
    let name = |object: &&Value| object["metadata"]["name"] == "kube-ipvs-dashboard";
    for program in HELM {
        assert_eq!(helm(program, "{}").unwrap().iter().find(name), None, "{program}");
        let objects = helm(program, EVERYTHING).unwrap();
        let dashboard = objects.iter().find(name).unwrap();
        let labels = &dashboard["metadata"]["labels"];
        assert_eq!(
            (&labels["grafana_dashboard"], &labels["dashboards"]),
            (&json!("1"), &json!("a"))
        );
        assert_eq!(dashboard["metadata"]["annotations"], json!({"grafana_folder": "Network"}));
        let text = dashboard["data"]["kube-ipvs.json"].as_str().unwrap();
        assert!(text == read(observed::DASHBOARD), "{program}");
    }
}

#[test]
fn a_default_can_be_taken_away() {
    for program in HELM {
        for (values, selector) in [
            ("{nodeSelector: {kubernetes.io/os: null}}", Value::Null),
            ("{nodeSelector: null}", Value::Null),
            (
                "{nodeSelector: {kubernetes.io/os: null}, byLabel: true}",
                json!({"kube-ipvs.io/enabled": "true"}),
            ),
        ] {
            let objects = helm(program, values).unwrap();
            let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
            assert_eq!(pod["nodeSelector"], selector, "{program}: {values}");
        }
    }
}
