//! Kubernetes' z-pages, `/flagz` and `/statusz`, as text for people and as JSON for programs.
//!
//! The JSON form is asked for as with kube-proxy: `Accept:
//! application/json;v=v1beta1;g=config.k8s.io;as=Flagz`. The text has no promised form; ours is
//! always the same one.

use std::time::{Duration, SystemTime};

use axum::http::HeaderValue;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::version::VERSION;

/// The role that this program plays in a cluster, whatever it is called itself.
const COMPONENT: &str = "kube-proxy";
/// The group of the JSON forms.
const GROUP: &str = "config.k8s.io";
/// Paths that `/statusz` lists.
const PATHS: [&str; 5] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"];

/// Page: `/flagz` or `/statusz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZPage {
    Flagz,
    Statusz,
}

/// Form of the answer that a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Json { version: FormVersion },
}

/// The versions of the JSON forms. They have the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormVersion {
    /// The former one.
    V1Alpha1,
    /// The present one.
    V1Beta1,
}

/// Content of `/statusz`.
#[derive(Debug, Clone)]
pub(super) struct Statusz {
    /// Time at which the program started.
    pub(super) started: SystemTime,
    /// Time that has passed since the start.
    pub(super) up: Duration,
    /// Mode that the node serves in.
    pub(super) mode: String,
}

impl ZPage {
    const fn name(self) -> &'static str {
        match self {
            Self::Flagz => "Flagz",
            Self::Statusz => "Statusz",
        }
    }
}

impl FormVersion {
    /// As it is written.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// Returns the additional warning for a client of an old version (RFC 7234, section 5.5).
    pub(super) fn warning(self, kind: ZPage) -> Option<HeaderValue> {
        let (Self::V1Alpha1, kind) = (self, kind.name()) else { return None };
        let text = format!("299 - \"{GROUP}/v1alpha1 {kind} is deprecated; use {GROUP}/v1beta1\"");
        HeaderValue::try_from(text).ok()
    }
}

/// The first form that a client accepts and that there is; nothing if there is none.
pub(super) fn form(kind: ZPage, accept: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        match parts.next()?.to_ascii_lowercase().as_str() {
            "text/plain" | "text/*" | "*/*" => Some(Form::Text),
            "application/json" => {
                let parameters: Vec<(&str, &str)> =
                    parts.filter_map(|part| part.split_once('=')).collect();
                let is = |name, value| parameters.contains(&(name, value));
                let known = [FormVersion::V1Beta1, FormVersion::V1Alpha1];
                let version = known.into_iter().find(|version| is("v", version.name()))?;
                (is("g", GROUP) && is("as", kind.name())).then_some(Form::Json { version })
            }
            _ => None,
        }
    })
}

/// Returns the answer to a client that accepts none of the forms that there are.
pub(super) fn not_acceptable(kind: ZPage) -> String {
    let kind = kind.name();
    format!("acceptable are text/plain and application/json;v=v1beta1;g={GROUP};as={kind}\n")
}

/// `/flagz` for people.
pub(super) fn flags_text(flags: &[(String, String)]) -> String {
    let mut text = heading("flagz");
    for (name, value) in flags {
        text.push_str(&format!("{name}={value}\n"));
    }
    text
}

/// `/flagz` for programs.
pub(super) fn flags_json(flags: &[(String, String)], version: &str) -> Value {
    let flags: Map<String, Value> =
        flags.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    json!({
        "kind": ZPage::Flagz.name(),
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": { "name": COMPONENT },
        "flags": flags,
    })
}

/// `/statusz` for people.
pub(super) fn status_text(status: &Statusz) -> String {
    let seconds = status.up.as_secs();
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!(
        "{}Started: {}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nBinary version: {}\n\
         Mode: {}\nPaths: {}\n",
        heading("statusz"),
        timestamp(status.started).strftime("%a, %d %b %Y %H:%M:%S UTC"),
        VERSION.trim_start_matches('v'),
        status.mode,
        PATHS.join(" "),
    )
}

/// `/statusz` for programs. No Go has built this program, so it names no version of it.
pub(super) fn status_json(status: &Statusz, version: &str) -> Value {
    json!({
        "kind": ZPage::Statusz.name(),
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": { "name": COMPONENT },
        "startTime": timestamp(status.started).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": status.up.as_secs(),
        "goVersion": "",
        "binaryVersion": VERSION.trim_start_matches('v'),
        "paths": PATHS,
    })
}

fn heading(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: this is for people, and may look different tomorrow.\n\n"
    )
}

fn timestamp(time: SystemTime) -> Timestamp {
    // Only a clock that is thousands of years wrong has no such form.
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}
