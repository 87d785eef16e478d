//! Flows of datagrams, before rules and real servers that change.

use std::thread;
use std::time::Duration;

use bed::{Connection, Question, Stream, StreamPlan};

use super::ground::{Ground, UDP, answers, connect};

/// Time in which IPVS forgets the flows of a real server that was removed. Datagrams that come
/// earlier are dropped.
const FORGOTTEN: Duration = Duration::from_millis(200);

#[test]
fn flows_stay_with_their_mode_and_move_without_loss_if_they_pause() {
    let ground = Ground::new();
    let (one, two) = (ground.pod(1), ground.pod(2));
    let plan = StreamPlan { interval: Duration::from_millis(5), askers: 0, kept_open: 1 };
    for way in UDP {
        ground.balance(way, &[one]);
        ground.to_ipvs(way);
        let mut flows = ground.clients().map(|client| connect(client, way, one));
        let all_from = |flows: &mut [Connection; 3], pod| {
            flows.iter_mut().for_each(|flow| answers(flow, pod));
        };
        let question = Question::udp(way.frontend());
        let steady = Stream::start(&ground.pod(3).namespace, question, plan).unwrap();
        let is_steady = || steady.wait_for_answers(20, Duration::from_secs(20)).unwrap();
        is_steady();
        ground.to_iptables(way, &[two]);
        all_from(&mut flows, one);
        ground.real_server("-e", way, one, "-m -w 0");
        is_steady();
        all_from(&mut flows, one);
        // Draining costs a flow that never pauses nothing.
        steady.stop().require_no_failure(40).unwrap();
        ground.real_server("-d", way, one, "");
        thread::sleep(FORGOTTEN);
        all_from(&mut flows, two);
        // The way back: DNAT stays until the entry is deleted.
        ground.real_server("-a", way, one, "-m -w 1");
        ground.to_ipvs(way);
        all_from(&mut flows, two);
        ground.forget(way);
        all_from(&mut flows, one);
    }
}
