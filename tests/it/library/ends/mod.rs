//! The ends of what a limit gave. However requests take, settle and leave, whatever is reloaded meanwhile, and
//! whenever the store ends: nothing stays taken that was not used, and nothing is given back twice.

mod steps;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use tidegate::limit::algorithm::Difference;
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::Verdict;
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::{KeyDisplay, LimitSpec};
use tidegate::store::{self, BucketAsk, BucketKey, Claim, ClockReading, Grant, Store};
use tokio::time::Instant;

use self::steps::{KINDS, LEAKY, MOST, RATES, SLOTS, Sizes, Step, any_sizes, any_steps};
use crate::library::cases::algorithms::SECOND;
use crate::support::bench::Bench;
use crate::support::limits::key;
use crate::support::redis::RedisServer;

/// More than a bucket ever owes: so what it owes shows in what remains.
const WIDE: u64 = 10_000;

/// What a bucket must say.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    /// What the requests took that run, and what the others used.
    used: u64,
    /// The most that was not given back, because a later request keeps its moment.
    kept: u64,
    /// What is rounded against the clients when figures change.
    rounded: u64,
    /// What requests used beyond what they took.
    beyond: u64,
    /// The times at which a request took.
    takes: u64,
    /// The times at which the rate changed.
    changes: u64,
}

/// What a limit gave a request that runs.
struct Given {
    kind: usize,
    grant: Box<Grant>,
    cost: u64,
    /// The model's times, after this request took.
    takes: u64,
    changes: u64,
}

struct World {
    bench: Bench,
    key: BucketKey,
    sizes: Sizes,
    specs: Vec<Arc<LimitSpec>>,
    models: [Model; KINDS],
    running: Vec<Vec<Given>>,
    /// The fastest rates that there were, by seconds for a token.
    fastest: [u64; 2],
    waited: u64,
    began: Instant,
}

impl World {
    fn new(bench: Bench, sizes: Sizes) -> Self {
        let mut world = Self {
            bench,
            key: key("192.0.2.1"),
            sizes,
            specs: Vec::new(),
            models: [Model::default(); KINDS],
            running: Vec::new(),
            fastest: [u64::MAX; 2],
            waited: 0,
            began: Instant::now(),
        };
        world.reload(sizes);
        world
    }

    fn now(&self) -> Timestamp {
        Bench::now().plus(self.began.elapsed())
    }

    fn reload(&mut self, sizes: Sizes) {
        let before = std::mem::replace(&mut self.sizes, sizes);
        self.specs = (0..KINDS).map(|kind| sizes.spec(kind)).collect();
        self.bench.shared.put_in_force(&self.specs);
        for (kind, fastest) in self.fastest.iter_mut().enumerate() {
            *fastest = (*fastest).min(RATES[sizes.rates[kind]].1);
            let change = u64::from(before.rates[kind] != sizes.rates[kind]);
            self.models[kind].rounded += change;
            self.models[kind].changes += change;
        }
    }

    /// The most that came back by itself.
    fn came_back(&self, kind: usize) -> u64 {
        self.fastest.get(kind).map_or(0, |fastest| self.waited.div_ceil(*fastest * SECOND))
    }

    fn ask(&self, kind: usize, cost: u64) -> Ask {
        let cost = if kind == SLOTS { Cost::ONE } else { Cost::new(cost).unwrap() };
        let max_wait = self.specs[kind].wait;
        Ask { cost, max_wait, ..Ask::for_one(self.sizes.algorithm(kind)) }
    }

    async fn take(&mut self, limits: u8, cost: u64, cut: bool) -> Result<(), TestCaseError> {
        let kinds: Vec<_> = (0..KINDS).filter(|kind| limits & (1 << kind) != 0).collect();
        let specs = self.specs.clone();
        let claim = |kind: &usize| {
            Claim::new(&self.bench.store, &specs[*kind], self.key.clone(), self.ask(*kind, cost))
        };
        let mut claims: Vec<_> = kinds.iter().map(claim).collect();
        let mut all: Vec<_> = claims.iter_mut().collect();
        let taking = self.bench.store.take(&mut all, ClockReading::now(self.now()));
        if cut {
            let _ = taking.now_or_never();
            return Ok(());
        }
        taking.await.unwrap();
        if let Verdict::Refuse { by, .. } = store::verdict(&claims) {
            let kind = kinds[by];
            let (model, ask) = (self.models[kind], self.ask(kind, cost));
            let most = model.used + model.kept + model.rounded + ask.cost.get();
            let size = self.sizes.tokens[kind];
            prop_assert!(most + self.came_back(kind) > size, "{ask:?} is refused: {model:?}");
            return Ok(());
        }
        let mut given = Vec::new();
        for (kind, claim) in kinds.into_iter().zip(&mut claims) {
            let cost = self.ask(kind, cost).cost.get();
            let size = match kind {
                // A place that is given on was given under former figures.
                LEAKY => MOST + self.models[kind].beyond,
                _ => self.sizes.tokens[kind],
            };
            let came_back = self.came_back(kind);
            let model = &mut self.models[kind];
            (model.used, model.takes) = (model.used + cost, model.takes + 1);
            prop_assert!(model.used <= size + came_back, "{:?} passes: {model:?}", claim.ask);
            let grant = claim.take_held().expect("it may come back");
            given.push(Given { kind, grant, cost, takes: model.takes, changes: model.changes });
        }
        self.running.push(given);
        Ok(())
    }

