//! `kube-ipvs top`: Services and endpoints by what goes through them.

mod screen;

use std::io::{self, IsTerminal as _};

use clap::Args;

use super::{Session, written};
use crate::answers::top::{DEFAULT_LIMIT, EndpointTraffic, Rates, ServiceTraffic, Sort, Top};
use crate::outcome::{Failure, Verdict};
use crate::output::{Format, notable};
use crate::table::{Column, Table};

/// Word for what other programs balance.
const OTHERS: &str = "(no Service)";

/// A Service or an endpoint.
struct Row<'a> {
    name: String,
    rates: &'a Rates,
    active: u64,
    inactive: u64,
}

/// Shows connections, packets and bytes per second of Services and endpoints; refreshes on a
/// terminal
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs top\n  \
    kube-ipvs top --once --sort bytes --filter kube-system/\n\n\
    On a terminal: c p b n sort by connections, packets, bytes, name; / filters; e shows \
    endpoints; arrows move; space holds; q ends. Rates come from IPVS counters, which the kernel \
    updates every 2 seconds.")]
pub struct Arguments {
    /// Prints one table and exits (default if the output is not a terminal)
    #[arg(long)]
    once: bool,
    /// Order
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    sort: Sort,
    /// Only Services whose NAMESPACE/NAME contains this
    #[arg(long, default_value = "", value_name = "TEXT")]
    filter: String,
    /// Most Services to list with --once
    #[arg(long, default_value_t = DEFAULT_LIMIT, value_name = "NUMBER")]
    limit: usize,
    /// Lists the endpoints of each Service, too
    #[arg(long)]
    endpoints: bool,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let client = session.client()?;
    let is_for_people = session.output.format() == Format::Text;
    if is_for_people && !arguments.once && io::stdout().is_terminal() {
        written(screen::run(&client, arguments))?;
        return Ok(Verdict::Yes);
    }
    let limit = arguments.limit.to_string();
    let query = [("sort", name(arguments.sort)), ("filter", &arguments.filter), ("limit", &limit)];
    let top: Top = client.get("/v1/top", &query)?;
    written(session.output.show(top, |top| text(top, arguments.endpoints)))?;
    Ok(Verdict::Yes)
}

/// Returns an order's word in a question.
const fn name(sort: Sort) -> &'static str {
    match sort {
        Sort::Connections => "connections",
        Sort::Packets => "packets",
        Sort::Bytes => "bytes",
        Sort::Name => "name",
    }
}

fn text(top: &Top, has_endpoints: bool) -> String {
    let mut text = table(&top.services, has_endpoints).text();
    let shown = top.services.len();
    if shown < top.total {
        text += &format!("{shown} of {} Services; --limit shows more\n", top.total);
    }
    if top.stands_still {
        text += &format!("{}: {STANDS_STILL}\n", notable("Note"));
    }
    text
}

/// Note for counters that stand still.
const STANDS_STILL: &str = "IPVS counters do not advance on this node, and all rates are 0: \
                            estimators are off (net.ipv4.vs.run_estimation)";

/// Returns a table of Services, each with its endpoints below it if wanted.
fn table(services: &[ServiceTraffic], has_endpoints: bool) -> Table {
    let columns: [Column<Row<'_>>; 8] = [
        ("SERVICE", |it| it.name.clone()),
        ("CONN/S", |it| short(it.rates.connections)),
        ("PACKETS/S IN", |it| short(it.rates.packets_in)),
        ("OUT", |it| short(it.rates.packets_out)),
        ("BYTES/S IN", |it| short(it.rates.bytes_in)),
        ("OUT", |it| short(it.rates.bytes_out)),
        ("ACTIVE", |it| it.active.to_string()),
        ("INACTIVE", |it| it.inactive.to_string()),
    ];
    let rows = services.iter().flat_map(|service| {
        let ServiceTraffic { rates, active, inactive, endpoints, .. } = service;
        let name = service.service.as_deref().unwrap_or(OTHERS).to_owned();
        let row = Row { name, rates, active: *active, inactive: *inactive };
        [row].into_iter().chain(endpoints.iter().filter(move |_| has_endpoints).map(Row::of))
    });
    Table::of(&columns, rows)
}

impl<'a> Row<'a> {
    fn of(endpoint: &'a EndpointTraffic) -> Self {
        let EndpointTraffic { endpoint, rates, active, inactive, weight } = endpoint;
        let drains = if *weight == 0 { ", weight 0" } else { "" };
        Self { name: format!("  {endpoint}{drains}"), rates, active: *active, inactive: *inactive }
    }
}

/// Returns a number with three digits or so: `0.5`, `12`, `1.2k`, `34M`.
fn short(number: f64) -> String {
    let steps = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let step = steps.into_iter().find(|(size, _)| number >= *size);
    let (number, unit) = step.map_or((number, ""), |(size, unit)| (number / size, unit));
    let digits = if number < 9.95 { 1 } else { 0 };
    let text = format!("{number:.digits$}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn mk_top() -> Top {
        let rates = |connections| Rates {
            connections,
            packets_in: 1_234.0,
            packets_out: 999.0,
            bytes_in: 1_048_576.0,
            bytes_out: 0.0,
        };
        let endpoint = EndpointTraffic {
            endpoint: "10.244.1.11:8080".parse().unwrap(),
            rates: rates(1.5),
            active: 12,
            inactive: 3,
            weight: 0,
        };
        let service = |name: Option<&str>, connections, endpoints| ServiceTraffic {
            service: name.map(ToOwned::to_owned),
            virtual_servers: 1,
            rates: rates(connections),
            active: 12,
            inactive: 3,
            endpoints,
        };
        Top {
            seconds: 2.0,
            stands_still: false,
            total: 9,
            all: rates(3.0),
            services: vec![
                service(Some("shop/cart"), 1.5, vec![endpoint]),
                service(None, 0.0, Vec::new()),
            ],
        }
    }

    #[test]
    fn a_service_is_a_line_and_so_are_its_endpoints_if_wanted() {
        let plain = |top: &Top, has_endpoints| {
            anstream::adapter::strip_str(&text(top, has_endpoints)).to_string()
        };
        let mut top = mk_top();
        let expected = "\
SERVICE                        CONN/S   PACKETS/S IN   OUT   BYTES/S IN   OUT   ACTIVE   INACTIVE
shop/cart                      1.5      1.2k           999   1M           0     12       3
  10.244.1.11:8080, weight 0   1.5      1.2k           999   1M           0     12       3
(no Service)                   0        1.2k           999   1M           0     12       3
2 of 9 Services; --limit shows more
";
        assert_eq!(plain(&top, true), expected);
        assert!(!plain(&top, false).contains("10.244.1.11"));
        top.stands_still = true;
        assert!(plain(&top, false).contains("do not advance"), "{}", plain(&top, false));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.54, 3.0, 9.96, 999.4, 1_000.0, 12_345.0, 5e7, 2e9, 3e12].map(short);
        assert_eq!(texts, ["0", "0.5", "3", "10", "999", "1k", "12k", "50M", "2G", "3T"]);
    }
}
