//! Label and field selectors ("Labels and Selectors", "Field Selectors").

use serde_json::Value;

use crate::options::Release;
use crate::resource::Resource;
use crate::status::Status;

/// Namespace and selectors of a request. Empty selectors select every object of the namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    namespace: Option<String>,
    labels: Vec<Label>,
    fields: Vec<Field>,
}

/// Requirement that a label is there, whatever its value, or is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    key: String,
    exists: bool,
}

/// Requirement that a field has this value, or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// A JSON pointer.
    pointer: String,
    value: String,
    equal: bool,
}

impl Selection {
    /// Reads the selectors by labels and by fields, as a server of this release.
    pub(crate) fn new(
        what: (Release, Resource),
        namespace: Option<&str>,
        (labels, fields): (&str, &str),
    ) -> Result<Self, Status> {
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            labels: split(labels).map(parse_label).collect::<Result<_, _>>()?,
            fields: split(fields).map(|part| parse_field(what, part)).collect::<Result<_, _>>()?,
        })
    }

    /// True if a selector is given: then the number of objects beyond a page is not told.
    pub(crate) fn has_selector(&self) -> bool {
        !(self.labels.is_empty() && self.fields.is_empty())
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        if let Some(namespace) = &self.namespace
            && text("/metadata/namespace") != Some(namespace)
        {
            return false;
        }
        let labels = object.pointer("/metadata/labels");
        let has = |key: &str| labels.is_some_and(|labels| labels.get(key).is_some());
        // A field that is not set reads as its zero value.
        let value = |pointer: &str| text(pointer).unwrap_or("");
        self.labels.iter().all(|label| has(&label.key) == label.exists)
            && self.fields.iter().all(|it| (value(&it.pointer) == it.value) == it.equal)
    }
}

/// Parses `key` or `!key`; values of labels are not compared.
fn parse_label(part: &str) -> Result<Label, Status> {
    let (key, exists) = part.strip_prefix('!').map_or((part, true), |key| (key, false));
    let well_formed = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | '/')
    };
    if key.is_empty() || !key.chars().all(well_formed) {
        return Err(Status::bad_request(format!("unable to parse requirement: \"{part}\"")));
    }
    Ok(Label { key: key.to_owned(), exists })
}

/// Parses `field=value` or `field!=value`.
fn parse_field((release, resource): (Release, Resource), part: &str) -> Result<Field, Status> {
    let Some((field, value)) = part.split_once('=') else {
        let message = format!("invalid selector: can't understand '{part}'");
        return Err(Status::bad_request(message));
    };
    let (field, equal) = field.strip_suffix('!').map_or((field, true), |field| (field, false));
    if !has_fields(release, resource) && field != "metadata.name" {
        // DefaultMetaV1FieldSelectorConversion in apimachinery/pkg/runtime/conversion.go
        return Err(Status::bad_request(format!(
            "\"{field}\" is not a known field selector: only \"metadata.name\", \
             \"metadata.namespace\""
        )));
    }
    if !is_selectable(resource, field) {
        return Err(Status::bad_request(format!("field label not supported: {field}")));
    }
    let pointer = format!("/{}", field.replace('.', "/"));
    Ok(Field { pointer, value: value.to_owned(), equal })
}

/// The parts between commas; an empty text has none.
fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// True if a kind has fields of its own to select by (pkg/apis/core/v1/conversion.go).
fn has_fields(release: Release, resource: Resource) -> bool {
    match resource {
        Resource::Services => release.selects_services(),
        Resource::EndpointSlices => false,
        _ => true,
    }
}

/// "Field Selectors", "Supported fields": the name of every kind, and a few fields of Services.
fn is_selectable(resource: Resource, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "spec.clusterIP" | "spec.type" => resource == Resource::Services,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str, object: &Value) -> bool {
        let what = (Release::V1_36, Resource::Services);
        Selection::new(what, None, (labels, fields)).unwrap().matches(object)
    }

    #[test]
    fn labels() {
        let object = json!({"metadata": {"name": "a", "labels": {"tier": "web", "empty": ""}}});
        for (selector, expected) in [
            ("", true),
            ("tier", true),
            ("!tier", false),
            ("!empty", false),
            ("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name", true),
            ("tier,!absent", true),
        ] {
            assert_eq!(selects(selector, "", &object), expected, "{selector}");
        }
        for refused in ["a b", "tier=web", "!"] {
            let what = (Release::V1_36, Resource::Services);
            assert!(Selection::new(what, None, (refused, "")).is_err(), "{refused}");
        }
    }

    #[test]
    fn fields() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "None"}});
        assert!(!selects("", "spec.clusterIP!=None", &object));
        assert!(selects("", "metadata.name=a", &object));
        assert!(selects("", "metadata.name=a,spec.type=", &object));
        assert!(!selects("", "metadata.name=b", &object));
        let of = |release, resource, fields| {
            Selection::new((release, resource), None, ("", fields))
                .map_err(|refusal| refusal.message)
        };
        let nodes = |fields| of(Release::V1_36, Resource::Nodes, fields).unwrap_err();
        assert_eq!(nodes("spec.clusterIP!=None"), "field label not supported: spec.clusterIP");
        assert_eq!(nodes("metadata.name"), "invalid selector: can't understand 'metadata.name'");
        // The words of 1.30, as kubernetes#126746 has them.
        let services = |release, fields| of(release, Resource::Services, fields);
        for release in [Release::V1_21, Release::V1_26, Release::V1_30] {
            services(release, "metadata.name=a").unwrap();
            assert_eq!(
                services(release, "spec.clusterIP!=None").unwrap_err(),
                "\"spec.clusterIP\" is not a known field selector: only \"metadata.name\", \
                 \"metadata.namespace\""
            );
        }
    }
}
