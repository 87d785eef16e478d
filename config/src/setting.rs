//! A setting: what is known of a field of a document, of a flag, or of both.

use std::fmt;

use plan::mode::Mode;

use super::text::Words;

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
    Does(&'static str),
    DoesIn(&'static [Mode], &'static str),
    /// None, for this reason.
    Nothing(&'static str),
}

impl Setting {
    /// A field, or with an empty path a flag that is none.
    pub(super) const fn new(
        path: &'static str,
        kind: &'static str,
        effect: Effect,
        words: Words,
    ) -> Self {
        Self { path, kind, effect, words, flag: None }
    }

    /// With a flag that `--config` replaces.
    pub(super) const fn flag(
        mut self,
        name: &'static str,
        value: &'static str,
        heading: Heading,
    ) -> Self {
        let (with_config, default, is_list) = (false, "", false);
        self.flag = Some(Flag { name, value, heading, with_config, default, is_list });
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
    pub(super) const fn default(mut self, default: &'static str) -> Self {
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
                write!(f, "In {}: ", in_words(modes))?;
                text
            }
            Effect::Nothing(why) => {
                f.write_str("No effect: ")?;
                why
            }
        };
        f.write_str(&text.trim_start().replace("{words}", &described(self.words)))
    }
}

/// `IPVS mode`, `iptables and userspace modes`.
pub(super) fn in_words(modes: &[Mode]) -> String {
    if let [mode] = modes {
        return mode.title().to_owned();
    }
    let names: Vec<&str> =
        modes.iter().map(|mode| mode.title().trim_end_matches(" mode")).collect();
    format!("{} modes", names.join(" and "))
}

/// Returns the words with their glosses, as the reference has them.
fn described(words: Words) -> String {
    let described: Vec<String> = words
        .iter()
        .map(|(word, gloss)| match *gloss {
            "" => (*word).to_owned(),
            gloss => format!("{word} ({gloss})"),
        })
        .collect();
    match described.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
