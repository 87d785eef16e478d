//! kube-ipvs

pub mod source;
