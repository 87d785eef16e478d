//! Flags that kube-proxy had once: command lines that have them start this program too.

use clap::Arg;

/// A flag that is taken and told about, and has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Retired {
    name: &'static str,
    value: Value,
    /// Why it has no effect, and what to use instead.
    why: &'static str,
}

/// Form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// With `=`, if at all.
    Bool,
    /// With `=`, or as the next word.
    Text,
}

/// kube-proxy gave up those of its logging library (klog) in 1.26.
const LOGGING: &str = "the log goes to standard error only";
const USERSPACE: &str = "it was of kube-proxy's mode userspace";

/// In the order of their names.
const RETIRED: [Retired; 16] = [
    bool("add-dir-header", LOGGING),
    bool("alsologtostderr", LOGGING),
    bool("cleanup-ipvs", "--cleanup removes what is in IPVS, too"),
    text("conntrack-max", "use --conntrack-max-per-core and --conntrack-min"),
    text("log-backtrace-at", LOGGING),
    text("log-dir", LOGGING),
    text("log-file", LOGGING),
    text("log-file-max-size", LOGGING),
    bool("logtostderr", LOGGING),
    bool("one-output", LOGGING),
    text("proxy-port-range", USERSPACE),
    text("resource-container", "the kubelet decides about cgroups"),
    bool("skip-headers", LOGGING),
    bool("skip-log-headers", LOGGING),
    text("stderrthreshold", LOGGING),
    text("udp-timeout", USERSPACE),
];

const fn bool(name: &'static str, why: &'static str) -> Retired {
    Retired { name, value: Value::Bool, why }
}

const fn text(name: &'static str, why: &'static str) -> Retired {
    Retired { name, value: Value::Text, why }
}

/// These flags for clap, which does not show them in the help.
pub(super) fn arguments() -> impl Iterator<Item = Arg> {
    RETIRED.iter().map(|flag| {
        let arg = Arg::new(flag.name).long(flag.name).hide(true);
        match flag.value {
            Value::Bool => arg.value_name("BOOL").value_parser(super::go_bool),
            Value::Text => arg.value_name("TEXT"),
        }
    })
}

/// Why a flag has no effect, if it is one of these.
pub(crate) fn why(name: &str) -> Option<&'static str> {
    RETIRED.iter().find(|flag| flag.name == name).map(|flag| flag.why)
}
