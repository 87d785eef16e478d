//! `kube-ipvs drain` and `kube-ipvs undrain`: endpoints that an operator takes out on this node.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::{Session, completion, written};
use crate::answers::drains::{DrainRequest, Drained, Drains, Target, UndrainRequest, Undrained};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, duration, good, notable, table};
use syntax::duration::GoDuration;

/// Drains an endpoint on this node for a while: it gets no new connections and keeps existing ones
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs drain 10.244.1.5:8080             ten minutes\n  \
    kube-ipvs drain 10.244.1.5 --for 1h         all its ports\n  \
    kube-ipvs drain shop/cart 10.244.1.5:8080   for clients of this Service alone\n  \
    kube-ipvs drain                             list the current drains\n\n\
    The drain ends by itself, at the latest when kube-ipvs restarts or switches to another mode. \
    Other nodes keep using the endpoint. Exit code: 1 if clients would be left without an endpoint \
    (see --force), 4 if no Service has the endpoint.")]
pub struct DrainArguments {
    /// Service to limit the drain to, and the endpoint: an address, with one port or all
    #[arg(value_name = "[NS/NAME] ENDPOINT", num_args = 0..=2, add = ArgValueCompleter::new(completion::to_drain))]
    words: Vec<String>,
    /// Duration of the drain, at most 24h
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = time)]
    time: Duration,
    /// Drains the endpoint even if clients are left without one
    #[arg(long)]
    force: bool,
}

/// Ends a drain
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs undrain 10.244.1.5:8080\n  \
    kube-ipvs undrain 10.244.1.5    all drains of this address\n  \
    kube-ipvs undrain --all\n\n\
    Exit code: 4 if the endpoint is not drained.")]
pub struct UndrainArguments {
    /// Service that the drain is limited to, and the endpoint
    #[arg(
        value_name = "[NS/NAME] ENDPOINT",
        num_args = 1..=2,
        required_unless_present = "all",
        add = ArgValueCompleter::new(completion::drained),
    )]
    words: Vec<String>,
    /// All drains
    #[arg(long, conflicts_with = "words")]
    all: bool,
}

pub(super) fn drain(arguments: &DrainArguments, session: &mut Session) -> Result<Verdict, Failure> {
    let client = session.client()?;
    if arguments.words.is_empty() {
        let drains: Drains = client.get("/v1/drains", &[])?;
        written(session.output.show(drains, list))?;
        return Ok(Verdict::Yes);
    }
    let request = DrainRequest {
        target: target(&arguments.words)?,
        seconds: arguments.time.as_secs(),
        force: arguments.force,
    };
    let drained: Drained = client.post("/v1/drain", &request)?;
    let verdict = Verdict::from(drained.is_drained);
    written(session.output.show(drained, drained_text))?;
    Ok(verdict)
}

pub(super) fn undrain(
    arguments: &UndrainArguments,
    session: &mut Session,
) -> Result<Verdict, Failure> {
    let target = if arguments.all { None } else { Some(target(&arguments.words)?) };
    let ended: Undrained = session.client()?.post("/v1/undrain", &UndrainRequest { target })?;
    written(session.output.show(ended, undrained_text))?;
    Ok(Verdict::Yes)
}

fn time(word: &str) -> Result<Duration, String> {
    let time: GoDuration = word.parse().map_err(|error| format!("{error}"))?;
    let time = time.to_std();
    if time < Duration::from_secs(1) { Err("at least one second".to_owned()) } else { Ok(time) }
}

fn target(words: &[String]) -> Result<Target, Failure> {
    let (service, endpoint) = match words {
        [endpoint] => (None, endpoint),
        [service, endpoint] => (Some(service), endpoint),
        _ => return Err(Failure::Asked("name one endpoint".to_owned())),
    };
    if let Some(service) = service.filter(|service| !service.contains('/')) {
        let message = format!("{service} is not a Service name: write NAMESPACE/NAME");
        return Err(Failure::Asked(message));
    }
    let (address, port) = match endpoint.parse::<SocketAddr>() {
        Ok(socket) => (socket.ip(), Some(socket.port())),
        Err(_) => {
            let bare = endpoint.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            let address = bare.unwrap_or(endpoint).parse::<IpAddr>();
            let address = address.map_err(|_| {
                Failure::Asked(format!(
                    "{endpoint} is not an endpoint: write an address, or an address and a port, \
                     such as 10.244.1.5:8080 or [fd00::5]:8080"
                ))
            })?;
            (address, None)
        }
    };
    let port = port.map(|port| {
        NonZeroU16::new(port).ok_or_else(|| Failure::Asked("0 is not a port".to_owned()))
    });
    Ok(Target { address, port: port.transpose()?, service: service.cloned() })
}

