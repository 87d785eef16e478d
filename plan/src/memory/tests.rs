use super::*;
use crate::model::{Family, Protocol};
use crate::sets::SetKind;
use crate::settings::SchedulerName;

#[test]
fn what_makes_no_sense_is_refused_with_the_kernels_number() {
    let address: IpAddr = "10.96.0.1".parse().unwrap();
    let set = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
    let entry = Entry::Address(address);
    let frontend = Frontend { address, protocol: Protocol::Tcp, port: 80 };
    let server = VirtualServer {
        scheduler: SchedulerName::default(),
        persistence: None,
        scheduler_flags: 0,
    };
    let real = RealServer { address: "10.244.0.1".parse().unwrap(), port: 80, weight: 1 };
    // Each operation with what it answers before and after it was carried out.
    let steps = [
        (Op::CreateLink, None, Some(Refusal::LinkExists)),
        (Op::CreateSet(set), None, Some(Refusal::SetExists)),
        (Op::WriteLayer(Family::V4), None, None),
        (Op::AddEntry(set, entry), None, Some(Refusal::EntryExists)),
        (
            Op::CreateVirtualServer(frontend, server.clone()),
            None,
            Some(Refusal::VirtualServerExists),
        ),
        (Op::ChangeVirtualServer(frontend, server.clone()), None, None),
        (Op::AddRealServer(frontend, real), None, Some(Refusal::RealServerExists)),
        (Op::ChangeRealServer(frontend, real), None, None),
        (Op::BindAddress(address), None, Some(Refusal::AddressExists)),
        (Op::UnbindAddress(address), None, Some(Refusal::NoAddress)),
        (Op::RemoveRealServer(frontend, real.socket()), None, Some(Refusal::NoRealServer)),
        (Op::ChangeRealServer(frontend, real), Some(Refusal::NoRealServer), None),
        (Op::RemoveVirtualServer(frontend), None, Some(Refusal::NoVirtualServer)),
        (Op::RemoveEntry(set, entry), None, Some(Refusal::NoEntry)),
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
        (Op::AddEntry(set, entry), 2),
        (Op::RemoveEntry(set, entry), 2),
        (Op::ChangeVirtualServer(frontend, server), 3),
        (Op::AddRealServer(frontend, real), 3),
        (Op::RemoveRealServer(frontend, real.socket()), 3),
        (Op::BindAddress(address), 19),
        (Op::UnbindAddress(address), 19),
    ] {
        assert_eq!(nothing.apply(&op).map_err(Refusal::errno), Err(errno), "{op}");
    }
    assert_eq!(nothing, MemoryKernel::default());
}
