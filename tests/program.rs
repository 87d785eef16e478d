//! The program as an operator starts it: what it prints, and how it ends. Nothing here gets as far
//! as the kernel.

#![cfg(test)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kube-ipvs"));
    program.env_remove("RUST_LOG").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn config(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const HEAD: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";

#[test]
fn it_tells_its_version_and_its_flags() {
    let version = run(&["--version"]);
    assert!(version.status.success());
    assert!(text(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert!(text(&help.stdout).contains("--ipvs-scheduler"));
    assert_eq!(run(&["--no-such-flag"]).status.code(), Some(1));
}

#[test]
fn everything_that_is_wrong_with_the_settings_is_said_at_once() {
    let wrong = format!(
        "{HEAD}clusterCIDR: 10.0.0.0/99\noomScoreAdj: -2000\nbindAddress: nowhere\n\
         ipvs:\n  excludeCIDRs: [here]\n"
    );
    let file = config(&wrong);
    let output = run(&["--config", file.path().to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for field in ["ClusterCIDR", "OOMScoreAdj", "BindAddress", "ExcludeCidrs[0]"] {
        assert!(said.contains(field), "{field} is not in:\n{said}");
    }
}

#[test]
fn another_mode_is_refused_with_what_to_do() {
    let file = config(&HEAD.replace("ipvs", "nftables"));
    let output = run(&["--config", file.path().to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("nftables") && said.contains("ipvs"), "{said}");
}

#[test]
fn the_configuration_in_force_is_written_and_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written");
    let written = written.to_str().unwrap();
    let file = config(&format!("{HEAD}ipvs:\n  scheduler: wlc\n"));
    let output = run(&["--config", file.path().to_str().unwrap(), "--write-config-to", written]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let first = std::fs::read_to_string(written).unwrap();
    assert!(first.contains("scheduler: wlc"), "{first}");
    let again = folder.path().join("again");
    let output = run(&["--config", written, "--write-config-to", again.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(again).unwrap(), first);
}

#[test]
fn log_lines_are_json_if_wanted() {
    let arguments = ["--logging-format=json", "--iptables-sync-period=1m", "--kubeconfig=/no/such"];
    let output = run(&arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    assert!(last["message"].as_str().unwrap().contains("/no/such"), "{last}");
    // A flag of another mode is named.
    assert!(said.contains("iptables-sync-period"), "{said}");
}
