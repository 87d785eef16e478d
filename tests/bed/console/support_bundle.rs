//! `kube-ipvs support-bundle`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::run;
use crate::fixture::{Bed, web};

/// A file of an archive, by the end of its name.
fn file(archive: &Path, name: &str) -> String {
    let archive = archive.to_str().unwrap();
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar").args(arguments).output().unwrap();
        assert!(output.status.success(), "tar {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = tar(&["-tzf", archive]);
    let name = names.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{names}"));
    tar(&["-xzOf", archive, name])
}

#[test]
fn it_has_answers_and_dumps_with_the_program_and_dumps_without() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&["--master=https://admin:hunter2hunter2@192.0.2.1:6443"]);
    let path = std::env::temp_dir().join("bundle.tar.gz");
    let written = run(&bed, &["support-bundle", "-f", path.to_str().unwrap(), "-o", "json"]);
    assert_eq!(written.code, 0, "{written:?}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let status: serde_json::Value =
        serde_json::from_str(&file(&path, "answers/status.json")).unwrap();
    assert_eq!(status["kind"], "Status");
    let log = file(&path, "log.txt");
    assert!(log.contains("kube-ipvs starts") && log.contains("in sync with the kernel"), "{log}");
    let dumped = file(&path, "kernel/ipvs.txt");
    for line in bed.virtual_servers().lines().filter(|line| line.contains("->")).skip(1) {
        let socket = line.split_whitespace().nth(1).unwrap();
        assert!(dumped.contains(&format!("-> {socket} ")), "{socket}: {dumped}");
    }
    let sets = file(&path, "kernel/ipset.txt");
    for entry in bed.entries() {
        assert!(sets.contains(&format!("add {entry}")), "{entry}: {sets}");
    }
    assert!(file(&path, "host/sysctls.txt").contains("net.ipv4.vs.conntrack = 1"));
    let unpacked = Command::new("tar").args(["-xzOf", path.to_str().unwrap()]).output().unwrap();
    let everything = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    assert!(everything.contains("--master=https://(left out)@192.0.2.1:6443"), "the command line");
    assert!(!everything.contains("hunter2"));
    proxy.stop().unwrap();
    let without = run(&bed, &["support-bundle", "-f", path.to_str().unwrap()]);
    assert!(without.code == 0 && without.out.contains("no kube-ipvs runs"), "{without:?}");
    assert!(file(&path, "kernel/ipvs.txt").contains("10.96.0.10:80"));
}
