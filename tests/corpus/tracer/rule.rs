//! A rule's text, understood.

use std::iter::Peekable;
use std::net::SocketAddr;
use std::vec::IntoIter;

use ipnet::IpNet;

/// A rule: what has to be so, or has to be not so, and what happens then.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(super) conditions: Vec<(bool, Condition)>,
    pub(crate) target: Target,
    /// Names of the `recent` lists that it asks or writes.
    pub(crate) lists: Vec<String>,
}

/// A condition that a packet meets or does not meet.
#[derive(Debug, Clone)]
pub(super) enum Condition {
    Source(IpNet),
    Destination(IpNet),
    Interface(String),
    Protocol(String),
    Port(u16),
    SourceIsLocal,
    DestinationIsLocal,
    Mark { value: u32, mask: u32 },
    States(Vec<String>),
    Chance(f64),
    KnownTo(String),
}

/// Action of a rule.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// It only counts, or notes something.
    None,
    Accept,
    Drop,
    Reject,
    Return,
    Masquerade,
    Mark {
        value: u32,
        mask: u32,
    },
    Dnat(SocketAddr),
    Chain(String),
}

/// The words of a rule that are not read yet.
struct Words<'a> {
    rule: &'a str,
    rest: Peekable<IntoIter<String>>,
}

impl Rule {
    /// Reads a rule as `iptables-save` prints it, without `-A` and the chain's name.
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = Words { rule: text, rest: split(text).into_iter().peekable() };
        let mut rule = Self { conditions: Vec::new(), target: Target::None, lists: Vec::new() };
        while let Some(mut word) = words.rest.next() {
            let wanted = word != "!";
            if !wanted {
                word = words.next();
            }
            if word == "-j" {
                rule.target = words.target();
                assert_eq!(words.rest.next(), None, "{text}");
            } else if word == "--name" {
                rule.lists.push(words.next());
            } else if let Some(condition) = words.condition(&word, &rule.lists) {
                rule.conditions.push((wanted, condition));
            } else {
                assert!(wanted, "{text}");
            }
        }
        rule.resolve_lists();
        rule
    }

    /// The name of a list comes after the word that asks it.
    fn resolve_lists(&mut self) {
        for (_, condition) in &mut self.conditions {
            if let Condition::KnownTo(list) = condition {
                list.clone_from(&self.lists[0]);
            }
        }
    }
}

impl Words<'_> {
    fn next(&mut self) -> String {
        self.rest.next().unwrap_or_else(|| panic!("{}", self.rule))
    }

    fn number(&mut self) -> u16 {
        self.next().parse().unwrap_or_else(|_| panic!("{}", self.rule))
    }

    fn net(&mut self) -> IpNet {
        self.next().parse().unwrap_or_else(|_| panic!("{}", self.rule))
    }

    /// `0x4000/0x4000`
    fn masked(&mut self) -> (u32, u32) {
        let text = self.next();
        let (value, mask) = text.split_once('/').unwrap_or_else(|| panic!("{}", self.rule));
        let number =
            |text: &str| u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
        (number(value), number(mask))
    }

    /// Reads what follows a word. None: it is no condition.
    fn condition(&mut self, word: &str, lists: &[String]) -> Option<Condition> {
        assert!(lists.len() < 2, "{}", self.rule);
        Some(match word {
            "-s" => Condition::Source(self.net()),
            "-d" => Condition::Destination(self.net()),
            "-i" => Condition::Interface(self.next()),
            "-p" => Condition::Protocol(self.next()),
            "--dport" => Condition::Port(self.number()),
            "--src-type" | "--dst-type" => {
                assert_eq!(self.next(), "LOCAL", "{}", self.rule);
                if word == "--src-type" {
                    Condition::SourceIsLocal
                } else {
                    Condition::DestinationIsLocal
                }
            }
            "--mark" => {
                let (value, mask) = self.masked();
                Condition::Mark { value, mask }
            }
            "--ctstate" => Condition::States(self.next().split(',').map(str::to_owned).collect()),
            "--probability" => Condition::Chance(self.next().parse().unwrap()),
            "--rcheck" => Condition::KnownTo(String::new()),
            "-m" | "--comment" | "--mode" | "--seconds" | "--mask" | "--nfacct-name" => {
                let value = self.next();
                let modules = [
                    "comment",
                    "tcp",
                    "udp",
                    "sctp",
                    "mark",
                    "conntrack",
                    "addrtype",
                    "statistic",
                    "recent",
                    "nfacct",
                ];
                assert!(word != "-m" || modules.contains(&&*value), "{}", self.rule);
                return None;
            }
            "--set" | "--reap" | "--rsource" => return None,
            _ => panic!("{word}: {}", self.rule),
        })
    }

    fn target(&mut self) -> Target {
        match &*self.next() {
            "ACCEPT" => Target::Accept,
            "DROP" => Target::Drop,
            "RETURN" => Target::Return,
            "REJECT" => {
                assert_eq!(self.next(), "--reject-with", "{}", self.rule);
                self.next();
                Target::Reject
            }
            "MASQUERADE" => {
                self.rest.next_if(|word| word == "--random-fully");
                Target::Masquerade
            }
            "MARK" => {
                assert_eq!(self.next(), "--set-xmark", "{}", self.rule);
                let (value, mask) = self.masked();
                Target::Mark { value, mask }
            }
            "DNAT" => {
                assert_eq!(self.next(), "--to-destination", "{}", self.rule);
                Target::Dnat(self.next().parse().unwrap())
            }
            chain => Target::Chain(chain.to_owned()),
        }
    }
}

/// Words, where one in quotes may have blanks.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}
