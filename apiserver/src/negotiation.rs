//! Encoding of an answer, as the header `Accept` asks for it ("Alternate representations of resources").

use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::protobuf;
use crate::resource::Resource;
use crate::status::Status;

/// Media type of JSON.
const JSON: &str = "application/json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

/// True if this asks for Protobuf, alone or among others.
pub(crate) fn accepts_protobuf(accept: &str) -> bool {
    accept.split(',').any(|clause| media_type(clause) == protobuf::OBJECT)
}

fn media_type(clause: &str) -> &str {
    clause.split(';').next().unwrap_or_default().trim()
}

impl Encoding {
    /// The first of what a client accepts that there is. Only what clients follow is in Protobuf, and no Tables are.
    pub(crate) fn negotiate(
        accept: &str,
        resource: Option<Resource>,
        has_protobuf: bool,
    ) -> Result<Self, Status> {
        let is_followed = matches!(
            resource,
            Some(Resource::Services | Resource::EndpointSlices | Resource::Nodes)
        );
        if accept.is_empty() {
            return Ok(Self::Json);
        }
        let found = accept.split(',').find_map(|clause| match media_type(clause) {
            JSON | "application/*" | "*/*" => Some(Self::Json),
            protobuf::OBJECT if has_protobuf && is_followed && !clause.contains("as=") => {
                Some(Self::Protobuf)
            }
            _ => None,
        });
        found.ok_or_else(|| Status::not_acceptable(has_protobuf))
    }

    /// Media type of an object, or of a watch.
    pub(crate) fn content_type(self, is_watch: bool) -> &'static str {
        match (self, is_watch) {
            (Self::Json, _) => JSON,
            (Self::Protobuf, false) => protobuf::OBJECT,
            (Self::Protobuf, true) => protobuf::STREAM,
        }
    }

    /// An object or a list, with its media type.
    pub(crate) fn object(self, object: &Value) -> (&'static str, Bytes) {
        let in_protobuf = if self == Self::Protobuf { protobuf::object(object) } else { None };
        match in_protobuf {
            Some(bytes) => (self.content_type(false), bytes.into()),
            None => (JSON, object.to_string().into()),
        }
    }

    /// An event of a watch: in JSON an object on a line of its own.
    pub(crate) fn event(self, kind: &str, object: &Value) -> Bytes {
        match self {
            Self::Json => format!("{}\n", json!({"type": kind, "object": object})).into(),
            // A watch is of a kind that has it.
            Self::Protobuf => protobuf::event(kind, object).unwrap_or_default().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_there_is_counts() {
        let negotiate = |accept, resource, has_protobuf| {
            Encoding::negotiate(accept, Some(resource), has_protobuf)
                .map_err(|refusal| refusal.code)
        };
        let both = "application/vnd.kubernetes.protobuf;stream=watch, application/json";
        for (accept, resource, has_protobuf, expected) in [
            ("", Resource::Services, true, Ok(Encoding::Json)),
            ("*/*", Resource::Services, true, Ok(Encoding::Json)),
            (both, Resource::Services, true, Ok(Encoding::Protobuf)),
            (both, Resource::Services, false, Ok(Encoding::Json)),
            (both, Resource::Events, true, Ok(Encoding::Json)),
            (protobuf::OBJECT, Resource::Nodes, true, Ok(Encoding::Protobuf)),
            (protobuf::OBJECT, Resource::Nodes, false, Err(406)),
            (
                "application/json, application/vnd.kubernetes.protobuf",
                Resource::Nodes,
                true,
                Ok(Encoding::Json),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
                Resource::Nodes,
                true,
                Err(406),
            ),
            ("application/yaml", Resource::Nodes, true, Err(406)),
        ] {
            assert_eq!(
                negotiate(accept, resource, has_protobuf),
                expected,
                "{accept} of {resource}"
            );
        }
    }
}
