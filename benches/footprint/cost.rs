//! Cost of a Service and of an endpoint, from the costs of clusters of several sizes.

use std::fmt;

use anyhow::{Context as _, Result};

use crate::cluster::Size;

/// In bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// A Service without its endpoints.
    pub(crate) service: f64,
    pub(crate) endpoint: f64,
}

impl Size {
    pub(crate) const EMPTY: Self = Self { services: 0, endpoints: 0 };
}

impl Cost {
    /// By least squares over what the empty cluster does not cost, which gives the exact answer
    /// where there are two sizes beside it.
    pub(crate) fn between(costs: impl Iterator<Item = (Size, i64)>) -> Result<Self> {
        let costs: Vec<(Size, i64)> = costs.collect();
        let empty = costs.iter().find(|(size, _)| *size == Size::EMPTY);
        let (_, empty) = *empty.context("a size of 0 services is needed to compare with")?;
        let (mut ss, mut se, mut ee, mut sy, mut ey) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (size, cost) in &costs {
            let (s, e) = (f64::from(size.services), f64::from(size.all_endpoints()));
            let y = *cost as f64 - empty as f64;
            ss += s * s;
            se += s * e;
            ee += e * e;
            sy += s * y;
            ey += e * y;
        }
        let determinant = ss * ee - se * se;
        Ok(Self {
            service: (sy * ee - ey * se) / determinant,
            endpoint: (ss * ey - se * sy) / determinant,
        })
    }
}

impl fmt::Display for Cost {
    /// Two columns; sizes that differ only in the number of Services tell nothing apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.0}  {:>11.0}", self.service, self.endpoint)
    }
}
