//! Words of the configuration. Each is declared once, with the value that it stands for and its gloss in
//! the reference: a value without a word does not compile, and neither does a reader without the value.

use std::fmt;

use plan::mode::Mode;
use plan::settings::{AcceptServiceTraffic, FastPath, RuleForm};

use super::text::{Text, Words};
use kernel::estimators::Run;
use kernel::rules::Variant;
use serve::listen::Readers;
use serve::metrics::services::MeasuredServices;
use source::FollowNodes;

/// Modes of kube-proxy that are refused, each with what to do.
pub(super) const REFUSED: [(&str, &str); 2] = [
    (
        "nftables",
        "kube-ipvs has no nftables mode, and none is planned: run kube-proxy on nodes that need \
         it, or set mode: ipvs, mode: iptables or mode: userspace",
    ),
    (
        "kernelspace",
        "kernelspace is kube-proxy's mode on Windows, and kube-ipvs supports Linux only: run \
         kube-proxy on Windows nodes",
    ),
];

/// Words that `nodePortAddresses` may have beside networks: the Node's first address of each
/// family, loopback addresses, and all addresses. Only the first, and by itself, before Kubernetes
/// 1.37.
pub(super) const NODE_PORT_WORDS: [&str; 3] = ["primary", "localhost", "all"];

/// ARP replies for Service addresses (`serviceAddressesArp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArpReplies {
    /// As `ipvs.strictARP` says.
    #[default]
    Compatible,
    /// None.
    Quiet,
}

/// Criterion by which traffic from this node's own pods is recognised (`detectLocalMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DetectLocalMode {
    /// Networks of all pods.
    #[default]
    ClusterCidr,
    /// Networks of the Node's pods.
    NodeCidr,
    BridgeInterface,
    /// Beginning of interfaces' names.
    InterfaceNamePrefix,
}

/// Word of `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    Of(Mode),
    /// The mode that is tried first, and the one that a host can do instead.
    Auto,
}

/// Mode for a host that cannot do the preferred one (`fallback`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackMode {
    /// Mode iptables.
    Iptables,
}

/// Reaction to a host that can do the preferred mode, found while serving in the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnReturn {
    /// Say so, and go on.
    #[default]
    Stay,
    /// Say so, and end the program, whose supervisor starts it again.
    Restart,
    /// Say so, and switch to it.
    Switch,
}

impl Default for ProxyMode {
    fn default() -> Self {
        Self::Of(Mode::default())
    }
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Declares the words of a type: `Value = "word" ("gloss")`, in the order in which they are listed. `else`
/// is followed by what says of another text what it must be, if that is not the list.
macro_rules! words {
    (
        $type:ty {
            $($value:ident $(($inner:path))? = $word:expr $(, ($gloss:literal))?;)+
        } else $refusal:expr
    ) => {
        impl Text for $type {
            const WORDS: Words = &[$(($word, concat!($($gloss)?))),+];

            fn read(text: &str) -> Result<Self, String> {
                $(if text == $word {
                    return Ok(Self::$value $(($inner))?);
                })+
                let refusal = $refusal;
                Err(refusal(text, Self::WORDS))
            }

            fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$value $(($inner))? => $word,)+
                })
            }
        }
    };
    ($type:ty { $($words:tt)+ }) => {
        words! { $type { $($words)+ } else one_of }
    };
}

words! {
    AcceptServiceTraffic {
        Always = "always", (
            "accepted before the host's own rules, within spec.loadBalancerSourceRanges and if the \
             Service has endpoints"
        );
        Never = "never", (
            "the host's rules decide, as with kube-proxy: a DROP policy cuts off pods and clients"
        );
    }
}

/// Choice of the form of rules and sets in IPVS mode (`ruleBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleBackend {
    /// The form that a node has, else the first that its host supports.
    #[default]
    Auto,
    /// This one.
    Only(RuleForm),
}

impl RuleBackend {
    /// Returns the form for a host that has none yet and can do both.
    #[must_use]
    pub fn form_without_host(self) -> RuleForm {
        match self {
            Self::Auto => RuleForm::default(),
            Self::Only(form) => form,
        }
    }
}

words! {
    RuleBackend {
        Auto = "auto", (
            "the form in use on the node, else iptables, or nftables if only that works"
        );
        Only(RuleForm::Iptables) = "iptables", (
            "iptables rules that match ipsets, as with kube-proxy"
        );
        Only(RuleForm::Nftables) = "nftables", (
            "tables named kube-ipvs in nf_tables, without iptables, ipset and their modules"
        );
    }
}

