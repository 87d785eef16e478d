//! Questions, as commands ask them over the socket.

use anyhow::{Result, anyhow, ensure};
use kube_ipvs::console::answers::Content;
use kube_ipvs::console::answers::diff::Diff;
use kube_ipvs::console::answers::events::Events;
use kube_ipvs::console::answers::explain::Explanation;
use kube_ipvs::console::answers::service::ServiceState;
use kube_ipvs::console::answers::services::Services;
use kube_ipvs::console::answers::status::Status;
use kube_ipvs::console::answers::top::Top;
use kube_ipvs::console::answers::trace::Trace;
use kube_ipvs::console::client::Client;

/// A question, and how often it is timed.
pub(crate) struct Question {
    pub(crate) name: &'static str,
    pub(crate) n_times: u32,
    pub(crate) ask: fn(&Client) -> Result<()>,
}

pub(crate) const QUESTIONS: [Question; 8] = [
    Question { name: "status", n_times: 200, ask: status },
    Question { name: "services -A", n_times: 5, ask: services },
    Question { name: "service", n_times: 100, ask: service },
    Question { name: "explain", n_times: 100, ask: explain },
    Question { name: "trace", n_times: 100, ask: trace },
    Question { name: "events", n_times: 100, ask: events },
    Question { name: "top", n_times: 20, ask: top },
    Question { name: "diff", n_times: 3, ask: diff },
];

fn get<T: Content>(client: &Client, path: &str, query: &[(&str, &str)]) -> Result<T> {
    client.get(path, query).map_err(|failure| anyhow!("{path}: {failure}"))
}

fn status(client: &Client) -> Result<()> {
    let status: Status = get(client, "/v1/status", &[])?;
    ensure!(status.kernel.in_sync_once && status.input.services > 0, "{status:?}");
    Ok(())
}

/// Asks for all pages, as the command does.
fn services(client: &Client) -> Result<()> {
    let mut after = None::<String>;
    loop {
        let query: Vec<(&str, &str)> = after.iter().map(|it| ("after", it.as_str())).collect();
        let part: Services = get(client, "/v1/services", &query)?;
        ensure!(!part.services.is_empty() && part.uncounted.is_none(), "{:?}", part.uncounted);
        match part.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

fn service(client: &Client) -> Result<()> {
    let name = [("name", "default/service-17")];
    get::<ServiceState>(client, "/v1/service", &name).map(drop)
}

fn explain(client: &Client) -> Result<()> {
    let name = [("name", "default/service-17")];
    get::<Explanation>(client, "/v1/explain", &name).map(drop)
}

fn trace(client: &Client) -> Result<()> {
    let query = [("source", "node"), ("destination", "10.96.0.18:80"), ("protocol", "tcp")];
    let trace: Trace = get(client, "/v1/trace", &query)?;
    ensure!(trace.service.as_deref() == Some("default/service-17"), "{:?}", trace.service);
    Ok(())
}

fn events(client: &Client) -> Result<()> {
    get::<Events>(client, "/v1/events", &[("limit", "200")]).map(drop)
}

fn top(client: &Client) -> Result<()> {
    get::<Top>(client, "/v1/top", &[("limit", "100")]).map(drop)
}

fn diff(client: &Client) -> Result<()> {
    get::<Diff>(client, "/v1/diff", &[]).map(drop)
}