fn list(answer: &Drains) -> String {
    if answer.drains.is_empty() {
        return "nothing is drained manually on this node\n".to_owned();
    }
    let rows = answer.drains.iter().map(|drain| {
        let Target { address, port, service } = &drain.target;
        let port = port.map_or_else(|| "all".to_owned(), |port| port.to_string());
        let service = service.clone().unwrap_or_else(|| "all".to_owned());
        #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
        let left = duration(drain.seconds_left as f64);
        [address.to_string(), port, service, left]
    });
    table(&["ADDRESS", "PORT", "SERVICE", "BACK IN"], rows)
}

fn drained_text(answer: &Drained) -> String {
    #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
    let time = duration(answer.seconds as f64);
    let mut text = match answer.is_drained {
        true => format!(
            "{}: {} gets no new connections from this node for {time}\n\n",
            good("drained"),
            answer.endpoints
        ),
        false => format!(
            "{}: {} is the last endpoint for clients of this node; drain it with --force\n\n",
            bad("refused"),
            answer.endpoints
        ),
    };
    let rows = answer.services.iter().map(|it| {
        let used = match it.endpoints.is_empty() {
            true => "no endpoint of it on this node".to_owned(),
            false => it.endpoints.join(", "),
        };
        let without = match it.left_without.is_empty() {
            true => "-".to_owned(),
            false => notable(it.left_without.join(", ")),
        };
        [it.service.clone(), used, without]
    });
    text += &table(&["SERVICE", "ENDPOINTS", "PORTS LEFT WITHOUT"], rows);
    text
}

fn undrained_text(answer: &Undrained) -> String {
    if answer.ended.is_empty() {
        return "nothing was drained manually on this node\n".to_owned();
    }
    answer.ended.iter().map(|it| format!("{}: {it}\n", good("no longer drained"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::drains::{DrainInForce, DrainedService};

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn an_endpoint_is_an_address_with_or_without_a_port_and_a_service() {
        let of = |texts: &[&str]| {
            let Target { address, port, service } = target(&words(texts)).unwrap();
            (address.to_string(), port.map(NonZeroU16::get), service)
        };
        assert_eq!(of(&["10.0.0.1:80"]), ("10.0.0.1".to_owned(), Some(80), None));
        assert_eq!(of(&["10.0.0.1"]), ("10.0.0.1".to_owned(), None, None));
        assert_eq!(of(&["[fd00::1]:80"]), ("fd00::1".to_owned(), Some(80), None));
        for text in ["fd00::1", "[fd00::1]"] {
            assert_eq!(of(&[text]), ("fd00::1".to_owned(), None, None));
        }
        let with_service = of(&["shop/cart", "10.0.0.1"]);
        assert_eq!(with_service, ("10.0.0.1".to_owned(), None, Some("shop/cart".to_owned())));
        for wrong in [&["cart", "10.0.0.1"][..], &["web-1"], &["10.0.0.1:0"], &["10.0.0.1:http"]] {
            assert!(matches!(target(&words(wrong)), Err(Failure::Asked(_))), "{wrong:?}");
        }
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert!(time("0s").is_err() && time("soon").is_err());
    }

    #[test]
    fn people_read_what_is_drained_and_what_is_left_without() {
        let service = |name: &str, endpoints: &[&str], without: &[&str]| DrainedService {
            service: name.to_owned(),
            endpoints: words(endpoints),
            left_without: words(without),
        };
        let mut answer = Drained {
            is_drained: true,
            endpoints: "10.244.1.5 (all ports)".to_owned(),
            seconds: 600,
            services: vec![
                service("shop/cart", &["TCP 10.244.1.5:8080"], &[]),
                service("shop/far", &[], &[]),
            ],
        };
        assert_eq!(
            plain(&drained_text(&answer)),
            "drained: 10.244.1.5 (all ports) gets no new connections from this node for 10m0s\n\n\
             SERVICE     ENDPOINTS                        PORTS LEFT WITHOUT\n\
             shop/cart   TCP 10.244.1.5:8080              -\n\
             shop/far    no endpoint of it on this node   -\n"
        );
        answer.is_drained = false;
        answer.services = vec![service("shop/cart", &["TCP 10.244.1.5:8080"], &["TCP 80"])];
        let refused = plain(&drained_text(&answer));
        assert!(refused.starts_with("refused: 10.244.1.5 (all ports) is the last"), "{refused}");
        assert!(refused.ends_with("TCP 10.244.1.5:8080   TCP 80\n"), "{refused}");
        let target = target(&words(&["shop/cart", "10.244.1.5"])).unwrap();
        let endpoints = "10.244.1.5 (all ports) of Service shop/cart".to_owned();
        let drains = Drains { drains: vec![DrainInForce { target, endpoints, seconds_left: 61 }] };
        assert_eq!(
            plain(&list(&drains)),
            "ADDRESS      PORT   SERVICE     BACK IN\n10.244.1.5   all    shop/cart   61s\n"
        );
        assert_eq!(
            list(&Drains { drains: Vec::new() }),
            "nothing is drained manually on this node\n"
        );
    }
}
