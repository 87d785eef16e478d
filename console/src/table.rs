//! Parts of an answer as people read them: made once, for the text of a command and for a page.
//!
//! Cells and values have the styles of `output` in them: a terminal obeys them, and a page makes classes of them.

use std::borrow::Borrow;

use super::output::{aligned, heading, table};

/// A column of rows: its heading, and the cell of a row in it.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// Rows with their headings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Lines below them, about what is not in them.
    pub more: Vec<String>,
}

/// Facts with their names, in the order in which they were added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts(Vec<(&'static str, Vec<String>)>);

impl Table {
    #[must_use]
    pub fn of<R>(columns: &[Column<R>], rows: impl IntoIterator<Item: Borrow<R>>) -> Self {
        let headings = columns.iter().map(|(heading, _)| *heading).collect();
        let cells = |row: &R| columns.iter().map(|(_, cell)| cell(row)).collect();
        let rows = rows.into_iter().map(|row| cells(Borrow::<R>::borrow(&row))).collect();
        Self { headings, rows, more: Vec::new() }
    }

    /// The same with these lines below it.
    #[must_use]
    pub fn with_more(self, more: impl IntoIterator<Item = String>) -> Self {
        Self { more: more.into_iter().collect(), ..self }
    }

    #[must_use]
    pub fn text(&self) -> String {
        let more = self.more.iter().map(|line| format!("{line}\n"));
        table(&self.headings, &self.rows) + &more.collect::<String>()
    }
}

impl Facts {
    /// Adds a fact, each of whose values is a line. Without one it is left out.
    pub fn add(&mut self, name: &'static str, values: impl IntoIterator<Item = String>) {
        let values: Vec<String> = values.into_iter().filter(|it| !it.is_empty()).collect();
        if !values.is_empty() {
            self.0.push((name, values));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, Vec<String>)> {
        self.0.iter()
    }

    /// Returns the lines.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self
            .iter()
            .map(|(name, values)| format!("{}\t{}\n", heading(name), values.join("\n\t")));
        aligned(&lines.collect::<String>())
    }
}
