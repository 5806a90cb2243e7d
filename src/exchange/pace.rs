//! `response_rate`: sends the body of a response no faster than this rate.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A body is sent in parts. A part has as many bytes as the rate allows in this time. After a late part, the next part
/// may follow at once: so the body still reaches its rate, and at most two parts go together.
const PART: Duration = Duration::from_millis(50);

/// Knows when the next part of a body may be sent.
#[derive(Debug)]
pub(super) struct ResponsePace {
    /// The rate, in bytes a second.
    rate: NonZeroU64,
    /// A timer that ends when the next part may be sent.
    pause: Pin<Box<Sleep>>,
}

impl ResponsePace {
    /// A new pace. The first part may be sent at once.
    pub(super) fn new(rate: NonZeroU64) -> Self {
        Self { rate, pause: Box::pin(sleep_until(Instant::now())) }
    }

    /// The size of a part: the most bytes that may be sent at once. It is at least one.
    pub(super) fn part(&self) -> usize {
        let part = u128::from(self.rate.get()) * PART.as_millis() / 1_000;
        usize::try_from(part).unwrap_or(usize::MAX).max(1)
    }

    /// Waits until the next part may be sent.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.pause.as_mut().poll(cx)
    }

    /// Notes that this number of bytes is sent now.
    pub(super) fn sent(&mut self, bytes: usize) {
        let micros = bytes as u128 * 1_000_000 / u128::from(self.rate.get());
        let time = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let now = Instant::now();
        let begin = self.pause.deadline().max(now.checked_sub(PART).unwrap_or(now));
        if let Some(next) = begin.checked_add(time) {
            self.pause.as_mut().reset(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In any tenth of a second, at most the bytes of that time and of one burst are sent. A body that is always
        /// ready reaches its rate.
        #[test]
        fn a_body_comes_at_its_rate(rate in 1_u64..1_000_000, late_ms in prop::collection::vec(0_u64..40, 20)) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut pace = ResponsePace::new(NonZeroU64::new(rate).unwrap());
                let began = Instant::now();
                let (mut sent, mut all) = (Vec::new(), 0);
                for late in late_ms {
                    poll_fn(|cx| pace.poll_ready(cx)).await;
                    tokio::time::advance(Duration::from_millis(late)).await;
                    pace.sent(pace.part());
                    all += pace.part() as u64;
                    sent.push((began.elapsed(), pace.part() as u64));
                }
                let bytes = |time: Duration| rate as f64 * time.as_secs_f64();
                for (at, (from, _)) in sent.iter().enumerate() {
                    let mut sum = 0;
                    for (time, part) in &sent[at..] {
                        sum += part;
                        let most = bytes(*time - *from) + (2 * pace.part()) as f64;
                        prop_assert!(sum as f64 <= most + 1.0, "{sum} of {most}");
                    }
                }
                let least = bytes(began.elapsed()) - (2 * pace.part()) as f64;
                prop_assert!(all as f64 >= least - 1.0, "{all} of {least}");
                Ok(())
            })?;
        }
    }
}
