//! The program as an operator starts it: what it prints, and how it ends. Nothing here gets as far
//! as the kernel.

#![cfg(test)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

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
    let help = text(&help.stdout);
    let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
    assert!(
        place("  status ") < place("  switch ") && place("  switch ") < place("--ipvs-scheduler")
    );
    assert_eq!(run(&["--no-such-flag"]).status.code(), Some(1));
}

#[test]
fn the_examples_are_planned_without_a_kernel() {
    let words = ["plan", "-f", "deploy/examples/", "--", "--hostname-override=node1"];
    let output = run(&words);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}{said}", text(&output.stderr));
    let line = said.lines().find(|it| it.contains(" virtual server TCP 10.96.0.10:80 ")).unwrap();
    assert!(line.starts_with("add ") && line.ends_with("default/web"), "{line}");
    assert!(said.contains("real server 10.244.2.11:5353 of UDP 10.96.0.53:53"), "{said}");
    let missing = run(&["plan", "-f", "/nowhere.yaml"]);
    assert!(missing.status.code() == Some(2), "{missing:?}");
    assert!(text(&missing.stderr).contains("/nowhere.yaml"), "{missing:?}");
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

/// Answers one question at a socket with these fields, if it is asked for that.
fn answer(socket: &Path, asked: &'static str, fields: &'static str) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1_024];
        let length = stream.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        assert!(request.contains(asked), "{request}");
        let body = format!("{{\"apiVersion\":\"kube-ipvs.io/console/v1\",{fields}}}");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    })
}

/// Has a bash complete the last of these words.
fn completed_by_bash(words: &str) -> String {
    let script = "source <(kube-ipvs completion bash)\n\
        read -ra COMP_WORDS <<< \"$WORDS\"\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n\
        COMP_LINE=$WORDS COMP_POINT=${#WORDS} COMP_TYPE=9\n\
        function=$(complete -p kube-ipvs | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
        $function kube-ipvs \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"\n\
        printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    completed_by("bash", &["--norc", "-c", script], words, "")
}

/// Has a shell that finds the program complete the last of `WORDS`, which may be `EXPECTED`.
fn completed_by(shell: &str, arguments: &[&str], words: &str, expected: &str) -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_kube-ipvs")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(shell);
    command.args(arguments).env("PATH", path).env("HOME", home.path());
    let output = command.env("WORDS", words).env("EXPECTED", expected).output();
    let output =
        output.unwrap_or_else(|error| panic!("{shell}: {error}; `cargo xtask test` installs it"));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Names and an endpoint, each of one question, which zsh and fish complete.
const ANSWERS: [(&str, &str, &str, &str); 3] = [
    (
        "service shop/c",
        "prefix=shop%2Fc",
        "\"kind\":\"Names\",\"names\":[\"shop/cart\"]",
        "shop/cart",
    ),
    ("services -n sh", "of=namespaces", "\"kind\":\"Names\",\"names\":[\"shop\"]", "shop"),
    // A colon would begin a description in zsh.
    ("undrain 10.1", "/v1/drains", DRAINS, "10.1.0.7:8080"),
];

const DRAINS: &str = r#""kind":"Drains","drains":[{"target":{"address":"10.1.0.7","port":8080},"endpoints":"","secondsLeft":60}]"#;

