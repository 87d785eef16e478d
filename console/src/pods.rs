//! Addresses of a Pod that an operator names: the source looks for them, on a thread of its own.

use std::path::PathBuf;

use kube::Client;
use tokio::runtime::Handle;

use super::answers::{FailureAnswer, Reason, nearest};
use source::kubernetes::look_for_pod;
use source::pods::{FoundPod, PodNotFound, PodSearch};
use syntax::counted::counted;

/// Way to the source's knowledge of Pods.
#[derive(Clone)]
pub enum PodFinder {
    /// EndpointSlices of the API server, by the source's own connections.
    Kubernetes(Client, Handle),
    /// EndpointSlices of a folder of manifests.
    Manifests(PathBuf),
}

impl PodFinder {
    /// Finds a Pod.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<FoundPod, FailureAnswer> {
        let mut search = PodSearch::new(namespace, name);
        let (searching, place) = match self {
            Self::Kubernetes(client, source) => {
                let client = client.clone();
                let searching = source.spawn(async move { look_for_pod(&client, search).await });
                (searching, "the API server".to_owned())
            }
            Self::Manifests(folder) => {
                let place = folder.display().to_string();
                let folder = folder.clone();
                let searching = tokio::task::spawn_blocking(move || {
                    search.look_at_folder(&folder).map(|()| search)
                });
                (searching, place)
            }
        };
        let searched = searching.await.unwrap_or_else(|error| Err(error.to_string()));
        let searched = searched.map_err(|error| unasked(namespace, name, &place, &error))?;
        searched.end().map_err(|missing| not_found(namespace, name, &place, &missing))
    }
}

/// Finds a Pod in a folder of manifests, for a command of its own.
pub fn find_in_folder(
    folder: &std::path::Path,
    namespace: &str,
    name: &str,
) -> Result<FoundPod, FailureAnswer> {
    let mut search = PodSearch::new(namespace, name);
    let place = folder.display().to_string();
    let looked = search.look_at_folder(folder);
    looked.map_err(|error| unasked(namespace, name, &place, &error))?;
    search.end().map_err(|missing| not_found(namespace, name, &place, &missing))
}

fn unasked(namespace: &str, name: &str, place: &str, error: &str) -> FailureAnswer {
    FailureAnswer::new(
        Reason::Unavailable,
        format!(
            "cannot look up the pod {namespace}/{name} in the EndpointSlices of {place}: {error}; \
             write its address instead (kubectl get pod -n {namespace} {name} -o wide)"
        ),
    )
}

fn not_found(namespace: &str, name: &str, place: &str, missing: &PodNotFound) -> FailureAnswer {
    let PodNotFound { n_slices, n_endpoints, names } = missing;
    let slices = counted(*n_slices, "EndpointSlice");
    let endpoints = counted(*n_endpoints, "endpoint");
    let near = nearest(name, names.iter().map(String::as_str));
    let near = match &near[..] {
        [] => String::new(),
        near => format!("; nearest: {}", near.join(", ")),
    };
    FailureAnswer::new(
        Reason::NotFound,
        format!(
            "the pod {namespace}/{name} is not an endpoint: {slices} with {endpoints} in namespace \
             {namespace} of {place} do not have it (kube-ipvs may not list Pods){near}. For a pod \
             without a Service, write its address (kubectl get pod -n {namespace} {name} -o wide)"
        ),
    )
}
