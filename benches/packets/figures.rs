//! Tables of what was counted.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, ensure};

use crate::ground::Way;
use crate::installed::Installed;
use crate::unit::Unit;

/// Cost of one unit on one way.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) installed: Installed,
    pub(crate) way: Way,
    pub(crate) unit: Unit,
    /// Instructions, of each repetition.
    pub(crate) repetitions: Vec<u64>,
}

/// Everything that was counted with one number of Services.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<Row>);

impl Row {
    fn least(&self) -> u64 {
        self.repetitions.iter().copied().min().unwrap_or_default()
    }

    fn spread(&self) -> u64 {
        self.repetitions.iter().copied().max().unwrap_or_default() - self.least()
    }
}

impl Figures {
    pub(crate) fn extend(&mut self, rows: Vec<Row>) {
        self.0.extend(rows);
    }

    fn find(&self, installed: Installed, way: Way, unit: Unit) -> Option<&Row> {
        self.0.iter().find(|it| (it.installed, it.way, it.unit) == (installed, way, unit))
    }

    /// Fails where a Service costs no more than forwarding, which it cannot.
    pub(crate) fn check(&self) -> Result<()> {
        for row in self.0.iter().filter(|row| row.installed.has_services()) {
            let Row { installed, way, unit, .. } = row;
            let forwarding = self.find(Installed::Nothing, *way, *unit);
            let forwarding = forwarding.context("forwarding was not counted")?.least();
            ensure!(
                row.least() > forwarding,
                "{unit}, {way}: {installed} takes {} and forwarding {forwarding}",
                row.least()
            );
        }
        Ok(())
    }
}

impl fmt::Display for Figures {
    /// Writes a table for each unit and way, in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tables: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
        let mut order: Vec<String> = Vec::new();
        for row in &self.0 {
            let title = format!("{}: {}", row.unit, row.way);
            if !order.contains(&title) {
                order.push(title.clone());
            }
            tables.entry(title).or_default().push(row);
        }
        for title in order {
            let rows = tables.remove(&title).unwrap_or_default();
            writeln!(f, "{title}\n")?;
            writeln!(f, "| Installed | instructions | spread | above forwarding | ratio |")?;
            writeln!(f, "| --- | ---: | ---: | ---: | ---: |")?;
            for row in rows {
                let base = self.find(Installed::Nothing, row.way, row.unit).map(Row::least);
                let (above, ratio) = match base {
                    Some(base) if row.installed != Installed::Nothing => {
                        (grouped_difference(row.least(), base), percent(row.least(), base))
                    }
                    _ => (String::new(), String::new()),
                };
                let (least, spread) = (grouped(row.least()), grouped(row.spread()));
                writeln!(f, "| {} | {least} | {spread} | {above} | {ratio} |", row.installed)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// `1.25`, rounded down.
fn percent(cost: u64, base: u64) -> String {
    let percent = cost * 100 / base.max(1);
    format!("{}.{:02}", percent / 100, percent % 100)
}

fn grouped_difference(cost: u64, base: u64) -> String {
    let sign = if cost < base { "-" } else { "" };
    format!("{sign}{}", grouped(cost.abs_diff(base)))
}

/// `12,345`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
