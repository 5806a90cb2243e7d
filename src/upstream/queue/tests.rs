mod goals;

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::{advance, sleep};

use super::timekeeper::LOOK;
use super::*;
use crate::settings::{AnswerGoal, GoalMode};
use crate::upstream::overload::rule::SentEnd;

const TIME_LIMIT: Duration = Duration::from_secs(1);

const GOAL: MaxRequests = MaxRequests::Goal(AnswerGoal {
    slower_than: Duration::from_millis(300),
    at_least: 2,
    mode: GoalMode::Enforce,
});

type Entering = Pin<Box<dyn Future<Output = Result<Entered, QueueError>>>>;

fn spec(max_requests: MaxRequests) -> UpstreamSpec {
    UpstreamSpec { max_requests: Some(max_requests), ..UpstreamSpec::default() }
}

fn queue(max_requests: MaxRequests) -> Arc<RequestQueue> {
    Arc::new(RequestQueue::new(&spec(max_requests)))
}

fn of_number(most: usize) -> Arc<RequestQueue> {
    queue(MaxRequests::Number(most))
}

/// A request of a key. A request with a client has a body that is to come.
fn of(priority: Priority, key: &str, client: Option<u8>) -> RequestOrigin {
    RequestOrigin {
        uploads: client.map(|client| IpAddr::V4(Ipv4Addr::new(192, 0, 2, client))),
        priority,
        slower_than: None,
        key: Key::of([Some(key.as_bytes())]),
    }
}

fn whole() -> RequestOrigin {
    of(Priority::Normal, "", None)
}

fn enter(queue: &Arc<RequestQueue>, by: RequestOrigin) -> Entering {
    let queue = queue.clone();
    Box::pin(async move {
        match queue.enter(by) {
            Ok(entered) => Ok(entered),
            Err(by) => queue.wait(by, TIME_LIMIT).await,
        }
    })
}

