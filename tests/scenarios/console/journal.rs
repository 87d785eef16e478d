//! The journal says for which Services something was written.

use console::answers::events::EventLine;
use console::journal::Journal;
use plan::event::Event;
use plan::mode::Mode;
use reconcile::Pace;

use crate::reports::Reports;
use crate::world::{World, settings_in, slice, tcp};

/// Events of this kind about a Service, after a number.
fn about(journal: &Journal, after: u64, what: &str, service: &str) -> Vec<String> {
    let notes = journal.after(after, usize::MAX);
    let lines = notes.iter().map(EventLine::of);
    let wanted = lines.filter(|it| it.what == what && it.services.iter().any(|it| it == service));
    wanted.map(|line| line.text).collect()
}

fn last(journal: &Journal) -> u64 {
    journal.after(0, 1).last().map_or(0, |note| note.number)
}

/// A world in sync with two Services, and the journal of its loop.
async fn world(mode: Mode) -> (World, Journal) {
    let fake = World::new().stop().await;
    let journal = Journal::default();
    let observer = Box::new(journal.observer());
    let settings = settings_in(mode);
    let reports = Reports::default();
    let mut world = World::observed(settings, fake, Pace::default(), observer, reports);
    world.feed(&[tcp(1, &[1, 2]), tcp(2, &[3])]).await;
    world.complete().await;
    (world, journal)
}

#[tokio::test(start_paused = true)]
async fn what_is_written_for_a_service_is_known_until_its_end() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let (mut world, journal) = world(mode).await;
        assert!(!about(&journal, 0, "write", "ns/s1").is_empty(), "{mode}");
        assert!(!about(&journal, 0, "plan", "ns/s2").is_empty(), "{mode}");

        let before = last(&journal);
        let (service, _) = tcp(1, &[]);
        world.apply_slice(slice(&service, &[1, 2, 4])).await;
        world.compared().await;
        let written = about(&journal, before, "write", "ns/s1");
        let has_endpoint = written.iter().any(|text| text.contains("10.244.0.4"));
        assert!(!written.is_empty() && (has_endpoint || mode != Mode::Ipvs), "{mode}: {written:?}");
        assert!(about(&journal, before, "write", "ns/s2").is_empty(), "{mode}");

        // The planner does not know it any more when it is written.
        let before = last(&journal);
        world.send(Event::ServiceRemoved(service.name)).await;
        world.compared().await;
        let written = about(&journal, before, "write", "ns/s1");
        assert!(!written.is_empty(), "{mode}: {:?}", journal.after(before, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn removals_of_several_services_at_once_are_told_apart() {
    let (mut world, journal) = world(Mode::Ipvs).await;
    let before = last(&journal);
    for number in [1, 2] {
        world.send(Event::ServiceRemoved(tcp(number, &[]).0.name)).await;
    }
    world.compared().await;
    for service in ["ns/s1", "ns/s2"] {
        let written = about(&journal, before, "write", service);
        assert!(!written.is_empty(), "{service}: {:?}", journal.after(before, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn drift_is_about_the_services_whose_state_was_changed() {
    let (mut world, journal) = world(Mode::Ipvs).await;
    let before = last(&journal);
    let gone = crate::world::frontend(2, plan::model::Protocol::Tcp);
    world.fake.disturb(|actual| drop(actual.virtual_servers.remove(&gone)));
    world.compared().await;
    let drift = about(&journal, before, "drift", "ns/s2");
    assert!(drift[0].starts_with("another program changed the kernel; repairs: "), "{drift:?}");
    assert!(about(&journal, before, "drift", "ns/s1").is_empty());
}
