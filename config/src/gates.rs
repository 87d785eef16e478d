//! Feature gates that have an effect. A cluster's list of gates is of every component and version: all
//! others are accepted, and named in one note.

use std::collections::{BTreeMap, BTreeSet};

use super::text::nearest;

/// Gate that makes `spec.externalIPs` count.
pub const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// Gate that serves `/flagz`.
pub const FLAGZ: &str = "ComponentFlagz";

/// Gate that serves `/statusz`.
pub const STATUSZ: &str = "ComponentStatusz";

/// Gate that allows the logging options that are not settled upstream.
pub const LOGGING_ALPHA: &str = "LoggingAlphaOptions";

/// Name, stage as Kubernetes' metrics have it, and default in Kubernetes 1.36. A settled gate has no stage.
const GATES: [(&str, &str, bool); 4] = [
    (EXTERNAL_IPS, "", true),
    (FLAGZ, "BETA", true),
    (STATUSZ, "BETA", true),
    (LOGGING_ALPHA, "ALPHA", false),
];

/// Gates that set all gates of a stage, but those that are set by name.
const OF_STAGES: [(&str, &str); 2] = [("AllAlpha", "ALPHA"), ("AllBeta", "BETA")];

/// Values of the feature gates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureGates {
    settings: BTreeMap<String, bool>,
}

impl FeatureGates {
    /// The gates with these set, the others as they are by default.
    #[must_use]
    pub fn new(settings: &BTreeMap<String, bool>) -> Self {
        Self { settings: settings.clone() }
    }

    /// True if a gate is open. A gate without effect is not.
    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.iter().any(|(known, _, is_open)| known == name && is_open)
    }

    /// Returns name, stage in the words of Kubernetes' metrics, and value of each gate that has an effect.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        GATES.into_iter().map(|(name, stage, default)| {
            let of_stage = OF_STAGES.iter().find(|(_, of)| *of == stage).map(|(all, _)| *all);
            let set = [Some(name), of_stage].into_iter().flatten();
            let set = set.filter_map(|name| self.settings.get(name)).next();
            (name, stage, set.copied().unwrap_or(default))
        })
    }

    /// Returns a note on the gates that were set and have no effect.
    pub(super) fn note(&self) -> Option<String> {
        let known = GATES.map(|(name, ..)| name);
        let with_effect: BTreeSet<&str> =
            known.into_iter().chain(OF_STAGES.map(|(name, _)| name)).collect();
        let others = self.settings.keys().map(String::as_str);
        let others: Vec<String> = others
            .filter(|name| !with_effect.contains(name))
            .map(|name| match nearest(name, known.into_iter()) {
                Some(near) => format!("{name} (did you mean {near}?)"),
                None => name.to_owned(),
            })
            .collect();
        let has = if others.len() == 1 { "has" } else { "have" };
        (!others.is_empty()).then(|| {
            format!(
                "featureGates: {} {has} no effect: kube-ipvs knows {}",
                others.join(", "),
                known.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(settings: &[(&str, bool)]) -> FeatureGates {
        FeatureGates::new(&settings.iter().map(|(name, on)| ((*name).into(), *on)).collect())
    }

    #[test]
    fn gates_are_set_one_by_one_or_by_stage() {
        for name in [EXTERNAL_IPS, FLAGZ, STATUSZ] {
            assert!(gates(&[]).is_enabled(name), "{name}");
        }
        assert!(!gates(&[]).is_enabled(LOGGING_ALPHA));
        assert!(!gates(&[(EXTERNAL_IPS, false)]).is_enabled(EXTERNAL_IPS));
        assert!(gates(&[("AllAlpha", true)]).is_enabled(LOGGING_ALPHA));
        let but_one = gates(&[("AllAlpha", true), (LOGGING_ALPHA, false)]);
        assert!(!but_one.is_enabled(LOGGING_ALPHA));
        let but_one = gates(&[("AllBeta", false), (STATUSZ, true)]);
        assert!(!but_one.is_enabled(FLAGZ) && but_one.is_enabled(STATUSZ));
        assert!(but_one.is_enabled(EXTERNAL_IPS), "it is settled");
    }

    #[test]
    fn other_gates_are_accepted_and_named_once() {
        let set = [("KubeProxyIPVS", true), ("NFTablesProxyMode", false)];
        let set = gates(&[set[0], set[1], ("ComponentFlags", true), (FLAGZ, false)]);
        assert!(!set.is_enabled(FLAGZ) && !set.is_enabled("KubeProxyIPVS"));
        assert_eq!(
            set.note().unwrap(),
            "featureGates: ComponentFlags (did you mean ComponentFlagz?), KubeProxyIPVS, \
             NFTablesProxyMode have no effect: kube-ipvs knows AllowServiceExternalIPs, \
             ComponentFlagz, ComponentStatusz, LoggingAlphaOptions"
        );
        assert_eq!(gates(&[("AllBeta", true), (EXTERNAL_IPS, true)]).note(), None);
    }
}