    /// Ends what a request holds. `None` is a client that leaves.
    fn end(&mut self, given: Vec<Given>, used: Option<u64>) {
        let now = self.now();
        for Given { kind, mut grant, cost, takes, changes } in given {
            let used = if kind == SLOTS { 0 } else { used.unwrap_or(0).min(cost + 2) };
            let model = &mut self.models[kind];
            let is_changed = changes != model.changes;
            model.rounded += u64::from(is_changed);
            if kind == LEAKY && (is_changed || takes != model.takes) {
                model.kept += cost.saturating_sub(used);
            }
            model.used = model.used + used - cost;
            model.beyond += used.saturating_sub(cost);
            // A bucket does not know it from a later request.
            model.takes += u64::from(used > cost);
            match used.checked_sub(cost) {
                _ if used == 0 => drop(grant),
                None => grant.settle_at(Difference::Less(cost - used), now),
                Some(0) => grant.spend(),
                Some(more) => grant.settle_at(Difference::More(more), now),
            }
        }
    }

    async fn drain(&mut self) {
        for given in std::mem::take(&mut self.running) {
            self.end(given, None);
        }
        self.bench.store.settled().await;
        let Bench { shared, spec, .. } = &self.bench;
        self.bench.store = Store::new(Arc::clone(shared), spec, KeyDisplay::Plain);
    }

    async fn play(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Take(limits, cost, cut) => self.take(limits, cost, cut).await?,
            Step::End(..) if self.running.is_empty() => {}
            Step::End(which, used) => {
                let given = self.running.swap_remove(which.index(self.running.len()));
                self.end(given, used);
            }
            Step::Reload(sizes) => self.reload(sizes),
            Step::Drain => self.drain().await,
            Step::Wait(0) => {}
            Step::Wait(micros) => {
                tokio::time::advance(Duration::from_micros(micros)).await;
                self.waited += micros;
            }
        }
        self.bench.store.settled().await;
        Ok(())
    }

    /// Plays the steps and ends all requests. Then each bucket has what was used, and no more.
    async fn check(mut self, steps: Vec<Step>) -> Result<(), TestCaseError> {
        for step in steps {
            self.play(step).await?;
        }
        self.drain().await;
        let rates = self.sizes.rates;
        self.reload(Sizes { tokens: [WIDE; KINDS], rates });
        for kind in 0..KINDS {
            let ask = Ask { max_wait: MaxWait::NONE, takes: false, ..self.ask(kind, 1) };
            let one = BucketAsk { spec: &self.specs[kind], key: &self.key, ask };
            let missing = WIDE - self.bench.store.look(&one, self.now()).await.unwrap().remaining;
            let (model, came_back) = (self.models[kind], self.came_back(kind));
            let name = &self.specs[kind].name;
            prop_assert!(missing + came_back >= model.used, "{name}: {missing}, {model:?}");
            let most = model.used + model.kept + model.rounded + came_back;
            prop_assert!(missing <= most, "{name}: {missing}, {model:?}");
        }
        Ok(())
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn in_the_process_nothing_stays_taken_and_nothing_comes_back_twice() {
    proptest!(config(256), |(sizes in any_sizes(), steps in any_steps(60 * SECOND))| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async { World::new(Bench::memory(), sizes).check(steps).await })?;
    });
}

#[test]
fn in_redis_nothing_stays_taken_and_nothing_comes_back_twice() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    proptest!(config(24), |(sizes in any_sizes(), steps in any_steps(0))| {
        let () = server.run(&["FLUSHALL"]);
        runtime.block_on(async { World::new(Bench::of(&server), sizes).check(steps).await })?;
    });
}
