//! Pages for a browser, on the metrics server: status, Services, one Service's picture, a packet's way.
//!
//! ```text
//!   browser ──▶ guard ──▶ a page ──▶ answers (as the commands get them, as JSON) ──▶ HTML
//! ```
//!
//! The pages only read. They are made of the answers that the commands are made of, and are whole
//! without scripts; `console/src/page/live.js` loads them again for live figures.

mod guard;
mod layout;
mod markup;
mod picture;
mod service;
mod services;
mod shared;
#[cfg(test)]
mod tests;
mod trace;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};
use tower::ServiceExt as _;

use super::Desk;
use super::answers::status::Status;
use super::answers::{self, Answer, Content, FailureAnswer};
use super::commands::status::{facts, tables};
use super::harmless::harmless_json;
use layout::{Page, Place};
use markup::Markup;
use serve::listen::Readers;
use shared::SharedAnswers;

/// Time between two loads of a page with live figures. The kernel estimates rates every two seconds.
const PAUSE: Duration = Duration::from_secs(2);

/// Longest answer that a page is made of.
const LONGEST_ANSWER: usize = 16 << 20;

/// Services on a page. The next page has more.
const SERVICES: &str = "100";

/// Longest query of a page.
const LONGEST_QUERY: usize = 2_048;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/live.js");

/// Sources of the pages.
#[derive(Debug, Clone)]
struct Site {
    answers: Router,
    /// Runtime that answers.
    runtime: Handle,
    /// Pages that their viewers share.
    shared: SharedAnswers,
}

/// An answer as it comes.
#[derive(Debug)]
struct Answered {
    status: StatusCode,
    body: Bytes,
}

/// A page that could not be made.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    message: String,
}

/// Every page that there is, below `/console/`. Answers and their pages are made on the runtime, so that they
/// hold no other request to the metrics server up.
pub fn router(desk: Arc<Desk>, readers: Readers, runtime: &Handle) -> Router {
    pages(Site::new(answers::router(desk), runtime.clone(), PAUSE), readers)
}

fn pages(site: Site, readers: Readers) -> Router {
    Router::new()
        .route("/console", get(|| async { Redirect::permanent("/console/") }))
        .route("/console/", get(status_page))
        .route("/console/services", get(services_page))
        .route("/console/service", get(service_page))
        .route("/console/trace", get(trace_page))
        .route("/console/style.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
        .route(
            "/console/live.js",
            get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }),
        )
        .layer(middleware::from_fn(guard::guard))
        .layer(Extension(readers))
        .with_state(site)
}

async fn status_page(State(site): State<Site>) -> Page {
    site.show("/v1/status", &[], |found| match found {
        Ok(found) => layout::page(Place::Status, "Status", |main| write_status(main, &found)),
        Err(failure) => failure.page(Place::Status),
    })
    .await
}

fn write_status(main: &mut Markup, status: &Status) {
    main.facts(&facts(status));
    for table in tables(status) {
        main.table(&table, |_, _| None);
    }
}

async fn services_page(State(site): State<Site>, RawQuery(query): RawQuery) -> Page {
    let asked = Parameters::read(query);
    let shown = asked.clone();
    let mut query = asked.only(&["namespace", "after"]);
    query.push(("limit", SERVICES));
    site.show("/v1/services", &query, move |found| match found {
        Ok(found) => layout::page(Place::Services, "Services", |main| {
            services::write(main, &found, &shown);
        }),
        Err(failure) => failure.page(Place::Services),
    })
    .await
}

async fn service_page(State(site): State<Site>, RawQuery(query): RawQuery) -> Page {
    let asked = Parameters::read(query);
    let title = asked.get("name").to_owned();
    site.show("/v1/service", &asked.only(&["name"]), move |found| match found {
        Ok(found) => layout::page(Place::Service, &title, |main| service::write(main, &found)),
        Err(failure) => failure.page(Place::Service),
    })
    .await
}

async fn trace_page(State(site): State<Site>, RawQuery(query): RawQuery) -> Page {
    let asked = Parameters::read(query);
    let shown = asked.clone();
    let form = move |main: &mut Markup| trace::write_form(main, &shown);
    if asked.get("destination").is_empty() {
        return layout::page(Place::Trace, "Trace a packet", form);
    }
    let query = asked.only(&["source", "destination", "protocol"]);
    site.show("/v1/trace", &query, move |found| match found {
        Ok(found) => layout::page(Place::Trace, "Trace a packet", |main| {
            form(main);
            trace::write(main, &found);
        }),
        Err(failure) => layout::failure(Place::Trace, failure.status, |main| {
            form(main);
            main.labelled("p", &[("class", "bad")], &failure.message);
        }),
    })
    .await
}

