//! A host that lacks something: kube-ipvs says what, and how to get it, and ends.
//!
//! The guest that runs this has just booted, and nothing has loaded IPVS yet.

#![cfg(test)]

use std::fs;
use std::process::{Command, Output};

fn kube_ipvs() -> Output {
    let folder = std::env::temp_dir();
    let program = std::env::var("KUBE_IPVS").unwrap();
    Command::new(program).arg("--manifests").arg(folder).output().unwrap()
}

#[test]
fn without_the_module_it_says_so_and_how_to_get_it() {
    let modules = format!(
        "/lib/modules/{}",
        fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim()
    );
    let loaded = fs::read_to_string("/proc/modules").unwrap();
    assert!(!loaded.contains("ip_vs"), "this test needs a kernel without IPVS:\n{loaded}");
    // Neither kube-ipvs nor the kernel itself can load a module now.
    let aside = format!("{modules}.aside");
    fs::rename(&modules, &aside).unwrap();
    let output = kube_ipvs();
    fs::rename(&aside, &modules).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("ip_vs"), "{text}");
    assert!(text.contains("modprobe"), "it says what to do:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
}
