//! Every field and every flag: name, type, effect. `--help`, `docs/config.md`, the warnings about
//! unknown fields and about flags without effect are made from these tables.
//!
//! A field stands in its document (`config/src/document.rs` for kube-proxy's, `config/src/kube_ipvs.rs` for
//! ours); only flags that are no field stand here.

mod flag_only;

use std::sync::LazyLock;

use serde_json::Value;

use super::document::KubeProxyConfiguration;
use super::kube_ipvs::KubeIpvsConfiguration;
use super::setting::{Flag, Setting};
use super::settings::Section;

pub use flag_only::{FLAGS_ONLY, RETIRED};

/// Fields of kube-proxy's document, in the order of their paths.
pub static FIELDS: LazyLock<Vec<Setting>> = LazyLock::new(in_order::<KubeProxyConfiguration>);

/// Fields of our own document, in the order of their paths. Its flags apply together with `--config`:
/// kube-proxy has none by these names.
pub static OWN_FIELDS: LazyLock<Vec<Setting>> = LazyLock::new(in_order::<KubeIpvsConfiguration>);

/// Default of a field, as text. An empty list's text is empty.
#[must_use]
pub fn default_of(document: &Value, path: &str) -> String {
    let pointer = format!("/{}", path.replace("[]", "/0").replace('.', "/"));
    match document.pointer(&pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.is_empty() => String::new(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn in_order<T: Section>() -> Vec<Setting> {
    let mut settings = T::settings();
    settings.sort_by_key(|setting| setting.path);
    settings
}

/// The setting that a flag belongs to, also of a retired flag.
#[must_use]
pub fn of_flag(name: &str) -> Option<(&'static Setting, Flag)> {
    let settings = FIELDS.iter().chain(OWN_FIELDS.iter()).chain(&FLAGS_ONLY).chain(&RETIRED);
    let mut flags = settings.filter_map(|setting| Some((setting, setting.flag?)));
    flags.find(|(_, flag)| flag.name == name)
}
