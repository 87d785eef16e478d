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

/// Runs the command in a container whose root is read-only, below which this is mounted at `/run`.
fn in_container(bed: &Bed, run: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let script = format!(
        "set -e; mount --rbind / /mnt; mount -o remount,bind,ro /mnt; {run}; exec chroot /mnt \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "container", &program, "support-bundle"]);
    let output = bed.node().enter(|| command.args(arguments).output()).unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_read_only_root_has_it_in_the_sockets_folder_or_on_stdout_or_not_at_all() {
    let bed = Bed::new();
    let read_only = "mount -t tmpfs none /mnt/run; mkdir -p /mnt/run/kube-ipvs; \
                     mount -o remount,ro /mnt/run";
    let (code, _, err) = in_container(&bed, read_only, &[]);
    let words = ["cannot write the bundle to /run/kube-ipvs/", "Read-only file system", "with -f"];
    assert!(code == Some(6) && words.iter().all(|word| err.contains(word)), "{code:?} {err}");
    let (code, _, err) = in_container(&bed, read_only, &["-f", "/node.tar.gz"]);
    let words = ["cannot write the bundle to /node.tar.gz: Read-only file system"];
    assert!(code == Some(6) && words.iter().all(|word| err.contains(word)), "{code:?} {err}");
    let (code, out, err) = in_container(&bed, read_only, &["-f", "-"]);
    assert!(code == Some(0) && out.len() > 1_000, "{code:?} {err}");
    let writable = "mount -t tmpfs none /mnt/run; mkdir -p /mnt/run/kube-ipvs";
    let (code, out, err) = in_container(&bed, writable, &[]);
    assert!(code == Some(0) && out.starts_with("wrote /run/kube-ipvs/kube-ipvs-"), "{out} {err}");
}
