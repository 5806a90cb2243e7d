use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Version};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::clock::Clock;
use crate::limit::time::Timestamp;
use crate::observe::testing;
use crate::request::trace::{SpanId, TraceId};
use crate::settings::CollectorAddress;

pub(super) fn span() -> Box<RequestDetails> {
    let (trace, span) = (TraceId::from_random(1), SpanId::from_random(2));
    let ids = SpanIds { trace, span, parent: None, state: String::new() };
    let now = Instant::now();
    Box::new(RequestDetails {
        ids: Some(ids),
        times: (now, now),
        method: Method::GET,
        route: None,
        path: "/".to_owned(),
        scheme: "http",
        host: None,
        version: Version::HTTP_11,
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        user_agent: None,
        status: StatusCode::OK,
        grpc_status: None,
        upstream: None,
        server: None,
        limit: None,
        reason: None,
        failure: None,
        limits: LimitAnswers::default(),
        answer: None,
    })
}

#[test]
fn the_queue_is_bounded_and_counts_what_it_drops() {
    let queue = SpanQueue::default();
    for _ in 0..MOST + 7 {
        queue.put(span());
    }
    assert_eq!(queue.overflow.load(Ordering::Relaxed), 7);
    let batches = std::iter::repeat_with(|| queue.take(BATCH).len());
    let batches: Vec<_> = batches.take_while(|spans| *spans > 0).collect();
    assert_eq!(batches, [BATCH; MOST / BATCH]);
    queue.put(span());
    assert_eq!(queue.take(BATCH).len(), 1);
}

#[test]
fn spans_that_found_the_queue_full_are_dropped_for_this_reason() {
    let queue = Arc::new(SpanQueue::default());
    (0..MOST + 7).for_each(|_| queue.put(span()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let lines = testing::lines(|| {
        runtime.block_on(async {
            SpanExport::start(queue.clone(), Clock::new()).finish().await;
        });
    });
    let full = lines.iter().find(|line| line["count"] == 7).unwrap();
    assert_eq!(full["error"], "more came than it took");
    assert_eq!(queue.dropped.total(), MOST as u64 + 7);
}

/// A collector that accepts connections and never answers.
async fn silent() -> (TcpListener, CollectorAddress) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, CollectorAddress { host: "127.0.0.1".to_owned(), port })
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_does_not_wait_for_its_second() {
    let (listener, address) = silent().await;
    let queue = Arc::new(SpanQueue::default());
    let mut export = SpanExport::start(queue.clone(), Clock::new());
    export.send_to(Some(&address));
    tokio::task::yield_now().await;
    let begin = Instant::now();
    (0..BATCH).for_each(|_| queue.put(span()));
    let _connection = listener.accept().await.unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO);
    export.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_remaining_spans_have_one_second_at_the_end() {
    let (_listener, address) = silent().await;
    let queue = Arc::new(SpanQueue::default());
    let mut export = SpanExport::start(queue.clone(), Clock::new());
    export.send_to(Some(&address));
    (0..3 * BATCH).for_each(|_| queue.put(span()));
    let begin = Instant::now();
    export.finish().await;
    // A timer of tokio may fire a millisecond late.
    assert!(begin.elapsed() <= Duration::from_millis(1_002), "{:?}", begin.elapsed());
    assert_eq!(queue.dropped.total(), 3 * BATCH as u64);
}

#[tokio::test(start_paused = true)]
async fn spans_without_a_collector_are_dropped_and_end_nothing() {
    let queue = Arc::new(SpanQueue::default());
    let mut export = SpanExport::start(queue.clone(), Clock::new());
    queue.put(span());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(queue.dropped.total(), 1);
    let begin = Instant::now();
    export.finish().await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_span_has_times_of_day() {
    let start = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
    let clock = Clock::starting_at(start);
    // The system's clock was set ten seconds forward.
    clock.wall().anchor(start, start.plus_micros(10_000_000));
    let mut one = span();
    one.times.1 += Duration::from_micros(1_500);
    let message = otlp::message(&VecDeque::from([one]), "a", &clock);
    let written = &message.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(written.start_time_unix_nano, 1_700_000_010_000_000_000);
    assert_eq!(written.end_time_unix_nano, 1_700_000_010_001_500_000);
}
