//! Tests that need a real kernel: each program in a guest of its own, several guests side by side.

mod lanes;
mod suites;

use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::matrix::Cell;
use super::output::Tee;
use super::{SuiteResult, Tier, announce};
use crate::architecture::Architecture;
use crate::build::{self, ForGuests, Tests};
use crate::image::program;
use crate::vm::accel::AccelChoice;
use crate::vm::distribution::Distribution;
use crate::vm::guest::{Guest, GuestFile};
use crate::vm::kernel::Kernel;
use crate::vm::verdict::Verdict;
use crate::vm::{host_packages, nft, progress};
use lanes::side_by_side;
pub(super) use suites::suites;
use suites::{MATRIX, RELEASED};

/// Tests of one program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite {
    package: &'static str,
    tests: Tests,
    pub(super) tier: Tier,
    /// Kind of guest.
    accel: AccelChoice,
    /// Number of guests that share the tests.
    guests: usize,
    /// Starts of names: only such tests run. Empty: all run.
    only: &'static [&'static str],
    /// Starts of names: such tests do not run.
    but: &'static [&'static str],
    /// Starts of names: such tests another suite of this run has.
    elsewhere: &'static [&'static str],
    /// True if user mode will do on the newest kernel: it lacks iptables for nf_tables.
    newest_in_user_mode: bool,
    /// True if it runs on the newest of the kernel tier's kernels only.
    newest_only: bool,
    /// Distribution that the guest is made into.
    distribution: Distribution,
    /// True if the guest gets `nft` of other releases.
    has_other_nft: bool,
    /// Kind of iptables that tests are about which have both; none: they are about both.
    iptables: Option<&'static str>,
}

/// Work that has guests of its own, and is done beside the suites.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) work: fn() -> Result<()>,
    /// Kind of its guests.
    pub(super) accel: AccelChoice,
}

/// Work of one lane at a time.
#[derive(Debug)]
enum Job {
    Tests(TestsJob),
    Check(Check),
}

/// Tests in one guest.
#[derive(Debug)]
struct TestsJob {
    name: String,
    architecture: Architecture,
    kernel: Kernel,
    accel: AccelChoice,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    distribution: Distribution,
    has_other_nft: bool,
    /// True if the guest gets kube-ipvs as it is released.
    is_released: bool,
    limit: Duration,
}

/// Part of the names of tests beside the code that need a real kernel.
pub(super) const INSIDE: &str = "tests::kernel::";
/// Nodes, pods and clients, and the real program.
const BED: Tests = Tests::Program("bed");
/// Tests of the bed that have a long form.
const LONG: [&str; 5] = ["disturbance::", "killed::", "load::", "rollout::", "tenant::"];
/// Variable of the table of flows by which a virtual machine has every twentieth Service, with all of its flows:
/// emulated, every tenth takes 60 s in each mode. User mode has all.
const FLOWS_SAMPLE: [&str; 2] = ["KUBE_IPVS_FLOWS_SAMPLE", "20"];
/// Variable of tests that are about both kinds of iptables, by which they are about one.
const KIND: &str = "KUBE_IPVS_IPTABLES";
/// Time limit of a guest.
const LIMIT: Duration = Duration::from_secs(900);
/// Time limit of a long form.
const LONG_LIMIT: Duration = Duration::from_secs(4 * 3_600);

/// Kernels of the suites.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernels {
    /// All kernels of the kernel tier.
    all: Vec<Kernel>,
    /// Kernel of the bed in user mode, and of arm64.
    pub(super) newest: Kernel,
    /// Kernel of the bed in virtual machines.
    first: Kernel,
    /// Kernels of the switch tier.
    switch: Vec<Kernel>,
}

impl Kernels {
    /// The named ones. Without any, the kernel tier has the oldest and the newest, between which the
    /// kernel's interfaces changed, the bed in virtual machines has one in between, and the switch
    /// tier has all three.
    pub(super) fn of(named: &[Kernel]) -> Self {
        let (oldest, newest) = (Kernel::V5_10, Kernel::V6_12);
        match named.first() {
            None => Self {
                all: vec![oldest, newest],
                newest,
                first: Kernel::V6_1,
                switch: vec![oldest, Kernel::V6_1, newest],
            },
            Some(first) => Self {
                all: named.to_vec(),
                newest: named.iter().copied().max().unwrap_or(*first),
                first: *first,
                switch: named.to_vec(),
            },
        }
    }
}

