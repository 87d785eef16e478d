//! The health server's pages: `/healthz`, `/livez` and `/readyz`, for load balancers and the kubelet.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use super::health::{HealthReport, Moment, SharedHealth};
use super::metrics::Metrics;

/// Any method, and no other path.
pub(super) fn router(health: &SharedHealth, metrics: &Arc<Metrics>) -> Router {
    let (health, metrics) = (health.clone(), Arc::clone(metrics));
    let (node, proxy) = ((health.clone(), Arc::clone(&metrics)), (health.clone(), metrics));
    Router::new()
        .route(
            "/healthz",
            any(move || async move {
                let (health, metrics) = node;
                let report = health.lock().healthz(Moment::now());
                metrics.proxy.healthz_answered(report.good);
                respond(report)
            }),
        )
        .route(
            "/livez",
            any(move || async move {
                let (health, metrics) = proxy;
                let report = health.lock().livez(Moment::now());
                metrics.proxy.livez_answered(report.good);
                respond(report)
            }),
        )
        .route("/readyz", any(move || async move { respond(health.lock().readyz(Moment::now())) }))
}

fn respond(report: HealthReport) -> Response {
    let status = if report.good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, report.body).into_response()
}
