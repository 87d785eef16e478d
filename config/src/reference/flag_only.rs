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
    only(Does("Removes all kernel state of kube-ipvs and kube-proxy, and exits"))
        .flag("cleanup", "BOOL", Actions)
        .default("false")
        .with_config(),
    only(Does(
        "Reads the configuration from this file: kube-proxy's KubeProxyConfiguration, optionally \
         followed by a KubeIpvsConfiguration. The file and its defaults replace most flags; see \
         [with --config: ...] of each flag",
    ))
    .flag("config", "FILE", Options)
    .with_config(),
    only(Does(
        "Removes the kernel objects that kube-proxy's IPVS mode does not know, and exits. All \
         other objects stay and keep serving. For rolling a node back to kube-proxy; stop \
         kube-ipvs first",
    ))
    .flag("hand-over", "BOOL", Actions)
    .default("false")
    .with_config(),
    only(Does(
        "Deprecated: port of --healthz-bind-address if it has none; 0 turns the health server off",
    ))
    .flag("healthz-port", "PORT", Serving)
    .default("10256"),
    only(Does("Prints this help, and exits"))
        .flag("help", "", Options)
        .default("false")
        .with_config(),
    only(Does("Prepares the host, and exits. Takes more privileges than serving"))
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
        "Deprecated: port of --metrics-bind-address if it has none; 0 is rejected, as by \
         kube-proxy",
    ))
    .flag("metrics-port", "PORT", Serving)
    .default("10249"),
    only(Does("Prints the version, and exits; --version=vX.Y.Z changes the reported version"))
        .flag("version", "true|raw|vX.Y.Z", Options)
        .default("false")
        .with_config(),
    only(Does(
        "Writes the effective configuration to this file, and exits. Takes precedence over all \
         other actions",
    ))
    .flag("write-config-to", "FILE", Actions)
    .with_config(),
];

/// Flags that kube-proxy had once, in the order of their names. Command lines that have them start
/// this program too; `--help` does not show them.
pub const RETIRED: [Setting; 14] = [
    retired("add-dir-header", "BOOL", STANDARD_ERROR),
    retired("alsologtostderr", "BOOL", STANDARD_ERROR),
    retired("cleanup-ipvs", "BOOL", "--cleanup removes IPVS state, too"),
    retired("conntrack-max", "TEXT", "use --conntrack-max-per-core and --conntrack-min"),
    retired("log-backtrace-at", "TEXT", STANDARD_ERROR),
    retired("log-dir", "TEXT", STANDARD_ERROR),
    retired("log-file", "TEXT", STANDARD_ERROR),
    retired("log-file-max-size", "TEXT", STANDARD_ERROR),
    retired("logtostderr", "BOOL", STANDARD_ERROR),
    retired("one-output", "BOOL", STANDARD_ERROR),
    retired("resource-container", "TEXT", "the kubelet manages cgroups"),
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