/// Fetches kernels and makes images for these suites, each once. A failure is no result: the guest that
/// needs it tries again, and reports it.
pub(super) fn prepare(suites: &[Suite], kernels: &Kernels) {
    let mut prepared = Vec::new();
    for (kernel, suite) in suites.iter().flat_map(|suite| suite.on(kernels)) {
        let (architecture, accel) = (suite.tier.architecture(), suite.accel);
        if prepared.contains(&(architecture, kernel, accel)) {
            continue;
        }
        prepared.push((architecture, kernel, accel));
        let guest = Guest { architecture, kernel, accel, ..Guest::default() };
        if let Err(error) = guest.prepare() {
            progress!("kernel {kernel}: not prepared, trying again at its first test: {error:#}");
        }
    }
}

/// Builds suites of one architecture, then runs them: those of the kernel tier on all of its kernels, those
/// of the bed on the newest in user mode, and otherwise on the first. These checks come last.
pub(super) fn run(
    suites: &[Suite],
    checks: &[Check],
    architecture: Architecture,
    kernels: &Kernels,
    filter: Option<&str>,
) -> Result<Vec<SuiteResult>> {
    announce("building what runs on real kernels");
    // With what lists the tests of another architecture's programs.
    host_packages::ensure(architecture)?;
    let tests: Vec<_> = suites.iter().map(|suite| suite.tests).collect();
    let built = build::for_guests(&tests, architecture)?;
    let mut jobs = Vec::new();
    for suite in suites {
        let (program, shares) = suite.programs(&built, filter)?;
        for (kernel, suite) in suite.on(kernels) {
            for (number, share) in shares.iter().enumerate() {
                let place = (shares.len() > 1).then_some((number + 1, shares.len()));
                jobs.push(Job::Tests(suite.job(kernel, program.clone(), share, place)));
            }
        }
    }
    jobs.extend(checks.iter().copied().map(Job::Check));
    Ok(side_by_side(&jobs, &built.daemon()?))
}

/// Runs the suites of the matrix on each of these kernels.
pub(super) fn matrix(kernels: &[Kernel]) -> Result<Vec<Cell>> {
    announce("building what runs on real kernels");
    let built = build::for_guests(&MATRIX.map(|(_, suite)| suite.tests), Architecture::default())?;
    let (mut jobs, mut places) = (Vec::new(), Vec::new());
    for kernel in kernels {
        for (column, suite) in &MATRIX {
            let (program, shares) = suite.programs(&built, None)?;
            for share in &shares {
                jobs.push(Job::Tests(suite.job(*kernel, program.clone(), share, None)));
                places.push((*kernel, *column));
            }
        }
    }
    let results = side_by_side(&jobs, &built.daemon()?);
    let cell = |((kernel, column), result)| Cell { kernel, column, result };
    Ok(places.into_iter().zip(results).map(cell).collect())
}

/// Runs the long forms, each in a guest of its own, with what is random from this seed if one is
/// given.
pub(super) fn soak(
    kernels: &[Kernel],
    accel: AccelChoice,
    legacy: bool,
    seed: Option<u64>,
    only: Option<&str>,
) -> Result<Vec<SuiteResult>> {
    announce("building what runs on real kernels");
    let built = build::for_guests(&[BED], Architecture::default())?;
    let program = built.tests("kube-ipvs", BED)?;
    let mut environment = vec![("KUBE_IPVS_SOAK".to_owned(), "1".to_owned())];
    environment.extend(seed.map(|seed| ("KUBE_IPVS_SEED".to_owned(), seed.to_string())));
    let job = |kernel: Kernel, filter: &str| TestsJob {
        name: format!("{} on {kernel}", filter.trim_end_matches(':')),
        architecture: Architecture::default(),
        kernel,
        accel,
        program: program.clone(),
        arguments: ["--test-threads=1", "--nocapture", filter].map(str::to_owned).to_vec(),
        environment: environment.clone(),
        distribution: if legacy { Distribution::Legacy } else { Distribution::Debian },
        has_other_nft: false,
        is_released: false,
        limit: LONG_LIMIT,
    };
    let jobs: Vec<Job> = kernels
        .iter()
        .flat_map(|kernel| LONG.iter().map(move |form| (*kernel, *form)))
        .filter_map(|(kernel, form)| match only {
            None => Some((kernel, form)),
            // Tests of one form.
            Some(only) if only.starts_with(form) => Some((kernel, only)),
            Some(only) => form.contains(only).then_some((kernel, form)),
        })
        .map(|(kernel, filter)| Job::Tests(job(kernel, filter)))
        .collect();
    Ok(side_by_side(&jobs, &built.daemon()?))
}

impl Suite {
    const fn new(tier: Tier, package: &'static str, tests: Tests) -> Self {
        Self {
            package,
            tests,
            tier,
            accel: AccelChoice::Auto,
            guests: 1,
            only: &[],
            but: &[],
            elsewhere: &[],
            newest_in_user_mode: false,
            newest_only: false,
            distribution: Distribution::Debian,
            has_other_nft: false,
            iptables: None,
        }
    }

