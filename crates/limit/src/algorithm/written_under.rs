//! What a receipt needs of the figures under which it is written.

use super::settlement::WrittenUnder;
use super::{Algorithm, sliding_window};
use crate::time::Timestamp;

impl Algorithm {
    /// What a receipt with this time needs of these figures. The request took at the time `taken`.
    pub(super) fn written_under(&self, time: Timestamp, taken: Timestamp) -> Option<WrittenUnder> {
        match self {
            Self::FixedWindow(params) if params.windows.are_on_clock() => {
                Some(WrittenUnder::WindowUntil(params.windows.end_of(time)))
            }
            Self::SlidingWindow(params) => {
                Some(WrittenUnder::WindowUntil(sliding_window::counts_until(params, time)))
            }
            _ => {
                let rate = self.bucket()?.rate;
                Some(WrittenUnder::Rate { tokens: rate.tokens(), period: rate.period(), taken })
            }
        }
    }
}
