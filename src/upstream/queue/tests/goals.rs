//! The queue of an upstream with a goal.

use super::*;

/// Sends requests that are all answered after a second, for so many seconds.
pub(super) async fn overload(queue: &Arc<RequestQueue>, seconds: u32) {
    for _ in 0..seconds {
        let sent = (0..120).filter_map(|_| queue.enter(whole()).ok());
        let mut sent: Vec<_> = sent.collect();
        sent.iter_mut().for_each(|(permit, _)| permit.send());
        advance(Duration::from_millis(1_001)).await;
        sent.iter_mut().for_each(|(permit, _)| permit.answered(SentEnd::Answered));
    }
}

#[tokio::test(start_paused = true)]
async fn two_bad_seconds_begin_a_limit_and_a_stream_holds_no_place() {
    let queue = queue(GOAL);
    overload(&queue, 3).await;
    assert!(queue.is_bound());
    let entered = |_: usize| queue.enter(whole()).ok();
    let mut held: Vec<_> = (0..100).map_while(entered).collect();
    assert!(held.len() < 100, "a limit is in force");
    let (permit, _) = held.first_mut().unwrap();
    permit.send();
    permit.answered(SentEnd::Answered);
    assert!(queue.enter(whole()).is_ok(), "its head has come");
    drop(held);
    assert_is_empty(&queue);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stands_holds_nobody_for_longer_than_a_quarter_of_the_goal() {
    let queue = queue(GOAL);
    overload(&queue, 3).await;
    let _held: Vec<_> = std::iter::from_fn(|| queue.enter(whole()).ok()).collect();
    let mut first = enter(&queue, whole());
    assert!(waits(&mut first));
    advance(Duration::from_millis(500)).await;
    let mut second = enter(&queue, whole());
    assert!(waits(&mut second));
    let began = Instant::now();
    assert!(has_waited(first.await));
    assert!(began.elapsed() > Duration::from_millis(400));
    advance(Duration::from_millis(1)).await;
    let (mut third, began) = (enter(&queue, whole()), Instant::now());
    assert!(waits(&mut third));
    assert!(has_waited(third.await));
    assert!(began.elapsed() <= Duration::from_millis(75) + LOOK * 2, "{:?}", began.elapsed());
    drop(second);
}

/// The time of an answer begins when the request's body has gone.
#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_not_the_apis_time() {
    let queue = queue(GOAL);
    for _ in 0..3 {
        let uploads = (0..120).map(|_| queue.enter(of(Priority::Normal, "", Some(1))).unwrap());
        let mut uploads: Vec<_> = uploads.collect();
        uploads.iter_mut().for_each(|(permit, _)| permit.send());
        advance(Duration::from_secs(20)).await;
        uploads.iter_mut().for_each(|(_, upload)| drop(upload.take()));
        advance(Duration::from_millis(100)).await;
        uploads.iter_mut().for_each(|(permit, _)| permit.answered(SentEnd::Answered));
    }
    let state = queue.state.lock();
    assert_eq!(state.rule.limit, None);
    assert!(state.rule.last.seen > 0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_with_another_goal_keeps_the_limit() {
    let queue = queue(GOAL);
    overload(&queue, 3).await;
    let limit = queue.state.lock().rule.limit;
    let MaxRequests::Goal(goal) = GOAL else { return };
    let longer = AnswerGoal { slower_than: Duration::from_secs(1), ..goal };
    queue.reload(&spec(MaxRequests::Goal(longer)), Vec::new());
    assert_eq!(queue.state.lock().rule.limit, limit);
    assert_eq!(queue.state.lock().rule.last.seen, 0, "the state is new");
    let shadow = AnswerGoal { mode: GoalMode::Shadow, ..longer };
    queue.reload(&spec(MaxRequests::Goal(shadow)), Vec::new());
    assert_eq!((queue.state.lock().rule.limit, queue.is_bound()), (limit, false));
}

/// A regression: only the upstream's own goal counted, and the goals of routes did not.
#[tokio::test(start_paused = true)]
async fn a_reload_with_another_goal_of_a_route_begins_anew_with_the_old_limit() {
    let queue = queue(GOAL);
    let goals = |millis| vec![("/slow".into(), Duration::from_millis(millis))];
    queue.reload(&spec(GOAL), goals(500));
    overload(&queue, 3).await;
    let state = || {
        let state = queue.state.lock();
        (state.rule.limit, state.rule.last.seen)
    };
    let (limit, _) = state();
    queue.reload(&spec(GOAL), goals(500));
    assert!(state().0.is_some() && state().1 > 0);
    queue.reload(&spec(GOAL), goals(700));
    assert_eq!((state(), queue.is_bound()), ((limit, 0), true));
}

/// A regression: no line said that the second overload under the same limit began.
#[tokio::test(start_paused = true)]
async fn an_overload_begins_again_after_it_ended() {
    let queue = queue(GOAL);
    overload(&queue, 3).await;
    let began = || queue.facts().report.overload.map(|overload| overload.since);
    let first = began().unwrap();
    advance(Duration::from_secs(61)).await;
    queue.report(Duration::from_secs(60));
    assert_eq!(began(), None);
    let _held: Vec<_> = std::iter::from_fn(|| queue.enter(whole()).ok()).collect();
    assert!(has_waited(enter(&queue, whole()).await));
    assert!(began().unwrap() > first);
    assert!(queue.facts().refuses());
}
