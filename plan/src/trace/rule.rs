//! Rules, read from the text that is written to the kernel.

use std::net::SocketAddr;

use ipnet::IpNet;

use crate::model::Protocol;
use crate::rule_set::words;
use crate::sets::SetId;

/// A rule that cannot be read: nothing is known of what it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule `{rule}` cannot be followed: {reason}")]
pub struct UnreadableRule {
    pub rule: String,
    /// The word that is not known, and what it stands for.
    pub reason: String,
}

/// A rule: it does something to the packets for which all of its matches hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    pub(super) matches: Vec<Match>,
    /// None: it counts packets, or remembers them.
    pub(super) target: Option<Target>,
}

/// A condition, or its opposite.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Match {
    pub(super) is_negated: bool,
    pub(super) condition: Condition,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    Source(IpNet),
    Destination(IpNet),
    /// An interface by its name, or by the beginning of it.
    ComesBy(String, Extent),
    Protocol(Protocol),
    DestinationPort(u16),
    /// A set, and what of the packet is looked up.
    InSet(SetId, Vec<Side>),
    Mark {
        value: u32,
        mask: u32,
    },
    /// The address of this side is one of the node.
    IsLocal(Side),
    ComesByBridgePort,
    /// One of these states, as connection tracking has them.
    State(Vec<State>),
    /// Connection tracking has confirmed the connection.
    IsConfirmed,
    /// By chance, with this probability.
    Chance(f64),
    /// The client has an endpoint that it was led to before.
    IsRemembered,
    /// Holds for every packet.
    Always,
    /// Holds for no first packet of a Service's connection.
    Never,
}

/// Extent of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    Beginning,
}

/// Side of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// State of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    New,
    /// Its destination was changed.
    Translated,
    /// Any state that the first packet of a connection never has.
    Later,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    Accept,
    Drop,
    Return,
    Reject(String),
    Mark {
        value: u32,
        mask: u32,
    },
    Masquerade,
    /// Something that changes nothing of its way: a copy, or another hop limit.
    Aside,
    TranslateTo(SocketAddr),
    TranslateInto(IpNet),
    /// The same, and in the other half of the network.
    TranslateIntoOtherHalf(IpNet),
    /// A chain, from which a packet comes back behind this rule.
    Chain(String),
    /// A chain, from which it comes back as from this one.
    ChainInstead(String),
}

impl Rule {
    /// Reads a rule as `iptables-save` prints it, without `-A` and the chain's name.
    pub(super) fn read(text: &str) -> Result<Self, UnreadableRule> {
        let words = words(text);
        let mut reader = Reader { words: &words, is_negated: false, matches: Vec::new() };
        match reader.read() {
            Ok(target) => Ok(Self { matches: reader.matches, target }),
            Err(reason) => Err(UnreadableRule { rule: text.to_owned(), reason }),
        }
    }
}

/// Reading of one rule, word by word.
struct Reader<'a> {
    words: &'a [String],
    /// True after a `!`.
    is_negated: bool,
    matches: Vec<Match>,
}

