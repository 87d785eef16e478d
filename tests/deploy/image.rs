//! The recipe of the image.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{read, root};

/// The instructions of the Containerfile, continued lines joined.
fn instructions() -> Vec<String> {
    let text = read("deploy/image/Containerfile").replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_image_is_pinned_and_starts_the_program_without_a_shell() {
    let instructions = instructions();
    let known = ["ARG", "ENV", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENTRYPOINT"];
    for line in &instructions {
        assert!(known.contains(&line.split(' ').next().unwrap()), "{line}");
        if let Some(default) = line.strip_prefix("ARG ")
            && default != "COMMIT="
        {
            let (_, tag) = default.split_once('=').expect("a default");
            assert!(tag.starts_with(|first: char| first.is_ascii_digit()), "{line}");
        }
        if let Some(base) = line.strip_prefix("FROM ") {
            assert!(base.contains(":${"), "{line}: no tag");
        }
    }
    let has = |line: &str| instructions.iter().any(|one| one == line);
    assert!(has("ENTRYPOINT [\"/usr/local/bin/kube-ipvs\"]"));
    assert!(has("COPY --from=build /out/kube-ipvs /usr/local/bin/kube-ipvs"));
    assert!(has("RUN ln -s kube-ipvs /usr/local/bin/kube-proxy"));
    // The compiler that the image uses must not be older than what the workspace asks for.
    let minor = |text: &str| text.split('.').nth(1).unwrap().parse::<u32>().unwrap();
    let compiler = instructions.iter().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    assert!(minor(compiler) >= minor(env!("CARGO_PKG_RUST_VERSION")), "{compiler}");
}

#[test]
fn what_is_copied_into_the_image_is_a_whole_workspace() {
    let folder = tempfile::tempdir().unwrap();
    for line in instructions() {
        let Some(words) = line.strip_prefix("COPY ").filter(|line| !line.starts_with("--")) else {
            continue;
        };
        let words: Vec<&str> = words.split(' ').collect();
        let (target, sources) = words.split_last().unwrap();
        for source in sources {
            let target = if *target == "./" { source } else { target };
            copy(&root().join(source), &folder.path().join(target));
        }
    }
    // `cargo metadata` leaves out a test or a measurement whose file is missing; building does not.
    let copied = targets(folder.path());
    assert!(copied.len() > 20, "{copied:?}");
    assert_eq!(copied, targets(root()));
}

/// All that can be built in a workspace: package, then target.
fn targets(workspace: &Path) -> BTreeSet<(String, String)> {
    let answer = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version=1"])
        .current_dir(workspace)
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let name = |value: &Value| value.get("name").and_then(Value::as_str).unwrap().to_owned();
    let packages = metadata.get("packages").and_then(Value::as_array).unwrap();
    packages
        .iter()
        .flat_map(|package| {
            let targets = package.get("targets").and_then(Value::as_array).unwrap();
            targets.iter().map(|target| (name(package), name(target)))
        })
        .collect()
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        copy(&path, &to.join(path.file_name().unwrap()));
    }
}
