//! Page of the program and its node.

use super::markup::Markup;
use crate::answers::status::Status;
use crate::commands::status::{facts, tables};

/// Writes the page.
pub(super) fn write(main: &mut Markup, status: &Status) {
    main.facts(&facts(status));
    for table in tables(status) {
        main.table(&table, |_, _| None);
    }
}
