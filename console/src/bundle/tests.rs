use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use flate2::read::GzDecoder;
use tar::Archive;

use super::*;

/// Returns the files of an archive with their texts.
fn unpacked(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut archive = Archive::new(GzDecoder::new(bytes));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    entries.collect()
}

#[test]
fn everything_is_below_one_folder_and_the_index_says_what_is_missing() {
    let mut bundle = Bundle::new(LONGEST_FILE);
    bundle.add("answers/status.json", Ok("{}".to_owned()));
    bundle.add("kernel/ipvs.txt", Err("no IPVS; --token=abc".to_owned()));
    let files = unpacked(&bundle.write_to(Vec::new(), "of-node").unwrap());
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["of-node/answers/status.json", "of-node/index.txt"]);
    let index = &files["of-node/index.txt"];
    assert!(index.contains("answers/status.json (2 bytes)"), "{index}");
    assert!(index.contains("kernel/ipvs.txt: no IPVS; --token=(left out)"), "{index}");
}

#[test]
fn no_secret_gets_in_by_any_text() {
    let mut bundle = Bundle::new(LONGEST_FILE);
    bundle.add("a.txt", Ok("Authorization: Bearer hunter2\n".to_owned()));
    let files = unpacked(&bundle.write_to(Vec::new(), "x").unwrap());
    assert_eq!(files["x/a.txt"], "Authorization: Bearer (left out)\n");
}

#[test]
fn the_file_is_for_its_owner_alone_and_a_long_text_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.tar.gz");
    let mut bundle = Bundle::new(9);
    bundle.add("long.txt", Ok("ä".repeat(9)));
    let length = bundle.write_file(&path, "x").unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (0o600, length));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let files = unpacked(&fs::read(&path).unwrap());
    let long = &files["x/long.txt"];
    assert_eq!(long, "ääää\n… 10 more bytes are left out\n");
    let nowhere = folder.path().join("no/such/folder.tar.gz");
    assert!(bundle.write_file(&nowhere, "x").is_err());
}

#[test]
fn the_host_is_read_without_the_environment_of_the_program() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for (path, text) in [
        ("proc/sys/net/ipv4/vs/conntrack", "1\n"),
        ("proc/sys/net/ipv4/ip_forward", "0\n"),
        ("proc/sys/net/ipv4/conf/all/arp_ignore", "3\n"),
        ("proc/version", "Linux version 6.12\n"),
        ("proc/7/status", "Name:\tkube-ipvs\n"),
        ("proc/7/cmdline", "kube-ipvs\0--token=hunter2\0--v=2\0"),
        ("proc/7/environ", "PASSWORD=hunter2\0"),
        ("sys/module/ip_vs/version", "1\n"),
        ("sys/module/e1000/version", "2\n"),
        ("etc/os-release", "ID=x\n"),
    ] {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), text).unwrap();
    }
    let mut bundle = Bundle::new(LONGEST_FILE);
    let folders = host::Root { proc: at("proc"), sys: at("sys"), etc: at("etc") };
    host::add_to(&mut bundle, &folders, Some(7));
    let files = unpacked(&bundle.write_to(Vec::new(), "x").unwrap());
    assert_eq!(
        files["x/host/sysctls.txt"],
        "net.ipv4.conf.all.arp_ignore = 3\nnet.ipv4.ip_forward = 0\nnet.ipv4.vs.conntrack = 1\n"
    );
    assert_eq!(files["x/host/modules.txt"], "ip_vs 1\n");
    assert_eq!(files["x/process/cmdline"], "kube-ipvs --token=(left out) --v=2 ");
    assert!(files.values().all(|text| !text.contains("hunter2")));
    // What this kernel does not have is named, but for tables that come and go with it.
    assert!(bundle.missing().any(|(name, _)| name == "process/limits"));
    assert!(!bundle.missing().any(|(name, _)| name.starts_with("host/proc")));
}
