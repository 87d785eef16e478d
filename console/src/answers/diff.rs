//! `/v1/diff`: the kernel against the plan.

use std::sync::Arc;

use axum::extract::State;
use plan::model::ServiceName;
use serde::{Deserialize, Serialize};

use super::{Answer, Content, FailureAnswer, Reason};
use crate::Desk;
use crate::comparison::{Compared, Comparison, ComparisonError, Found, Plan};
use crate::words::{Described, Effect, describe_sysctls};
use config::Configuration;
use kernel::ReadError;
use kernel::reader::KernelReader;
use node::host::survey::sysctls_not_kept;
use reconcile::differences::Standing;

/// The kernel against the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// Mode that the node serves in.
    pub mode: String,
    /// True if the kernel is as planned: what only drains is no difference.
    pub whole: bool,
    /// Number of differences that are drift.
    #[serde(default)]
    pub drifted: usize,
    /// Number of those that the program knows of: it writes or retries them.
    #[serde(default)]
    pub pending: usize,
    /// Differences, by the parts of the kernel.
    pub differences: Vec<DiffLine>,
    /// Number of further differences.
    pub omitted: usize,
    /// Services whose changes are not planned yet.
    pub waiting: usize,
    /// Parts that could not be read, each with the reason.
    pub unread: Vec<String>,
    /// Number of further ones.
    #[serde(default)]
    pub more_unread: usize,
    /// Notes on the source of Services, where no running program was asked.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    pub kind: DifferenceKind,
    /// Object that differs.
    pub object: String,
    /// State in the kernel; none: nothing.
    pub found: Option<String>,
    /// State in the plan; none: nothing.
    pub desired: Option<String>,
    /// Services that ask for the object.
    pub services: Vec<String>,
    /// Operation that repairs it.
    pub operation: String,
    /// Reason for the difference, and who ends it.
    pub state: DifferenceState,
    /// Reason of a refusal.
    pub reason: Option<String>,
    /// Number of failed attempts in a row.
    pub attempts: Option<u32>,
    /// Seconds after which connections that drain are cut.
    pub seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceKind {
    /// The plan wants it, and the kernel does not have it.
    Missing,
    /// Both have it, and not the same.
    Different,
    /// The kernel has it, it is ours, and no Service asks for it.
    Foreign,
}

/// Reasons for differences, and who ends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceState {
    /// Another program changed the kernel: the audit repairs it.
    Drift,
    /// The kernel refused the write, which is retried.
    Pending,
    /// The program wrote it while the kernel was read.
    Writing,
    /// Connections of an endpoint that is gone: it ends by itself.
    Draining,
    /// No running program was asked: one with this source writes it when it starts.
    AtStart,
}

pub(super) async fn answer(State(desk): State<Arc<Desk>>) -> Result<Answer<Diff>, FailureAnswer> {
    let (settings, variant) = (desk.settings.clone(), desk.configuration.variant);
    let open = move || KernelReader::open(&settings, variant);
    let opened = tokio::task::spawn_blocking(open).await;
    let reader = opened
        .unwrap_or_else(|error| Err(ReadError::new("the kernel", error)))
        .map_err(|error| FailureAnswer::from(ComparisonError::Unreadable(error)))?;
    let plan = Plan::OfLoop(desk.inquiries.clone());
    let compared = Comparison::new(plan, reader).run().await?;
    // As it serves: with a mode that was ordered, or that it fell back to.
    let configuration =
        Configuration { settings: desk.settings.clone(), ..desk.configuration.clone() };
    let sysctls = super::blocking(move || sysctls_not_kept(&configuration)).await?;
    Ok(Answer::new(Diff::new(desk.settings.mode.to_string(), compared.with_sysctls(sysctls))))
}

impl Content for Diff {
    const KIND: &'static str = "Diff";
}

impl Diff {
    /// Returns the answer for a comparison in a mode.
    #[must_use]
    pub fn new(mode: String, compared: Compared) -> Self {
        let whole = compared.is_whole();
        let differences: Vec<DiffLine> = DiffLine::of(&compared).collect();
        let n_of = |states: &[DifferenceState]| {
            differences.iter().filter(|line| states.contains(&line.state)).count()
        };
        Self {
            mode,
            whole,
            drifted: n_of(&[DifferenceState::Drift]),
            pending: n_of(&[DifferenceState::Pending, DifferenceState::Writing]),
            differences,
            omitted: compared.n_more,
            waiting: compared.n_waiting,
            unread: compared.unread,
            more_unread: compared.n_more_unread,
            notes: Vec::new(),
        }
    }
}