/// Choice of the path of established connections in IPVS mode (`fastPath`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastPathChoice {
    /// The fastest one that the host supports.
    Auto,
    /// This one; the next slower one where the host lacks something.
    Only(FastPath),
}

impl Default for FastPathChoice {
    fn default() -> Self {
        Self::Only(FastPath::Off)
    }
}

impl FastPathChoice {
    /// Returns the way on a host that supports all.
    #[must_use]
    pub fn wanted(self) -> FastPath {
        match self {
            Self::Auto => FastPath::Offload,
            Self::Only(path) => path,
        }
    }
}

words! {
    FastPathChoice {
        Only(FastPath::Off) = "off", ("IPVS translates every packet");
        Only(FastPath::Conntrack) = "conntrack", (
            "IPVS chooses the endpoint, conntrack translates later packets; needs ruleBackend: \
             nftables"
        );
        Only(FastPath::Offload) = "offload", (
            "like conntrack, and the kernel's flow table carries forwarded connections; needs \
             Linux 6.1"
        );
        Auto = "auto", ("the fastest path that the host supports");
    }
}

words! {
    Option<Readers> {
        None = "off";
        Some(Readers::Loopback) = "loopback", (
            "for clients on the node, such as kubectl port-forward"
        );
        Some(Readers::Network) = "network", (
            "for every client that reaches metricsBindAddress: no TLS, no authentication"
        );
    }
}

words! {
    Run {
        Auto = "auto", ("unchanged");
        On = "on";
        Off = "off";
    }
}

words! {
    FallbackMode {
        Iptables = Mode::Iptables.name();
    } else |_: &str, words: Words| {
        format!("must be {}, or empty to never fall back", listed(words, ""))
    }
}

words! {
    OnReturn {
        Stay = "never", (
            "kube-ipvs logs it and sends an Event, and stays in its mode until restarted"
        );
        Restart = "restart", ("kube-ipvs exits, so that it is restarted in IPVS mode");
        Switch = "switch", ("kube-ipvs switches to IPVS mode without a restart");
    }
}

words! {
    FollowNodes {
        Auto = "auto", (
            "once a Service has an external IP, a load balancer IP or externalTrafficPolicy Local"
        );
        Always = "always";
        Never = "never";
    }
}

words! {
    Variant {
        Auto = "auto", ("the variant that holds the cluster's rules");
        Nft = "nft";
        Legacy = "legacy";
    }
}

words! {
    ArpReplies {
        Compatible = "compatible", ("as set by ipvs.strictARP");
        Quiet = "quiet", (
            "no replies for Service addresses; replies for the node's own addresses on every \
             interface (Service addresses have scope host, arp_ignore is 3, arp_announce is 2)"
        );
    }
}

words! {
    ProxyMode {
        Of(Mode::Iptables) = Mode::Iptables.name();
        Of(Mode::Ipvs) = Mode::Ipvs.name();
        Of(Mode::Userspace) = Mode::Userspace.name();
        Auto = "auto", (
            "ipvs, or iptables on a host without IPVS support; kube-proxy does not accept this \
             value"
        );
    } else |text: &str, words: Words| {
        let refused = REFUSED.iter().find(|(name, _)| *name == text);
        refused.map_or_else(
            || format!(
                "must be {} or blank (blank means the best-available proxy [which is ipvs here])",
                listed(words, "")
            ),
            |(_, why)| (*why).to_owned(),
        )
    }
}

words! {
    DetectLocalMode {
        ClusterCidr = "ClusterCIDR";
        NodeCidr = "NodeCIDR";
        BridgeInterface = "BridgeInterface";
        InterfaceNamePrefix = "InterfaceNamePrefix";
    } else |_: &str, words: Words| {
        format!("supported values: {}, \"\"", listed(words, "\""))
    }
}

words! {
    LogFormat {
        Text = "text";
        Json = "json";
    }
}

impl Text for MeasuredServices {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn one_of(_: &str, words: Words) -> String {
    format!("must be one of {}", listed(words, ""))
}

/// Returns the words, each between `quotes`.
fn listed(words: Words, quotes: &str) -> String {
    let words: Vec<String> =
        words.iter().map(|(word, _)| format!("{quotes}{word}{quotes}")).collect();
    words.join(", ")
}
