//! The operator's console on a real node: what commands say, beside what the usual tools show.

mod connections;
mod diff;
mod drain;
mod events;
mod explain;
mod page;
mod preflight;
mod service;
mod status;
mod support_bundle;
mod top;
mod trace;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use crate::fixture::Bed;

/// Output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// The answer as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command of the console in the first node.
pub(crate) fn run(bed: &Bed, arguments: &[&str]) -> Said {
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    let output: Output =
        bed.node().enter(|| Command::new(program).args(arguments).output()).unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or_default()),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}
