//! Help of each flag: the default, and an example of its value.

use std::sync::LazyLock;

use clap::Arg;
use serde_json::Value;

use crate::config::document::KubeProxyConfiguration;
use crate::config::own::KubeIpvsConfiguration;
use crate::config::reference::FLAGS;

/// Examples of values, by the name that a value has in the help.
const EXAMPLES: [(&str, &str); 6] = [
    ("DURATION", "1m30s"),
    ("CIDRS", "10.244.0.0/16,fd00:10:244::/56"),
    ("ADDRESS:PORT", "0.0.0.0:10256"),
    ("NAME=BOOL", "AllowServiceExternalIPs=false"),
    ("SIZE", "10Mi"),
    ("URL", "https://192.0.2.10:6443"),
];

/// The documents with nothing but defaults: kube-proxy's and our own.
static DEFAULTS: LazyLock<(Value, Value)> = LazyLock::new(|| {
    let kube_proxy = serde_json::to_value(KubeProxyConfiguration::default().with_defaults());
    let own = serde_json::to_value(KubeIpvsConfiguration::default().with_defaults());
    (kube_proxy.unwrap_or_default(), own.unwrap_or_default())
});

/// The flag with a help that ends in its default and an example.
pub(super) fn completed(arg: Arg) -> Arg {
    let Some(help) = arg.get_help().map(ToString::to_string) else { return arg };
    let (kube_proxy, own) = &*DEFAULTS;
    let flag = FLAGS.iter().find(|flag| Some(flag.name) == arg.get_long());
    let default = flag.map(|flag| flag.default(kube_proxy, own)).unwrap_or_default();
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.first().map(|name| name.as_str());
    let example = EXAMPLES.iter().find(|(known, _)| Some(*known) == name);
    let notes = [
        Some(default).filter(|text| !text.is_empty()).map(|text| format!("default: {text}")),
        example.map(|(_, text)| format!("example: {text}")),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    if notes.is_empty() { arg } else { arg.help(format!("{help} [{}]", notes.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_the_help() {
        let (kube_proxy, own) = &*DEFAULTS;
        let command = crate::cli::command();
        let help_of = |name: &str| {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            arg.and_then(|arg| arg.get_help()).map(ToString::to_string).unwrap_or_default()
        };
        // That one is clap's own.
        for flag in FLAGS.iter().filter(|flag| flag.name != "help") {
            let (help, default) = (help_of(flag.name), flag.default(kube_proxy, own));
            let is_told = help.contains(&format!("[default: {default}"));
            assert!(default.is_empty() || is_told, "--{}: {help}", flag.name);
        }
        assert!(help_of("ipvs-tcp-timeout").ends_with("example: 1m30s]"));
    }
}
