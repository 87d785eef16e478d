use super::*;
use crate::model::{Family, Protocol};
use crate::scheduler::SchedulerName;
use crate::sets::SetKind;

#[test]
fn what_makes_no_sense_is_refused_with_the_kernels_number() {
    let address: IpAddr = "10.96.0.1".parse().unwrap();
    let route = "10.96.0.0/12".parse().unwrap();
    let set = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
    let entry = Entry::Address(address);
    let frontend = Frontend { address, protocol: Protocol::Tcp, port: 80 };
    let size = |most| SetSize { capacity: Capacity::new(most), expected: 0 };
    let server = VirtualServer {
        scheduler: SchedulerName::default(),
        persistence: None,
        scheduler_flags: 0,
    };
    let real = RealServer { address: "10.244.0.1".parse().unwrap(), port: 80, weight: 1 };
    // Each operation with what it answers before and after it was carried out.
    let steps = [
        (Op::CreateLink, None, Some(MemoryRefusal::LinkExists)),
        (Op::CreateSet(set, size(1)), None, Some(MemoryRefusal::SetExists)),
        (Op::GrowSet(set, size(2)), None, Some(MemoryRefusal::SetNotLarger)),
        (Op::WriteRuleSet(Family::V4), None, None),
        (Op::AddEntry(set, entry), None, Some(MemoryRefusal::EntryExists)),
        (
            Op::CreateVirtualServer(frontend, server.clone()),
            None,
            Some(MemoryRefusal::VirtualServerExists),
        ),
        (Op::ChangeVirtualServer(frontend, server.clone()), None, None),
        (Op::AddRealServer(frontend, real), None, Some(MemoryRefusal::RealServerExists)),
        (Op::ChangeRealServer(frontend, real), None, None),
        (Op::BindAddress(address), None, Some(MemoryRefusal::AddressExists)),
        (Op::UnbindAddress(address), None, Some(MemoryRefusal::NoAddress)),
        (Op::add_route(route), None, None),
        (Op::remove_route(route), None, Some(MemoryRefusal::NoRoute)),
        (Op::RemoveRealServer(frontend, real.socket()), None, Some(MemoryRefusal::NoRealServer)),
        (Op::ChangeRealServer(frontend, real), Some(MemoryRefusal::NoRealServer), None),
        (Op::RemoveVirtualServer(frontend), None, Some(MemoryRefusal::NoVirtualServer)),
        (Op::RemoveEntry(set, entry), None, Some(MemoryRefusal::NoEntry)),
    ];
    let mut kernel = MemoryKernel::default();
    for (op, first, again) in steps {
        let before = kernel.clone();
        assert_eq!(kernel.apply(&op).err(), first, "{op}");
        if first.is_some() {
            assert_eq!(kernel, before, "a refused {op} changes nothing");
            continue;
        }
        let after = kernel.clone();
        assert_eq!(kernel.apply(&op).err(), again, "{op} again");
        assert_eq!(kernel, after, "{op} again changes nothing");
    }

    let mut nothing = MemoryKernel::default();
    for (op, errno) in [
        (Op::GrowSet(set, size(1)), 2),
        (Op::AddEntry(set, entry), 2),
        (Op::RemoveEntry(set, entry), 2),
        (Op::ChangeVirtualServer(frontend, server), 3),
        (Op::AddRealServer(frontend, real), 3),
        (Op::RemoveRealServer(frontend, real.socket()), 3),
        (Op::BindAddress(address), 19),
        (Op::UnbindAddress(address), 19),
        (Op::add_route(route), 19),
        (Op::remove_route(route), 3),
    ] {
        assert_eq!(nothing.apply(&op).map_err(MemoryRefusal::errno), Err(errno), "{op}");
    }
    assert_eq!(nothing, MemoryKernel::default());
}

#[test]
fn a_set_takes_as_many_entries_as_it_has_room_for() {
    let set = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
    let entry = |last| Entry::Address(IpAddr::from([10, 96, 0, last]));
    let size = |most| SetSize { capacity: Capacity::new(most), expected: 0 };
    let mut kernel = MemoryKernel::default();
    kernel.apply(&Op::CreateSet(set, size(2))).unwrap();
    kernel.apply(&Op::AddEntry(set, entry(1))).unwrap();
    kernel.apply(&Op::AddEntry(set, entry(2))).unwrap();
    let full = kernel.clone();
    let refusal = kernel.apply(&Op::AddEntry(set, entry(3))).unwrap_err();
    assert_eq!((refusal, refusal.errno()), (MemoryRefusal::SetFull, 4_352));
    assert_eq!(kernel.apply(&Op::AddEntry(set, entry(2))), Err(MemoryRefusal::EntryExists));
    assert_eq!(kernel, full);
    kernel.apply(&Op::GrowSet(set, size(3))).unwrap();
    kernel.apply(&Op::AddEntry(set, entry(3))).unwrap();
    assert_eq!(kernel.apply(&Op::AddEntry(set, entry(4))), Err(MemoryRefusal::SetFull));
    kernel.actual_mut().sets.get_mut(&set).unwrap().entries.clear();
    kernel.actual_mut().sets.get_mut(&set).unwrap().n_unknown = 3;
    assert_eq!(
        kernel.apply(&Op::AddEntry(set, entry(4))),
        Err(MemoryRefusal::SetFull),
        "others count"
    );
}
