//! `kube-ipvs top`, once and on a terminal.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bed::{Protocol, Proxy, Question, Service, Terminal, ask_many, eventually};

use super::run;
use crate::fixture::{Bed, PATIENCE, TARGET, ip};

/// Two Services: `web`, with traffic, and `api`, without.
fn start(bed: &Bed) -> Proxy {
    for (name, address) in [("web", "10.96.0.10"), ("api", "10.96.0.20")] {
        let service = Service::new(name, ip(address)).port(Protocol::Tcp, 80, TARGET);
        bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    }
    bed.start(&[])
}

/// Does something while a client asks `web` all the time.
fn with_traffic(bed: &Bed, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _unread = ask_many(bed.client(), Question::tcp((ip("10.96.0.10"), 80)), 5);
                thread::sleep(Duration::from_millis(50));
            }
        });
        // Also after a panic, which would otherwise wait for the client.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Rows of the screen that are Services or endpoints, as name and connections a second.
fn rows(terminal: &Terminal) -> Vec<(String, String)> {
    let lines = terminal.lines();
    let rows = lines.iter().skip_while(|line| !line.starts_with("SERVICE")).skip(1);
    let rows = rows.take_while(|line| !line.is_empty());
    let words = rows.map(|row| row.split_whitespace());
    words.filter_map(|mut row| Some((row.next()?.to_owned(), row.next()?.to_owned()))).collect()
}

#[test]
fn once_shows_the_order_and_the_filter_that_are_asked_for() {
    let bed = Bed::new();
    let proxy = start(&bed);
    with_traffic(&bed, || {
        let top = |arguments: &[&str]| {
            let answer = run(&bed, &[&["top", "--once", "-o", "json"], arguments].concat());
            assert_eq!(answer.code, 0, "{answer:?}");
            answer.json()
        };
        let names = |answer: &serde_json::Value| {
            let services = answer["services"].as_array().unwrap().iter();
            services.map(|it| it["service"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // A busy machine may stand still for the two seconds that an answer is about.
        let has_traffic = |answer: &serde_json::Value| {
            answer["services"][0]["rates"]["connections"].as_f64().is_some_and(|rate| rate > 1.0)
        };
        let mut answers = (0..10).map(|_| top(&[]));
        let by_connections = answers.find(has_traffic).expect("no traffic in ten answers");
        assert_eq!(names(&by_connections), ["default/web", "default/api"], "{by_connections:#}");
        let web = &by_connections["services"][0];
        assert!(web["rates"]["connections"].as_f64().unwrap() > 1.0, "{web:#}");
        assert!(web["rates"]["bytesIn"].as_f64().unwrap() > 100.0, "{web:#}");
        assert_eq!(web["endpoints"].as_array().unwrap().len(), 2, "{web:#}");
        // Others who ask get the same readings, in their own order, and none of less than 2 s.
        let asked = Instant::now();
        let by_name = top(&["--sort", "name"]);
        assert_eq!(names(&by_name), ["default/api", "default/web"], "{by_name:#}");
        assert!(by_name["seconds"].as_f64().unwrap() >= 2.0, "{by_name:#}");
        if asked.elapsed() < Duration::from_secs(1) {
            assert_eq!(by_name["all"], by_connections["all"]);
        }
        let filtered = top(&["--filter", "t/ap"]);
        assert_eq!(names(&filtered), ["default/api"], "{filtered:#}");
        let table = run(&bed, &["top", "--once", "--limit", "1", "--endpoints"]).out;
        assert!(table.contains("\n  10.244.1.11:8080"), "{table}");
        assert!(table.ends_with("1 of 2 Services; --limit shows more\n"), "{table}");
    });
    proxy.stop().unwrap();
}

#[test]
fn a_terminal_shows_it_and_keys_sort_filter_and_end() {
    let bed = Bed::new();
    let proxy = start(&bed);
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let mut command = Command::new(program);
    command.arg("top");
    let mut terminal = Terminal::start(bed.node(), command).unwrap();
    let shows = |terminal: &Terminal, expected: &[&str]| {
        let shown = eventually(PATIENCE, "the screen shows it", || {
            let rows = rows(terminal);
            let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
            anyhow::ensure!(names == expected, "{:#?}", terminal.lines());
            Ok(rows)
        });
        shown.unwrap()
    };
    with_traffic(&bed, || {
        let busy = eventually(PATIENCE, "the screen shows traffic", || {
            let rows = rows(&terminal);
            let is_busy = rows.first().is_some_and(|(_, rate)| rate != "0");
            anyhow::ensure!(is_busy, "{:#?}", terminal.lines());
            Ok(())
        });
        busy.unwrap();
        shows(&terminal, &["default/web", "default/api"]);
        for _ in 0..3 {
            // Each key asks anew at once, and rates stay what they are.
            terminal.press("n").unwrap();
            let rows = shows(&terminal, &["default/api", "default/web"]);
            assert_ne!(rows[1].1, "0", "{:#?}", terminal.lines());
            terminal.press("b").unwrap();
            let rows = shows(&terminal, &["default/web", "default/api"]);
            assert_ne!(rows[0].1, "0", "{:#?}", terminal.lines());
        }
        assert!(terminal.lines()[0].contains("2 Services by bytes"), "{:#?}", terminal.lines());
        // Letters are the filter's now: `q` does not end it.
        terminal.press("/q").unwrap();
        shows(&terminal, &[]);
        terminal.press("\u{7f}web\r").unwrap();
        shows(&terminal, &["default/web"]);
        // Endpoints have the Services' order, and these two have all but the same rates.
        terminal.press("ne").unwrap();
        shows(&terminal, &["default/web", "10.244.1.11:8080", "10.244.2.11:8080"]);
    });
    assert!(terminal.is_taken());
    terminal.press("q").unwrap();
    let status = terminal.wait(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
    assert!(!terminal.is_taken(), "the screen is given back: {:#?}", terminal.lines());
    proxy.stop().unwrap();
}
