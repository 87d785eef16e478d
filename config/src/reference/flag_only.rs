//! Flags that are no field of a document, and flags that kube-proxy had once.

use crate::setting::Effect::{self, Does, Nothing};
use crate::setting::Heading::{Actions, ApiServer, NoEffect, Options, Serving};
use crate::setting::Setting;

const LIBRARY: &str = "it belongs to a library of kube-proxy";
/// kube-proxy gave up those of its logging library (klog) in 1.26.
const STANDARD_ERROR: &str = "the log goes to standard error only";

/// Flags that are no field, in the order of their names.
pub const FLAGS_ONLY: [Setting; 12] = [
    only(Nothing(LIBRARY))
        .flag("boot-id-file", "FILE,...", NoEffect)
        .default("/proc/sys/kernel/random/boot_id"),
    only(Does("Removes all kernel state of this program and of kube-proxy, and ends"))
        .flag("cleanup", "BOOL", Actions)
        .default("false")
        .with_config(),
    only(Does(
        "Reads the configuration from this file: a KubeProxyConfiguration, as kube-proxy has it, \
         and after it, if there is one, a KubeIpvsConfiguration. The file and its defaults replace \
         most flags; the text of each flag says which",
    ))
    .flag("config", "FILE", Options)
    .with_config(),
    only(Does(
        "Removes from the kernel what kube-proxy's mode ipvs does not know, leaves all the rest serving, \
         and ends: for a node that goes back to kube-proxy. To be run when no kube-ipvs runs",
    ))
    .flag("hand-over", "BOOL", Actions)
    .default("false")
    .with_config(),
    only(Does(
        "Deprecated: port of --healthz-bind-address if that has none; 0 switches the health server \
         off",
    ))
    .flag("healthz-port", "PORT", Serving)
    .default("10256"),
    only(Does("Prints this help, and ends"))
        .flag("help", "", Options)
        .default("false")
        .with_config(),
    only(Does("Prepares the host, which takes more privileges than the rest, and ends"))
        .flag("init-only", "BOOL", Actions)
        .default("false")
        .with_config(),
    only(Nothing(LIBRARY))
        .flag("machine-id-file", "FILE,...", NoEffect)
        .default("/etc/machine-id,/var/lib/dbus/machine-id"),
    only(Does("URL of the API server, instead of the kubeconfig's: https://192.0.2.10:6443"))
        .flag("master", "URL", ApiServer)
        .with_config(),
    only(Does(
        "Deprecated: port of --metrics-bind-address if that has none; 0 is refused, as kube-proxy \
         refuses it",
    ))
    .flag("metrics-port", "PORT", Serving)
    .default("10249"),
    only(Does("Prints the version, and ends; --version=vX.Y.Z changes the reported version"))
        .flag("version", "true|raw|vX.Y.Z", Options)
        .default("false")
        .with_config(),
    only(Does(
        "Writes the configuration in force to this file, and ends; goes before all other actions",
    ))
    .flag("write-config-to", "FILE", Actions)
    .with_config(),
];

/// Flags that kube-proxy had once, in the order of their names. Command lines that have them start
/// this program too; `--help` does not show them.
pub const RETIRED: [Setting; 14] = [
    retired("add-dir-header", "BOOL", STANDARD_ERROR),
    retired("alsologtostderr", "BOOL", STANDARD_ERROR),
    retired("cleanup-ipvs", "BOOL", "--cleanup removes what is in IPVS, too"),
    retired("conntrack-max", "TEXT", "use --conntrack-max-per-core and --conntrack-min"),
    retired("log-backtrace-at", "TEXT", STANDARD_ERROR),
    retired("log-dir", "TEXT", STANDARD_ERROR),
    retired("log-file", "TEXT", STANDARD_ERROR),
    retired("log-file-max-size", "TEXT", STANDARD_ERROR),
    retired("logtostderr", "BOOL", STANDARD_ERROR),
    retired("one-output", "BOOL", STANDARD_ERROR),
    retired("resource-container", "TEXT", "the kubelet decides about cgroups"),
    retired("skip-headers", "BOOL", STANDARD_ERROR),
    retired("skip-log-headers", "BOOL", STANDARD_ERROR),
    retired("stderrthreshold", "TEXT", STANDARD_ERROR),
];

const fn only(effect: Effect) -> Setting {
    Setting::new("", "", effect, &[])
}

/// With or without `--config`, a warning about the missing effect says all there is to say.
const fn retired(name: &'static str, value: &'static str, why: &'static str) -> Setting {
    only(Nothing(why)).flag(name, value, NoEffect).with_config()
}
