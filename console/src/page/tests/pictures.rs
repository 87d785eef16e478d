//! The pages that `docs/pictures/` shows: a made-up cluster without a fault. `cargo xtask page` draws them, and keeps
//! their words, so that a change of a page's words is noticed.

use super::*;

/// A page of which there is a picture.
#[cfg_attr(
    not(feature = "browser-tests"),
    expect(dead_code, reason = "what only a browser looks at")
)]
pub(super) struct Picture {
    /// Name of the picture.
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// Texts in it.
    pub(super) texts: &'static [&'static str],
    /// Height of the picture.
    pub(super) height: u32,
}

pub(super) const ALL: [Picture; 4] = [
    Picture {
        name: "status",
        path: "",
        texts: &["node1", "virtual servers", "KUBE-CLUSTER-IP", "in sync"],
        height: 680,
    },
    Picture {
        name: "services",
        path: "services",
        texts: &["cart", "203.0.113.60", "3/3"],
        height: 364,
    },
    Picture {
        name: "service",
        path: "service?name=shop/cart",
        texts: &["10.244.1.11:8080", "drains, 12m4s left"],
        height: 724,
    },
    Picture {
        name: "trace",
        path: "trace?source=outside&destination=203.0.113.60:80",
        texts: &["203.0.113.60:80, scheduler rr", "an endpoint gets it", "masqueraded"],
        height: 1_112,
    },
];

/// The program's answers in the pictures.
const ANSWERS: [(&str, &str); 4] = [
    ("/v1/status", include_str!("pictures/status.json")),
    ("/v1/services", include_str!("pictures/services.json")),
    ("/v1/service", include_str!("pictures/service.json")),
    ("/v1/trace", include_str!("pictures/trace.json")),
];

/// Words of the pages when they were drawn.
const DRAWN: &str = include_str!("pictures/words.txt");

pub(super) fn site() -> Site {
    let answers = ANSWERS.into_iter().fold(Router::new(), |answers, (path, json)| {
        let content: Value = serde_json::from_str(json).unwrap();
        answers.route(path, get(move || async { Json(content) }))
    });
    Site::new(answers, Handle::current(), Duration::ZERO)
}

/// Returns the words of all pictures, a text a line.
async fn words() -> String {
    let mut words = String::new();
    for Picture { name, path, .. } in ALL {
        let (status, page) = read_from(site(), &format!("/console/{path}")).await;
        assert_eq!(status, 200, "{name}: {page}");
        words += &format!("# {name}\n");
        let (_, body) = page.split_once("<body>").unwrap();
        let texts = body.split('<').filter_map(|tag| tag.split_once('>')).map(|(_, text)| text);
        for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
            words += &format!("{text}\n");
        }
    }
    words
}

/// Writes the words of all pictures down.
#[cfg(feature = "browser-tests")]
pub(super) async fn keep_words() {
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/tests/pictures/words.txt");
    std::fs::write(file, words().await).unwrap();
}

#[tokio::test]
async fn pictures_have_the_words_of_the_pages() {
    let now = words().await;
    for (drawn, now) in DRAWN.lines().zip(now.lines()) {
        assert_eq!(drawn, now, "docs/pictures is stale: draw it anew with `cargo xtask page`");
    }
    assert_eq!(
        DRAWN.lines().count(),
        now.lines().count(),
        "docs/pictures is stale: cargo xtask page"
    );
}

#[test]
fn pictures_show_nothing_that_is_wrong() {
    assert!(!DRAWN.contains("Not whole") && !DRAWN.contains("Warning"), "{DRAWN}");
}
