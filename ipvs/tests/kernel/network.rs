//! A network namespace for one test.

use std::path::Path;
use std::process::Command;

use ipvs::{Client, Counter, Namespace};

/// A fresh network namespace; it is deleted at the end.
pub(crate) struct Network {
    name: String,
}

impl Network {
    /// With the loopback interface up, without which the kernel takes no real server.
    pub(crate) fn new(label: &str) -> Self {
        let network = Self::silent(label);
        network.ip("link set lo up");
        network
    }

    /// With every interface down.
    pub(crate) fn silent(label: &str) -> Self {
        // Linux 5.10 does not load the module by itself.
        run("modprobe", &["ip_vs"]);
        let name = format!("ipvs-{}-{label}", std::process::id());
        run("ip", &["netns", "add", &name]);
        Self { name }
    }

    pub(crate) fn client(&self) -> Client {
        Client::open_in(&self.handle()).expect("IPVS in a fresh network namespace")
    }

    pub(crate) fn counter(&self) -> Counter {
        Counter::open_in(&self.handle()).expect("a socket in a fresh network namespace")
    }

    /// Runs `work` inside.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.handle().run(work).expect("enter the network namespace")
    }

    /// Runs `ip` on the namespace; the arguments are divided by blanks.
    pub(crate) fn ip(&self, arguments: &str) {
        let arguments: Vec<&str> =
            ["-n", &self.name].into_iter().chain(arguments.split(' ')).collect();
        run("ip", &arguments);
    }

    /// Runs ipvsadm and returns its output; the arguments are divided by blanks.
    pub(crate) fn ipvsadm(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = ["netns", "exec", &self.name, "ipvsadm"]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        run("ip", &arguments)
    }

    /// The lines of `ipvsadm -S -n`, sorted: the configuration as commands.
    pub(crate) fn saved(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.ipvsadm("-S -n").lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    }

    fn handle(&self) -> Namespace {
        Namespace::at(&Path::new("/run/netns").join(&self.name)).expect("the namespace just made")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        run("ip", &["netns", "delete", &self.name]);
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).expect("text")
}