impl DiffLine {
    /// The differences of a comparison, sysctls last.
    fn of(compared: &Compared) -> impl Iterator<Item = Self> {
        let by = if compared.is_at_start { Standing::AtStart } else { Standing::Drift };
        let sysctls = describe_sysctls(&compared.sysctls)
            .map(move |(operation, described)| Self::new(operation, &described, &[], &by));
        let objects = compared.differences.iter().map(|found| {
            let Found { difference, described, services } = found;
            Self::new(difference.op.to_string(), described, services, &difference.standing)
        });
        objects.chain(sysctls)
    }

    fn new(
        operation: String,
        described: &Described,
        services: &[ServiceName],
        standing: &Standing,
    ) -> Self {
        let (state, reason, attempts, seconds) = match standing {
            Standing::Drift => (DifferenceState::Drift, None, None, None),
            Standing::BeingWritten => (DifferenceState::Writing, None, None, None),
            Standing::Pending { reason, attempts } => {
                (DifferenceState::Pending, Some(reason.clone()), Some(*attempts), None)
            }
            Standing::Draining { seconds } => {
                (DifferenceState::Draining, None, None, Some(*seconds))
            }
            Standing::AtStart => (DifferenceState::AtStart, None, None, None),
        };
        let Described { effect, object, found, desired } = described.clone();
        Self {
            kind: DifferenceKind::from(effect),
            object,
            found,
            desired,
            services: services.iter().map(ToString::to_string).collect(),
            operation,
            state,
            reason,
            attempts,
            seconds,
        }
    }
}

impl From<Effect> for DifferenceKind {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Add => Self::Missing,
            Effect::Change => Self::Different,
            Effect::Remove => Self::Foreign,
        }
    }
}

impl From<ComparisonError> for FailureAnswer {
    fn from(error: ComparisonError) -> Self {
        let advice = match &error {
            ComparisonError::Unreadable(_) => "; kube-ipvs retries what it needs; see its log",
            ComparisonError::LoopGone(_) | ComparisonError::NotInSync => "",
        };
        Self::new(Reason::Unavailable, format!("{error}{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::sysctl::Sysctl;

    fn sysctls() -> Vec<(Sysctl, Option<String>)> {
        let sysctl = |path, value: u32| Sysctl::new(path, value, true, "Services need it");
        vec![
            (sysctl("net/ipv4/vs/conntrack", 1), Some("0".to_owned())),
            (sysctl("net/ipv4/vs/expire_nodest_conn", 1), None),
        ]
    }

    #[test]
    fn a_sysctl_with_another_value_is_drift() {
        let whole = Diff::new("ipvs".to_owned(), Compared::default());
        assert_eq!((whole.whole, whole.drifted), (true, 0));
        let diff = Diff::new("ipvs".to_owned(), Compared::default().with_sysctls(sysctls()));
        assert_eq!((diff.whole, diff.drifted, diff.pending), (false, 2, 0));
        let [first, second] = &diff.differences[..] else { panic!("{diff:?}") };
        assert_eq!((first.kind, first.state), (DifferenceKind::Different, DifferenceState::Drift));
        assert_eq!(first.object, "sysctl net.ipv4.vs.conntrack");
        assert_eq!((first.found.as_deref(), first.desired.as_deref()), (Some("0"), Some("1")));
        assert_eq!(first.operation, "set net.ipv4.vs.conntrack to 1");
        assert_eq!(second.found, None);
    }

    #[test]
    fn without_a_program_a_sysctl_is_set_at_its_start() {
        let at_start = Compared { is_at_start: true, ..Compared::default() };
        assert!(Diff::new("ipvs".to_owned(), at_start.clone()).whole);
        let diff = Diff::new("ipvs".to_owned(), at_start.with_sysctls(sysctls()));
        assert_eq!((diff.whole, diff.drifted, diff.differences.len()), (false, 0, 2));
        assert_eq!(diff.differences[0].state, DifferenceState::AtStart);
    }
}
