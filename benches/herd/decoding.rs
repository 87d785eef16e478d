//! The time that decoding an event about a slice takes, from JSON and from Protobuf.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use apiserver::protobuf;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use source::object::{EndpointSlice, Object as _};

/// Rounds in which each encoding has its turn, and times that a slice is decoded in one.
const ROUNDS: usize = 201;
const TIMES: u32 = 20;

/// A line of a watch, which is read before its object (source/src/kubernetes/decode.rs).
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes a slice from both encodings in turn, and prints the medians.
pub(crate) fn compare(slice: &Value) -> Result<()> {
    let line = json!({"type": "MODIFIED", "object": slice}).to_string();
    let message = protobuf::message(slice).context("a slice has Protobuf")?;
    let from_json = || {
        let line: Line<'_> = serde_json::from_str(&line)?;
        serde_json::from_str::<EndpointSlice>(line.object.get())
    };
    let from_protobuf = || EndpointSlice::from_protobuf(&message);
    ensure!(from_json()? == from_protobuf()?, "the slices differ");
    let (mut by_json, mut by_protobuf) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        by_json.push(microseconds(|| from_json().is_ok()));
        by_protobuf.push(microseconds(|| from_protobuf().is_ok()));
    }
    let (json, protobuf) = (median(by_json), median(by_protobuf));
    println!(
        "    decoding it from JSON {json:.1} µs, from Protobuf {protobuf:.1} µs: {:.2} times",
        protobuf / json
    );
    Ok(())
}

/// Time that this takes.
fn microseconds(decode: impl Fn() -> bool) -> f64 {
    let begun = Instant::now();
    for _ in 0..TIMES {
        black_box(decode());
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
