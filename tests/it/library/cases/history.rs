//! Random histories over all algorithms, several of them in one request, as the pure functions play them.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::limit::Mode;
use tidegate::limit::algorithm::{Algorithm, Difference};
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::rate::{Cost, EXACT};
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;

use super::algorithms::{
    DAY, SECOND, STALE_BY, any_algorithm, any_log, any_still_algorithm, period,
};
use super::bytes::Written;
use super::players::{Asked, Event, Kept, Pure, What};

/// Limits of a history.
pub(super) const LIMITS: usize = 4;

/// When the histories begin that begin nowhere special.
pub(super) const START: u64 = 1_700_000_000 * SECOND;

/// One thing that happens in a history.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A request that asks of each of the first limits.
    Request(Vec<Ask>),
    /// The request of this number ends, counted around those before it.
    End(usize),
    /// Such a request turns out to have used other than it had taken, at this place of its asks.
    Settle(usize, usize, Difference, bool),
}

/// How the clock moves before a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    Forward(u64),
    Back(u64),
    /// To the moment that the last answer promised, or so many microseconds before it.
    Promised(u64),
    /// By so many thousandths of a limit's period, and microseconds.
    Part(usize, u64, u64),
}

/// What may happen in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum World {
    /// Time goes on, buckets are forgotten once they are as good as new, limits stay what they are.
    Tame,
    /// Time goes on, and figures change.
    Reloaded,
    /// Clocks step back, figures change, times are at the ends of what can be counted.
    Wild,
    /// The same with sliding logs alone.
    Logs,
    /// All happens in one moment.
    Still,
}

fn any_clock(world: World) -> BoxedStrategy<Clock> {
    let onward = prop_oneof![
        6 => Just(Clock::Forward(0)),
        2 => (0..3 * SECOND).prop_map(Clock::Forward),
        1 => (0..30 * DAY).prop_map(Clock::Forward),
        5 => (0_u64..2).prop_map(Clock::Promised),
        4 => (0..LIMITS, 0_u64..1_200, 0_u64..3).prop_map(|(n, part, off)| Clock::Part(n, part, off)),
    ];
    let back = prop_oneof![
        (0..2 * SECOND).prop_map(Clock::Back),
        STALE_BY.prop_map(Clock::Back),
        (0..DAY).prop_map(Clock::Back),
    ];
    match world {
        World::Tame | World::Reloaded => onward.boxed(),
        World::Wild | World::Logs => prop_oneof![4 => onward, 1 => back].boxed(),
        World::Still => Just(Clock::Forward(0)).boxed(),
    }
}

fn any_limit(world: World) -> impl Strategy<Value = Ask> {
    let algorithm = match world {
        World::Tame | World::Reloaded | World::Wild => any_algorithm(world == World::Wild).boxed(),
        World::Logs => any_log(true).boxed(),
        World::Still => any_still_algorithm().boxed(),
    };
    let mode = prop_oneof![
        4 => Just(Mode::Enforce),
        1 => prop_oneof![Just(Mode::Shadow), Just(Mode::Mark)],
        1 => Just(Mode::Candidate),
    ];
    let max_wait = prop_oneof![
        2 => Just(MaxWait::NONE),
        2 => (0..10 * SECOND).prop_map(|micros| MaxWait::of(Duration::from_micros(micros))),
        1 => Just(MaxWait::ENDLESS),
    ];
    (algorithm, max_wait, mode).prop_map(|(algorithm, max_wait, mode)| {
        // Nobody would hold the slots of a candidate, and nobody knows when there is one.
        let (max_wait, mode) = match (algorithm, mode) {
            (Algorithm::Concurrency(_), Mode::Candidate) => (MaxWait::NONE, Mode::Shadow),
            (Algorithm::Concurrency(_), mode) => (MaxWait::NONE, mode),
            _ => (max_wait, mode),
        };
        Ask { algorithm, cost: Cost::ONE, max_wait, mode, takes: true }
    })
}

fn any_step(world: World, limits: Vec<Ask>, others: Vec<Ask>) -> impl Strategy<Value = Step> {
    let changed = match world {
        World::Reloaded | World::Wild | World::Logs => 0.1,
        World::Tame | World::Still => 0.0,
    };
    let cost = prop_oneof![5 => Just(1), 2 => 1_u64..6, 1 => 1_u64..60, 1 => 1_u64..=1_000_000_000];
    let request = (
        1..=LIMITS,
        prop::collection::vec((cost, prop::bool::weighted(changed)), LIMITS),
        prop::bool::weighted(0.2),
    )
        .prop_map(move |(count, costs, hurried)| {
            let asks = costs.into_iter().enumerate().map(|(place, (cost, changed))| {
                let mut ask = if changed { others[place] } else { limits[place] };
                if !matches!(ask.algorithm, Algorithm::Concurrency(_)) {
                    ask.cost = Cost::new(cost).unwrap();
                }
                // As where there is no place left to wait.
                if hurried {
                    ask.max_wait = MaxWait::NONE;
                }
                ask
            });
            Step::Request(asks.take(count).collect())
        });
    let most = if world == World::Still { 60_u64 } else { 1_000_000_000 };
    let used = prop_oneof![
        (1_u64..6).prop_map(Difference::More),
        (1_u64..6).prop_map(Difference::Less),
        (1..most).prop_map(Difference::More),
        (1..most).prop_map(Difference::Less),
    ];
    let index = || 0_usize..10_000;
    prop_oneof![
        8 => request,
        2 => index().prop_map(Step::End),
        1 => (index(), index(), used, prop::bool::weighted(0.2))
            .prop_map(|(at, place, used, newest)| Step::Settle(at, place, used, newest)),
    ]
}

