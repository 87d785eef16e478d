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
pub use client::{Change, Client};
pub use data::{Data, DataType, Field};
pub use error::{Attempt, Error, Refused};
pub use expression::{
    AddressEnd, ConntrackKey, Expression, MetaKey, NatFlags, NatKind, Operator, PayloadBase,
    Register, Reject, Rule, Verdict,
};
pub use name::{MAX_NAME_LENGTH, Name, ParseError};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use object::{
    BaseChain, Chain, ChainType, Element, Family, FlowTable, Generation, Hook, Policy, Set,
    SetSpec, Table, TableFlags, TableId,
};