/// Has a shell complete words that it knows, and some that the program at a socket knows.
fn assert_completes(completed: impl Fn(&str, &str) -> String) {
    let said = completed("kube-ipvs stat", "status");
    assert!(said.contains("status"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    for (number, (words, asked, answered, expected)) in ANSWERS.into_iter().enumerate() {
        let socket = folder.path().join(number.to_string());
        let server = answer(&socket, asked, answered);
        let line = format!("kube-ipvs --socket {} {words}", socket.display());
        let said = completed(&line, expected);
        assert!(said.contains(expected), "{words}: {said}");
        server.join().unwrap();
    }
}

#[test]
fn an_interactive_zsh_completes_words_and_names() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/completed.zsh");
    assert_completes(|words, expected| completed_by("zsh", &["-f", script], words, expected));
}

#[test]
fn fish_completes_words_and_names() {
    let script = "kube-ipvs completion fish | source; complete --do-complete $WORDS";
    let arguments = ["--no-config", "-c", script];
    assert_completes(|words, expected| completed_by("fish", &arguments, words, expected));
}

#[test]
fn bash_completes_commands_and_asks_the_program_at_the_named_socket_for_names() {
    assert_eq!(completed_by_bash("kube-ipvs stat").trim(), "status");
    let folder = tempfile::tempdir().unwrap();
    let at = |number: u8| folder.path().join(number.to_string());
    let names = r#""kind":"Names","names":["shop/cart","shop/code"]"#;
    let server = answer(&at(1), "prefix=shop%2Fc", names);
    let line = format!("kube-ipvs --socket {} service shop/c", at(1).display());
    assert_eq!(completed_by_bash(&line), "shop/cart\nshop/code\n");
    server.join().unwrap();
    let server = answer(&at(2), "of=namespaces&prefix=sh", r#""kind":"Names","names":["shop"]"#);
    let line = format!("kube-ipvs --socket {} services -n sh", at(2).display());
    assert_eq!(completed_by_bash(&line).trim(), "shop");
    server.join().unwrap();
}

#[test]
fn a_failure_is_json_where_json_is_asked_for() {
    for (words, code, reason, message) in [
        (&["status", "--socket=/nowhere/x", "-o", "json"][..], 3, "Unavailable", "/nowhere/x"),
        (&["statsu", "-o", "json"], 2, "BadRequest", "statsu"),
    ] {
        let output = run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(output.stdout.is_empty());
        let failure: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(failure["kind"], "Failure", "{said}");
        assert_eq!(failure["reason"], reason, "{said}");
        assert!(failure["message"].as_str().unwrap().contains(message), "{said}");
    }
}

/// The command lines of this program in a document: in its blocks of code, and in backticks.
fn command_lines(document: &str) -> Vec<Vec<String>> {
    let (mut is_code, mut lines) = (false, Vec::new());
    for line in document.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            lines.push(line.trim().to_owned());
        } else {
            lines.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    lines.iter().filter_map(|line| command_line(line)).collect()
}

/// The words behind the program's name, if a line runs it, up to its end or to flags for a start.
fn command_line(line: &str) -> Option<Vec<String>> {
    let mut words = line.trim_start_matches(['$', '#', ' ']).split_whitespace().peekable();
    let is_program =
        |word: &str| ["/usr/local/bin/kube-ipvs", "target/release/kube-ipvs"].contains(&word);
    let mut before = "--";
    let found = words.by_ref().find(|word| {
        let runs = is_program(word) || (*word == "kube-ipvs" && before == "--");
        before = word;
        runs
    });
    found?;
    let rest = words.take_while(|word| !["|", "#", ">", "--"].contains(word));
    Some(rest.map(|word| word.trim_matches(['[', ']', '…']).to_owned()).collect())
}

#[test]
fn the_documents_have_commands_and_flags_that_there_are() {
    let docs = std::fs::read_dir("docs").unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|it| it == "md"));
    let mut checked = 0;
    for page in pages.chain([Path::new("README.md").to_owned()]) {
        for words in command_lines(&std::fs::read_to_string(&page).unwrap()) {
            let is_command =
                |word: &&String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let command = words.first().filter(is_command).filter(|it| !it.starts_with('-'));
            let help: Vec<&str> =
                command.map(String::as_str).into_iter().chain(["--help"]).collect();
            let help = run(&help);
            assert!(help.status.success(), "{}: {words:?}", page.display());
            let help = text(&help.stdout);
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split('=').next().unwrap();
                assert!(help.contains(flag), "{}: {words:?} has {flag}", page.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked} flags");
}

#[test]
fn command_lines_are_found() {
    let page = "`kube-ipvs status` of\n```sh\nkubectl exec POD -- kube-ipvs sets --x | wc\nhelm install kube-ipvs deploy\n```\n";
    assert_eq!(command_lines(page), [vec!["status"], vec!["sets", "--x"]]);
}
