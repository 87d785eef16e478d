#![warn(missing_docs)]
#![doc = include_str!("../README.md")]

mod batch;
mod client;
pub mod codec;
mod data;
mod error;
mod expression;
mod name;
mod object;
mod uapi;

pub use batch::Batch;
pub use client::{Change, Client, Generation};
pub use data::{Data, DataType, Field};
pub use error::{Attempt, Error, ParseError, Refused};
pub use expression::{
    AddressEnd, ConntrackKey, Expression, MetaKey, NatFlags, NatKind, Operator, PayloadBase,
    Register, Reject, Verdict,
};
pub use name::{MAX_NAME_LENGTH, Name};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use object::{
    BaseChain, Chain, ChainType, Element, Family, FlowTable, Hook, Policy, Rule, Set, SetSpec,
    Table, TableFlags, TableId,
};
