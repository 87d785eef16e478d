//! The query parameters of lists and watches, and the rules between them ("Resource versions",
//! "The resourceVersionMatch parameter", "Streaming lists").

use std::time::Duration;

use crate::options::WatchList;
use crate::status::{Cause, Status};
use crate::table::Include;

/// The parameters as they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) watch: bool,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) limit: usize,
    pub(crate) token: String,
    pub(crate) resource_version: Version,
    pub(crate) resource_version_match: String,
    pub(crate) allow_watch_bookmarks: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) include: Include,
}

/// The parameter `resourceVersion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    #[default]
    Unset,
    /// `0`: any version will do.
    Any,
    At(u64),
}

impl Parameters {
    pub(crate) fn parse(query: &str) -> Result<Self, Status> {
        let mut parameters = Self::default();
        for (name, value) in pairs(query) {
            match name.as_str() {
                "watch" => parameters.watch = truth(&value),
                "labelSelector" => parameters.label_selector = value,
                "fieldSelector" => parameters.field_selector = value,
                "limit" => parameters.limit = number(&value)?,
                "continue" => parameters.token = value,
                "resourceVersion" => parameters.resource_version = Version::parse(&value)?,
                "resourceVersionMatch" => parameters.resource_version_match = value,
                "allowWatchBookmarks" => parameters.allow_watch_bookmarks = truth(&value),
                "timeoutSeconds" => {
                    let seconds: u64 = number(&value)?;
                    parameters.timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                "sendInitialEvents" => parameters.send_initial_events = Some(truth(&value)),
                "includeObject" => {
                    parameters.include = match value.as_str() {
                        "None" => Include::None,
                        "Object" => Include::Object,
                        _ => Include::Metadata,
                    };
                }
                // The real server ignores what it does not know.
                _ => {}
            }
        }
        Ok(parameters)
    }

    /// Refuses what a list may not have.
    pub(crate) fn validate_list(&self) -> Result<(), Status> {
        const MATCH: &str = "resourceVersionMatch";
        let wanted = self.resource_version_match.as_str();
        let mut causes = Vec::new();
        if !wanted.is_empty() {
            if self.resource_version == Version::Unset {
                let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                causes.push(Cause::forbidden(MATCH, why));
            }
            if !self.token.is_empty() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                causes.push(Cause::forbidden(MATCH, why));
            }
            if !matches!(wanted, "Exact" | "NotOlderThan") {
                let supported = "\"Exact\", \"NotOlderThan\", \"\"";
                causes.push(Cause::not_supported(MATCH, wanted, supported));
            }
            if wanted == "Exact" && self.resource_version == Version::Any {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                causes.push(Cause::forbidden(MATCH, why));
            }
        }
        if self.send_initial_events.is_some() {
            let why = "sendInitialEvents is forbidden for list";
            causes.push(Cause::forbidden("sendInitialEvents", why));
        }
        refuse(&causes)
    }

    /// Refuses what a watch may not have. Answers as a server of the age that `watch_list` says:
    /// one that does not know `sendInitialEvents` passes over it, and refuses its companion.
    pub(crate) fn validate_watch(&self, watch_list: WatchList) -> Result<(), Status> {
        const MATCH: &str = "resourceVersionMatch";
        let wanted = self.resource_version_match.as_str();
        let mut causes = Vec::new();
        if watch_list == WatchList::Unknown {
            if !wanted.is_empty() {
                let why = "resourceVersionMatch is forbidden for watch";
                causes.push(Cause::forbidden(MATCH, why));
            }
            return refuse(&causes);
        }
        if self.send_initial_events.is_some() {
            if wanted != "NotOlderThan" {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                causes.push(Cause::forbidden(MATCH, why));
            }
            if watch_list == WatchList::GateOff {
                let why = "sendInitialEvents is forbidden for watch unless the WatchList feature \
                           gate is enabled";
                causes.push(Cause::forbidden("sendInitialEvents", why));
            }
        }
        if !wanted.is_empty() {
            if self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                           provided";
                causes.push(Cause::forbidden(MATCH, why));
            }
            if wanted != "NotOlderThan" {
                causes.push(Cause::not_supported(MATCH, wanted, "\"NotOlderThan\""));
            }
            if !self.token.is_empty() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                causes.push(Cause::forbidden(MATCH, why));
            }
        }
        refuse(&causes)
    }
}

impl Version {
    fn parse(text: &str) -> Result<Self, Status> {
        match text {
            "" => Ok(Self::Unset),
            "0" => Ok(Self::Any),
            text => text.parse().map(Self::At).map_err(|_| {
                let why = "strconv.ParseUint: parsing: invalid syntax";
                Status::invalid(
                    "meta.k8s.io",
                    "ListOptions",
                    "",
                    &[Cause::invalid("resourceVersion", text, why)],
                )
            }),
        }
    }
}

/// The decoded pairs of a query string.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

/// Undoes percent-encoding; what is not well-formed stays as it is.
fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        match (first, rest) {
            (b'+', _) => decoded.push(b' '),
            (b'%', [high, low, after @ ..]) => match (hexadecimal(*high), hexadecimal(*low)) {
                (Some(high), Some(low)) => {
                    decoded.push(high << 4 | low);
                    bytes = after;
                }
                _ => decoded.push(b'%'),
            },
            (other, _) => decoded.push(*other),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn truth(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing \"{text}\"")))
}

fn refuse(causes: &[Cause]) -> Result<(), Status> {
    if causes.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid("meta.k8s.io", "ListOptions", "", causes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = "labelSelector=%21a%2C%21b%2Fc&limit=500&watch=true&timeoutSeconds=290&x";
        let parameters = Parameters::parse(query).unwrap();
        assert_eq!(parameters.label_selector, "!a,!b/c");
        assert_eq!(parameters.limit, 500);
        assert!(parameters.watch);
        assert_eq!(parameters.timeout, Some(Duration::from_secs(290)));
        assert_eq!(decode("a%2"), "a%2");
        assert_eq!(decode("a%zz+b"), "a%zz b");
        assert_eq!(Parameters::parse("limit=x").unwrap_err().code, 400);
        assert_eq!(Parameters::parse("resourceVersion=x").unwrap_err().code, 422);
    }

    #[test]
    fn an_old_server_refuses_streaming_lists() {
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let parameters = Parameters::parse(query).unwrap();
        parameters.validate_watch(WatchList::On).unwrap();
        let off = parameters.validate_watch(WatchList::GateOff).unwrap_err();
        assert_eq!(
            (off.code, off.message.as_str()),
            (
                422,
                "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
                 sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
                 enabled"
            )
        );
        let unknown = parameters.validate_watch(WatchList::Unknown).unwrap_err();
        assert_eq!(
            unknown.message,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
             resourceVersionMatch is forbidden for watch"
        );
    }
}
