//! `cargo xtask docs`: documents that are made from the program. Tests compare them with it, and
//! write them where they are asked to.

use anyhow::{Result, ensure};

use crate::test::output::passed;

/// Set to anything, it makes the tests write the documents.
const WRITE: &str = "KUBE_IPVS_WRITE_DOCS";
/// The tests, one for each document: docs/config.md, docs/events.md, docs/metrics.md; of the chart the page of values, the
/// copies of the alerts and of the dashboard, and the schema.
const PAGES: [&str; 6] = [
    "the_page_of_the_configuration_is_up_to_date",
    "the_page_of_events_has_every_reason",
    "the_page_of_metrics_is_what_is_measured",
    "the_page_of_values_has_every_value",
    "the_chart_has_the_rules_and_the_dashboard_of_the_kustomization",
    "the_schema_of_values_has_the_fields_of_both_documents",
];

/// Writes them, then compares them.
pub(crate) fn write() -> Result<()> {
    let tests = ["--quiet", "--lib", "--test", "config", "--test", "deploy", "--"];
    let arguments = [&tests[..], &PAGES].concat();
    for environment in [&[(WRITE, "1")][..], &[]] {
        let passed = passed(&arguments, environment)?;
        ensure!(
            passed == PAGES.len(),
            "{passed} tests of documents passed instead of {}. If one was renamed, rename it in xtask/src/docs.rs \
             too: {}",
            PAGES.len(),
            PAGES.join(", ")
        );
    }
    Ok(())
}
