//! Every field and every flag: name, type, effect. `--help`, `docs/config.md`, the warnings about
//! unknown fields and about flags without effect are made from these tables.
//!
//! A field stands in its document (`config/src/document.rs` for kube-proxy's, `config/src/kube_ipvs.rs` for
//! ours); only flags that are no field stand here.

mod flag_only;

use std::fmt;
use std::sync::LazyLock;

use plan::mode::Mode;
use serde_json::Value;

use super::document::KubeProxyConfiguration;
use super::kube_ipvs::KubeIpvsConfiguration;
use super::settings::{Field, Section, SetField};
use super::words::{self, Words};

pub use flag_only::{FLAGS_ONLY, RETIRED};
/// Fields of kube-proxy's document, in the order of their paths.
pub static FIELDS: LazyLock<Vec<Setting>> = LazyLock::new(in_order::<KubeProxyConfiguration>);

/// Fields of our own document, in the order of their paths. Its flags apply together with `--config`:
/// kube-proxy has none by these names.
pub static OWN_FIELDS: LazyLock<Vec<Setting>> = LazyLock::new(in_order::<KubeIpvsConfiguration>);

/// A setting: a field of a document, a flag, or both.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Path of the field: names joined by dots, `[]` for any item of a list. Empty: only a flag.
    pub path: &'static str,
    /// Type of the field. Empty: only a flag.
    pub kind: &'static str,
    /// Effect of the field and of the flag. `{words}` stands for the words.
    pub effect: Effect,
    /// Words that the field may have, each with its gloss. None: any other value.
    pub words: Words,
    /// Flag, if there is one.
    pub flag: Option<Flag>,
}

#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name, without the hyphens before it.
    pub name: &'static str,
    /// Name of its value in `--help`, `BOOL` for what may stand without a value.
    pub value: &'static str,
    /// Heading in `--help`.
    pub heading: Heading,
    /// True if the flag applies together with `--config`. Otherwise the file replaces it.
    pub with_config: bool,
    /// Default of a flag that is no field.
    pub default: &'static str,
    /// Sets the field. None: the flag is no field.
    pub set: Option<SetField>,
    /// True if the flag adds to the field each time that it is given.
    pub is_list: bool,
}

/// Heading of a group of flags in `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// About the command line itself.
    Options,
    /// Actions that end the program, or are done once.
    Actions,
    /// Source of Services.
    ApiServer,
    /// This node and this process.
    Node,
    /// Servers for health and metrics.
    Serving,
    /// IPVS.
    Balancing,
    /// iptables.
    Masquerading,
    /// Connection tracking.
    Conntrack,
    /// The log.
    Logging,
    /// Flags that are taken because kube-proxy takes them.
    NoEffect,
}

/// Effect of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// This.
    Does(&'static str),
    /// This, in these modes.
    DoesIn(&'static [Mode], &'static str),
    /// None, for this reason.
    Nothing(&'static str),
}

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

/// `mode ipvs`, `modes iptables and userspace`.
pub(super) fn in_words(modes: &[Mode]) -> String {
    let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("mode{plural} {}", names.join(" and "))
}

/// The setting that a flag belongs to, also of a retired flag.
#[must_use]
pub fn of_flag(name: &str) -> Option<(&'static Setting, Flag)> {
    let settings = FIELDS.iter().chain(OWN_FIELDS.iter()).chain(&FLAGS_ONLY).chain(&RETIRED);
    let mut flags = settings.filter_map(|setting| Some((setting, setting.flag?)));
    flags.find(|(_, flag)| flag.name == name)
}

pub(super) const fn field(path: &'static str, kind: &'static str, effect: Effect) -> Setting {
    Setting { path, kind, effect, words: &[], flag: None }
}

impl Setting {
    /// With the words of the field's type.
    pub(super) const fn of_type<T: Field>(mut self) -> Self {
        self.words = T::WORDS;
        self
    }

    /// With a flag that `--config` replaces.
    pub(super) const fn flag(
        mut self,
        name: &'static str,
        value: &'static str,
        heading: Heading,
    ) -> Self {
        let (with_config, default) = (false, "");
        let (set, is_list) = (None, false);
        self.flag = Some(Flag { name, value, heading, with_config, default, set, is_list });
        self
    }

    /// The flag sets a field.
    pub(super) const fn set(mut self, set: SetField, is_list: bool) -> Self {
        if let Some(flag) = &mut self.flag {
            (flag.set, flag.is_list) = (Some(set), is_list);
        }
        self
    }

    /// The flag adds to the field each time that it is given.
    pub(super) const fn repeated(mut self) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.is_list = true;
        }
        self
    }

    /// The flag applies together with `--config`.
    pub(super) const fn with_config(mut self) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.with_config = true;
        }
        self
    }

    /// The flag, which is no field, has this default.
    const fn default(mut self, default: &'static str) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.default = default;
        }
        self
    }
}

impl Heading {
    /// Heading as text. None: clap's own for flags without one.
    #[must_use]
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::Options => return None,
            Self::Actions => "Actions",
            Self::ApiServer => "API server",
            Self::Node => "Node",
            Self::Serving => "Health and metrics",
            Self::Balancing => "Load balancing",
            Self::Masquerading => "Masquerading",
            Self::Conntrack => "Connection tracking",
            Self::Logging => "Logging",
            Self::NoEffect => "No effect",
        })
    }
}

impl Effect {
    /// Reason for which there is no effect, if there is none.
    #[must_use]
    pub const fn none_because(&self) -> Option<&'static str> {
        match self {
            Self::Does(_) | Self::DoesIn(..) => None,
            Self::Nothing(why) => Some(why),
        }
    }

    /// Returns the modes in which there is an effect, if it is not the same in all.
    #[must_use]
    pub const fn modes(&self) -> &[Mode] {
        match self {
            Self::DoesIn(modes, _) => modes,
            Self::Does(_) | Self::Nothing(_) => &[],
        }
    }
}

/// Writes the effect in words.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.effect {
            Effect::Does(text) => text,
            Effect::DoesIn(modes, text) => {
                write!(f, "{}: ", in_words(modes).replacen('m', "M", 1))?;
                text
            }
            Effect::Nothing(why) => {
                f.write_str("No effect: ")?;
                why
            }
        };
        f.write_str(&text.trim_start().replace("{words}", &words::described(self.words)))
    }
}