/// The events of a history and what the pure functions say to each, with what they keep then.
pub(super) struct Played {
    pub(super) events: Vec<Event>,
    pub(super) said: Vec<Vec<Decision>>,
    /// Of each event the buckets that it touched, by name.
    pub(super) kept: Vec<Vec<(String, Written)>>,
    /// The pure functions as they are then.
    pub(super) known: Pure,
}

/// A line for each event: it is read where a history fails.
impl fmt::Debug for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (event, said)) in self.events.iter().zip(&self.said).enumerate() {
            writeln!(f, "\n{number}: at {} {:?}", event.now.as_micros(), event.what)?;
            write!(f, "   {said:?}")?;
        }
        Ok(())
    }
}

pub(super) fn any_history(world: World) -> impl Strategy<Value = Played> {
    let start = match world {
        World::Wild | World::Logs => {
            prop_oneof![Just(0), Just(START), Just(EXACT - 10 * DAY)].boxed()
        }
        World::Tame | World::Reloaded | World::Still => Just(START).boxed(),
    };
    let limits = || prop::collection::vec(any_limit(world), LIMITS);
    (start, limits(), limits()).prop_flat_map(move |(start, limits, mut others)| {
        // A longer interval finds in Redis what a look in the process has forgotten under the shorter one.
        let logs = others.iter_mut().zip(&limits).filter(|(other, _)| {
            world == World::Reloaded && matches!(other.algorithm, Algorithm::SlidingLog(_))
        });
        logs.for_each(|(other, limit)| *other = *limit);
        let periods: Vec<_> = limits.iter().map(|ask| period(&ask.algorithm)).collect();
        let step = (any_clock(world), any_step(world, limits, others));
        prop::collection::vec(step, 1..60)
            .prop_map(move |steps| play(world, start, &periods, steps))
    })
}

pub(super) fn play(world: World, start: u64, periods: &[u64], steps: Vec<(Clock, Step)>) -> Played {
    let kept = if world == World::Reloaded { Kept::AsItIs } else { Kept::AsInRedis };
    let (mut now, mut promised, mut place) = (start, None, Pure::new(kept));
    let mut requests: Vec<Vec<Asked>> = Vec::new();
    let mut passed: Vec<bool> = Vec::new();
    let mut settled = HashSet::new();
    let (mut events, mut all_said, mut all_kept) = (Vec::new(), Vec::new(), Vec::new());
    for (clock, step) in steps {
        let to = match clock {
            Clock::Forward(micros) => now + micros,
            Clock::Back(micros) => now.saturating_sub(micros),
            Clock::Promised(early) => {
                promised.map_or(now, |then: u64| then.saturating_sub(early).max(now))
            }
            Clock::Part(limit, thousandths, micros) => {
                now + periods[limit] / 1_000 * thousandths + micros
            }
        };
        let (what, touched) = match step {
            Step::Request(asks) => {
                let asked = asks.into_iter().enumerate();
                let asked: Vec<_> = asked.map(|(bucket, ask)| Asked { bucket, ask }).collect();
                requests.push(asked.clone());
                (What::Request(asked.clone()), asked)
            }
            Step::End(_) | Step::Settle(..) if requests.is_empty() => continue,
            Step::End(request) => {
                let request = request % requests.len();
                let slots = requests[request].iter().copied().filter(Asked::is_slot);
                (What::End { request }, slots.collect())
            }
            Step::Settle(request, place, used, newest) => {
                let request = request % requests.len();
                let place = place % requests[request].len();
                let asked = requests[request][place];
                // Once, of what was taken.
                if asked.is_slot() || !passed[request] || !settled.insert((request, place)) {
                    continue;
                }
                let used = match used {
                    Difference::Less(tokens) => Difference::Less(tokens.min(asked.ask.cost.get())),
                    more => more,
                };
                (What::Settle { request, place, used, newest }, vec![asked])
            }
        };
        // At the last microsecond of all no later one can be said.
        now = to.min(EXACT - 2);
        let event = Event { now: Timestamp::from_micros(now).unwrap(), what };
        let said = place.play(&event);
        if let What::Request(asked) = &event.what {
            let mut enforcing =
                asked.iter().zip(&said).filter(|(asked, _)| asked.ask.mode == Mode::Enforce);
            passed.push(enforcing.all(|(_, said)| said.outcome.passes()));
        }
        for decision in &said {
            if let Outcome::Delay(wait) | Outcome::Reject { retry_after: Some(wait) } =
                decision.outcome
            {
                promised = Some(now + u64::try_from(wait.as_micros()).unwrap()).filter(|then| {
                    matches!(world, World::Wild | World::Logs) || *then < now + 30 * DAY
                });
            }
        }
        all_kept.push(touched.iter().map(|asked| (asked.name(), place.kept(asked))).collect());
        all_said.push(said);
        events.push(event);
    }
    Played { events, said: all_said, kept: all_kept, known: place }
}
