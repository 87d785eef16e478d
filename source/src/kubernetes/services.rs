//! The number of a cluster's Services and the networks of their addresses, asked for once.

use std::time::Duration;

use ipnet::IpNet;
use kube::Client;
use kube::api::{ListParams, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::answer::ask;
use super::error_text::chain;
use super::failure::Failure;
use syntax::address;

/// Longest time until an answer is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer. One Service may have 1.5 MiB, by etcd's default, and six times as much in JSON.
const LONGEST: u64 = 16 << 20;

/// Most ServiceCIDRs that are asked for. Clusters have one or two.
const MOST_NETWORKS: u32 = 100;

/// A list of which the number of items is all that matters.
#[derive(Debug, Deserialize)]
struct Count {
    #[serde(default)]
    metadata: CountMetadata,
    items: Vec<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CountMetadata {
    remaining_item_count: usize,
}

/// networking.k8s.io/v1 ServiceCIDRList, as far as it matters.
#[derive(Debug, Deserialize)]
struct ServiceCidrs {
    items: Vec<ServiceCidr>,
}

#[derive(Debug, Deserialize)]
struct ServiceCidr {
    #[serde(default)]
    spec: ServiceCidrSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceCidrSpec {
    cidrs: Vec<String>,
}

impl Count {
    /// The number of items in all; the server may say whatever it likes.
    fn number(&self) -> usize {
        self.items.len().saturating_add(self.metadata.remaining_item_count)
    }
}

/// Returns the number of all Services, those included that are not for this proxy: with a selector the
/// API server does not say how many there are (`remainingItemCount` of ListMeta).
pub async fn count_services(client: &Client) -> Result<usize, String> {
    let list: Count = list(client, "/api/v1/services", 1).await?;
    Ok(list.number())
}

/// Returns the networks of service addresses: those of all ServiceCIDRs (networking.k8s.io/v1, since
/// Kubernetes 1.33), sorted.
///
/// # Errors
/// When the API server does not answer, refuses, or does not know them, in words.
pub async fn service_networks(client: &Client) -> Result<Vec<IpNet>, String> {
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let list: ServiceCidrs = list(client, path, MOST_NETWORKS).await?;
    let texts = list.items.iter().flat_map(|item| &item.spec.cidrs);
    let mut networks: Vec<IpNet> = texts.filter_map(|text| address::cidr(text)).collect();
    networks.sort_unstable();
    networks.dedup();
    Ok(networks)
}

async fn list<T: DeserializeOwned>(client: &Client, path: &str, limit: u32) -> Result<T, String> {
    let answer = timeout(PATIENCE, page(client, path, limit)).await;
    answer.map_err(|_| format!("no answer within {PATIENCE:?}"))?.map_err(|failure| failure.cause())
}

async fn page<T: DeserializeOwned>(client: &Client, path: &str, limit: u32) -> Result<T, Failure> {
    let request = Request::new(path).list(&ListParams::default().limit(limit));
    let request = request.map_err(|error| Failure::Garbage(chain(&error)))?;
    let text = ask(client, request).await?.all(LONGEST, PATIENCE).await?;
    serde_json::from_slice(&text).map_err(|error| Failure::garbage("not a list", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_how_many_items_there_are() {
        let count = |text: &str| serde_json::from_str::<Count>(text).unwrap().number();
        assert_eq!(
            count(r#"{"metadata":{"remainingItemCount":49999},"items":[{"spec":{}}]}"#),
            50_000
        );
        assert_eq!(count(r#"{"metadata":{"resourceVersion":"7"},"items":[{}]}"#), 1);
        assert_eq!(count(r#"{"items":[]}"#), 0);
        let most = u64::MAX;
        let absurd = format!(r#"{{"metadata":{{"remainingItemCount":{most}}},"items":[{{}}]}}"#);
        assert_eq!(count(&absurd), usize::MAX);
        assert!(serde_json::from_str::<Count>("{}").is_err());
    }
}
