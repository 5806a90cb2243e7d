//! The spans of sampled requests, on their way to an OpenTelemetry collector.
//!
//! `exchange` completes the [`RequestDetails`] at a request's end and puts them into the [`SpanQueue`]. One task on the
//! supervising thread (`export`) takes the spans out in batches, writes them as OTLP (`otlp`), and sends
//! them (`collector`). If a collector is away or slow, spans are dropped. Requests never wait for the queue, so
//! they are not slower.

mod collector;
mod export;
mod otlp;
mod span;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use self::export::SpanExport;
pub(crate) use self::otlp::{LONGEST, cut};
pub(crate) use self::span::{LimitAnswers, LimitDecision, RequestDetails, ServerAnswer, SpanIds};
use super::events;
use super::repeated::{DroppedSpans, Repeated};

/// The most spans that are sent together.
const BATCH: usize = 512;

/// The most spans that wait. A span holds at most a few kilobytes.
const MOST: usize = 8 * BATCH;

/// The spans that wait to be sent, of all workers.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    waiting: Mutex<VecDeque<Box<RequestDetails>>>,
    /// Notified when a whole batch waits.
    has_batch: Notify,
    /// Spans that no collector got.
    pub(crate) dropped: DroppedSpans,
    /// Spans for which the queue had no room. The exporter then counts them as dropped.
    overflow: AtomicU64,
}

impl Default for SpanQueue {
    fn default() -> Self {
        let dropped = Repeated::new(events::spans_dropped);
        let (waiting, has_batch) = (Mutex::default(), Notify::new());
        Self { waiting, has_batch, dropped, overflow: AtomicU64::new(0) }
    }
}

impl SpanQueue {
    /// Puts a span into the queue. In a full queue it is dropped.
    pub(crate) fn put(&self, span: Box<RequestDetails>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST {
            self.overflow.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push_back(span);
        if waiting.len() == BATCH {
            self.has_batch.notify_one();
        }
    }

    /// Takes the oldest spans out, at most `most`.
    fn take(&self, most: usize) -> VecDeque<Box<RequestDetails>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests;
