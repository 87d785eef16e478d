//! ipset
