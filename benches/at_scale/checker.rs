//! Check that the kernel is exactly as it should be. It runs in a process of its own, whose planner
//! is told the same, so that neither its memory nor its work is in what is measured.

use std::io::{BufRead as _, BufReader, Lines, Write as _, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::Kernel as _;
use kernel::linux::Linux;
use plan::actual::Actual;
use plan::chains::ChainScope;
use plan::comparison::Reading;
use plan::event::Event;
use plan::hash::{HashMap, HashSet};
use plan::mode::Mode;
use plan::model::Family;
use plan::op::Op;
use plan::planner::Planner;
use plan::sets::SetId;
use serde::{Deserialize, Serialize};

use crate::cluster::{Change, Size};
use crate::kind::Kind;
use crate::node;

/// Time limit for what follows a change by itself, such as the removal of what has drained.
const PATIENCE: Duration = Duration::from_secs(180);
/// Largest number of operations that an error names.
const NAMED: usize = 10;

/// The process that compares.
#[derive(Debug)]
pub(crate) struct Checker {
    process: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Question {
    Applied(Change),
    Compare,
}

/// Answer to a comparison: the number of operations left to do, and some of them.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    count: usize,
    some: Vec<String>,
}

impl Checker {
    /// Starts the process, in the calling thread's network namespace.
    pub(crate) fn start(size: Size, kind: Kind) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["checker", "--sizes", &size.to_string()])
            .args(kind.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the process that compares")?;
        let questions = process.stdin.take().context("it has no input")?;
        let answers = BufReader::new(process.stdout.take().context("it has no output")?).lines();
        Ok(Self { process, questions, answers })
    }

    /// Something happened.
    pub(crate) fn applied(&mut self, change: &Change) -> Result<()> {
        self.ask(&Question::Applied(change.clone()))
    }

    /// Waits until a comparison finds nothing to do.
    ///
    /// # Errors
    /// When there still is something, in words.
    pub(crate) fn wait_exact(&mut self, after: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.ask(&Question::Compare)?;
            let answer = self.answers.next().context("the process that compares has ended")??;
            let Answer { count, some } = serde_json::from_str(&answer)?;
            if count == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("after {after}, {count} operations are left to do:\n{}", some.join("\n"));
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn ask(&mut self, question: &Question) -> Result<()> {
        writeln!(self.questions, "{}", serde_json::to_string(question)?)?;
        self.questions.flush().context("the process that compares does not listen")
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the process that compares: takes questions from standard input and answers on standard
/// output.
pub(crate) fn run(size: Size, kind: Kind) -> Result<()> {
    let (mut planner, mut kernel) = node::open_to_read(kind)?;
    for event in size.events() {
        planner.apply(event);
    }
    planner.plan();
    for family in Family::BOTH {
        kernel.set_desired_rules(planner.rule_set(family)?);
    }
    for question in stdin().lines() {
        match serde_json::from_str(&question?)? {
            Question::Applied(change) => {
                for event in size.events_of(&change) {
                    planner.apply(event);
                }
            }
            Question::Compare => {
                println!("{}", serde_json::to_string(&compare(kind, &mut planner, &mut kernel)?)?);
            }
        }
    }
    Ok(())
}

fn read_all(kernel: &mut Linux) -> Result<Actual> {
    let addresses = kernel.read_addresses()?;
    let frontends: Vec<_> = kernel.list_virtual_servers()?.frontends().collect();
    let found = kernel.read_virtual_servers(&frontends)?;
    let found: Vec<_> = found.into_iter().collect::<Result<_, _>>()?;
    let found = frontends.into_iter().zip(found);
    let mut sets = HashMap::default();
    for set in Family::BOTH.into_iter().flat_map(SetId::all) {
        if let Some(there) = kernel.read_set(set)? {
            sets.insert(set, there);
        }
    }
    Ok(Actual {
        link: addresses.link,
        addresses: addresses.bound,
        routes: addresses.routes,
        local_addresses: addresses.local,
        virtual_servers: found.filter_map(|(frontend, found)| Some((frontend, found?))).collect(),
        sets,
        rule_sets: read_rule_sets(kernel)?,
        chains: HashMap::default(),
    })
}

fn read_rule_sets(kernel: &mut Linux) -> Result<HashSet<Family>> {
    let mut rule_sets = HashSet::default();
    for family in Family::BOTH {
        if kernel.read_rule_set(family)?.is_complete {
            rule_sets.insert(family);
        }
    }
    Ok(rule_sets)
}

fn compare(kind: Kind, planner: &mut Planner, kernel: &mut Linux) -> Result<Answer> {
    let left = match kind.mode() {
        Mode::Ipvs => {
            let actual = read_all(kernel)?;
            planner.apply(Event::LocalAddresses(actual.local_addresses.iter().copied().collect()));
            planner.plan();
            planner.diff(&actual)
        }
        _ => compare_chains(planner, kernel)?,
    };
    Ok(Answer {
        count: left.len(),
        some: left.iter().take(NAMED).map(ToString::to_string).collect(),
    })
}

fn compare_chains(planner: &mut Planner, kernel: &mut Linux) -> Result<Vec<Op>> {
    let local = kernel.read_addresses()?.local;
    planner.apply(Event::LocalAddresses(local.into_iter().collect()));
    planner.plan();
    let rule_sets = read_rule_sets(kernel)?;
    let mut left = planner.prerequisites(&Actual { rule_sets, ..Actual::default() });
    for family in Family::BOTH {
        let found = Arc::new(kernel.read_chains(family)?);
        left.extend(planner.compare(&Reading::Chains(family, found, ChainScope::All)));
    }
    Ok(left)
}
