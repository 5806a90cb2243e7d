//! The spans of sampled requests, on their way to an OpenTelemetry collector.
//!
//! `proxy` makes a [`RequestSpan`] at a request's end and puts it into the [`SpanQueue`]. One task on the
//! supervising thread (`export`) takes the spans out in batches, writes them as OTLP (`otlp`), and sends
//! them (`collector`). If a collector is away or slow, spans are lost. Requests are not slower, because they never wait
//! for the queue.

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
pub(crate) use self::span::{LimitAnswers, LimitDecision, RequestSpan, ServerAnswer, SpanIds};
use super::repeated::DroppedSpans;

/// The most spans that are sent together.
const BATCH: usize = 512;

/// The most spans that wait. A span holds at most a few kilobytes.
const MOST: usize = 8 * BATCH;

/// The spans that wait to be sent, of all workers.
#[derive(Debug, Default)]
pub(crate) struct SpanQueue {
    waiting: Mutex<VecDeque<Box<RequestSpan>>>,
    /// Notified when a whole batch waits.
    has_batch: Notify,
    /// Spans that no collector got.
    dropped: AtomicU64,
    /// The lines about spans that no collector got.
    pub(crate) lost: DroppedSpans,
    /// Spans that found the queue full, since the last line about them.
    overflow: AtomicU64,
}

impl SpanQueue {
    /// Puts a span into the queue. In a full queue it is dropped and counted.
    pub(crate) fn put(&self, span: Box<RequestSpan>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST {
            drop(waiting);
            self.count_dropped(1);
            self.overflow.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push_back(span);
        let is_batch = waiting.len() == BATCH;
        drop(waiting);
        if is_batch {
            self.has_batch.notify_one();
        }
    }

    /// Spans that no collector got, since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes the oldest spans out, at most a batch.
    fn take_batch(&self) -> VecDeque<Box<RequestSpan>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn count_dropped(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    /// How many spans found the queue full since the last call.
    fn take_overflow(&self) -> u64 {
        self.overflow.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
