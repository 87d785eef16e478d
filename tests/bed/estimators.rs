//! IPVS's statistics, kept up or not, with `estimators`.

use bed::{Protocol, eventually};

use crate::fixture::{Bed, PATIENCE, ip, web};

/// The sysctl of the first node; none: the kernel does not have it.
fn run_estimation(bed: &Bed) -> Option<String> {
    let path = "/proc/sys/net/ipv4/vs/run_estimation";
    bed.node().command("cat", &[path]).ok().map(|value| value.trim().to_owned())
}

/// Returns the number of connections that the statistics of the first node have counted.
fn counted(bed: &Bed) -> u64 {
    let text = bed.tool("ipvsadm", &["-Ln", "--stats", "--exact"]);
    let line = text.lines().find(|line| line.starts_with("TCP  10.96.0.10:80 "));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("{text}")).split_whitespace().collect();
    words[2].parse().unwrap()
}

#[test]
fn statistics_stand_still_where_estimators_are_off_and_go_on_where_they_are_on() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let target = (ip("10.96.0.10"), 80);

    let off = bed.configuration("off", "estimators: {run: off}");
    let proxy = bed.start(&["--config", &off]);
    bed.ask(bed.client(), Protocol::Tcp, target, 3);
    // Whatever adds up would have done so twice.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let found = counted(&bed);
    let log = proxy.stop().unwrap();
    match run_estimation(&bed) {
        Some(value) => {
            assert_eq!((value.as_str(), found), ("0", 0), "{log}");
            assert!(log.contains("net.ipv4.vs.run_estimation=0 (it was 1)"), "{log}");
        }
        None => assert!(log.contains("estimators.run: off has no effect"), "{log}"),
    }

    let on = bed.configuration("on", "estimators: {run: on}");
    let proxy = bed.start(&["--config", &on]);
    bed.ask(bed.client(), Protocol::Tcp, target, 3);
    let done = eventually(PATIENCE, "connections are counted", || {
        let found = counted(&bed);
        anyhow::ensure!(found >= 3, "{found}");
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error:#}\n{}", bed.cluster.dump()));
    proxy.stop().unwrap();
    assert!(matches!(run_estimation(&bed).as_deref(), Some("1") | None));
}
