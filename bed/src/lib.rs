//! The test bed: nodes, pods and clients as network namespaces, and real traffic between them.
//!
//! IPVS, ipset, conntrack and iptables all keep their state per network namespace, so a whole
//! cluster fits in one kernel, and several clusters can run side by side. Everything here needs
//! root, `ip` of iproute2 and a kernel with veth and bridge. `ip_vs` is up to the programs inside
//! the nodes.
//!
//! ```no_run
//! use bed::{Cluster, ClusterSpec, NodeSpec, Protocol, Question, Server, ask_many};
//!
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::build(&ClusterSpec {
//!     nodes: vec![NodeSpec { pods: 2 }, NodeSpec { pods: 1 }],
//!     ..ClusterSpec::default()
//! })?;
//! let _first = Server::start(cluster.pod(1, 1)?, &[(Protocol::Tcp, 8080)])?;
//! let _second = Server::start(cluster.pod(1, 2)?, &[(Protocol::Tcp, 8080)])?;
//! cluster.node(1)?.namespace.command("ipvsadm", &["-A", "-t", "10.96.0.10:80", "-s", "rr"])?;
//! // ... add the pods as real servers ...
//! let question = Question::tcp(([10, 96, 0, 10], 80));
//! let tally = ask_many(&cluster.pod(2, 1)?.namespace, question, 10);
//! assert_eq!(tally.to_string(), "pod1-1 saw 10.244.2.11 x5; pod1-2 saw 10.244.2.11 x5");
//! # Ok(())
//! # }
//! ```

pub mod addresses;
pub mod cluster;
pub mod daemon;
pub mod dump;
pub mod eventually;
pub mod load;
pub mod manifest;
pub mod namespace;
pub mod protocol;
pub mod proxy;
pub mod server;
pub mod stream;
pub mod tally;
pub mod terminal;
pub mod traffic;

pub use cluster::{Cluster, ClusterSpec, Host, NodeSpec, PodCables};
pub use daemon::Daemon;
pub use eventually::eventually;
pub use load::{Client, Load, LoadReport, Traffic};
pub use manifest::Service;
pub use namespace::Namespace;
pub use protocol::Protocol;
pub use proxy::{Manifests, Proxy, program};
pub use server::Server;
pub use stream::{Stream, StreamPlan, StreamReport};
pub use tally::{Tally, ask_many};
pub use terminal::Terminal;
pub use traffic::{Answer, Connection, Question, Refusal, ask};
