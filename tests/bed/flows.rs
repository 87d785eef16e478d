//! Every kind of flow meets the fate that the Service API promises.
//!
//! `row` has the words, `table` the expectations, `world` the cluster on which `trial` tries them;
//! `traced` foretells each flow's outcome by the planner alone; `mistaken` finds answers that IPVS takes for another connection's; `marks` is about the marks on
//! packets.

mod marks;
mod mistaken;
mod row;
mod table;
mod traced;
mod trial;
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use plan::mode::Mode;
use plan::settings::{FastPath, RuleForm};
use row::{Client, Endpoints, Frontend, Policy, Ranges, Row};
use world::World;

/// Variable by which only every n-th Service is made and tried. `cargo xtask test` sets it for virtual machines; all are
/// tried in user mode, and in every guest of the switch tier.
const SAMPLE: &str = "KUBE_IPVS_FLOWS_SAMPLE";

#[test]
fn every_flow_goes_where_the_table_says() {
    every_flow_goes_where_the_table_says_in(Mode::Ipvs);
}

#[test]
fn every_flow_goes_where_the_table_says_in_mode_iptables() {
    every_flow_goes_where_the_table_says_in(Mode::Iptables);
}

#[test]
fn every_flow_goes_where_the_table_says_in_mode_userspace() {
    every_flow_goes_where_the_table_says_in(Mode::Userspace);
}

#[test]
fn every_flow_goes_where_the_table_says_in_nf_tables() {
    every_flow_goes_where_the_table_says_by(Mode::Ipvs, RuleForm::Nftables, FastPath::Off);
}

#[test]
fn every_flow_goes_where_the_table_says_in_nf_tables_on_the_fast_path() {
    every_flow_goes_where_the_table_says_by(Mode::Ipvs, RuleForm::Nftables, FastPath::Conntrack);
}

fn every_flow_goes_where_the_table_says_in(mode: Mode) {
    every_flow_goes_where_the_table_says_by(mode, RuleForm::Iptables, FastPath::Off);
}

fn every_flow_goes_where_the_table_says_by(mode: Mode, form: RuleForm, fast_path: FastPath) {
    let mut trials = trial::trials(table::ROWS, mode);
    if let Ok(nth) = std::env::var(SAMPLE) {
        let nth: usize = nth.parse().unwrap();
        let givens: BTreeSet<_> = trials.keys().map(|place| place.given).collect();
        let sample: BTreeSet<_> = givens.into_iter().step_by(nth).collect();
        trials.retain(|place, _| sample.contains(&place.given));
    }
    let world = World::build(&trials, mode, form, fast_path);
    let foretold = traced::require_foretold(&world, &trials);
    let started = Instant::now();
    let flows = trial::try_all(&world, &trials, &foretold);
    eprintln!("{flows} flows in {:?}", started.elapsed());
    assert_eq!(foretold.len(), flows);
}

#[test]
fn the_table_has_so_many_flows() {
    let in_mode = |mode| -> usize {
        trial::trials(table::ROWS, mode).values().map(std::collections::BTreeMap::len).sum()
    };
    // A flow that is left out must be missed. `table` has the reasons for which a mode leaves out some.
    assert_eq!(Mode::ALL.map(in_mode), [2_772, 2_768, 2_732]);
}

#[test]
fn the_table_has_a_row_for_every_cell() {
    let named: BTreeSet<_> = table::ROWS.iter().copied().flatten().flat_map(cells).collect();
    let mut missing = Vec::new();
    for client in table::ALL {
        for frontend in
            [Frontend::Cluster, Frontend::External, Frontend::Balancer, Frontend::NodePort]
        {
            for policy in [Policy::Anywhere, Policy::ExternalLocal, Policy::InternalLocal] {
                let cells = EVERYWHERE.map(|endpoints| (*client, frontend, policy, endpoints));
                missing.extend(cells.into_iter().filter(|cell| !named.contains(cell)));
            }
        }
    }
    assert_eq!(missing, []);
}

const EVERYWHERE: [Endpoints; 10] = [
    Endpoints::Here,
    Endpoints::Away,
    Endpoints::Both,
    Endpoints::None,
    Endpoints::EndingHere,
    Endpoints::EndingAway,
    Endpoints::EndingHereReadyAway,
    Endpoints::Ended,
    Endpoints::HostHere,
    Endpoints::HostAway,
];

fn cells(row: &Row) -> Vec<(Client, Frontend, Policy, Endpoints)> {
    let mut cells = Vec::new();
    for client in row.clients {
        for frontend in row.frontends {
            let of_policy = |policy: &Policy| (*client, *frontend, *policy, row.endpoints);
            cells.extend(row.policies.iter().map(of_policy));
        }
    }
    if row.ranges == Ranges::Unrestricted { cells } else { Vec::new() }
}
