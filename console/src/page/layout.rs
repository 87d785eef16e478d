//! The frame of every page.

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use super::PAUSE;
use super::markup::Markup;

/// A page as it is sent. Copies share its text.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) status: StatusCode,
    pub(super) html: Bytes,
}

/// Place of a page among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The program and its node.
    Status,
    Services,
    Service,
    /// A packet's way.
    Trace,
}

impl Place {
    /// Place in the navigation.
    const fn heading(self) -> Self {
        match self {
            Self::Service => Self::Services,
            other => other,
        }
    }

    /// True if its figures change without a question.
    const fn is_live(self) -> bool {
        matches!(self, Self::Status | Self::Services | Self::Service)
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        (self.status, Html(self.html)).into_response()
    }
}

pub(super) fn page(place: Place, title: &str, content: impl FnOnce(&mut Markup)) -> Page {
    Page { status: StatusCode::OK, html: document(place, title, content).into() }
}

/// Returns a page that says why it is not what was asked for.
pub(super) fn failure(place: Place, status: StatusCode, content: impl FnOnce(&mut Markup)) -> Page {
    let reason = status.canonical_reason().unwrap_or("No answer");
    Page { status, ..page(place, reason, content) }
}

fn document(place: Place, title: &str, content: impl FnOnce(&mut Markup)) -> String {
    let mut document = Markup::default();
    document.element("html", &[("lang", "en")], |html| {
        html.element("head", &[], |head| {
            head.void("meta", &[("charset", "utf-8")])
                .void("meta", &[("name", "viewport"), ("content", "width=device-width")])
                .labelled("title", &[], format!("{title} - kube-ipvs"))
                .void("link", &[("rel", "stylesheet"), ("href", "/console/style.css")])
                .labelled("script", &[("src", "/console/live.js"), ("defer", "")], "");
        });
        html.element("body", &[], |body| {
            body.element("header", &[], |header| navigation(header, place));
            let pause = PAUSE.as_millis().to_string();
            let attributes: &[_] = if place.is_live() { &[("data-live", &*pause)] } else { &[] };
            body.element("main", attributes, |main| {
                main.labelled("h1", &[], title);
                content(main);
            });
        });
    });
    document.into_document()
}

fn navigation(header: &mut Markup, place: Place) {
    header.labelled("strong", &[], "kube-ipvs");
    header.element("nav", &[], |nav| {
        for (other, path, name) in [
            (Place::Status, "/console/", "Status"),
            (Place::Services, "/console/services", "Services"),
            (Place::Trace, "/console/trace", "Trace"),
        ] {
            let is_current = [("href", path), ("aria-current", "page")];
            let attributes =
                if place.heading() == other { &is_current[..] } else { &is_current[..1] };
            nav.labelled("a", attributes, name);
        }
    });
    header.labelled("span", &[("id", "live-state")], "");
}
