//! The task that sends spans to the collector, in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::collector::{CollectorConnection, ExportError};
use super::{BATCH, MOST, RequestDetails, SpanQueue, otlp};
use crate::clock::Clock;
use crate::observe::events;
use crate::settings::CollectorAddress;
use crate::wire::dialer::Dialer;

/// Spans are sent after this time at the latest. After a failure, this is the time to the next try.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most time for one batch, the connection included.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most time for all spans that are left at the end of the process.
const LAST: Duration = Duration::from_secs(1);

/// The handle by which the process steers the task.
#[derive(Debug)]
pub(crate) struct SpanExport {
    orders: watch::Sender<ExportOrders>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug, Default)]
struct ExportOrders {
    /// Where spans go. `None` if nothing is traced.
    collector: Option<CollectorAddress>,
    /// The process ends, and nothing is sent after this moment.
    end: Option<Instant>,
}

impl SpanExport {
    /// Starts the task in the current runtime.
    pub(crate) fn start(queue: Arc<SpanQueue>, clock: Clock) -> Self {
        let (orders, received) = watch::channel(ExportOrders::default());
        Self { orders, task: tokio::spawn(Exporter::new(queue, clock, received).run()) }
    }

    /// Sends spans to this collector from now on.
    pub(crate) fn send_to(&self, collector: Option<&CollectorAddress>) {
        self.orders.send_if_modified(|orders| {
            let is_new = orders.collector.as_ref() != collector;
            orders.collector = collector.cloned();
            is_new
        });
    }

    /// Sends the spans that are left, for at most a second, and ends the task.
    pub(crate) async fn finish(&mut self) {
        self.orders.send_modify(|orders| orders.end = Some(Instant::now() + LAST));
        let _ = (&mut self.task).await;
    }
}

struct Exporter {
    queue: Arc<SpanQueue>,
    clock: Clock,
    /// Identifies this process among others.
    process: String,
    orders: watch::Receiver<ExportOrders>,
    connection: Option<CollectorConnection>,
    dialer: Dialer,
    /// When the first of the failed batches failed. `None` if the last batch was sent.
    failing_since: Option<Instant>,
}

impl Exporter {
    fn new(queue: Arc<SpanQueue>, clock: Clock, orders: watch::Receiver<ExportOrders>) -> Self {
        let process = uuid::Builder::from_random_bytes(fastrand::u128(..).to_be_bytes());
        Self {
            queue,
            clock,
            process: process.into_uuid().to_string(),
            orders,
            connection: None,
            dialer: Dialer::default(),
            failing_since: None,
        }
    }

    async fn run(mut self) {
        loop {
            self.wait().await;
            let is_end = self.orders.borrow_and_update().end.is_some();
            // A batch that is not full has all spans that were left.
            while self.send_batch().await == Some(BATCH) {}
            if is_end {
                let left = self.queue.take(MOST).len();
                self.drop_spans(None, "the process ended before", left as u64);
                self.drop_overflow();
                return;
            }
        }
    }

    /// Waits for a batch, for a second, or for the end of the process.
    async fn wait(&mut self) {
        let is_failing = self.failing_since.is_some();
        tokio::select! {
            () = sleep(INTERVAL) => {}
            () = self.queue.has_batch.notified(), if !is_failing => {}
            // An error means that the process has ended.
            _ = self.orders.wait_for(|orders| orders.end.is_some()) => {}
        }
    }

    /// Sends the oldest spans. Returns their number; `None` if they could not be sent.
    async fn send_batch(&mut self) -> Option<usize> {
        self.drop_overflow();
        let batch = self.queue.take(BATCH);
        let count = batch.len();
        let collector = self.orders.borrow().collector.clone();
        let Some(collector) = collector else {
            // These spans are from requests that began before the reload.
            self.drop_spans(None, "a reload has ended the tracing", count as u64);
            self.connection = None;
            return Some(count);
        };
        if batch.is_empty() {
            return Some(0);
        }
        let orders = self.orders.clone();
        let sent = tokio::select! {
            sent = self.send(collector.clone(), batch) => sent,
            () = out_of_time(orders) => Err((None, "no answer in time".to_owned())),
        };
        let now = Instant::now();
        match sent {
            Ok(refused) => {
                if let Some(since) = self.failing_since.take() {
                    self.queue.dropped.write(Duration::ZERO, now);
                    events::collector_recovered(&collector, now.saturating_duration_since(since));
                }
                let (spans, why) = refused.unwrap_or_default();
                let error = format!("it did not take all: {why}");
                self.drop_spans(None, &error, spans.min(count as u64));
                Some(count)
            }
            Err((help, error)) => {
                self.failing_since.get_or_insert(now);
                self.drop_spans(help, &error, count as u64);
                None
            }
        }
    }

