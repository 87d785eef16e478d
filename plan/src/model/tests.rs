//! Sizes of the types that there are hundreds of thousands of: a field more is a decision.

use std::mem::size_of;
use std::sync::Arc;

use super::*;
use crate::ipvs::fragment::{Claim, Fragment};
use crate::kernel_objects::{Entry, Frontend, RealServer};
use crate::sets::SetId;

#[test]
fn what_there_is_of_every_endpoint_is_small() {
    // Once as it is in its slice: address and conditions, and a shared name of its node and zone.
    assert_eq!(size_of::<Endpoint>(), 64);
    // Once as the kernel has it, for each service port; frontends of a port share it.
    assert_eq!(size_of::<RealServer>(), 24);
}

#[test]
fn what_there_is_of_every_service_is_small() {
    // In a dozen tables.
    assert_eq!(size_of::<ObjectName>(), 8);
    assert_eq!(size_of::<Frontend>(), 20);
    assert_eq!(size_of::<(SetId, Entry)>(), 42);
    assert_eq!(size_of::<EndpointSlice>(), 72);
    assert_eq!(size_of::<Service>(), 160);
    assert_eq!(size_of::<Claim>(), 120);
    assert_eq!(size_of::<Fragment>(), 96);
}

#[test]
fn copies_of_a_name_share_it() {
    let name = ObjectName::new("shop", "web");
    assert!(name.is_last());
    let copy = name.clone();
    assert!(!name.is_last());
    assert!(std::ptr::eq(&*name, &*copy));
    assert_eq!(copy, ObjectName::new(Arc::from("shop"), "web".to_owned()));
    assert!(ObjectName::new("a", "z") < ObjectName::new("a-b", "a"), "by namespace first");
}
