//! `cargo xtask matrix`: what works on which kernel, with which kind of iptables, as a page of the
//! documents. Everything runs in virtual machines, with Debian's kernels for cloud machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum as _};

use super::{SuiteResult, guests, summarise};
use crate::architecture::Architecture;
use crate::build;
use crate::vm::image;
use crate::vm::kernel::Kernel;

/// The page that the command writes, from the root of the project.
const PAGE: &str = "docs/internals/kernels.md";
/// Text above and below the table.
const BEFORE: &str = include_str!("matrix/before.md");
const AFTER: &str = include_str!("matrix/after.md");

const HEAD: &str = "\
| Kernel | Debian's release | commit | netlink libraries | adapters | program with nf_tables | program with x_tables | rules in nf_tables |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

/// Choice of kernels, and what becomes of the result.
#[derive(Debug, Args)]
pub(crate) struct MatrixArguments {
    /// Kernels. Default: all of Debian.
    #[arg(long, value_enum, value_delimiter = ',')]
    kernel: Vec<Kernel>,
    /// Write docs/internals/kernels.md.
    #[arg(long)]
    write_docs: bool,
}

/// Column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Our netlink libraries.
    Libraries,
    /// The program's own use of the kernel, without iptables or with that for nf_tables.
    Adapters,
    /// The program, packets and what is removed, with iptables for nf_tables.
    NfTables,
    /// The same with iptables for x_tables.
    XTables,
    /// The program with its sets and rules in tables of nf_tables.
    Tables,
}

/// Result of one suite on a kernel.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) kernel: Kernel,
    pub(super) column: Column,
    pub(super) result: SuiteResult,
}

/// Runs it on each kernel, and shows or writes the table.
#[expect(clippy::print_stdout, reason = "the table is what was asked for")]
pub(crate) fn run(arguments: &MatrixArguments) -> Result<ExitCode> {
    // What is tested is built at once; the checkout may change meanwhile.
    let (started, commit) = (Instant::now(), build::commit()?);
    let kernels = match arguments.kernel.as_slice() {
        [] => Kernel::value_variants(),
        named => named,
    };
    let cells = guests::matrix(kernels)?;
    let mut rows = BTreeMap::new();
    for kernel in kernels {
        let release = image::release(*kernel, Architecture::default())?;
        rows.insert(*kernel, row(*kernel, &release, &commit, &cells));
    }
    println!("\n{}", table(&rows, ""));
    let results: Vec<SuiteResult> = cells.into_iter().map(|cell| cell.result).collect();
    let code = summarise(&results, false, started.elapsed());
    if arguments.write_docs {
        let before = std::fs::read_to_string(PAGE).unwrap_or_default();
        let page = format!("{BEFORE}\n{}\n{AFTER}", table(&rows, &before));
        std::fs::write(PAGE, page).with_context(|| format!("cannot write {PAGE}"))?;
    }
    Ok(code)
}

/// The table in Markdown. Kernels that were not run keep the row that they had on the page.
fn table(rows: &BTreeMap<Kernel, String>, page: &str) -> String {
    let mut table = HEAD.to_owned();
    for kernel in Kernel::value_variants() {
        let kept = || page.lines().find(|line| line.starts_with(&format!("| {kernel} |")));
        if let Some(row) = rows.get(kernel).map(String::as_str).or_else(kept) {
            let _infallible = writeln!(table, "{row}");
        }
    }
    table
}

fn row(kernel: Kernel, release: &str, commit: &str, cells: &[Cell]) -> String {
    let mut row = format!("| {kernel} | `{release}` | {commit} |");
    for column in
        [Column::Libraries, Column::Adapters, Column::NfTables, Column::XTables, Column::Tables]
    {
        let of_cell = |cell: &&Cell| (cell.kernel, cell.column) == (kernel, column);
        let _infallible = write!(row, " {} |", sum(cells.iter().filter(of_cell)));
    }
    row
}

/// The numbers of tests that passed and failed, in words.
fn sum<'a>(cells: impl Iterator<Item = &'a Cell>) -> String {
    let (mut passed, mut failed, mut broken) = (0, 0, false);
    for Cell { result, .. } in cells {
        passed += result.tally.passed;
        failed += result.tally.failed;
        broken |= result.broken.is_some() && result.tally.failed == 0;
    }
    match (failed, broken) {
        (0, false) => format!("{passed} passed"),
        (0, true) => format!("{passed} passed, **not all could run**"),
        _ => format!("{passed} passed, **{failed} failed**"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::output::Tally;
    use super::*;

    fn mk_cell(kernel: Kernel, column: Column, passed: usize, failed: usize) -> Cell {
        let tally = Tally { passed, failed, ignored: 0, programs: 1 };
        let broken = (failed > 0 || passed == 0).then(|| "it ended".to_owned());
        let (timed, took) = (Vec::new(), Duration::ZERO);
        Cell {
            kernel,
            column,
            result: SuiteResult { name: String::new(), tally, timed, broken, took },
        }
    }

    #[test]
    fn each_kernel_has_a_row_with_the_sum_of_each_column_or_keeps_its_own() {
        let (old, new) = (Kernel::V5_10, Kernel::V7);
        let cells = [
            mk_cell(old, Column::Libraries, 30, 0),
            mk_cell(old, Column::Libraries, 24, 0),
            mk_cell(new, Column::NfTables, 3, 2),
            mk_cell(new, Column::XTables, 0, 0),
        ];
        let row = |kernel, release| (kernel, row(kernel, release, "abc", &cells));
        let rows = BTreeMap::from([row(old, "5.10.0"), row(new, "7.3.4")]);
        let page = "| 6.1 | as before |\n| 7 | as before |\n";
        let table = table(&rows, page);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| 5.10 | `5.10.0` | abc | 54 passed | 0 passed | 0 passed | 0 passed | 0 passed |",
                "| 6.1 | as before |",
                "| 7 | `7.3.4` | abc | 0 passed | 0 passed | 3 passed, **2 failed** | 0 passed, **not \
                 all could run** | 0 passed |",
            ]
        );
    }
}
