//! The EndpointSlices of a namespace, listed once to find a Pod's addresses.

use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, Request};
use serde::Deserialize;

use super::answer::ask;
use super::error_text::chain;
use super::failure::Failure;
use crate::pods::{PodSearch, PodSlice};

/// Slices in one answer: some MB at most, where each has 100 endpoints.
const PAGE: u32 = 100;

/// Most bytes of an answer: [`PAGE`] of the largest objects that etcd takes by default, of 1.5 MiB each.
const LONGEST: u64 = 150 << 20;

/// Longest silence while a page is being sent.
const PATIENCE: Duration = Duration::from_secs(15);

/// Page of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    metadata: PageMetadata,
    items: Vec<PodSlice>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    token: Option<String>,
}

/// Looks at all EndpointSlices of the Pod's namespace, those of headless Services included.
pub async fn look_for_pod(client: &Client, mut search: PodSearch) -> Result<PodSearch, String> {
    let path =
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", search.namespace());
    let mut token: Option<String> = None;
    loop {
        let mut parameters = ListParams::default().limit(PAGE);
        parameters.continue_token = token.take();
        let page = page(client, &path, &parameters).await.map_err(|failure| failure.cause())?;
        page.items.iter().for_each(|slice| search.look_at(slice));
        token = page.metadata.token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(search);
        }
    }
}

async fn page(client: &Client, path: &str, parameters: &ListParams) -> Result<Page, Failure> {
    let request = Request::new(path).list(parameters);
    let request = request.map_err(|error| Failure::Garbage(chain(&error)))?;
    let text = ask(client, request).await?.all(LONGEST, PATIENCE).await?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::garbage("not a list of EndpointSlices", &error))
}