fn poll(entering: &mut Entering) -> Poll<Result<Entered, QueueError>> {
    entering.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn waits(entering: &mut Entering) -> bool {
    poll(entering).is_pending()
}

#[track_caller]
fn goes(mut entering: Entering) -> Entered {
    let Poll::Ready(Ok(entered)) = poll(&mut entering) else { panic!("it waits") };
    entered
}

fn has_waited(outcome: Result<Entered, QueueError>) -> bool {
    outcome.unwrap_err().has_waited
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_permit_and_no_longer_than_its_patience() {
    let queue = of_number(1);
    let first = goes(enter(&queue, whole()));
    let (mut second, mut third) = (enter(&queue, whole()), enter(&queue, whole()));
    assert!(waits(&mut second) && waits(&mut third));
    drop(first);
    assert!(waits(&mut third), "the second came first");
    let permit = goes(second);
    let began = Instant::now();
    assert!(has_waited(third.await));
    assert!(began.elapsed() <= TIME_LIMIT + LOOK * 2);
    drop(permit);
    goes(enter(&queue, whole()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_its_permit_to_the_next() {
    let queue = of_number(1);
    let first = goes(enter(&queue, whole()));
    let (mut leaves, mut stays) = (enter(&queue, whole()), enter(&queue, whole()));
    assert!(waits(&mut leaves) && waits(&mut stays));
    drop(first);
    // The first client has the permit, but leaves before its request goes on.
    drop(leaves);
    goes(stays);
}

#[tokio::test(start_paused = true)]
async fn a_raised_maximum_lets_waiting_requests_in() {
    let queue = of_number(1);
    let _first = goes(enter(&queue, whole()));
    let mut second = enter(&queue, whole());
    assert!(waits(&mut second));
    queue.reload(&spec(MaxRequests::Number(3)), Vec::new());
    let _second = goes(second);
    let _third = goes(enter(&queue, whole()));
    assert!(waits(&mut enter(&queue, whole())));
}

#[tokio::test(start_paused = true)]
async fn the_queue_has_an_end_and_the_lowest_class_gives_way() {
    let queue = of_number(1);
    let _first = goes(enter(&queue, whole()));
    let mut waiting: Vec<_> =
        (0..1_000).map(|_| enter(&queue, of(Priority::Low, "a", None))).collect();
    assert!(waiting.iter_mut().all(waits));
    assert!(!has_waited(enter(&queue, of(Priority::Low, "a", None)).await));
    let mut other = enter(&queue, of(Priority::Low, "b", None));
    assert!(waits(&mut other), "the key with most waiting loses one");
    assert!(!has_waited(waiting.pop().unwrap().await), "its last one");
    let mut high = enter(&queue, of(Priority::High, "a", None));
    assert!(waits(&mut high));
    assert!(!has_waited(waiting.pop().unwrap().await));
    waiting.clear();
    assert!(waits(&mut enter(&queue, of(Priority::Low, "a", None))), "those that left made room");
}

#[tokio::test(start_paused = true)]
async fn high_goes_first_and_every_tenth_turn_is_for_the_others() {
    let queue = of_number(1);
    let mut held = Some(goes(enter(&queue, whole())));
    let wait = |priority| {
        let mut entering = enter(&queue, of(priority, "", None));
        assert!(waits(&mut entering));
        (priority, entering)
    };
    let mut waiting: Vec<_> = (0..6).map(|_| wait(Priority::Low)).collect();
    waiting.extend((0..30).map(|_| wait(Priority::High)));
    let mut order = String::new();
    while !waiting.is_empty() {
        held.take();
        let at = waiting.iter_mut().position(|(_, entering)| match poll(entering) {
            Poll::Ready(entered) => {
                held = Some(entered.unwrap());
                true
            }
            Poll::Pending => false,
        });
        let (priority, _) = waiting.swap_remove(at.unwrap());
        order.push(if priority == Priority::High { 'h' } else { 'l' });
    }
    assert_eq!(order, "hhhhhhhhhlhhhhhhhhhlhhhhhhhhhlhhhlll");
}

#[tokio::test(start_paused = true)]
async fn keys_are_served_in_turn_by_the_time_that_they_use() {
    let queue = of_number(1);
    let mut held = Some(goes(enter(&queue, of(Priority::Normal, "slow", None))));
    let wait = |key: &'static str| {
        let mut entering = enter(&queue, of(Priority::Normal, key, None));
        assert!(waits(&mut entering));
        (key, entering)
    };
    // The slow one's answers take three times as long.
    let mut waiting: Vec<_> = (0..6).map(|_| wait("slow")).collect();
    waiting.extend((0..6).map(|_| wait("quick")));
    let (mut order, mut key) = (Vec::new(), "slow");
    while order.len() < 8 {
        advance(Duration::from_millis(if key == "slow" { 60 } else { 20 })).await;
        held.take();
        let at = waiting.iter_mut().position(|(_, entering)| match poll(entering) {
            Poll::Ready(entered) => {
                held = Some(entered.unwrap());
                true
            }
            Poll::Pending => false,
        });
        key = waiting.swap_remove(at.unwrap()).0;
        order.push(key);
    }
    let quick = order.iter().filter(|key| **key == "quick").count();
    assert_eq!(quick, 6, "{order:?}");
}

/// A regression: one client took all permits with bodies of a byte a second.
#[tokio::test(start_paused = true)]
async fn one_client_that_uploads_has_half_of_the_permits() {
    for (most, expected) in
        [(1, &[1, 0][..]), (2, &[1, 1]), (3, &[2, 1]), (4, &[2, 1, 1]), (8, &[4, 2, 1, 1, 0])]
    {
        let queue = of_number(most);
        let mut held = Vec::new();
        for (client, expected) in (1..).zip(expected) {
            let before = held.len();
            while let Ok(entered) = queue.enter(of(Priority::Normal, "", Some(client))) {
                held.push(entered);
            }
            assert_eq!(held.len() - before, *expected, "{most}, client {client}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whole_requests_pass_uploads_that_wait() {
    let queue = of_number(4);
    let by = |client: Option<u8>| enter(&queue, of(Priority::Normal, "", client));
    let (first, upload) = goes(by(Some(1)));
    let second = goes(by(Some(1)));
    let mut third = by(Some(1));
    assert!(waits(&mut third));
    let whole = goes(by(None));
    assert!(waits(&mut third));
    drop(upload);
    let third = goes(third);
    let mut fifth = by(None);
    assert!(waits(&mut fifth), "four are in flight");
    drop(second);
    goes(fifth);
    assert_eq!(queue.state.lock().uploads.all, 1);
    drop((first, third, whole));
    assert_is_empty(&queue);
}

/// Removes requests that were given up, as the timekeeper does.
fn forget_the_left(queue: &Arc<RequestQueue>) {
    queue.happens(|state, _| _ = state.turns.drain(|it| it.value.give.is_closed()));
}

#[track_caller]
fn assert_is_empty(queue: &Arc<RequestQueue>) {
    forget_the_left(queue);
    let state = queue.state.lock();
    assert_eq!((state.in_flight, state.turns.len(), state.uploads.all), (0, 0, 0));
    assert!(state.uploads.by_client.is_empty());
    assert!(state.turns.is_forgotten(), "{:?}", state.turns);
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nobody_waits_and_no_key_is_kept() {
    let queue = queue(GOAL);
    let held: Vec<_> = (0..2_000).map(|_| goes(enter(&queue, whole()))).collect();
    assert!(queue.state.lock().turns.is_forgotten());
    drop(held);
    assert_is_empty(&queue);
}

#[derive(Clone, Debug)]
enum Step {
    Enter(Priority, u8, Option<u8>),
    /// One of those that wait or hold a permit leaves.
    Leave(usize),
    Send(usize),
    Answer(usize),
    UploadEnds(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop::sample::select(Priority::ALL.to_vec());
    prop_oneof![
        4 => (priority, 0..4_u8, prop::option::weighted(0.3, 0..3_u8))
            .prop_map(|(priority, key, client)| Step::Enter(priority, key, client)),
        2 => (0..100_usize).prop_map(Step::Leave),
        2 => (0..100_usize).prop_map(Step::Send),
        2 => (0..100_usize).prop_map(Step::Answer),
        1 => (0..100_usize).prop_map(Step::UploadEnds),
        1 => (1..400_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn no_place_is_lost_whoever_leaves_when(
        steps in vec(step(), 0..120),
        most in 1..6_usize,
        has_goal in any::<bool>(),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let queue = if has_goal { queue(GOAL) } else { of_number(most) };
            if has_goal {
                goals::overload(&queue, 3).await;
            }
            let (mut entering, mut held): (Vec<Entering>, Vec<Entered>) = (Vec::new(), Vec::new());
            for step in steps {
                let pick = |at: usize, all: usize| if all == 0 { None } else { Some(at % all) };
                match step {
                    Step::Enter(priority, key, client) => {
                        entering.push(enter(&queue, of(priority, &key.to_string(), client)));
                    }
                    Step::Leave(at) if at % 2 == 0 => {
                        pick(at, entering.len()).into_iter().for_each(|at| drop(entering.remove(at)));
                    }
                    Step::Leave(at) => {
                        pick(at, held.len()).into_iter().for_each(|at| drop(held.remove(at)));
                    }
                    Step::Send(at) => {
                        pick(at, held.len()).into_iter().for_each(|at| held[at].0.send());
                    }
                    Step::Answer(at) => pick(at, held.len())
                        .into_iter()
                        .for_each(|at| held[at].0.answered(SentEnd::Answered)),
                    Step::UploadEnds(at) => {
                        pick(at, held.len()).into_iter().for_each(|at| drop(held[at].1.take()));
                    }
                    Step::Pass(time) => sleep(Duration::from_millis(time)).await,
                }
                entering.retain_mut(|entering| match poll(entering) {
                    Poll::Pending => true,
                    Poll::Ready(Ok(entered)) => {
                        held.push(entered);
                        false
                    }
                    Poll::Ready(Err(_)) => false,
                });
                forget_the_left(&queue);
                let state = queue.state.lock();
                let limit = state.rule.bound().map_or(f64::INFINITY, |limit| limit.floor().max(1.0));
                if !has_goal {
                    assert!(state.in_flight <= most);
                }
                if state.uploads.all == 0 && state.released.is_none() && !state.turns.is_empty() {
                    assert!(state.in_flight as f64 >= limit, "there is room, and some wait");
                }
            }
            drop((entering, held));
            assert_is_empty(&queue);
        });
    }
}
