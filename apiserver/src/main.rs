//! The API server as a program: for a test in another network namespace, which drives it by files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::{Credentials, Directory, Options, Server};
use clap::Parser;

/// Interval between looks at the directory.
const PERIOD: Duration = Duration::from_millis(100);

/// A Kubernetes API server for tests, with the objects of a directory.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The kubeconfig to write; its user has a client certificate.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The directory of objects: NAME.json, one object or a List, put there by rename.
    #[arg(long, value_name = "DIRECTORY")]
    objects: PathBuf,
    /// A further name or address for the server's certificate; may be given more than once.
    #[arg(long, value_name = "NAME")]
    san: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut options = Options { listen: arguments.listen, ..Options::default() };
    options.names.extend(arguments.san);
    let server = Server::start(options)?;
    let mut directory = Directory::new(arguments.objects);
    report(directory.poll(&server)?);
    let client = server.client_certificate("system:kube-proxy")?;
    write(&arguments.kubeconfig, &server.kubeconfig(&Credentials::Certificate(client)))?;
    println!("ready {}", server.url());
    loop {
        std::thread::sleep(PERIOD);
        report(directory.poll(&server)?);
    }
}

/// Writes by rename: who waits for the file never reads half of it.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

fn report(problems: Vec<String>) {
    for problem in problems {
        eprintln!("{problem}");
    }
}
