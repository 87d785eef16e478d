//! The pages in a browser. `cargo xtask page` installs it, runs this, and keeps the screenshots.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderValue;
use axum::middleware::map_response;
use axum::response::Html;
use tokio::net::TcpListener;

use super::pictures::Picture;
use super::*;
use serve::listen;

const BROWSER: &str = "chromium-headless-shell";

/// Answers as in the other tests, but for a rate that rises with each question.
fn rising(asked: Arc<AtomicU64>) -> Site {
    let of_service = move || {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut service = service("cart");
            service["frontends"][0]["traffic"] = traffic(100 + number);
            answer("Service", service)
        }
    };
    let answers = Router::new().route("/v1/service", get(of_service)).fallback_service(answers());
    Site::new(answers, Handle::current(), Duration::ZERO)
}

/// Has the browser run no script.
async fn forbid_scripts(mut response: Response) -> Response {
    let policy = HeaderValue::from_static("script-src 'none'");
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}

/// Serves pages, and returns the address for a browser.
async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(listen::serve(listener, router, 16));
    root
}

/// Runs the browser on a page for some seconds of its own time, and returns what it writes.
async fn browse(url: String, arguments: Vec<String>) -> String {
    let run = move || {
        let output = Command::new(BROWSER)
            .args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .arg("--virtual-time-budget=5000")
            .args(arguments)
            .arg(url)
            .output();
        let output = output.unwrap_or_else(|error| panic!("{BROWSER}: {error}; cargo xtask page"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// The largest rate in a picture, in connections a second.
fn rate(document: &str) -> u64 {
    let (_, svg) = document.split_once("<svg").unwrap_or_else(|| panic!("{document}"));
    let rates = svg.split("<text class=\"small\"").filter_map(|text| {
        let (before, _) = text.split_once(" connections/s")?;
        before.rsplit([' ', '>']).next()?.parse().ok()
    });
    rates.max().unwrap_or_else(|| panic!("{svg}"))
}

/// Counts the texts of a picture that leave their boxes.
const MEASURE: &str = "<script>
addEventListener('load', () => {
  const boxes = [...document.querySelectorAll('svg g')];
  const over = boxes.filter(box => {
    const edge = box.querySelector('rect').getBBox();
    return [...box.querySelectorAll('text')].some(text => {
      const at = text.getBBox();
      return at.x < edge.x || at.x + at.width > edge.x + edge.width;
    });
  });
  document.title = boxes.length + ' boxes, too small: '
    + over.map(box => box.textContent).join('; ') + '.';
});
</script>";

#[tokio::test]
async fn a_browser_keeps_figures_up_to_date_and_needs_no_script_for_the_rest() {
    let asked = Arc::new(AtomicU64::new(0));
    let with_scripts = pages(rising(Arc::clone(&asked)), Readers::Loopback);
    let without_scripts = with_scripts.clone().layer(map_response(forbid_scripts));
    let page = "console/service?name=shop/cart";
    let root = serve(without_scripts).await;
    let still = browse(format!("{root}/{page}"), vec!["--dump-dom".to_owned()]).await;
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "without scripts, the page stays as it was loaded"
    );
    assert!(rate(&still) == 100 && still.contains("10.244.1.5:8080"), "{still}");
    let root = serve(with_scripts).await;
    let live = browse(format!("{root}/{page}"), vec!["--dump-dom".to_owned()]).await;
    assert!(rate(&live) > 102, "figures have gone on: {live}");
    assert!(live.contains("<span id=\"live-state\">live</span>"), "{live}");
}

#[tokio::test]
async fn texts_of_a_picture_stay_in_their_boxes() {
    let (_, page) = read("/console/service?name=shop/cart").await;
    let (_, svg) = page.split_once("<svg").unwrap();
    let (svg, _) = svg.split_once("</svg>").unwrap();
    let page = format!("<!doctype html><style>{STYLE}</style><svg{svg}</svg>{MEASURE}");
    let page = get(move || async move { Html(page) });
    let root = serve(Router::new().route("/", page)).await;
    let measured = browse(root, vec!["--dump-dom".to_owned()]).await;
    assert!(measured.contains("<title>7 boxes, too small: .</title>"), "{measured}");
}

#[tokio::test]
async fn a_browser_shows_every_page() {
    let root = serve(pages(pictures::site(), Readers::Loopback)).await;
    for Picture { name, path, texts, .. } in pictures::ALL {
        let shown = browse(format!("{root}/console/{path}"), vec!["--dump-dom".to_owned()]).await;
        for text in texts {
            assert!(shown.contains(text), "{name} has no {text:?}: {shown}");
        }
        // The form of a trace asks when it is sent, the others by themselves.
        let is_live = shown.contains("<span id=\"live-state\">live</span>");
        assert_eq!(is_live, name != "trace", "{name}: {shown}");
    }
    let style = browse(format!("{root}/console/style.css"), vec!["--dump-dom".to_owned()]).await;
    assert!(style.contains("svg rect.draining"), "{style}");

    let Some(folder) = std::env::var_os("KUBE_IPVS_SCREENSHOTS").map(PathBuf::from) else { return };
    for Picture { name, path, height, .. } in pictures::ALL {
        let file = folder.join(format!("console-{name}.png"));
        let picture = format!("--screenshot={}", file.display());
        let window = format!("--window-size=1220,{height}");
        browse(format!("{root}/console/{path}"), vec![window, picture]).await;
        assert!(file.metadata().unwrap().len() > 1_000, "{}", file.display());
    }
    pictures::keep_words().await;
}
