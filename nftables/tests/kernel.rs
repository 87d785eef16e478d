//! The library against the running kernel, and against the `nft` tool's view of it.
//!
//! Each test has a network namespace of its own, so the tables of the machine stay as they are. To
//! run them: `cargo test -p nftables-netlink --features kernel-tests`, as root.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at what it does not expect"
)]

mod kernel {
    mod listings;
    mod owners;
    mod sandbox;
    mod transactions;
}
