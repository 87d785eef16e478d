//! Rules that no compiler checks: which module may know which, that imports have no cycles, how long
//! files are, that the documents speak of files that exist, and that their links lead somewhere.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, a file that cannot be read is a failure like any other"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/markdown.rs"]
mod markdown;
#[path = "tidy/translation.rs"]
mod translation;

const LONGEST_FILE: usize = 800;
/// Words that a file of the planner must not have: it has no I/O and no clock. Braces are among them because a grouped
/// import would hide what it imports from this test. What else is kept apart are crates.
const IMPURE: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::process",
    "std::thread",
    "std::time",
    "std::{",
    "TcpStream",
    "UdpSocket",
];

/// Source folders of the crates whose top-level modules import each other in one direction only.
const WITHOUT_CYCLES: [&str; 11] = [
    "plan/src",
    "source/src",
    "config/src",
    "syntax/src",
    "kernel/src",
    "reconcile/src",
    "serve/src",
    "forwarding/src",
    "node/src",
    "console/src",
    "src",
];

/// The top-level modules that each top-level module of a crate mentions, with the file and line.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

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

/// True if a line makes what follows it code for tests alone.
fn is_for_tests(line: &str) -> bool {
    ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|begin| line.trim_start().starts_with(begin))
}

/// The lines of a file with their numbers, without comments and code for tests.
fn program_lines(text: &str) -> Vec<(usize, &str)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = Vec::new();
    let mut rest = (1..).zip(text.lines());
    while let Some((number, line)) = rest.next() {
        if is_for_tests(line) {
            // rustfmt puts the end of an item below its beginning.
            let ends = |next: &str| indent(next) == indent(line) && next.ends_with([';', ',', '}']);
            rest.find(|(_, next)| ends(next));
        } else {
            lines.push((number, line.split("//").next().unwrap_or_default()));
        }
    }
    lines
}

/// The modules that a file declares for tests alone, as paths without the ending `.rs`.
fn test_modules(file: &Path, text: &str) -> Vec<PathBuf> {
    let stem = file.file_stem().unwrap();
    let is_root = ["lib", "main", "mod"].iter().any(|root| stem == *root);
    let folder = if is_root { file.parent().unwrap().to_owned() } else { file.with_extension("") };
    let pairs = text.lines().zip(text.lines().skip(1));
    let declared = pairs.filter(|(line, _)| is_for_tests(line));
    let names = declared.filter_map(|(_, next)| next.strip_suffix(';')?.split("mod ").nth(1));
    names.map(|name| folder.join(name)).collect()
}

/// Mentions of `crate::MODULE`, or of `super::MODULE` in the file of a top-level module, in the files of other
/// top-level modules, but for tests.
fn imports(folder: &str) -> Imports {
    let files: Vec<(PathBuf, String)> =
        rust_files(folder).into_iter().map(|file| (file.clone(), read(&file))).collect();
    let for_tests: Vec<PathBuf> =
        files.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    let mut imports = Imports::new();
    for (file, text) in &files {
        let path = file.with_extension("");
        let below = path.strip_prefix(root().join(folder)).unwrap();
        let module = below.iter().next().and_then(|name| name.to_str()).unwrap();
        let is_test = for_tests.iter().any(|module| path.starts_with(module));
        if is_test || ["lib", "main"].contains(&module) {
            continue;
        }
        let mentioned = imports.entry(module.to_owned()).or_default();
        for (number, line) in program_lines(text) {
            let place = format!("{}:{number}", file.display());
            // Types of the crate's root may be grouped. Modules would hide from this test.
            let grouped = line.split("crate::{").skip(1);
            let hides = grouped.into_iter().any(|names| !names.starts_with(char::is_uppercase));
            assert!(!hides, "{place}: a grouped import hides from this test");
            let roots: &[&str] =
                if below.iter().count() == 1 { &["crate::", "super::"] } else { &["crate::"] };
            for after in roots.iter().flat_map(|from| line.split(from).skip(1)) {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = after.split_at(end.unwrap_or(after.len())).0;
                if name != module {
                    mentioned.entry(name.to_owned()).or_insert_with(|| place.clone());
                }
            }
        }
    }
    imports
}

