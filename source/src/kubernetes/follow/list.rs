//! Lists of all objects of a kind.

use std::time::Duration;

use kube::api::{ListParams, Request, VersionMatch};
use tokio::time::Instant;
use tracing::info;

use super::{Follower, not_a_request};
use crate::kubernetes::decode::{Item, ListReader, PageEnd, Status, UNLIKE_AN_ANSWER};
use crate::kubernetes::failure::Failure;
use crate::kubernetes::inventory::WatchStep;

/// Objects in a page. A page of the largest slices is about 100 MB, a usual one 5 MB.
const PAGE: u32 = 500;

/// Most bytes of an answer with a list, or with a page of it. etcd holds 2 GiB by default, and 500 of the
/// longest requests that the API server takes are 1.5 GiB.
const LONGEST_LIST: u64 = 2 << 30;

/// Most objects of a list, all pages together: the largest clusters that Kubernetes is tested with have 150,000
/// Pods. Each object takes memory as long as it exists.
const MOST_OBJECTS: usize = 1_000_000;

/// Longest silence while a list is being sent.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// Time for which lists are not asked for as streams after they could not be had. The server may
/// have been upgraded by then, or its bad hour be over.
const STREAM_PAUSE: Duration = Duration::from_secs(3_600);

/// Attempts at a page while the server is away or busy. client-go makes as many
/// (`Request.maxRetries` in rest/request.go).
const PAGE_ATTEMPTS: u32 = 10;

/// Way to fetch lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lists {
    /// Beginning of a watch: the server need not build the whole answer in memory.
    Streamed,
    /// In one piece, as the server's cache has it.
    Cached,
    /// Page by page.
    Paged,
    /// In one piece, this time.
    Whole,
}

impl Follower {
    /// Lists otherwise for a while.
    pub(super) fn avoid_streams(&mut self, failure: &Failure) {
        let kind = self.kind.name();
        info!(
            kind,
            "streaming list failed: {}; kube-ipvs lists from the server's cache instead, and tries \
             streams again in an hour",
            failure.cause()
        );
        self.lists = Lists::Cached;
        self.streams_at = Some(Instant::now() + STREAM_PAUSE);
    }

    fn list_in_pages(&mut self, failure: &Failure) {
        info!(
            kind = self.kind.name(),
            "list from the server's cache failed: {}; kube-ipvs lists from etcd instead, in pages",
            failure.cause()
        );
        self.lists = Lists::Paged;
    }

    /// Asks for streams again once their time has come.
    pub(super) fn allow_streams(&mut self) {
        if self.streams_at.is_some_and(|at| at <= Instant::now()) {
            self.lists = Lists::Streamed;
            self.streams_at = None;
        }
    }

    /// Fetches the list: as the cache has it, page by page, or in one piece.
    pub(super) async fn list(&mut self) -> Result<(), Failure> {
        self.begin_list().await?;
        let mut parameters = self.list_parameters();
        loop {
            let page = self.insist_on_page(&parameters).await?;
            if let Some(next) = page.next {
                // kube leaves out the version where there is a token.
                parameters.continue_token = Some(next);
                continue;
            }
            self.saw(page.resource_version.ok_or_else(without_version)?);
            break;
        }
        self.lists = Lists::Cached;
        self.step(WatchStep::ListEnds).await
    }

    fn list_parameters(&self) -> ListParams {
        let parameters = ListParams {
            label_selector: self.kind.labels().map(str::to_owned),
            field_selector: self.field_selector(),
            ..ListParams::default()
        };
        match (self.lists, &self.seen) {
            (Lists::Paged, _) => parameters.limit(PAGE),
            (Lists::Cached, Some(seen)) => parameters.at(seen).matching(VersionMatch::NotOlderThan),
            (Lists::Cached, None) => parameters.at("0"),
            (Lists::Whole | Lists::Streamed, _) => parameters,
        }
    }

