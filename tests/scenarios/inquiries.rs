//! Questions to the loop, as the operator's console asks them.

use std::time::Duration;

use plan::event::Event;
use reconcile::inquiry::LoopGone;

use crate::world::{World, tcp};

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_from_what_the_loop_has() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    let counts = world.inquiries.ask(|view| view.planner.count_input()).await.unwrap();
    assert_eq!((counts.services, counts.endpoints), (1, 2));
    world.send(Event::ServiceRemoved(tcp(1, &[]).0.name)).await;
    world.until("it is gone", |_, actual| actual.virtual_servers.is_empty()).await;
    let status = world.inquiries.ask(|view| (view.status, view.waiting)).await.unwrap();
    assert_eq!((status.0.pending, status.1), (0, None::<Duration>));
}

#[tokio::test(start_paused = true)]
async fn a_question_with_a_bug_has_no_answer_and_the_loop_goes_on() {
    let mut world = World::in_sync(&[]).await;
    let answer = world.inquiries.ask(|_| -> u8 { panic!("a bug of the question's") }).await;
    assert_eq!(answer, Err(LoopGone));
    world.feed(&[tcp(1, &[1])]).await;
    world.until("the loop goes on", |_, actual| !actual.virtual_servers.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn questions_are_answered_before_the_first_list_is_there() {
    let world = World::new();
    let in_sync = world.inquiries.ask(|view| view.status.in_sync_once).await;
    assert_eq!(in_sync, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn nobody_answers_when_the_loop_has_ended() {
    let world = World::new();
    let inquiries = world.inquiries.clone();
    world.stop().await;
    assert_eq!(inquiries.ask(|_| ()).await, Err(LoopGone));
}
