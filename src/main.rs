//! kube-ipvs
fn main() {}
