//! Values as Go and Kubernetes write them, in flags, files and annotations.

pub mod address;
pub mod duration;
pub mod quantity;
pub mod quoted;
