//! Values as Go and Kubernetes write them, in flags, files and annotations; numbers and names in messages.

pub mod address;
pub mod counted;
pub mod duration;
pub mod quantity;
pub mod quoted;
pub mod site;
