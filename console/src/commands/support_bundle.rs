//! `kube-ipvs support-bundle`: one archive for finding out what is wrong.

use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use clap::{Args, CommandFactory as _, Parser as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{CommandLine, Session, written};
use crate::answers::Content;
use crate::answers::log::Log;
use crate::bundle::{Bundle, LONGEST_FILE, host, kernel};
use crate::client::Client;
use crate::outcome::{Failure, Verdict};
use crate::output::{Output, notable, table};
use crate::process;
use crate::secrets::scrubbed_value;
use node::preflight;

/// Folder that the container can write to, where the program has its socket.
const WRITABLE: &str = "/run/kube-ipvs";

/// Commands whose answers get into it, as far as this version has them.
const COMMANDS: [(&str, &[&str]); 7] = [
    ("status", &["status"]),
    ("services", &["services", "--all-namespaces"]),
    ("events", &["events", "--limit", "10000"]),
    ("diff", &["diff"]),
    ("connections", &["connections", "--limit", "1000"]),
    ("drains", &["drain"]),
    ("top", &["top", "--once"]),
];

/// Writes an archive for troubleshooting: output of the commands, kernel state, sysctls, versions,
/// and the configuration without secrets
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(
    after_help = "Example: kubectl -n kube-system exec POD -- kube-ipvs support-bundle -f - >node-7.tar.gz\n\n\
    Tokens, keys, passwords, client certificates, the contents of kubeconfigs and the environment \
    are left out. Addresses, and names of Services and nodes, are in it. Without a running \
    kube-ipvs, the archive has less in it."
)]
pub struct Arguments {
    /// File to write, readable by its owner only; - is stdout (default: a file in the working
    /// directory, or in /run/kube-ipvs if that is read-only)
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// The archive that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SupportBundle {
    file: String,
    /// Bytes of the file.
    bytes: u64,
    /// Files in the archive.
    files: usize,
    /// Files that are not in it, each with the reason.
    missing: Vec<MissingFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MissingFile {
    name: String,
    reason: String,
}

/// Bytes that were written. Clones share them.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let bundle = collected(session);
    let folder = folder_name();
    let failed = |place: &str, error: &io::Error| {
        Failure::NotWritten(format!(
            "cannot write the bundle to {place}: {error}; name another file, or - for stdout, with -f"
        ))
    };
    let is_stdout = arguments.file.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if is_stdout {
        let stdout = bundle.write_to(io::stdout().lock(), &folder).and_then(|mut it| it.flush());
        stdout.map_err(|error| failed("stdout", &error))?;
        return Ok(Verdict::Yes);
    }
    let name = PathBuf::from(format!("{folder}.tar.gz"));
    let beside = Path::new(WRITABLE).join(&name);
    let mut path = arguments.file.clone().unwrap_or(name);
    let mut bytes = bundle.write_file(&path, &folder);
    // The container's root is read-only.
    if arguments.file.is_none() && bytes.is_err() && Path::new(WRITABLE).is_dir() {
        path = beside;
        bytes = bundle.write_file(&path, &folder);
    }
    let place = path.display().to_string();
    let bytes = bytes.map_err(|error| failed(&place, &error))?;
    let missing = bundle.missing().map(|(name, why)| MissingFile::new(name, why));
    let answer = SupportBundle {
        file: place,
        bytes,
        files: bundle.files().count(),
        missing: missing.collect(),
    };
    written(session.output.show(answer, text))?;
    Ok(Verdict::Yes)
}

fn collected(session: &Session) -> Bundle {
    let mut bundle = Bundle::new(LONGEST_FILE);
    match session.client() {
        Err(failure) => bundle.add("answers", Err(failure.to_string())),
        Ok(client) => {
            for (name, answer) in answers(&client, session.options.socket.as_deref()) {
                bundle.add(&name, answer);
            }
        }
    }
    let running = process::find(process::PROC.as_ref());
    let process =
        running.as_ref().ok().and_then(|it| u32::try_from(it.pid.as_raw_nonzero().get()).ok());
    let configuration =
        running.map_err(anyhow::Error::from).and_then(|running| running.configuration());
    match &configuration {
        Ok(configuration) => {
            bundle.add("configuration.json", configured(configuration));
            let checks = preflight::run(configuration, "of the running kube-ipvs");
            bundle.add("preflight.json", pretty(&checks));
        }
        Err(error) => bundle.add("configuration.json", Err(format!("{error:#}"))),
    }
    kernel::add_to(&mut bundle);
    host::add_to(&mut bundle, &host::Root::default(), process);
    bundle
}

/// Returns the configuration in force, the flags, and the notes on them, without secrets.
fn configured(configuration: &config::Configuration) -> Result<String, String> {
    let in_force = configuration.to_configz().map_err(|error| error.to_string())?;
    let flags: serde_json::Map<String, serde_json::Value> = configuration
        .flags
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
        .collect();
    let all = serde_json::json!({
        "inForce": in_force,
        "flags": flags,
        "notes": configuration.notes,
    });
    pretty(&scrubbed_value(&all))
}