    const fn about(self, iptables: &'static str) -> Self {
        Self { iptables: Some(iptables), ..self }
    }

    const fn shared_by(self, guests: usize) -> Self {
        Self { guests, ..self }
    }

    const fn in_user_mode(self) -> Self {
        Self { accel: AccelChoice::Uml, ..self }
    }

    const fn newest_in_user_mode(self) -> Self {
        Self { newest_in_user_mode: true, ..self }
    }

    const fn newest_only(self) -> Self {
        Self { newest_only: true, ..self }
    }

    const fn made_into(self, distribution: Distribution) -> Self {
        Self { distribution, ..self }
    }

    const fn with_other_nft(self) -> Self {
        Self { has_other_nft: true, ..self }
    }

    const fn but(self, but: &'static [&'static str]) -> Self {
        Self { but, ..self }
    }

    const fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    const fn of_tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// The suite in guests of this kind. None if its tests are those of others again, with another kind
    /// of iptables.
    pub(super) fn run_by(self, accel: AccelChoice) -> Option<Self> {
        let is_again = !self.only.is_empty() && self.accel != AccelChoice::Uml;
        (!is_again).then_some(Self { accel, ..self })
    }

    /// The suite in a run that has the tier of the released program, too: without the tests of that tier.
    pub(super) fn beside_released(self) -> Self {
        let has_them =
            self.tier == Tier::Bed && self.accel == AccelChoice::Uml && self.only.is_empty();
        if has_them { Self { elsewhere: &RELEASED, ..self } } else { self }
    }

    /// Its kernels, each with the suite in the kind of guest for it.
    fn on(&self, kernels: &Kernels) -> Vec<(Kernel, Self)> {
        let on = match (self.tier, self.accel) {
            (Tier::Kernel, _) if self.newest_only => slice::from_ref(&kernels.newest),
            (Tier::Kernel, _) => kernels.all.as_slice(),
            (Tier::Switch, _) => kernels.switch.as_slice(),
            (Tier::Arm64, _) | (_, AccelChoice::Uml) => &[kernels.newest],
            _ => &[kernels.first],
        };
        // User mode takes a fifth of the time. There is none of 5.10, and that of 6.1 is slow to start. It
        // needs nothing of the machine, so `--accel` has no say in the kernel tier.
        let in_guest = |kernel: Kernel| {
            let is_quicker = self.newest_in_user_mode && kernel == Kernel::V6_12;
            (kernel, if is_quicker { self.in_user_mode() } else { *self })
        };
        on.iter().copied().map(in_guest).collect()
    }

    /// Returns the test program, and the tests of each guest.
    fn programs(
        &self,
        built: &ForGuests,
        filter: Option<&str>,
    ) -> Result<(PathBuf, Vec<Vec<String>>)> {
        let program = built.tests(self.package, self.tests)?;
        let tests = tests_of(&program, self.tier.architecture())?;
        if let Some(missing) = self.missing(&tests) {
            bail!(
                "{} {} has no test {missing}, which its suite names. If it was renamed, rename it in \
                 xtask/src/test/guests/suites.rs too",
                self.package,
                self.tests
            );
        }
        Ok((program, self.shares(tests, filter)))
    }

    /// A name in `only` or `but` that no test has.
    fn missing(&self, all: &[String]) -> Option<&'static str> {
        let is_start = |start: &&'static str| all.iter().any(|test| test.starts_with(*start));
        let is_inside = |inside: &&'static str| all.iter().any(|test| test.contains(*inside));
        let named = self.only.iter().chain(self.but).copied();
        let start = named.into_iter().find(|start| !is_start(start));
        start.or_else(|| self.tests.filter().filter(|inside| !is_inside(inside)))
    }

    /// The tests of each guest.
    fn shares(&self, all: Vec<String>, filter: Option<&str>) -> Vec<Vec<String>> {
        let is_wanted = |test: &String| {
            self.tests.filter().is_none_or(|inside| test.contains(inside))
                && (self.only.is_empty() || self.only.iter().any(|start| test.starts_with(start)))
                && !self.but.iter().chain(self.elsewhere).any(|start| test.starts_with(start))
                && filter.is_none_or(|filter| test.contains(filter))
        };
        let mut shares = vec![Vec::new(); self.guests];
        // Neighbours in a file take as long as one another, so they are dealt out like cards.
        let places = (0..self.guests).cycle();
        for (place, test) in places.zip(all.into_iter().filter(is_wanted)) {
            if let Some(share) = shares.get_mut(place) {
                share.push(test);
            }
        }
        shares.retain(|share| !share.is_empty());
        shares
    }

    /// These tests of it, the n-th share of so many.
    fn job(
        &self,
        kernel: Kernel,
        program: PathBuf,
        tests: &[String],
        share: Option<(usize, usize)>,
    ) -> TestsJob {
        let mut name = format!("{} {}", self.package, self.tests);
        if let [only] = self.only {
            name += &format!(" {only}");
        }
        name += &format!(" on {kernel}");
        let architecture = self.tier.architecture();
        if architecture != Architecture::Amd64 {
            name += &format!(" ({architecture})");
        }
        if let Some(distribution) = self.distribution.name() {
            name += &format!(" ({distribution})");
        }
        if self.accel == AccelChoice::Uml {
            name += " (user mode)";
        }
        let is_released = self.tier == Tier::Released;
        if is_released {
            name += ", as released";
        }
        if let Some((number, all)) = share {
            name += &format!(", {number} of {all}");
        }
        // One at a time: the guest has one processor, and a test's timing is then its own.
        let mut arguments = vec!["--test-threads=1".to_owned(), "--exact".to_owned()];
        arguments.extend_from_slice(tests);
        let Self { accel, distribution, has_other_nft, .. } = *self;
        let is_sampled = self.tier != Tier::Switch && accel != AccelChoice::Uml;
        let sample = FLOWS_SAMPLE.map(str::to_owned);
        let kind = self.iptables.map(|kind| (KIND.to_owned(), kind.to_owned()));
        let environment = is_sampled.then(|| sample.into()).into_iter().chain(kind).collect();
        let limit = if self.tier == Tier::Switch { LONG_LIMIT } else { LIMIT };
        TestsJob {
            name,
            architecture,
            kernel,
            accel,
            program,
            arguments,
            environment,
            distribution,
            has_other_nft,
            is_released,
            limit,
        }
    }
}

