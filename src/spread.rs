//! Random times and numbers, so that the nodes of a cluster do not do the same thing at the same moment.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A random number. Every [`RandomState`] has keys of its own, the first from the system.
#[must_use]
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A random time up to this one.
#[must_use]
pub(crate) fn random_up_to(most: Duration) -> Duration {
    let sixteen_bits = u16::try_from(random() & 0xffff).unwrap_or(0);
    most.mul_f64(f64::from(sixteen_bits) / f64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_differ_and_none_is_longer() {
        let most = Duration::from_secs(30);
        let times: Vec<_> = (0..100).map(|_| random_up_to(most)).collect();
        assert!(times.iter().all(|time| *time <= most));
        let spread = *times.iter().max().unwrap() - *times.iter().min().unwrap();
        assert!(spread > most / 2, "{times:?}");
    }
}
