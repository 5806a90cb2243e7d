//! What a worker in this process needs.

use tidegate::clock::Clock;
use tidegate::plan::Plan;
use tidegate::worker::Process;

/// A process with one worker, which goes by this clock.
pub(crate) fn process(plan: &Plan, clock: Clock) -> Process {
    Process::new(plan, clock, 1, 1_000)
}
