//! The operator's console of a tenure: its socket and its pages.

use std::sync::Arc;

use axum::Router;

use super::threads::TaskThread;
use crate::console::{Desk, page, server, socket_path};

/// Starts the console on its thread, and returns its pages for the metrics server.
pub(super) fn start(desk: Desk, thread: &TaskThread) -> Router {
    let desk = Arc::new(desk);
    let pages = match desk.configuration.served.console_page {
        Some(readers) => page::router(Arc::clone(&desk), readers, thread.handle()),
        None => Router::new(),
    };
    if let Some(path) = socket_path(&desk.configuration.console_socket) {
        thread.spawn(async move { server::serve(&path, desk).await });
    }
    pages
}
