//! kube-ipvs