fn pretty(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

/// Returns the log and what the other commands answer. All are asked at once: a loop that does not answer is waited
/// for once.
fn answers(client: &Client, socket: Option<&Path>) -> Vec<(String, Result<String, String>)> {
    let is_there = |words: &[&str]| {
        words.first().is_some_and(|name| CommandLine::command().find_subcommand(name).is_some())
    };
    thread::scope(|scope| {
        let log = scope.spawn(|| {
            let log: Result<Log, Failure> = client.get("/v1/log", &[]);
            log.map(|log| log.text()).map_err(|failure| failure.to_string())
        });
        let commands = COMMANDS.into_iter().filter(|(_, words)| is_there(words));
        let asked = commands.map(|(name, words)| {
            (format!("answers/{name}.json"), scope.spawn(move || answer(socket, words)))
        });
        // Each is begun before the first is waited for.
        let asked: Vec<_> = iter::once(("log.txt".to_owned(), log)).chain(asked).collect();
        let ended = asked.into_iter().map(|(name, asked)| {
            let panicked = |_| Err("the command panicked; this is a bug".to_owned());
            (name, asked.join().unwrap_or_else(panicked))
        });
        ended.collect()
    })
}

/// Returns what another command answers, as JSON.
fn answer(socket: Option<&Path>, words: &[&str]) -> Result<String, String> {
    let words = ["kube-ipvs"].iter().chain(words).chain(&["-o", "json"]).copied();
    let parsed = CommandLine::try_parse_from(words).map_err(|error| error.to_string())?;
    let answer = Written::default();
    let mut inner = Session {
        options: super::Options { socket: socket.map(Path::to_owned), ..parsed.options },
        output: Output::json_to(Box::new(answer.clone())),
    };
    parsed.command.run(&mut inner).map_err(|failure| failure.to_string())?;
    answer.text()
}

/// Returns the name of the folder in the archive: `kube-ipvs-NODE-TIME`.
fn folder_name() -> String {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.');
    let node: String = node.chars().filter(|it| plain(*it)).collect();
    let time = Timestamp::try_from(SystemTime::now()).map_or_else(
        |_| String::new(),
        |now| format!("{now:.0}").chars().filter(char::is_ascii_alphanumeric).collect(),
    );
    format!("kube-ipvs-{node}-{time}")
}

fn text(answer: &SupportBundle) -> String {
    let SupportBundle { file, bytes, files, missing } = answer;
    let mut text = format!("wrote {file}: {files} files, {} KiB\n", bytes.div_ceil(1_024));
    if !missing.is_empty() {
        let rows = missing.iter().map(|it| [notable(&it.name), it.reason.clone()]);
        text += &format!("\n{}", table(&["NOT IN IT", "BECAUSE"], rows));
    }
    text
}

impl MissingFile {
    /// A file that is missing for this reason, which is a line.
    fn new(name: &str, reason: &str) -> Self {
        Self { name: name.to_owned(), reason: reason.replace('\n', " ") }
    }
}

impl Content for SupportBundle {
    const KIND: &'static str = "SupportBundle";
}

impl Written {
    fn text(&self) -> Result<String, String> {
        let mut bytes = self.0.lock();
        String::from_utf8(std::mem::take(&mut bytes)).map_err(|error| error.to_string())
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;
    use config::{Arguments as Flags, Configuration};

    #[test]
    fn no_secret_of_a_configuration_gets_in() {
        let secret = "hunter2hunter2";
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, format!("users: [{{user: {{token: {secret}}}}}]\n")).unwrap();
        let master = format!("https://admin:{secret}@10.0.0.1:6443");
        let flags = Flags {
            master: Some(master.clone()),
            given: vec![
                ("master".to_owned(), vec![master]),
                ("kubeconfig".to_owned(), vec![kubeconfig.display().to_string()]),
            ],
            ..Flags::default()
        };
        let mut configuration = Configuration::load(&flags).unwrap();
        configuration.notes.push(format!("ignored: --token {secret}"));
        let mut bundle = Bundle::new(LONGEST_FILE);
        bundle.add("configuration.json", configured(&configuration));
        assert_eq!(bundle.missing().count(), 0);
        let texts = bundle.texts().collect::<Vec<_>>();
        assert!(texts.iter().all(|(_, text)| !text.contains(secret)), "{texts:?}");
        // What matters is in it.
        let (_, text) = texts[0];
        assert!(text.contains("https://(left out)@10.0.0.1:6443"), "{text}");
        assert!(text.contains(kubeconfig.to_str().unwrap()), "{text}");
        assert!(text.contains("\"scheduler\""), "{text}");
    }

    #[test]
    fn all_answers_are_asked_for_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let asked = 1 + COMMANDS.len();
        // No question is answered before all are there.
        let program = thread::spawn(move || {
            let begun = Instant::now();
            let mut open = Vec::new();
            while open.len() < asked && begun.elapsed() < Duration::from_secs(20) {
                match listener.accept() {
                    Ok((stream, _)) => open.push(stream),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
            open.len()
        });
        let client = Client::find(Some(&socket)).unwrap();
        let answers = answers(&client, Some(&socket));
        assert_eq!(program.join().unwrap(), asked);
        let names: Vec<&str> = answers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..3], ["log.txt", "answers/status.json", "answers/services.json"]);
        assert!(answers.iter().all(|(_, answer)| answer.is_err()), "{answers:?}");
    }

    #[test]
    fn people_read_where_it_is_and_what_is_not_in_it() {
        let missing = vec![MissingFile::new("answers", "no\nanswer")];
        let answer = SupportBundle { file: "x.tar.gz".to_owned(), bytes: 2_049, files: 3, missing };
        let plain = anstream::adapter::strip_str(&text(&answer)).to_string();
        assert_eq!(
            plain,
            "wrote x.tar.gz: 3 files, 3 KiB\n\nNOT IN IT   BECAUSE\nanswers     no answer\n"
        );
        assert!(folder_name().starts_with("kube-ipvs-"));
    }
}
