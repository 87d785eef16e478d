//! From flags to documents, and what becomes of flags beside a file.

use std::collections::BTreeMap;

use serde_json::Value;

use super::arguments::Arguments;
use super::defaults::{HEALTHZ_PORT, METRICS_PORT};
use super::document::KubeProxyConfiguration;
use super::kube_ipvs::KubeIpvsConfiguration;
use super::read::Documents;
use super::reference::{self, FIELDS, FLAGS_ONLY, OWN_FIELDS};
use super::setting::{Flag, Heading, Setting};
use syntax::address;
use syntax::duration::GoDuration;
use syntax::site;

/// A flag, its setting and its default.
#[derive(Debug, Clone)]
pub struct FlagEntry {
    pub flag: Flag,
    /// Setting that the flag belongs to.
    pub setting: &'static Setting,
    /// Default as it would be written. Empty: none.
    pub default: String,
}

/// Every flag but retired ones, by name.
#[must_use]
pub fn all() -> BTreeMap<&'static str, FlagEntry> {
    let kube_proxy = serde_json::to_value(without_file()).unwrap_or_default();
    let own = serde_json::to_value(KubeIpvsConfiguration::default().with_defaults());
    let own = own.unwrap_or_default();
    let entry = |setting: &'static Setting, document: &Value| {
        let flag = setting.flag?;
        let default = match setting.path {
            "" => flag.default.to_owned(),
            path => reference::default_of(document, path),
        };
        Some((flag.name, FlagEntry { flag, setting, default }))
    };
    let of_kube_proxy = FIELDS.iter().chain(&FLAGS_ONLY);
    let of_kube_proxy = of_kube_proxy.filter_map(|setting| entry(setting, &kube_proxy));
    of_kube_proxy.chain(OWN_FIELDS.iter().filter_map(|setting| entry(setting, &own))).collect()
}

/// kube-proxy's document where there is no file and no flag.
#[must_use]
pub(super) fn without_file() -> KubeProxyConfiguration {
    let mut document = KubeProxyConfiguration::default().with_defaults();
    // kube-proxy decides about the least period before it knows the mode, so that without a file
    // IPVS has the value of iptables.
    document.ipvs.min_sync_period = GoDuration::from_secs(1);
    document
}

/// Sets in the documents what flags say: beside a file, those that count there.
///
/// # Errors
/// When a value is of another type than the field, which the command line has refused before.
pub(super) fn set(arguments: &Arguments, documents: &mut Documents) -> Result<(), String> {
    let has_file = arguments.file().is_some();
    // Of what both list, flags go first.
    let of_file = std::mem::take(&mut documents.kube_proxy.logging.vmodule);
    for (name, values) in &arguments.given {
        let applies = |(_, flag): (_, Flag)| flag.with_config || !has_file;
        if !reference::of_flag(name).is_some_and(applies) {
            continue;
        }
        for value in values {
            let set = documents.set_flag(name, value).unwrap_or(Ok(()));
            set.map_err(|problem| format!("--{name}: {problem}"))?;
        }
    }
    documents.kube_proxy.logging.vmodule.extend(of_file);
    // kube-proxy does not look at the ports when it only writes its configuration.
    if !has_file && arguments.write_config_to.as_deref().unwrap_or_default().is_empty() {
        let document = &mut documents.kube_proxy;
        with_port(arguments.healthz_port, HEALTHZ_PORT, &mut document.healthz_bind_address);
        with_port(arguments.metrics_port, METRICS_PORT, &mut document.metrics_bind_address);
    }
    Ok(())
}

/// Returns notes on flags that were given and are deprecated or have no effect.
#[must_use]
pub(super) fn notes(arguments: &Arguments) -> Vec<String> {
    let given = arguments.given.iter();
    let given: Vec<(&Setting, Flag)> =
        given.filter_map(|(name, _)| reference::of_flag(name)).collect();
    let mut notes = Vec::new();
    if let Some(file) = arguments.file() {
        notes.extend(replaced(&given, file));
    }
    for (setting, Flag { name, .. }) in given {
        match name {
            "healthz-port" => notes.push(deprecated(name, "healthz-bind-address")),
            "metrics-port" => notes.push(deprecated(name, "metrics-bind-address")),
            _ => {}
        }
        if let Some(why) = setting.effect.none_because() {
            notes.push(format!("--{name} has no effect: {why}"));
        }
    }
    notes
}

fn replaced(given: &[(&Setting, Flag)], file: &str) -> Option<String> {
    let replaced: Vec<String> = given
        .iter()
        .filter(|(_, flag)| !flag.with_config)
        .map(|(_, flag)| format!("--{}", flag.name))
        .collect();
    let verb = if replaced.len() == 1 { "has" } else { "have" };
    (!replaced.is_empty()).then(|| {
        format!(
            "{} {verb} no effect: the file {file} (--config) replaces flags",
            replaced.join(", ")
        )
    })
}

fn deprecated(name: &str, instead: &str) -> String {
    format!("--{name} is deprecated; use --{instead}")
}

impl FlagEntry {
    /// Text of `--help`: the effect, and on a line of its own the default, and what becomes of the
    /// flag beside a file.
    #[must_use]
    pub fn help(&self) -> String {
        let Self { flag, setting, default } = self;
        let with_config = match (flag.with_config, setting.path) {
            // These are about the command line itself.
            _ if flag.heading == Heading::Options => None,
            _ if setting.effect.none_because().is_some() => None,
            (true, "") => Some("applies".to_owned()),
            (true, path) => Some(format!("overrides {path}")),
            (false, "") => Some("ignored".to_owned()),
            (false, path) => Some(format!("replaced by {path}")),
        };
        let default = (!default.is_empty()).then(|| format!("[default: {default}]"));
        let with_config = with_config.map(|text| format!("[with --config: {text}]"));
        let notes: Vec<String> = default.into_iter().chain(with_config).collect();
        let effect = site::with_addresses(&setting.to_string());
        format!("{effect}\n{}", notes.join(" ")).trim_end().to_owned()
    }
}

/// The flags from before there were addresses: 0 means not to serve, another number is the port of
/// an address that has none.
fn with_port(given: Option<i32>, default: u16, field: &mut String) {
    let port = given.unwrap_or_else(|| i32::from(default));
    match u16::try_from(port) {
        Ok(0) => field.clear(),
        Ok(port) => *field = address::with_port(field, port),
        // Found by validation, as part of the address.
        Err(_) if address::ip(field).is_some() => *field = format!("{field}:{port}"),
        Err(_) => {}
    }
}