fn asset(media_type: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, media_type)], text).into_response()
}

/// Parameters of a page, from its query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(query: Option<String>) -> Self {
        let query = query.filter(|query| query.len() <= LONGEST_QUERY).unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        Self(pairs.map(|(name, value)| (name.into_owned(), value.trim().to_owned())).collect())
    }

    /// The first value of a parameter; empty: there is none.
    fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// Those of these names that have a value.
    fn only<'a>(&'a self, names: &[&'a str]) -> Vec<(&'a str, &'a str)> {
        let pairs = names.iter().map(|name| (*name, self.get(name)));
        pairs.filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// Returns a link to a page of ours with these parameters.
fn link(page: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters);
    match query.finish() {
        none if none.is_empty() => page.to_owned(),
        query => format!("{page}?{query}"),
    }
}

impl Site {
    fn new(answers: Router, runtime: Handle, pause: Duration) -> Self {
        Self { answers, runtime, shared: SharedAnswers::new(pause) }
    }

    /// Asks for an answer, as a command does, and makes a page of it: all viewers get the same one. Whatever
    /// `render` shows beside the answer is in the question.
    async fn show<T: Content + 'static>(
        &self,
        path: &str,
        asked: &[(&str, &str)],
        render: impl Fn(Result<T, Failure>) -> Page + Clone + Send + Sync + 'static,
    ) -> Page {
        let question = link(path, asked);
        let page = self.shared.get(&question, || self.make(&question, render.clone())).await;
        page.unwrap_or_else(|failure| render(Err(failure)))
    }

    /// Makes a page on the runtime, all of it: the metrics server's thread answers probes of the node, too.
    async fn make<T: Content + 'static>(
        &self,
        question: &str,
        render: impl FnOnce(Result<T, Failure>) -> Page + Send + 'static,
    ) -> Result<Page, Failure> {
        let request = Request::get(question).body(Body::empty());
        let answering = self.answers.clone().oneshot(request.map_err(|it| Failure::of_ours(&it))?);
        let making = Answering(self.runtime.spawn(async move {
            let Ok(response) = answering.await;
            let status = response.status();
            let body = to_bytes(response.into_body(), LONGEST_ANSWER).await;
            let body = body.map_err(|error| Failure::of_ours(&error));
            render(body.and_then(|body| Answered { status, body }.read()))
        }));
        making.await.map_err(|error| Failure::of_ours(&error))
    }
}

/// An answer that is being made. It ends with its reader.
struct Answering<T>(JoinHandle<T>);

impl<T> Future for Answering<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Answered {
    fn read<T: Content>(&self) -> Result<T, Failure> {
        if self.status.is_success() {
            // Texts from outside have no styles.
            let json = String::from_utf8_lossy(&self.body);
            let answer = serde_json::from_str::<Answer<T>>(&harmless_json(&json));
            return answer.map(|it| it.content).map_err(|error| Failure::of_ours(&error));
        }
        // The router itself says in plain words what it cannot read of a query.
        let message = serde_json::from_slice::<Answer<FailureAnswer>>(&self.body).map_or_else(
            |_| String::from_utf8_lossy(&self.body).into_owned(),
            |answer| answer.content.message,
        );
        Err(Failure { status: self.status, message })
    }
}

impl Failure {
    /// Too many questions lately. The next one is answered after this time.
    fn busy(after: Duration) -> Self {
        let seconds = after.as_secs() + 1;
        let message = format!(
            "these pages have used up their share of this node's CPU; try again in {seconds} s, or \
             run the command on the node, which has no such limit"
        );
        Self { status: StatusCode::TOO_MANY_REQUESTS, message }
    }

    fn of_ours(error: &dyn std::error::Error) -> Self {
        let message = format!("cannot render the page: {error}; this is a bug");
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message }
    }

    fn page(&self, place: Place) -> Page {
        layout::failure(place, self.status, |main| {
            main.labelled("p", &[("class", "bad")], &self.message);
        })
    }
}
