use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use plan::event::Event;

use super::*;

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n\
                       spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";

fn mk_scanner() -> (tempfile::TempDir, PathBuf, Scanner) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    let scanner = Scanner::new(directory.clone(), &Options::new("node1"));
    (root, directory, scanner)
}

/// Looks until nothing is pending any more. No file is written meanwhile, so no time has to pass.
fn scan_until_stable(scanner: &mut Scanner) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut warnings) = (vec![], vec![]);
    for _ in 0..3 {
        let scan = scanner.scan();
        events.extend(scan.outcome.events);
        warnings.extend(scan.outcome.warnings.iter().map(ToString::to_string));
        if !scan.pending {
            return (events, warnings);
        }
    }
    panic!("still pending");
}

#[test]
fn a_file_is_read_once_it_stays_as_it_is() {
    let (_root, directory, mut scanner) = mk_scanner();
    let file = directory.join("a.yaml");
    fs::write(&file, SERVICE).unwrap();
    assert!(scanner.scan().pending);
    // It grows: the half that was there is never looked into.
    fs::write(&file, format!("{SERVICE}---\n{}", SERVICE.replace("name: a", "name: b"))).unwrap();
    let scan = scanner.scan();
    assert!(scan.pending && scan.outcome.events.is_empty());
    let scan = scanner.scan();
    assert_eq!((scan.pending, scan.outcome.events.len()), (false, 2));
    assert!(scanner.scan().outcome.events.is_empty());
}

#[test]
fn a_file_that_is_moved_away_for_a_moment_is_not_gone() {
    let (_root, directory, mut scanner) = mk_scanner();
    let file = directory.join("a.yaml");
    fs::write(&file, SERVICE).unwrap();
    assert_eq!(scan_until_stable(&mut scanner).0.len(), 1);
    fs::rename(&file, directory.join("a.yaml~")).unwrap();
    assert!(scanner.scan().pending);
    fs::write(&file, format!("# edited\n{SERVICE}")).unwrap();
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]));
    fs::remove_file(&file).unwrap();
    assert!(matches!(scan_until_stable(&mut scanner).0.as_slice(), [Event::ServiceRemoved(_)]));
}

#[test]
fn which_files_are_manifests() {
    let (_root, directory, mut scanner) = mk_scanner();
    for (index, name) in
        ["a.yaml", "b.yml", "c.json", ".d.yaml", "e.yaml~", "f.txt", "yaml", "g.YAML"]
            .iter()
            .enumerate()
    {
        let service = SERVICE.replace("name: a", &format!("name: s{index}"));
        fs::write(directory.join(name), service).unwrap();
    }
    fs::create_dir(directory.join("h.yaml")).unwrap();
    symlink("nowhere", directory.join("i.yaml")).unwrap();
    let (events, warnings) = scan_until_stable(&mut scanner);
    assert_eq!((events.len(), warnings), (3, vec![]));
}

#[test]
fn unreadable_files() {
    let (_root, directory, mut scanner) = mk_scanner();
    let _socket = UnixListener::bind(directory.join("a.yaml")).unwrap();
    symlink("b.yaml", directory.join("b.yaml")).unwrap();
    File::create(directory.join("c.yaml")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    fs::write(directory.join("d.yaml"), SERVICE).unwrap();
    let (events, warnings) = scan_until_stable(&mut scanner);
    assert_eq!(events.len(), 1, "the other file goes on");
    let [socket, circle, large] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(socket.contains("a.yaml: cannot be read: it is not a regular file"), "{socket}");
    assert!(circle.contains("b.yaml: cannot be read: "), "{circle}");
    assert!(large.contains("c.yaml: cannot be read: it has 268435457 bytes"), "{large}");
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]), "said once");
}

#[test]
fn a_file_without_permission_is_read_once_it_has_it() {
    let (_root, directory, mut scanner) = mk_scanner();
    let file = directory.join("a.yaml");
    fs::write(&file, SERVICE).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let (mut events, warnings) = scan_until_stable(&mut scanner);
    // Root reads it nevertheless.
    if File::open(&file).is_err() {
        assert!(events.is_empty() && warnings[0].contains("cannot be read"), "{warnings:?}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    events.extend(scan_until_stable(&mut scanner).0);
    assert_eq!(events.len(), 1);
}

#[test]
fn a_directory_that_is_gone_takes_nothing_with_it() {
    let (root, directory, mut scanner) = mk_scanner();
    fs::write(directory.join("a.yaml"), SERVICE).unwrap();
    assert_eq!(scan_until_stable(&mut scanner).0.len(), 1);
    fs::rename(&directory, root.path().join("away")).unwrap();
    let (events, warnings) = scan_until_stable(&mut scanner);
    assert!(events.is_empty());
    assert!(warnings[0].ends_with("its former content stays in use"), "{warnings:?}");
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]), "said once");
    // There again, but still empty.
    fs::create_dir(&directory).unwrap();
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]));
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]));
    fs::write(directory.join("b.yaml"), SERVICE.replace("name: a", "name: b")).unwrap();
    let (events, _) = scan_until_stable(&mut scanner);
    assert_eq!(events.len(), 2, "b is there and a is gone: {events:?}");
    // From now on an empty directory means what it says.
    fs::remove_file(directory.join("b.yaml")).unwrap();
    assert_eq!(scan_until_stable(&mut scanner).0.len(), 1);
}

#[test]
fn another_directory_in_its_place_counts_once_it_holds_something() {
    let (root, directory, mut scanner) = mk_scanner();
    fs::write(directory.join("a.yaml"), SERVICE).unwrap();
    assert_eq!(scan_until_stable(&mut scanner).0.len(), 1);
    // As with a mount that goes away: never missing, but another one, and empty.
    fs::create_dir(root.path().join("below")).unwrap();
    fs::rename(&directory, root.path().join("mounted")).unwrap();
    fs::rename(root.path().join("below"), &directory).unwrap();
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]));
    fs::remove_dir(&directory).unwrap();
    fs::rename(root.path().join("mounted"), &directory).unwrap();
    assert_eq!(scan_until_stable(&mut scanner), (vec![], vec![]));
}
