//! What a worker in this process needs.

use tidegate::clock::Clock;
use tidegate::settings::Settings;
use tidegate::worker::Process;

/// A process with one worker, which goes by this clock.
pub(crate) fn process(settings: &Settings, clock: Clock) -> Process {
    Process::new(settings, clock, 1, 1_000)
}
