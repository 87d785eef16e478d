//! Rules that no compiler checks: which module may know which, how long files are, and that the
//! documents speak of files that exist.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a file that cannot be read is a failure like any other"
)]

use std::fs;
use std::path::{Path, PathBuf};

const LONGEST_FILE: usize = 500;
const DOCUMENTS: [&str; 26] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "docs/alerts.md",
    "docs/annotations.md",
    "docs/api-client.md",
    "docs/api-server-load.md",
    "docs/checked-against.md",
    "docs/compatibility.md",
    "docs/config.md",
    "docs/decisions.md",
    "docs/decoding.md",
    "docs/e2e-coverage.md",
    "docs/estimators.md",
    "docs/kernel-state.md",
    "docs/kernel-use.md",
    "docs/limits.md",
    "docs/memory.md",
    "docs/metrics.md",
    "docs/performance.md",
    "docs/privileges.md",
    "docs/replace-kube-proxy.md",
    "docs/service-addresses.md",
    "docs/traffic-policies.md",
];

/// Folders, each with what its files must not mention. Braces are among it because a grouped import
/// would hide what it imports from this test.
const SEPARATIONS: [(&str, &[&str]); 7] = [
    ("src/source", &["crate::kernel", "crate::reconcile", "crate::serve", "crate::{"]),
    ("src/kernel", &["crate::source", "crate::reconcile", "crate::serve", "crate::{"]),
    ("src/reconcile", &["crate::source", "crate::serve", "crate::{"]),
    // The kernel's words are in what the loop tells; nothing behind its port is.
    ("src/serve", &["crate::source", "crate::kernel::{", "crate::{"]),
    ("src/cleanup", &["crate::source", "crate::reconcile", "crate::serve", "crate::{"]),
    // It sees the planner and the loop's port for observers.
    (
        "src/localhost",
        &[
            "crate::events",
            "crate::app",
            "crate::config",
            "crate::kernel",
            "crate::serve",
            "crate::source",
            "crate::{",
            "reconcile::{",
        ],
    ),
    (
        "plan/src",
        &[
            "std::env",
            "std::fs",
            "std::io",
            "std::process",
            "std::thread",
            "std::time",
            "std::{",
            "TcpStream",
            "UdpSocket",
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Rust files below a folder of the workspace; there is at least one.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{folder} has no Rust files");
    files.sort();
    files
}

/// The root package and the workspace's members, as folders below the root.
fn crates() -> Vec<String> {
    let manifest = read(&root().join("Cargo.toml"));
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = [")?.strip_suffix(']'))
        .expect("the workspace's members, on one line");
    let members = members.split(',').map(|member| member.trim().trim_matches('"').to_owned());
    [".".to_owned()].into_iter().chain(members).collect()
}

/// True if a word in backticks names a file or a folder of this project.
fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let ending = [".md", ".rs", ".rules", ".sh", ".toml", ".yaml", "/"];
    word.chars().all(plain)
        && !word.starts_with('/')
        && (ending.iter().any(|ending| word.ends_with(ending)) || word == ".ci/run")
}

#[test]
fn what_is_kept_apart_stays_apart() {
    let mut found = Vec::new();
    for (folder, forbidden) in SEPARATIONS {
        for file in rust_files(folder) {
            for (index, line) in read(&file).lines().enumerate() {
                for word in forbidden.iter().filter(|word| line.contains(**word)) {
                    found.push(format!("{}:{}: {word}", file.display(), index + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_served_knows_the_kernels_port_and_no_adapter() {
    let port = read(&root().join("src/kernel/mod.rs"));
    let modules = port.lines().filter_map(|line| {
        line.strip_prefix("pub mod ").or(line.strip_prefix("mod "))?.strip_suffix(';')
    });
    let adapters: Vec<String> = modules.map(|name| format!("crate::kernel::{name}")).collect();
    assert!(adapters.contains(&"crate::kernel::linux".to_owned()), "{adapters:?}");
    let mut found = Vec::new();
    for file in rust_files("src/serve") {
        let text = read(&file);
        let known = adapters.iter().filter(|adapter| text.contains(*adapter));
        found.extend(known.map(|adapter| format!("{}: {adapter}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn planning_depends_on_nothing_that_could_do_anything() {
    let manifest = read(&root().join("plan/Cargo.toml"));
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let dependencies: Vec<&str> = rest
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(dependencies, ["ipnet", "thiserror"]);
}

#[test]
fn documents_name_files_that_exist() {
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = read(&root().join(document));
        // What stands between backticks is every second piece.
        let words: Vec<&str> =
            text.split('`').skip(1).step_by(2).filter(|word| is_path(word)).collect();
        assert!(!words.is_empty(), "{document} names no file");
        let absent = words.into_iter().filter(|word| !root().join(word).exists());
        missing.extend(absent.map(|word| format!("{document}: {word}")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn files_can_be_read_in_one_go() {
    let mut long = Vec::new();
    for folder in crates() {
        for file in rust_files(&format!("{folder}/src")) {
            let is_test = file.components().any(|part| {
                let part = part.as_os_str();
                part == "tests" || part == "tests.rs"
            });
            let length = read(&file).lines().count();
            if !is_test && length > LONGEST_FILE {
                long.push(format!("{}: {length} lines", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The file with the only system call that no crate has a safe form for.
const UNSAFE: &str = "netlink/src/option.rs";

#[test]
fn every_crate_has_the_same_lints_and_one_file_has_unsafe_code() {
    for folder in crates() {
        let manifest = read(&root().join(&folder).join("Cargo.toml"));
        assert!(manifest.contains("\n[lints]\nworkspace = true"), "{folder}/Cargo.toml");
        for file in rust_files(&format!("{folder}/src")) {
            // The lint that forbids it is lifted at one system call only.
            let is_lifted = read(&file).contains("unsafe_code");
            assert_eq!(is_lifted, file.ends_with(UNSAFE), "{}", file.display());
        }
    }
}
