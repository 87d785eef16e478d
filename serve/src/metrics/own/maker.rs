//! Making and registering metrics.

use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, exponential_buckets,
};

use super::super::register;

/// Makes and registers metrics whose names begin with `kube_ipvs_`.
pub(in crate::metrics) struct Maker<'a>(pub(in crate::metrics) &'a Registry);

impl Maker<'_> {
    /// With buckets from a tenth of a millisecond to 13 seconds.
    pub(super) fn histogram(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        register(self.0, Histogram::with_opts(timing(name, help)?)?)
    }

    /// With these buckets.
    pub(super) fn histogram_with(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> Result<Histogram, prometheus::Error> {
        let options = HistogramOpts::from(options(name, help)).buckets(buckets);
        register(self.0, Histogram::with_opts(options)?)
    }

    /// With the buckets of [`Maker::histogram`], and a label whose values are these.
    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
    ) -> Result<HistogramVec, prometheus::Error> {
        let made = register(self.0, HistogramVec::new(timing(name, help)?, &[label])?)?;
        for value in values {
            made.with_label_values(&[value]);
        }
        Ok(made)
    }

    pub(in crate::metrics) fn gauge(
        &self,
        name: &str,
        help: &str,
    ) -> Result<IntGauge, prometheus::Error> {
        register(self.0, IntGauge::with_opts(options(name, help))?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        label: &str,
    ) -> Result<IntGaugeVec, prometheus::Error> {
        self.gauges_by(name, help, &[label])
    }

    pub(super) fn gauges_by(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        register(self.0, IntGaugeVec::new(options(name, help), labels)?)
    }

    /// A number that need not be whole.
    pub(in crate::metrics) fn number(
        &self,
        name: &str,
        help: &str,
    ) -> Result<Gauge, prometheus::Error> {
        register(self.0, Gauge::with_opts(options(name, help))?)
    }

    pub(in crate::metrics) fn counter(
        &self,
        name: &str,
        help: &str,
    ) -> Result<IntCounter, prometheus::Error> {
        register(self.0, IntCounter::with_opts(options(name, help))?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        register(self.0, IntCounterVec::new(options(name, help), labels)?)
    }
}

fn timing(name: &str, help: &str) -> Result<HistogramOpts, prometheus::Error> {
    let buckets = exponential_buckets(0.0001, 2.0, 18)?;
    Ok(HistogramOpts::from(options(name, help)).buckets(buckets))
}

pub(super) fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help)
}
