//! `kube-ipvs sets`: the sets of mode ipvs as `ipset save` prints them, in either form of the rules.

use clap::Args;
use plan::sets::SetId;

use super::{Session, written};
use crate::answers::sets::{NamedSet, Sets};
use crate::outcome::{Failure, Verdict};

/// Prints the sets of IPVS mode in the format of `ipset save`, from ipset or nf_tables
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs sets\n  \
    kube-ipvs sets KUBE-CLUSTER-IP KUBE-NO-ENDPOINTS\n\n\
    Needs no running kube-ipvs, but CAP_NET_ADMIN. Reads only.")]
pub struct Arguments {
    /// Names of sets (default: all)
    #[arg(value_name = "NAME", value_parser = set)]
    names: Vec<SetId>,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let mut found = Sets::read().map_err(|error| Failure::Unanswered(error.to_string()))?;
    let is_asked = |set: &NamedSet| arguments.names.iter().any(|name| name.name() == set.name);
    found.sets.retain(|set| arguments.names.is_empty() || is_asked(set));
    written(session.output.show(found, Sets::text))?;
    Ok(Verdict::from(true))
}

fn set(name: &str) -> Result<SetId, String> {
    SetId::by_name(name).ok_or_else(|| "IPVS mode has no set of this name".to_owned())
}
