//! Answer of a Service's health check.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use plan::local::HealthCheck;
use plan::model::{Family, ServiceName};
use serde_json::Value;

use crate::health::{Moment, SharedHealth};

/// Header with the number of endpoints behind this node, for load balancers that weigh nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// State from which a Service's listeners answer.
#[derive(Debug)]
pub(super) struct CheckAnswer {
    service: ServiceName,
    health: SharedHealth,
    local_v4: AtomicUsize,
    local_v6: AtomicUsize,
}

impl CheckAnswer {
    /// Returns the answer of a Service without endpoints.
    pub(super) fn new(service: ServiceName, health: SharedHealth) -> Self {
        Self { service, health, local_v4: AtomicUsize::new(0), local_v6: AtomicUsize::new(0) }
    }

    /// Sets the numbers of endpoints.
    pub(super) fn set(&self, check: &HealthCheck) {
        self.local_v4.store(check.local_v4.unwrap_or_default(), Ordering::Relaxed);
        self.local_v6.store(check.local_v6.unwrap_or_default(), Ordering::Relaxed);
    }

    /// Answers 200 if this node has endpoints and the proxy is healthy, else 503. A node that is
    /// about to leave does not matter here: existing endpoints go on being served.
    fn respond(&self, family: Family, now: Moment) -> Response {
        let local = match family {
            Family::V4 => &self.local_v4,
            Family::V6 => &self.local_v6,
        };
        let local = local.load(Ordering::Relaxed);
        let healthy = self.health.lock().is_healthy(now);
        let status =
            if local > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        // The shape of the text is kube-proxy's, to the tab; as values the names are quoted.
        let namespace = Value::from(&*self.service.namespace);
        let name = Value::from(&*self.service.name);
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
             \t\"localEndpoints\": {local},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        );
        let headers = [
            (CONTENT_TYPE, "application/json".to_owned()),
            (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (WEIGHT, local.to_string()),
        ];
        (status, headers, body).into_response()
    }
}

/// Answers every path and method alike, for the endpoints of a family.
pub(super) fn router(answer: &Arc<CheckAnswer>, family: Family) -> Router {
    let answer = Arc::clone(answer);
    Router::new().fallback(move || async move { answer.respond(family, Moment::now()) })
}
