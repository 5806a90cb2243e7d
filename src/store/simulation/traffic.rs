//! The requests of a simulation, at random moments. A few hot keys have many requests. Every ten seconds other keys
//! become the hot ones, and now and then one key surges.

use super::Scenario;
use super::random::Random;

/// After this time, in microseconds, other keys become the hot ones.
const PHASE: u64 = 10_000_000;

/// In each phase, the hot keys have numbers that are higher by this than in the phase before.
const SHIFT: u64 = 7_919;

/// The first keys, one of which surges at a time.
const SURGING: usize = 4;

/// The mean time for which a key surges, and the mean time until another one does, in microseconds.
const SURGE: f64 = 150_000.0;
const PAUSE: f64 = 300_000.0;

pub(super) struct Arrival {
    pub(super) at: u64,
    pub(super) key: usize,
    /// The node to which the request goes.
    pub(super) to: usize,
}

/// All requests of a simulation. They depend on its seed, and not on the decisions about them.
pub(super) struct Traffic {
    random: Random,
    zipf: Zipf,
    /// The mean time between two requests.
    gap: f64,
    nodes: usize,
    now: u64,
    surge: Surge,
}

/// Until a moment, a part of all requests is for one key. In a pause the part is 0.
struct Surge {
    until: u64,
    rank: usize,
    part: f64,
}

impl Traffic {
    pub(super) fn new(setting: &Scenario) -> Self {
        let zipf = Zipf::over(setting.keys);
        Self {
            random: Random::new(setting.seed),
            gap: 1_000_000.0 / f64::from(setting.load),
            nodes: setting.nodes,
            now: 0,
            surge: Surge { until: 0, rank: 0, part: 1.0 },
            zipf,
        }
    }

    pub(super) fn next_arrival(&mut self) -> Arrival {
        self.now += self.random.gap(self.gap);
        if self.now >= self.surge.until {
            let pauses = self.surge.part > 0.0;
            let (mean, part) = if pauses { (PAUSE, 0.0) } else { (SURGE, self.random.unit()) };
            let until = self.now + self.random.gap(mean);
            let rank = self.random.below(SURGING.min(self.zipf.up_to.len()));
            self.surge = Surge { until, rank, part };
        }
        let rank = match self.random.happens(self.surge.part) {
            true => self.surge.rank,
            false => self.zipf.rank(&mut self.random),
        };
        let moved = usize::try_from(self.now / PHASE * SHIFT).unwrap();
        let key = (rank + moved) % self.zipf.up_to.len();
        let to = self.random.below(self.nodes);
        Arrival { at: self.now, key, to }
    }
}

/// Ranks by Zipf's law: the second is asked for half as often as the first, the third a third as often.
struct Zipf {
    /// For each rank the share of all requests up to it.
    up_to: Vec<f64>,
}

impl Zipf {
    fn over(ranks: u32) -> Self {
        let total: f64 = (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum();
        let mut sum = 0.0;
        let up_to = (1..=ranks).map(|rank| {
            sum += 1.0 / f64::from(rank) / total;
            sum
        });
        Self { up_to: up_to.collect() }
    }

    fn rank(&self, random: &mut Random) -> usize {
        let at = random.unit();
        self.up_to.partition_point(|up_to| *up_to <= at).min(self.up_to.len() - 1)
    }
}
