//! Measurements of several guests, and where they were taken: `docs/internals/performance.json`, which
//! `docs/internals/performance.md` explains. The report of each guest is in [`super::schema`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Lane;
use super::schema::{Line, Measured, Report};

/// Everything that one command measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// Remark for readers of the figures.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) remark: String,
    pub(crate) runs: Vec<Run>,
}

/// Machine on which it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's model, and how many there are.
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) memory_gib: u64,
}

/// One guest, or several of the same kernel that were put together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The commits that were measured, and cargo's profile that they were built with.
    pub(crate) commits: Vec<Commit>,
    pub(crate) profile: String,
    pub(crate) lane: Lane,
    /// The kernel's series: `6.1`.
    pub(crate) series: String,
    #[serde(flatten)]
    pub(crate) report: Report,
}

/// A commit, and the sizes that were measured at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Commit {
    pub(crate) commit: String,
    pub(crate) sizes: Vec<String>,
}

impl Results {
    /// Nothing yet, of this machine.
    pub(crate) fn of_this_machine() -> Result<Self> {
        Ok(Self { machine: Machine::this()?, remark: String::new(), runs: Vec::new() })
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot decode {}", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds what was measured on the same machine: sizes to the run of the same kernel in the same
    /// lane, or runs.
    pub(crate) fn add(&mut self, others: Self) -> Result<()> {
        ensure!(
            self.machine == others.machine,
            "the results are of different machines, which cannot be compared: {:?} and {:?}",
            self.machine,
            others.machine
        );
        for other in others.runs {
            let same = |run: &&mut Run| (run.lane, &run.series) == (other.lane, &other.series);
            match self.runs.iter_mut().find(same) {
                Some(run) => {
                    ensure!(
                        run.profile == other.profile,
                        "the results of Linux {} are of different build profiles: {} and {}",
                        run.series,
                        run.profile,
                        other.profile
                    );
                    run.commits.extend(other.commits);
                    // What disturbs such a measurement makes it longer.
                    run.report.fault_us = run.report.fault_us.min(other.report.fault_us);
                    run.report.call_us = run.report.call_us.min(other.report.call_us);
                    run.report.sizes.extend(other.report.sizes);
                }
                None => self.runs.push(other),
            }
        }
        Ok(())
    }

    /// The runs at native speed.
    pub(crate) fn native(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.lane == Lane::Uml)
    }
}

impl Machine {
    fn this() -> Result<Self> {
        let processors =
            fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
        let kibibytes = memory.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        let kibibytes: u64 = kibibytes.context("/proc/meminfo has no number in its first line")?;
        Ok(Self {
            processor: model(&processors).unwrap_or("unknown").to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (kibibytes + (1 << 19)) >> 20,
        })
    }
}

fn model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

impl Run {
    pub(crate) fn size(&self, services: u32, endpoints: u32) -> Option<&Measured> {
        let is_it = |size: &&Measured| size.services == services && size.endpoints == endpoints;
        self.report.sizes.iter().find(is_it)
    }

    /// Returns the cost over the raw cost, without the programs that were waited for. Lines that
    /// are measured with no services as well are of the rules above all. Their ratio is of the
    /// processor time beyond that, since the thread that makes the events up has the same
    /// processor.
    pub(crate) fn ratio(&self, size: &Measured, name: &str) -> Option<f64> {
        match self.nothing(name) {
            Some(nothing) => Some(
                (size.ours(name)?.cpu_ms - nothing.cpu_ms)
                    / self.without_faults_ms(size.raw(name)?),
            ),
            None => Some(size.ours(name)?.own_ms() / size.raw(name)?.own_ms()),
        }
    }

    /// Returns this line of the loop with no services.
    pub(crate) fn nothing(&self, name: &str) -> Option<&Line> {
        self.report.nothing.iter().find(|line| line.name == name)
    }

    /// Processor time as if no memory had been touched for the first time. The raw requests are in
    /// memory all at once, which they need not be.
    pub(crate) fn without_faults_ms(&self, line: &Line) -> f64 {
        line.cpu_ms - line.faults as f64 * self.report.fault_us / 1_000.0
    }

    /// The sizes with so many endpoints, the smallest first.
    pub(crate) fn of_endpoints(&self, endpoints: u32) -> Vec<&Measured> {
        let mut sizes: Vec<&Measured> =
            self.report.sizes.iter().filter(|size| size.endpoints == endpoints).collect();
        sizes.sort_by_key(|size| size.services);
        sizes
    }
}

