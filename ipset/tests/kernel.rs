//! The library against the running kernel, and against the `ipset` tool's view of it.
//!
//! Each test has a network namespace of its own, so the sets of the machine stay as they are. To
//! run them: `cargo test -p ipset-netlink --features kernel-tests`, as root.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at what it does not expect"
)]

mod kernel {
    mod batches;
    mod commands;
    mod headers;
    mod sandbox;
    mod types;
}
