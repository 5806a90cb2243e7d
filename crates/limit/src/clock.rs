//! The convenience that reads the clock. Everything else here takes the time as an argument.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::time::{Now, Timestamp};

/// The present moment by the system's clocks. The steady time is the time of day of the first call, and the time that
/// has passed since: a clock that is set gives no tokens. A time of day before 1970 counts as 1970.
#[expect(clippy::disallowed_methods, reason = "the one place of this package that reads a clock")]
pub fn now() -> Now {
    static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = Timestamp::MIN.plus(day);
    let instant = Instant::now();
    let (start, since) = START.get_or_init(|| (wall, instant));
    Now { steady: start.plus(instant.saturating_duration_since(*since)), wall }
}
