use std::cell::RefCell;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};

use super::*;
use crate::upstream::times::testing::{BODY, HEADER, IDLE, times_with};

/// A connection whose first request has been answered, a second after it was accepted.
async fn answered() -> (Instant, Phase) {
    let phase = Phase::new(times_with(IDLE), Arc::new(Idleness::new()));
    tokio::time::advance(Duration::from_secs(1)).await;
    phase.begin(Instant::now());
    phase.end(Instant::now());
    (Instant::now(), phase)
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_parked_and_later_closed() {
    let (ended, phase) = answered().await;
    assert_eq!(phase.due(), Some((ended + PARK, DueAction::Park)));
    assert_eq!(phase.idle_until(), Some(ended + IDLE));
}

#[tokio::test(start_paused = true)]
async fn unfinished_work_keeps_a_connection_from_being_parked() {
    let (ended, phase) = answered().await;
    phase.unsettled.set(true);
    assert_eq!(phase.due(), Some((ended + IDLE, DueAction::Close)), "a rest of its request");
    phase.begin(ended);
    phase.end(Instant::now());
    assert_eq!(phase.due(), Some((ended + PARK, DueAction::Park)), "gone with the next request");
    phase.write_waits();
    assert_eq!(phase.due(), Some((ended + LOOK, DueAction::Look)), "a write that waits");
    tokio::time::advance(BODY).await;
    phase.looked(Instant::now());
    assert_eq!(phase.due(), Some((ended + BODY, DueAction::Close)), "it waits for too long");
    phase.write_moved();
    assert_eq!(phase.due(), Some((Instant::now() + PARK, DueAction::Park)));
    phase.bytes_came();
    assert_eq!(phase.due(), Some((Instant::now() + HEADER, DueAction::Close)), "a head has begun");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_not_asked_yet_is_not_parked() {
    let phase = Phase::new(times_with(IDLE), Arc::new(Idleness::new()));
    assert_eq!(phase.due(), Some((Instant::now() + HEADER, DueAction::Close)));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_time_is_short_is_closed_instead() {
    let phase = Phase::new(times_with(PARK), Arc::new(Idleness::new()));
    phase.begin(Instant::now());
    phase.end(Instant::now());
    assert_eq!(phase.due(), Some((Instant::now() + PARK, DueAction::Close)));
}

#[tokio::test(start_paused = true)]
async fn a_discarded_body_has_the_time_limit_of_a_body() {
    let (_, phase) = answered().await;
    phase.begin(Instant::now());
    phase.discard();
    phase.end(Instant::now());
    for _ in 0..5 {
        tokio::time::advance(BODY / 2).await;
        phase.bytes_came();
        assert_eq!(phase.due(), Some((Instant::now() + BODY, DueAction::Close)));
    }
    phase.discarded();
    assert_eq!(phase.due(), Some((Instant::now() + IDLE, DueAction::Close)));
    phase.bytes_came();
    assert_eq!(phase.due(), Some((Instant::now() + HEADER, DueAction::Close)), "the next head");
}

#[tokio::test(start_paused = true)]
async fn many_requests_end_with_the_last() {
    let phase = Phase::new(times_with(IDLE), Arc::new(Idleness::new()));
    phase.multiplex();
    assert_eq!(phase.due(), Some((Instant::now() + HEADER, DueAction::Close)), "a hello");
    phase.bytes_came();
    assert_eq!(phase.due(), Some((Instant::now() + HEADER, DueAction::Close)), "half of it");
    tokio::time::advance(HEADER / 2).await;
    phase.bytes_came();
    assert_eq!(phase.due(), Some((Instant::now() + IDLE, DueAction::Close)));
    let began = Instant::now();
    phase.begin(began);
    phase.begin(began + LOOK / 2);
    phase.end(began + LOOK / 2);
    assert_eq!(phase.due(), Some((began + LOOK, DueAction::Look)), "not put off by the second");
    phase.end(began);
    phase.bytes_came();
    assert_eq!(phase.due(), Some((began + IDLE, DueAction::Close)), "a ping is no head");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_time_out_gives_an_idle_connection_that_time_once_more() {
    let (ended, phase) = answered().await;
    tokio::time::advance(IDLE / 2).await;
    phase.renew_idle();
    assert_eq!(phase.idle_until(), Some(ended + IDLE), "it is not over");
    phase.times.set(ClientTimes { idle: HEADER, ..phase.times.get() });
    phase.renew_idle();
    assert_eq!(phase.idle_until(), Some(Instant::now() + HEADER));
}

#[test]
fn a_second_request_of_one_turn_was_not_waited_for() {
    let phase = Phase::new(times_with(IDLE), Arc::new(Idleness::new()));
    let now = Instant::now();
    assert!(!phase.begin(now));
    assert!(phase.begin(now), "no poll came between");
    phase.next_poll();
    assert!(!phase.begin(now));
}

#[tokio::test]
async fn some_streams_share_a_turn_and_others_wait_in_order() {
    let phase = Phase::new(times_with(IDLE), Arc::new(Idleness::new()));
    phase.multiplex();
    let answered = RefCell::new(Vec::new());
    let (phase, answered) = (&phase, &answered);
    let streams = (0..10).map(|number| async move {
        phase.wait_for_room(false).await;
        answered.borrow_mut().push(number);
    });
    let mut streams: FuturesUnordered<_> = streams.collect();
    for expected in [4, 8, 10] {
        while streams.next().now_or_never().flatten().is_some() {}
        assert_eq!(*answered.borrow(), (0..expected).collect::<Vec<_>>());
        assert_eq!(phase.is_poll_used_up(), expected < 10);
        phase.next_poll();
    }
}