    /// Returns how many spans the collector did not take, and the reason that it gave.
    async fn send(
        &mut self,
        collector: CollectorAddress,
        batch: VecDeque<Box<RequestDetails>>,
    ) -> Result<Option<(u64, String)>, ExportError> {
        // A connection that fails, or is given up, is not put back.
        let kept = self.connection.take();
        let kept = kept.filter(|kept| kept.address == collector && !kept.is_closed());
        let mut connection = match kept {
            Some(kept) => kept,
            None => CollectorConnection::open(collector, &self.dialer).await?,
        };
        let message = otlp::message(&batch, &self.process, &self.clock);
        drop(batch);
        let refused = connection.export(&message).await?;
        self.connection = Some(connection);
        Ok(refused)
    }

    /// Counts and logs the spans that found the queue full.
    fn drop_overflow(&self) {
        let spans = self.queue.overflow.swap(0, Ordering::Relaxed);
        let help = Some("set a smaller trace.sample");
        self.drop_spans(help, "more came than it took", spans);
    }

    /// Counts and logs spans that no collector got, if there are any.
    fn drop_spans(&self, help: Option<&'static str>, error: &str, spans: u64) {
        if spans > 0 {
            let collector = self.orders.borrow().collector.as_ref().map(ToString::to_string);
            let details = (collector.unwrap_or_default(), error.to_owned());
            self.queue.dropped.count_many(help, details, spans, Instant::now());
        }
    }
}

/// Waits until the time for a batch is over.
async fn out_of_time(mut orders: watch::Receiver<ExportOrders>) {
    let end = async {
        let ending = orders.wait_for(|orders| orders.end.is_some()).await;
        // If the sender is gone, the process has ended. Then the spans are not needed.
        let end = ending.ok().and_then(|orders| orders.end);
        sleep_until(end.unwrap_or_else(Instant::now)).await;
    };
    tokio::select! {
        () = sleep(PATIENCE) => {}
        () = end => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue, Response};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::super::MOST;
    use super::super::tests::span;
    use super::*;

    /// A collector that takes everything, and the number of its connections so far. It calls `meanwhile` before it
    /// answers an export.
    async fn collector(
        meanwhile: impl Fn() + Clone + Send + 'static,
    ) -> (CollectorAddress, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let meanwhile = meanwhile.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        meanwhile();
                        let mut answer: h2::SendStream<Bytes> =
                            respond.send_response(Response::new(()), false).unwrap();
                        let status = HeaderName::from_static("grpc-status");
                        let trailers = [(status, HeaderValue::from_static("0"))];
                        answer.send_trailers(HeaderMap::from_iter(trailers)).unwrap();
                    }
                });
            }
        });
        (CollectorAddress { host: "127.0.0.1".to_owned(), port }, connections)
    }

    #[tokio::test]
    async fn a_connection_is_kept_while_there_is_nothing_to_send() {
        let (address, connections) = collector(|| {}).await;
        let queue = Arc::new(SpanQueue::default());
        let order = ExportOrders { collector: Some(address), end: None };
        let (_orders, orders) = watch::channel(order);
        let mut exporter = Exporter::new(queue.clone(), Clock::new(), orders);
        for spans in [1, 0, 2, 0, 0, 1] {
            (0..spans).for_each(|_| queue.put(span()));
            assert_eq!(exporter.send_batch().await, Some(spans));
        }
        assert_eq!((connections.load(Ordering::SeqCst), queue.dropped.total()), (1, 0));
    }

    /// A regression: while all batches were full, the log did not report the spans that were dropped.
    #[tokio::test]
    async fn a_steady_overload_is_logged() {
        let queue = Arc::new(SpanQueue::default());
        let fed = queue.clone();
        let overload = move || (0..=MOST).for_each(|_| fed.put(span()));
        let (address, _) = collector(overload.clone()).await;
        let export = SpanExport::start(queue.clone(), Clock::new());
        export.send_to(Some(&address));
        overload();
        let logged = async {
            while queue.dropped.total() == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(10 * PATIENCE, logged).await.unwrap();
        export.task.abort();
    }
}
