//! The API of a cluster as the source, against a server that does what real ones do, on bad days.
//!
//! - `lists`: how everything that exists is fetched;
//! - `watches`: how changes are followed, and what happens when that breaks;
//! - `nodes`: the other Nodes, if they matter;
//! - `encodings`: Protobuf, and servers that do not have it;
//! - `objects`: what single objects lead to, bad ones among them;
//! - `proxies`: a server behind one;
//! - `metrics`: what is measured of all that;
//! - `releases`: servers of older releases, and upgrades;
//! - `rates`: how often a server is asked;
//! - `outages`: a server that is away, and credentials that change;
//! - `pods`: a Pod looked for on demand.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, what goes wrong is a failure like any other"
)]

mod encodings;
mod events;
mod lists;
mod metrics;
mod nodes;
mod objects;
mod outages;
mod pods;
mod proxies;
mod rates;
mod releases;
mod watches;
mod world;