/// Returns the tests that a test program lists.
fn tests_of(program: &Path, architecture: Architecture) -> Result<Vec<String>> {
    let listed = architecture.command(program).args(["--list", "--format", "terse"]).output();
    let listed = listed.with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let tests: Vec<String> =
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    if !listed.status.success() || tests.is_empty() {
        bail!("`{} --list` failed: {}", program.display(), listed.status);
    }
    Ok(tests)
}

impl Job {
    fn accel(&self) -> AccelChoice {
        match self {
            Self::Tests(job) => job.accel,
            Self::Check(check) => check.accel,
        }
    }

    fn run(&self, daemon: &Path, alone: bool) -> SuiteResult {
        match self {
            Self::Tests(job) => job.run(daemon, alone),
            Self::Check(check) => super::check(check.name, check.work),
        }
    }
}

impl TestsJob {
    /// Runs them in a guest. Its output comes at the end, unless it is alone: otherwise it would
    /// be mixed up with what others do at the same time.
    fn run(&self, daemon: &Path, alone: bool) -> SuiteResult {
        // The first that needs it waits for its build, which is no part of the time of the tests.
        let daemon = if self.is_released { program::for_tests() } else { Ok(daemon) };
        announce(&format!("{} begins", self.name));
        let started = Instant::now();
        let daemon = match daemon {
            Ok(daemon) => daemon,
            Err(error) => {
                return SuiteResult::new(&self.name, Tee::default(), Some(error), started);
            }
        };
        let mut guest = Guest {
            architecture: self.architecture,
            kernel: self.kernel,
            accel: self.accel,
            files: vec![GuestFile { host: daemon.to_path_buf(), guest: "/job/kube-ipvs".into() }],
            setup: self.distribution.setup(),
            limit: self.limit,
            ..Guest::default()
        };
        guest.environment.push(("KUBE_IPVS".into(), "/job/kube-ipvs".into()));
        // Of panics alone: who waits makes an error at each attempt.
        guest.environment.push(("RUST_BACKTRACE".into(), "1".into()));
        guest.environment.push(("RUST_LIB_BACKTRACE".into(), "0".into()));
        guest.environment.extend(self.distribution.variable());
        guest.environment.extend(self.environment.iter().cloned());
        let other_nft = if self.has_other_nft { nft::files() } else { Ok(Vec::new()) };
        if self.has_other_nft {
            guest.environment.push(nft::VARIABLE.map(str::to_owned).into());
        }
        let mut output = if alone { Tee::default() } else { Tee::at_the_end(&self.name) };
        let program = self.program.to_string_lossy();
        let verdict = other_nft.and_then(|files| {
            guest.files.extend(files);
            guest.run(&program, &self.arguments, &mut output)
        });
        let broken = match verdict {
            Ok(Verdict::Exited(0)) => None,
            Ok(verdict) => Some(anyhow!("{verdict}")),
            Err(error) => Some(error),
        };
        SuiteResult::new(&self.name, output, broken, started)
    }
}