impl<'a> Reader<'a> {
    fn read(&mut self) -> Result<Option<Target>, String> {
        while let Some(word) = self.next() {
            match word {
                "!" => self.is_negated = true,
                "-s" => {
                    let network = self.parsed()?;
                    self.push(Condition::Source(network));
                }
                "-d" => {
                    let network = self.parsed()?;
                    self.push(Condition::Destination(network));
                }
                "-i" => {
                    let name = self.argument()?;
                    self.push(match name.strip_suffix('+') {
                        Some(name) => Condition::ComesBy(name.to_owned(), Extent::Beginning),
                        None => Condition::ComesBy(name.to_owned(), Extent::Whole),
                    });
                }
                "-p" => {
                    let condition = match self.argument()? {
                        "ipv6-icmp" => Condition::Never,
                        name => Condition::Protocol(protocol_named(name)?),
                    };
                    self.push(condition);
                }
                "-m" => {
                    let module = self.argument()?;
                    self.read_match(module)?;
                }
                "-j" => {
                    let target = self.argument()?;
                    return self.read_target(target).map(Some);
                }
                "-g" => return Ok(Some(Target::ChainInstead(self.argument()?.to_owned()))),
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(None)
    }

    /// Reads the options of a match, up to the next match or the target.
    fn read_match(&mut self, module: &str) -> Result<(), String> {
        let n_before = self.matches.len();
        while let Some(option) = self.peek().filter(|word| *word == "!" || word.starts_with("--")) {
            if option == "!" && !self.words.get(1).is_some_and(|word| word.starts_with("--")) {
                break;
            }
            self.next();
            self.read_option(module, option)?;
        }
        // Those that only remember or count have no option that is a condition.
        if self.matches.len() == n_before {
            self.push(Condition::Always);
        }
        Ok(())
    }

    fn read_option(&mut self, module: &str, option: &str) -> Result<(), String> {
        let condition = match (module, option) {
            (_, "!") => {
                self.is_negated = true;
                return Ok(());
            }
            ("comment", "--comment") | ("nfacct", "--nfacct-name") => {
                self.argument()?;
                return Ok(());
            }
            ("set", "--match-set") => {
                let name = self.argument()?;
                let set = SetId::by_name(name).ok_or_else(|| format!("unknown set {name}"))?;
                let sides =
                    self.argument()?.split(',').map(Side::read).collect::<Result<_, _>>()?;
                Condition::InSet(set, sides)
            }
            ("mark", "--mark") => {
                let (value, mask) = self.masked()?;
                Condition::Mark { value, mask }
            }
            ("addrtype", "--src-type" | "--dst-type") => {
                self.expected("LOCAL")?;
                Condition::IsLocal(if option == "--src-type" {
                    Side::Source
                } else {
                    Side::Destination
                })
            }
            ("physdev", "--physdev-is-in") => Condition::ComesByBridgePort,
            ("conntrack", "--ctstate") | ("state", "--state") => {
                Condition::State(self.argument()?.split(',').map(State::read).collect())
            }
            ("conntrack", "--ctstatus") => {
                self.expected("CONFIRMED")?;
                Condition::IsConfirmed
            }
            ("tcp" | "udp" | "sctp", "--dport") => Condition::DestinationPort(self.parsed()?),
            ("tcp", "--tcp-flags") => {
                self.argument()?;
                // The first packet of a connection has this flag alone.
                self.expected("SYN")?;
                Condition::Always
            }
            ("icmp6", "--icmpv6-type") | ("u32", "--u32") => {
                self.argument()?;
                Condition::Never
            }
            ("statistic", "--mode") => return self.expected("random"),
            ("statistic", "--probability") => Condition::Chance(self.parsed()?),
            ("recent", "--rcheck") => Condition::IsRemembered,
            ("recent", "--set") => Condition::Always,
            ("recent", "--name" | "--seconds" | "--mask") => {
                self.argument()?;
                return Ok(());
            }
            ("recent", "--rsource" | "--reap") => return Ok(()),
            _ => return Err(format!("unknown option {option} of the match {module}")),
        };
        self.push(condition);
        Ok(())
    }

    fn read_target(&mut self, name: &str) -> Result<Target, String> {
        let target = match name {
            "ACCEPT" => Target::Accept,
            "DROP" => Target::Drop,
            "RETURN" => Target::Return,
            "REJECT" => {
                self.expected("--reject-with")?;
                Target::Reject(self.argument()?.to_owned())
            }
            "MARK" => {
                self.expected("--set-xmark")?;
                let (value, mask) = self.masked()?;
                Target::Mark { value, mask }
            }
            "MASQUERADE" => {
                if self.peek() == Some("--random-fully") {
                    self.next();
                }
                Target::Masquerade
            }
            "TEE" | "HL" => {
                self.expected(if name == "TEE" { "--gateway" } else { "--hl-set" })?;
                self.argument()?;
                Target::Aside
            }
            "DNAT" => {
                self.expected("--to-destination")?;
                Target::TranslateTo(self.parsed()?)
            }
            "NETMAP" => {
                self.expected("--to")?;
                Target::TranslateInto(self.parsed()?)
            }
            chain if chain.starts_with("KUBE-") => Target::Chain(chain.to_owned()),
            other => return Err(format!("unknown target {other}")),
        };
        match self.next() {
            None => Ok(target),
            Some(word) => Err(format!("unknown option {word} of the target {name}")),
        }
    }

    fn push(&mut self, condition: Condition) {
        let is_negated = std::mem::take(&mut self.is_negated);
        self.matches.push(Match { is_negated, condition });
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.first().map(String::as_str)
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn argument(&mut self) -> Result<&'a str, String> {
        self.next().ok_or_else(|| "its last option needs a value".to_owned())
    }

    fn expected(&mut self, word: &str) -> Result<(), String> {
        match self.argument()? {
            found if found == word => Ok(()),
            found => Err(format!("{found} where {word} is known")),
        }
    }

    fn parsed<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        let word = self.argument()?;
        word.parse().map_err(|_| format!("{word} is unexpected"))
    }

    /// A value and its mask: `0x4000/0x4000`.
    fn masked(&mut self) -> Result<(u32, u32), String> {
        let word = self.argument()?;
        let number = |text: &str| {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            u32::from_str_radix(digits, 16)
                .map_err(|_| format!("{word} is not a value with a mask"))
        };
        match word.split_once('/') {
            Some((value, mask)) => Ok((number(value)?, number(mask)?)),
            None => Ok((number(word)?, u32::MAX)),
        }
    }
}

impl Side {
    fn read(word: &str) -> Result<Self, String> {
        match word {
            "src" => Ok(Self::Source),
            "dst" => Ok(Self::Destination),
            other => Err(format!("{other} is neither src nor dst")),
        }
    }
}

impl State {
    fn read(word: &str) -> Self {
        match word {
            "NEW" => Self::New,
            "DNAT" => Self::Translated,
            _ => Self::Later,
        }
    }
}

fn protocol_named(name: &str) -> Result<Protocol, String> {
    match name {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        other => Err(format!("unknown protocol {other}")),
    }
}
