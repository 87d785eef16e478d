//! Objects of small clusters, as manifests.

/// The addresses of the node's interfaces.
pub(crate) const ADDRESSES: [&str; 4] = ["127.0.0.1", "192.168.0.2", "172.18.0.2", "fd00:77::15"];

/// The first endpoint on this node, and the first one elsewhere.
pub(crate) const HERE: &str = "10.128.0.1:8080";
pub(crate) const THERE: &str = "10.128.1.1:8080";

/// A Service with a node port and two addresses of load balancers, and more of its `spec`.
pub(crate) fn service(spec: &str) -> String {
    let comma = if spec.is_empty() { "" } else { ", " };
    let is_local = spec.contains("externalTrafficPolicy: Local");
    let check = if is_local { ", healthCheckNodePort: 31000" } else { "" };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: svc, namespace: ns}}\n\
         spec: {{type: LoadBalancer, clusterIP: 172.30.0.41, clusterIPs: [172.30.0.41], \
         ports: [{{name: p80, port: 80, protocol: TCP, nodePort: 3001}}]{check}{comma}{spec}}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: 1.2.3.4}}, {{ip: 5.6.7.8, ipMode: VIP}}, \
         {{ip: 9.10.11.12, ipMode: Proxy}}]}}}}\n"
    )
}

/// A slice with endpoints of these states here and elsewhere.
pub(crate) fn endpoints(here: &[&str], elsewhere: &[&str]) -> String {
    let endpoint = |network: u8, node: &str, (index, state): (usize, &&str)| {
        let conditions = match *state {
            "ready" => "ready: true, serving: true, terminating: false",
            "unready" => "ready: false, serving: false, terminating: false",
            "terminating" => "ready: false, serving: true, terminating: true",
            "ended" => "ready: false, serving: false, terminating: true",
            other => panic!("{other}"),
        };
        let address = format!("10.128.{network}.{}", index + 1);
        format!("{{addresses: [{address}], nodeName: {node}, conditions: {{{conditions}}}}}")
    };
    let here = here.iter().enumerate().map(|it| endpoint(0, "node1", it));
    let elsewhere = elsewhere.iter().enumerate().map(|it| endpoint(1, "other", it));
    let endpoints: Vec<_> = here.chain(elsewhere).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: svc-1, namespace: ns, labels: {{kubernetes.io/service-name: svc}}}}\n\
         addressType: IPv4\nports: [{{name: p80, port: 8080, protocol: TCP}}]\n\
         endpoints: [{}]\n",
        endpoints.join(", ")
    )
}

/// A cluster with this node.
pub(crate) fn cluster(service: &str, slice: &str) -> String {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\n\
                status: {addresses: [{type: InternalIP, address: 192.168.0.2}, \
                {type: InternalIP, address: 'fd00:77::15'}]}\n";
    format!("{node}---\n{service}---\n{slice}")
}
