//! The metrics server's pages.
//!
//! `/metrics`, `/metrics/slis`, `/healthz`, `/proxyMode`, `/configz`, `/flagz`, `/statusz`; and
//! with profiling also `/debug/flags/v`. Paths and answers are kube-proxy's, so that what reads
//! them goes on working. Our own are `/following`, whether changes arrive from the API server, and what the
//! rest of the program adds, such as the pages below `/console/`.

mod scrapes;
mod zpages;

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, WARNING, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, put};
use axum::{Json, Router};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use super::metrics::{MEDIA_TYPE, Metrics, ServedMode};
use scrapes::Scrapes;
use zpages::{Form, Statusz, ZPage};

/// More than any verbosity needs.
const LONGEST_BODY: usize = 64;

const NO_PROFILER: &str = "kube-ipvs has no built-in profiler: it would need signal handlers in a \
                           process that serves a node's traffic. Use perf instead: perf record -g \
                           -p $(pidof kube-ipvs) -- sleep 30\n";

/// Function that sets the log's verbosity, a number as of `-v`, or returns why it cannot.
pub type SetVerbosity = Box<dyn Fn(u8) -> Result<(), String> + Send + Sync>;

/// Function that returns, for people, whether changes arrive from the API server.
pub type Following = Box<dyn Fn() -> String + Send + Sync>;

/// Content of the pages.
pub struct Pages {
    /// Mode, for `/proxyMode` and `/statusz`.
    pub mode: ServedMode,
    /// The whole answer at `/configz`: `{"kubeproxy.config.k8s.io": …}`.
    pub configz: Value,
    /// Flags with their values, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// `enableProfiling`: how to change what is logged; nothing: no pages below `/debug`.
    pub profiling: Option<SetVerbosity>,
    /// The feature gate `ComponentFlagz`: whether there is `/flagz`.
    pub flagz: bool,
    /// The feature gate `ComponentStatusz`: whether there is `/statusz`.
    pub statusz: bool,
    /// Answer of `/following`; nothing: there is no such page.
    pub following: Option<Following>,
    /// Pages of other parts of the program.
    pub more: Router,
}

struct PageState {
    pages: Pages,
    metrics: Arc<Metrics>,
    /// Held by the scrape that is being encoded.
    encoding: Mutex<()>,
    scrapes: Scrapes,
    started: (Instant, SystemTime),
}

type Page = State<Arc<PageState>>;

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("configz", &self.configz)
            .field("flags", &self.flags)
            .field("profiling", &self.profiling.is_some())
            .finish()
    }
}

/// Every path that there is; any other is 404.
pub(super) fn router(mut pages: Pages, metrics: &Arc<Metrics>) -> Router {
    pages.flags.sort();
    let (profiling, has_following) = (pages.profiling.is_some(), pages.following.is_some());
    let (flagz, statusz) = (pages.flagz, pages.statusz);
    let started = (Instant::now(), SystemTime::now());
    let more = std::mem::take(&mut pages.more);
    let (metrics, encoding) = (Arc::clone(metrics), Mutex::default());
    let scrapes = Scrapes::default();
    let state = Arc::new(PageState { pages, metrics, encoding, scrapes, started });
    let mut router = Router::new()
        .route("/metrics", any(metrics_page))
        .route("/metrics/slis", any(slis_page))
        .route("/healthz", any(healthz_page))
        .route("/healthz/ping", any(|| async { text("ok".to_owned()) }))
        .route(
            "/proxyMode",
            any(|State(state): Page| async move { text(state.pages.mode.effective.to_string()) }),
        )
        .route("/configz", any(|State(state): Page| async move { json(&state.pages.configz) }));
    if has_following {
        router = router.route("/following", any(following_page));
    }
    if flagz {
        router = router.route("/flagz", get(flagz_page));
    }
    if statusz {
        router = router.route("/statusz", get(statusz_page));
    }
    if profiling {
        let no_profiler = || async { (StatusCode::NOT_IMPLEMENTED, text(NO_PROFILER.to_owned())) };
        router = router
            .route(
                "/debug/flags",
                any(|| async { text("PUT a number to /debug/flags/v\n".into()) }),
            )
            .route("/debug/flags/v", put(set_verbosity))
            .route("/debug/pprof", any(no_profiler))
            .route("/debug/pprof/", any(no_profiler))
            .route("/debug/pprof/{*profile}", any(no_profiler));
    }
    router.with_state(state).merge(more).layer(DefaultBodyLimit::max(LONGEST_BODY))
}