/// Modules of which each imports the next one, and the last one the first one; none: there is no
/// cycle.
fn cycle(imports: &Imports) -> Option<Vec<&str>> {
    fn visit<'a>(
        module: &'a str,
        imports: &'a Imports,
        path: &mut Vec<&'a str>,
        visited: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<&'a str>> {
        if let Some(at) = path.iter().position(|former| *former == module) {
            return Some(path.split_off(at));
        }
        if !visited.insert(module) {
            return None;
        }
        path.push(module);
        let mut next = imports.get(module).into_iter().flat_map(BTreeMap::keys);
        let found = next.find_map(|next| visit(next, imports, path, visited));
        path.pop();
        found
    }
    let mut visited = BTreeSet::new();
    imports.keys().find_map(|module| visit(module, imports, &mut Vec::new(), &mut visited))
}

#[test]
fn the_planner_is_pure() {
    let mut found = Vec::new();
    for file in rust_files("plan/src") {
        for (index, line) in read(&file).lines().enumerate() {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                found.push(format!("{}:{}: {word}", file.display(), index + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_served_knows_the_kernels_port_and_no_adapter() {
    let port = read(&root().join("kernel/src/lib.rs"));
    let modules = port.lines().filter_map(|line| {
        line.strip_prefix("pub mod ").or(line.strip_prefix("mod "))?.strip_suffix(';')
    });
    let adapters: Vec<String> = modules.map(|name| format!("kernel::{name}")).collect();
    assert!(adapters.contains(&"kernel::linux".to_owned()), "{adapters:?}");
    let mut found = Vec::new();
    for file in rust_files("serve/src") {
        let text = read(&file);
        let known = adapters.iter().filter(|adapter| text.contains(*adapter));
        found.extend(known.map(|adapter| format!("{}: {adapter}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn top_level_modules_import_each_other_in_one_direction() {
    for folder in WITHOUT_CYCLES {
        let imports = imports(folder);
        let Some(cycle) = cycle(&imports) else { continue };
        let edges = cycle.iter().zip(cycle.iter().cycle().skip(1)).map(|(module, next)| {
            let place = imports.get(*module).and_then(|imported| imported.get(*next)).unwrap();
            format!("{module} imports {next}: {place}")
        });
        let edges: Vec<String> = edges.collect();
        panic!("{folder} has a cycle of imports:\n{}", edges.join("\n"));
    }
}

#[test]
fn a_cycle_of_imports_is_found() {
    let imports = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (module, next) in edges {
            imports
                .entry((*module).to_owned())
                .or_default()
                .insert((*next).to_owned(), String::new());
        }
        imports
    };
    let tree = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")];
    assert_eq!(cycle(&imports(&tree)), None);
    assert_eq!(cycle(&imports(&[&tree[..], &[("d", "b")]].concat())), Some(vec!["b", "d"]));
    let text =
        "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\nfn f() {} // crate::c";
    assert_eq!(program_lines(text), [(1, "use crate::a;"), (6, "fn f() {} ")]);
    let declared = "#[cfg(test)]\npub(crate) mod fixtures;\nmod a;";
    let expected = [PathBuf::from("src/fixtures")];
    assert_eq!(test_modules(Path::new("src/lib.rs"), declared), expected);
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
    assert_eq!(dependencies, ["data-encoding", "foldhash", "ipnet", "sha2", "thiserror"]);
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

/// The files with the system calls that no crate of ours has a safe form for.
const UNSAFE: [&str; 3] = [
    "netlink/src/datagrams.rs",
    "netlink/src/option.rs",
    "source/src/kubernetes/exec_plugin/process.rs",
];

#[test]
fn every_crate_has_the_same_lints_and_three_files_have_unsafe_code() {
    for folder in crates() {
        let manifest = read(&root().join(&folder).join("Cargo.toml"));
        assert!(manifest.contains("\n[lints]\nworkspace = true"), "{folder}/Cargo.toml");
        for file in rust_files(&format!("{folder}/src")) {
            // The lint that forbids it is lifted at system calls, and for the structure that one takes.
            let is_lifted = read(&file).contains("unsafe_code");
            let is_known = UNSAFE.iter().any(|known| file.ends_with(known));
            assert_eq!(is_lifted, is_known, "{}", file.display());
        }
    }
}
