//! ipvs