impl Measured {
    pub(crate) fn ours(&self, name: &str) -> Option<&Line> {
        self.ours.iter().find(|line| line.name == name)
    }

    pub(crate) fn raw(&self, name: &str) -> Option<&Line> {
        self.raw.iter().find(|line| line.name == name)
    }

    /// All services and all endpoints, as `1,000 × 10`.
    pub(crate) fn label(&self) -> String {
        format!("{} × {}", grouped(self.services), self.endpoints)
    }
}

impl Line {
    /// The median, or all of it if it was done once.
    pub(crate) fn typical_ms(&self) -> f64 {
        self.median_ms.unwrap_or(self.wall_ms)
    }

    pub(crate) fn each(&self, total: f64) -> f64 {
        total / f64::from(self.count.max(1))
    }
}

/// The names of all lines of ours, in their order, without those that only bring something back.
pub(crate) fn names(runs: &[Run]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let sizes = runs.iter().flat_map(|run| &run.report.sizes);
    let names = sizes.flat_map(|size| &size.ours).map(|line| line.name.as_str());
    names.filter(|name| !name.ends_with("back") && seen.insert(*name)).collect()
}

/// With commas between thousands.
pub(crate) fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let numbers = [7, 50_000, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(numbers, ["7", "50,000", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_processors_model_is_found() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nprocessor\t: 1\n";
        assert_eq!(model(text), Some("A CPU @ 2 GHz"));
        assert_eq!(model(""), None);
    }

    #[test]
    fn a_ratio_is_of_medians_where_there_are_some() {
        let line =
            |wall_ms, median_ms| Line { name: "it".into(), wall_ms, median_ms, ..Line::default() };
        let size =
            |ours, raw| Measured { services: 1, endpoints: 1, ours: vec![ours], raw: vec![raw] };
        let run = |nothing| Run {
            commits: Vec::new(),
            profile: "release".to_owned(),
            lane: Lane::Uml,
            series: "6.1".to_owned(),
            report: Report { nothing, ..Report::default() },
        };
        let alone = run(Vec::new());
        let ratio = |size, name| alone.ratio(&size, name);
        assert_eq!(ratio(size(line(9.0, Some(2.0)), line(1.0, Some(1.0))), "it"), Some(2.0));
        assert_eq!(ratio(size(line(9.0, None), line(3.0, None)), "it"), Some(3.0));
        let waiting = Line { programs_wall_ms: 3.0, ..line(9.0, None) };
        assert_eq!(ratio(size(waiting, line(3.0, None)), "it"), Some(2.0));
        assert_eq!(ratio(size(line(9.0, None), line(3.0, None)), "else"), None);
        let busy = |cpu_ms, faults| Line { cpu_ms, faults, ..line(9.0, None) };
        let mut over = run(vec![busy(6.0, 0)]);
        over.report.fault_us = 100.0;
        assert_eq!(over.ratio(&size(busy(9.0, 10), busy(2.5, 10)), "it"), Some(2.0));
    }
    #[test]
    fn results_of_one_machine_and_profile_go_together() {
        let measured =
            |services| Measured { services, endpoints: 10, raw: Vec::new(), ours: Vec::new() };
        let results = |profile: &str, commit: &str, series: &str, services| Results {
            machine: Machine { processor: "one".into(), processors: 1, memory_gib: 1 },
            remark: String::new(),
            runs: vec![Run {
                commits: vec![Commit { commit: commit.to_owned(), sizes: Vec::new() }],
                profile: profile.to_owned(),
                lane: Lane::Uml,
                series: series.to_owned(),
                report: Report { sizes: vec![measured(services)], ..Report::default() },
            }],
        };
        let mut all = results("release", "a", "6.1", 1);
        all.add(results("release", "b", "6.1", 2)).unwrap();
        all.add(results("release", "a", "6.12", 1)).unwrap();
        let sizes: Vec<usize> = all.runs.iter().map(|run| run.report.sizes.len()).collect();
        assert_eq!(sizes, [2, 1]);
        assert_eq!(all.runs[0].commits.len(), 2);
        all.add(results("release", "b", "5.10", 1)).unwrap();
        assert!(all.add(results("bed", "b", "6.1", 3)).is_err());
    }
}
