//! Lists, whole or in chunks ("Retrieving large results sets in chunks", "Resource versions").

use std::ops::Bound;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

use crate::object::Object;
use crate::parameters::{Parameters, Version};
use crate::resource::Resource;
use crate::selector::Selection;
use crate::status::Status;
use crate::store::{Snapshot, Store};

/// The version in a token that goes on with the present, whatever it is by then.
const INCONSISTENT: i64 = -1;

/// Place where a chunk of a list begins.
struct Token {
    version: i64,
    start: String,
}

/// A list, or a chunk of one.
pub(crate) struct Page {
    pub(crate) metadata: Map<String, Value>,
    pub(crate) items: Vec<Object>,
}

impl Page {
    /// The list that it is in an answer.
    pub(crate) fn into_list(self, resource: Resource) -> Value {
        json!({
            "kind": format!("{}List", resource.kind()),
            "apiVersion": resource.api_version(),
            "metadata": self.metadata,
            "items": self.items.iter().map(AsRef::as_ref).collect::<Vec<&Value>>(),
        })
    }
}

/// Answers a list. `expired` makes a continued one fail as if its token were too old.
pub(crate) async fn list(
    store: &Store,
    resource: Resource,
    parameters: &Parameters,
    selection: &Selection,
    expired: impl FnOnce() -> bool,
) -> Result<Page, Status> {
    if !parameters.token.is_empty() {
        let token = Token::decode(&parameters.token)?;
        if let Version::At(_) = parameters.resource_version {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let too_old = || Status::continue_expired(token.at(INCONSISTENT).encode());
        if expired() {
            return Err(too_old());
        }
        let exact = u64::try_from(token.version).ok();
        let snapshot = store.snapshot(resource, exact).map_err(|_| too_old())?;
        return Ok(page(&snapshot, &token.start, parameters.limit, selection));
    }
    let paged = parameters.limit > 0;
    let exact = match (parameters.resource_version, parameters.resource_version_match.as_str()) {
        (Version::At(version), "Exact") => Some(version),
        // The table of "resourceVersionMatch and paging parameters for list": with a limit and no
        // match, a version means this very version.
        (Version::At(version), "") if paged => Some(version),
        _ => None,
    };
    if let Version::At(version) = parameters.resource_version {
        let late = |current| Status::too_large(version, current);
        store.wait_for(version).await.map_err(late)?;
    }
    let snapshot = store.snapshot(resource, exact).map_err(|_| Status::list_expired())?;
    // Version 0 is answered from the watch cache, which passes over the limit.
    let limit = if parameters.resource_version == Version::Any { 0 } else { parameters.limit };
    Ok(page(&snapshot, "", limit, selection))
}

/// One chunk of a snapshot, from a key on. A limit of 0 is none.
fn page(snapshot: &Snapshot, start: &str, limit: usize, selection: &Selection) -> Page {
    let mut items: Vec<Object> = Vec::new();
    let mut last = "";
    let mut remaining = 0_usize;
    let rest = snapshot.objects.range::<str, _>((Bound::Included(start), Bound::Unbounded));
    let matching = |(_, object): &(&String, &Object)| selection.matches(object);
    for (key, object) in rest.filter(matching) {
        if limit == 0 || items.len() < limit {
            items.push(Object::clone(object));
            last = key;
        } else {
            remaining = remaining.saturating_add(1);
        }
    }
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(snapshot.version.to_string()));
    if remaining > 0 {
        // The next chunk begins after the last key of this one: a zero byte is the least that can
        // follow.
        let version = i64::try_from(snapshot.version).unwrap_or(i64::MAX);
        let token = Token { version, start: format!("{last}\0") };
        metadata.insert("continue".to_owned(), json!(token.encode()));
        // The API reference, ListMeta: not told when there is a selector.
        if !selection.has_selector() {
            metadata.insert("remainingItemCount".to_owned(), json!(remaining));
        }
    }
    Page { metadata, items }
}

impl Token {
    fn at(&self, version: i64) -> Self {
        Self { version, start: self.start.clone() }
    }

    fn encode(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.version, "start": self.start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let token: Value = serde_json::from_slice(&bytes).ok()?;
            let version = token.get("rv")?.as_i64()?;
            let start = token.get("start")?.as_str()?.to_owned();
            Some(Self { version, start })
        };
        read().ok_or_else(|| Status::bad_request("continue key is not valid"))
    }
}