async fn metrics_page(State(state): Page) -> Response {
    encoded(&state, Metrics::text).await
}

async fn slis_page(method: Method, State(state): Page) -> Response {
    if method == Method::DELETE {
        state.metrics.reset_slis();
        return text("metrics reset\n".to_owned());
    }
    encoded(&state, Metrics::slis_text).await
}

/// Metrics of 50,000 Services take a second to encode: beside this thread, which answers probes, and one scrape
/// at a time.
async fn encoded(
    state: &Arc<PageState>,
    encode: fn(&Metrics) -> Result<String, prometheus::Error>,
) -> Response {
    let _turn = state.encoding.lock().await;
    let metrics = Arc::clone(&state.metrics);
    let text = spawn_blocking(move || encode(&metrics)).await;
    match text.unwrap_or_else(|error| Err(prometheus::Error::Msg(error.to_string()))) {
        Ok(text) => {
            let length = text.len().to_string();
            let headers = [(CONTENT_TYPE, MEDIA_TYPE), (CONTENT_LENGTH, length.as_str())];
            (headers, state.scrapes.body(text)).into_response()
        }
        Err(error) => {
            error!("cannot encode the metrics: {error}; the scrape gets status 500");
            (StatusCode::INTERNAL_SERVER_ERROR, self::text(error.to_string())).into_response()
        }
    }
}

/// Answers that this server works. The proxy's health is on the other server.
async fn healthz_page(State(state): Page, RawQuery(query): RawQuery) -> Response {
    state.metrics.healthz_answered();
    let verbose = query.is_some_and(|query| {
        query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose="))
    });
    let answer = if verbose { "[+]ping ok\nhealthz check passed\n" } else { "ok" };
    text(answer.to_owned())
}

async fn following_page(State(state): Page) -> Response {
    let Some(following) = &state.pages.following else {
        return StatusCode::NOT_FOUND.into_response();
    };
    text(following())
}

async fn flagz_page(State(state): Page, headers: HeaderMap) -> Response {
    let flags = &state.pages.flags;
    negotiated(
        ZPage::Flagz,
        &headers,
        || zpages::flags_text(flags),
        |version| zpages::flags_json(flags, version),
    )
}

async fn statusz_page(State(state): Page, headers: HeaderMap) -> Response {
    let (instant, time) = state.started;
    let mode = state.pages.mode.to_string();
    let status = Statusz { started: time, up: instant.elapsed(), mode };
    negotiated(
        ZPage::Statusz,
        &headers,
        || zpages::status_text(&status),
        |version| zpages::status_json(&status, version),
    )
}

async fn set_verbosity(State(state): Page, body: String) -> Response {
    let Some(set) = &state.pages.profiling else { return StatusCode::NOT_FOUND.into_response() };
    let Ok(verbosity) = body.trim().parse::<u8>() else {
        let answer =
            format!("{body:?} is not a verbosity: use a number from 0 to 255, such as 4\n");
        return (StatusCode::BAD_REQUEST, text(answer)).into_response();
    };
    match set(verbosity) {
        Ok(()) => {
            info!(verbosity, "log verbosity changed by a request to /debug/flags/v");
            text(format!("successfully set klog.logging.verbosity to {verbosity}"))
        }
        Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, text(reason)).into_response(),
    }
}

/// In the form that the client accepts.
fn negotiated(
    kind: ZPage,
    headers: &HeaderMap,
    as_text: impl FnOnce() -> String,
    as_json: impl FnOnce(&str) -> Value,
) -> Response {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    match zpages::form(kind, &accept.collect::<Vec<_>>().join(",")) {
        Some(Form::Text) => text(as_text()),
        Some(Form::Json { version }) => {
            let mut response = json(&as_json(version.name()));
            if let Some(warning) = version.warning(kind) {
                response.headers_mut().insert(WARNING, warning);
            }
            response
        }
        None => (StatusCode::NOT_ACCEPTABLE, text(zpages::not_acceptable(kind))).into_response(),
    }
}

fn text(body: String) -> Response {
    let headers =
        [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, body).into_response()
}

fn json(value: &Value) -> Response {
    Json(value).into_response()
}