    /// Fetches a page. One after the first is asked for again with its token while the server is
    /// away or busy, or else the pages before it would have been for nothing.
    async fn insist_on_page(&mut self, parameters: &ListParams) -> Result<PageEnd, Failure> {
        let is_first = parameters.continue_token.is_none();
        let mut attempts = 1;
        loop {
            let failure = match self.page(parameters).await {
                Ok(page) => return Ok(page),
                Err(failure) => failure,
            };
            let kind = self.kind.name();
            match &failure {
                Failure::Expired if !is_first => {
                    // The server forgets sooner than we read. What came stays; the list begins
                    // again.
                    info!(
                        kind,
                        "continue token of a list expired (410); the list is fetched in one piece"
                    );
                    self.lists = Lists::Whole;
                }
                // The version is one of before etcd was restored, or none that this server knows.
                Failure::Expired | Failure::Refused(Status { code: 400 | 422, .. })
                    if self.lists == Lists::Cached =>
                {
                    self.list_in_pages(&failure);
                }
                Failure::Refused(status)
                    if self.lists == Lists::Cached && status.is_too_large_version() =>
                {
                    self.list_in_pages(&failure);
                }
                failure if failure.is_passing() && !is_first && attempts < PAGE_ATTEMPTS => {
                    attempts += 1;
                    self.rest(failure).await?;
                    continue;
                }
                _ => {}
            }
            return Err(failure);
        }
    }

    /// Begins a list of either kind.
    pub(super) async fn begin_list(&mut self) -> Result<(), Failure> {
        self.n_listed = 0;
        self.metrics.listing(self.kind, self.list_reason);
        self.step(WatchStep::ListBegins).await
    }

    /// Fetches a page, and reports its items as they come.
    async fn page(&mut self, parameters: &ListParams) -> Result<PageEnd, Failure> {
        let request = Request::new(self.kind.path()).list(parameters);
        let request = request.map_err(|error| not_a_request(&error))?;
        let body = self.objects.list(request).await;
        let mut body = body.map_err(|failure| self.failure(failure))?;
        let encoding = body.encoding(LIST_PATIENCE).await?;
        let mut reader = ListReader::new(self.kind, encoding);
        while let Some(chunk) = body.chunk(LONGEST_LIST, LIST_PATIENCE).await? {
            self.metrics.heard(self.kind);
            self.listed(reader.read(&chunk).map_err(|error| not_a_list(&error))?).await?;
        }
        let mut end = reader.end().map_err(|error| not_a_list(&error))?;
        self.listed(std::mem::take(&mut end.items)).await?;
        Ok(end)
    }

    async fn listed(&mut self, items: Vec<Item>) -> Result<(), Failure> {
        for item in items {
            self.listed_one(item).await?;
        }
        Ok(())
    }

    /// Takes an item of a list of either kind.
    pub(super) async fn listed_one(&mut self, item: Item) -> Result<(), Failure> {
        self.n_listed += 1;
        if self.n_listed > MOST_OBJECTS {
            let problem =
                format!("a list has more than {MOST_OBJECTS} objects; {UNLIKE_AN_ANSWER}");
            return Err(Failure::Garbage(problem));
        }
        self.step(WatchStep::Listed(item)).await
    }
}

pub(in super::super) fn not_a_list(error: &serde_json::Error) -> Failure {
    Failure::garbage("not a list", error)
}

/// A list without its version may have been cut.
pub(in super::super) fn without_version() -> Failure {
    Failure::Garbage("a list without its resourceVersion".to_owned())
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use tokio::sync::mpsc;

    use super::*;
    use crate::kubernetes::answer::Objects;
    use crate::kubernetes::backoff::Backoff;
    use crate::kubernetes::kind::ResourceKind;
    use crate::kubernetes::measured::ClientMetrics;

    #[tokio::test]
    async fn a_list_has_a_largest_number_of_objects() {
        let url = "http://127.0.0.1:1".parse().unwrap();
        let client = Client::try_from(kube::Config::new(url)).unwrap();
        let (reports, mut inbox) = mpsc::channel(10);
        let metrics = ClientMetrics::new("127.0.0.1").unwrap();
        let backoff = Backoff::default();
        let kind = ResourceKind::Service;
        let objects = Objects::new(client, false);
        let mut follower = Follower::new(objects, kind, "n".to_owned(), backoff, reports, metrics);
        follower.begin_list().await.unwrap();
        // Pages are one list.
        follower.n_listed = MOST_OBJECTS - 2;
        let items = || vec![Item::Service(Box::default()); 2];
        follower.listed(items()).await.unwrap();
        let error = follower.listed(items()).await.unwrap_err().cause();
        assert!(
            error.contains("a list has more than 1000000 objects; this is not an answer"),
            "{error}"
        );
        follower.begin_list().await.unwrap();
        follower.listed(items()).await.unwrap();
        drop(follower);
        let mut n_listed = 0;
        while let Some((_, report)) = inbox.recv().await {
            n_listed += usize::from(matches!(
                report,
                super::super::FollowReport::Step(WatchStep::Listed(_))
            ));
        }
        assert_eq!(n_listed, 4);
    }
}
