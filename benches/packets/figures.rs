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
#[derive(Debug)]
pub(crate) struct Figures {
    rows: Vec<Row>,
    /// True if they are shown as rates.
    are_rates: bool,
}

impl Row {
    fn least(&self) -> u64 {
        self.repetitions.iter().copied().min().unwrap_or_default()
    }

    fn spread(&self) -> u64 {
        self.repetitions.iter().copied().max().unwrap_or_default() - self.least()
    }
}

impl Figures {
    pub(crate) fn new(are_rates: bool) -> Self {
        Self { rows: Vec::new(), are_rates }
    }

    pub(crate) fn extend(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    fn find(&self, installed: Installed, way: Way, unit: Unit) -> Option<&Row> {
        self.rows.iter().find(|it| (it.installed, it.way, it.unit) == (installed, way, unit))
    }

    /// Fails where a Service costs no more than forwarding, which it cannot.
    pub(crate) fn check(&self) -> Result<()> {
        for row in self.rows.iter().filter(|row| row.installed.has_services()) {
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
        for row in &self.rows {
            let title = format!("{}: {}", row.unit, row.way);
            if !order.contains(&title) {
                order.push(title.clone());
            }
            tables.entry(title).or_default().push(row);
        }
        for title in order {
            let rows = tables.remove(&title).unwrap_or_default();
            writeln!(f, "{title}\n")?;
            if self.are_rates {
                self.rates(&rows, f)?;
                continue;
            }
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

impl Figures {
    /// A repetition counts by its median, and the fastest of them counts: other load only slows one down.
    fn rates(&self, rows: &[&Row], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a_second = |nanoseconds: u64| 1_000_000_000 / nanoseconds.max(1);
        writeln!(f, "| Installed | a second | slowest repetition | of no proxy |")?;
        writeln!(f, "| --- | ---: | ---: | ---: |")?;
        for row in rows {
            let (most, least) = (a_second(row.least()), a_second(row.least() + row.spread()));
            let base = self.find(Installed::Nothing, row.way, row.unit).map(Row::least);
            let ratio = base.map_or(String::new(), |base| percent(base, row.least()));
            let (most, least) = (grouped(most), grouped(least));
            writeln!(f, "| {} | {most} | {least} | {ratio} |", row.installed)?;
        }
        writeln!(f)
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
