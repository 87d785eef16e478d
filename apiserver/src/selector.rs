//! Label and field selectors ("Labels and Selectors", "Field Selectors").

use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// Namespace and selectors of a request. Empty selectors select every object of the namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    /// A label's key, or a field as a JSON pointer.
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    DoesNotExist,
    In(Vec<String>),
    /// Also true of objects without the key.
    NotIn(Vec<String>),
}

impl Selection {
    pub(crate) fn new(
        resource: Resource,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, Status> {
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            labels: parse_labels(labels)?,
            fields: parse_fields(resource, fields)?,
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
        let labelled = self.labels.iter().all(|requirement| {
            let value = labels.and_then(|labels| labels.get(&requirement.key));
            requirement.operator.holds(value.and_then(Value::as_str))
        });
        // A field that is not set reads as its zero value.
        labelled
            && self.fields.iter().all(|requirement| {
                requirement.operator.holds(Some(text(&requirement.key).unwrap_or("")))
            })
    }
}

impl Operator {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::In(wanted) => value.is_some_and(|value| wanted.iter().any(|each| each == value)),
            Self::NotIn(unwanted) => {
                !value.is_some_and(|value| unwanted.iter().any(|each| each == value))
            }
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Status> {
    split(text).map(|part| parse_label(part.trim())).collect()
}

fn parse_label(part: &str) -> Result<Requirement, Status> {
    let refused = || Status::bad_request(format!("unable to parse requirement: \"{part}\""));
    let (key, operator) = if let Some(key) = part.strip_prefix('!') {
        (key, Operator::DoesNotExist)
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Operator::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Operator::In(vec![value.trim().to_owned()]))
    } else if let Some((key, values)) = part.split_once(" notin ") {
        (key, Operator::NotIn(parse_values(values).ok_or_else(refused)?))
    } else if let Some((key, values)) = part.split_once(" in ") {
        (key, Operator::In(parse_values(values).ok_or_else(refused)?))
    } else {
        (part, Operator::Exists)
    };
    let key = key.trim();
    let well_formed = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | '/')
    };
    if key.is_empty() || !key.chars().all(well_formed) {
        return Err(refused());
    }
    Ok(Requirement { key: key.to_owned(), operator })
}

fn parse_values(text: &str) -> Option<Vec<String>> {
    let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
}

/// Splits at the commas that are not within parentheses; an empty text has no parts.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |character| {
        match character {
            '(' => depth = depth.saturating_add(1),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
    .filter(|part| !part.trim().is_empty())
}

fn parse_fields(resource: Resource, text: &str) -> Result<Vec<Requirement>, Status> {
    split(text)
        .map(|part| {
            let (field, operator) = if let Some((field, value)) = part.split_once("!=") {
                (field, Operator::NotIn(vec![value.to_owned()]))
            } else if let Some((field, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (field, Operator::In(vec![value.to_owned()]))
            } else {
                return Err(Status::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            if !is_selectable(resource, field) {
                return Err(Status::bad_request(format!(
                    "Unable to find \"{}, Resource={resource}\" that match label selector \"\", \
                     field selector \"{text}\": field label not supported: {field}",
                    resource.api_version(),
                )));
            }
            Ok(Requirement { key: format!("/{}", field.replace('.', "/")), operator })
        })
        .collect()
}

/// "Field Selectors", "Supported fields": name and namespace of every kind, and a few per kind.
fn is_selectable(resource: Resource, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => resource.is_namespaced(),
        "spec.clusterIP" | "spec.type" => resource == Resource::Services,
        "reason"
        | "type"
        | "reportingController"
        | "regarding.kind"
        | "regarding.namespace"
        | "regarding.name"
        | "regarding.uid" => resource == Resource::Events,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str, object: &Value) -> bool {
        Selection::new(Resource::Services, None, labels, fields).unwrap().matches(object)
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
            ("tier=web", true),
            ("tier==web,empty=", true),
            ("tier!=web", false),
            ("absent!=web", true),
            ("tier in (db, web),!absent", true),
            ("tier notin (db,web)", false),
            ("absent notin (db)", true),
        ] {
            assert_eq!(selects(selector, "", &object), expected, "{selector}");
        }
        assert!(Selection::new(Resource::Services, None, "a b", "").is_err());
        assert!(Selection::new(Resource::Services, None, "tier in web", "").is_err());
    }

    #[test]
    fn fields() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "None"}});
        assert!(!selects("", "spec.clusterIP!=None", &object));
        assert!(selects("", "metadata.name=a", &object));
        assert!(selects("", "metadata.name==a,spec.type=", &object));
        assert!(!selects("", "metadata.name=b", &object));
        let nodes = |fields| Selection::new(Resource::Nodes, None, "", fields);
        assert_eq!(nodes("spec.clusterIP!=None").unwrap_err().code, 400);
        assert_eq!(nodes("metadata.name").unwrap_err().code, 400);
    }
}
