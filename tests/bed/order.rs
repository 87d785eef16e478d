//! Where a scheduler hashes, nodes agree, whatever came when on each.

use std::time::Duration;

use bed::{Namespace, Proxy, Question, Stream, StreamPlan};

use crate::fixture::{Bed, ip, web};

/// The real servers of the only virtual server of IPv4, in the kernel's order.
fn listed(node: &Namespace) -> Vec<String> {
    let text = node.command("ipvsadm", &["-Ln", "--nosort"]).unwrap();
    let sockets = text.lines().filter_map(|line| line.trim().strip_prefix("-> "));
    let sockets = sockets.filter_map(|line| line.split_whitespace().next());
    sockets.filter(|socket| socket.starts_with("10.244.")).map(str::to_owned).collect()
}

#[test]
fn endpoints_stand_in_the_same_order_on_every_node_and_keep_their_connections() {
    for scheduler in ["mh", "sh"] {
        let bed = Bed::new();
        let arguments = [&format!("--ipvs-scheduler={scheduler}")[..]];
        bed.manifests.apply(&web([bed.pod(1, 2), bed.pod(2, 2)])).unwrap();
        let _first = bed.start(&arguments);
        let plan = StreamPlan { interval: Duration::from_millis(20), askers: 2, kept_open: 6 };
        let stream = Stream::start(bed.client(), Question::tcp((ip("10.96.0.10"), 80)), plan);
        let stream = stream.unwrap();
        stream.wait_for_answers(20, Duration::from_secs(30)).unwrap();

        // These go before the others, which are moved.
        bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 2)])).unwrap();
        bed.wait_until("a third", || listed(bed.node()).len() == 3);
        bed.manifests
            .apply(&web([bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 1), bed.pod(2, 2)]))
            .unwrap();
        bed.wait_until("a fourth", || listed(bed.node()).len() == 4);
        let expected = ["10.244.2.12", "10.244.2.11", "10.244.1.12", "10.244.1.11"];
        let expected = expected.map(|address| format!("{address}:8080"));
        assert_eq!(listed(bed.node()), expected, "{scheduler}");

        let second = &bed.cluster.node(2).unwrap().namespace;
        let _second = Proxy::start(second, &bed.manifests, &arguments).unwrap();
        assert_eq!(listed(second), expected, "{scheduler}");

        stream.wait_for_answers(40, Duration::from_secs(30)).unwrap();
        let report = stream.stop();
        report.require_no_failure(60).unwrap();
        assert!(report.kept > 20, "{report:?}");
        let switch = bed.tool("cat", &["/proc/sys/net/ipv4/vs/expire_nodest_conn"]);
        assert_eq!(switch.trim(), "1");
    }
}
