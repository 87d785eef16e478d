//! Rules come and go before living connections.

use bed::{Connection, Host, Refusal};

use super::ground::{Ground, TCP, answers, connect};

#[test]
fn connections_stay_with_the_mode_that_made_them() {
    let ground = Ground::new();
    let (one, two) = (ground.pod(1), ground.pod(2));
    for way in TCP {
        let mut connections: Vec<(Connection, &Host)> = Vec::new();
        let mut connect_all = |pod| {
            let new = ground.clients().map(|client| (connect(client, way, pod), pod));
            connections.extend(new);
            connections.iter_mut().for_each(|(connection, pod)| answers(connection, pod));
        };
        ground.balance(way, &[one]);
        ground.to_ipvs(way);
        connect_all(one);
        ground.to_iptables(way, &[two]);
        connect_all(two);
        ground.to_ipvs(way);
        connect_all(one);
    }
}

#[test]
fn connections_do_not_survive_the_first_or_last_rule_that_tracks_connections() {
    let bare = Ground::bare();
    let based = Ground::new();
    for way in TCP {
        for (ground, is_tracked) in [(&bare, false), (&based, true)] {
            let (one, two) = (ground.pod(1), ground.pod(2));
            let client = &ground.pod(3).namespace;
            let rules = way.dispatch(&[two]).join("\n").replace("KUBE-SERVICES", "PREROUTING");
            ground.balance(way, &[one]);
            let mut of_ipvs = connect(client, way, one);
            ground.restore(way, &format!("*nat\n{rules}\nCOMMIT\n"));
            let mut of_iptables = connect(client, way, two);
            let first = of_ipvs.say().map(|answer| answer.server);
            ground.restore(way, &format!("*nat\n{}\nCOMMIT\n", rules.replace("-A ", "-D ")));
            let last = of_iptables.say().map(|answer| answer.server);
            let expected = if is_tracked {
                (Ok(one.name.clone()), Ok(two.name.clone()))
            } else {
                (Err(Refusal::Reset), Err(Refusal::Reset))
            };
            assert_eq!((first, last), expected, "{way:?}");
        }
    }
}
