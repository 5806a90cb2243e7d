//! Windows on the clock follow the time of day when it is set; everything else goes on as if it was not.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::clock::{Clock, Wall};
use tidegate::config::{self, Overrides};
use tidegate::downstream::Port;
use tidegate::limit::algorithm::fixed_window::windows::Windows;
use tidegate::limit::algorithm::{
    Algorithm, Difference, fixed_window, leaky_bucket, sliding_log, sliding_window,
};
use tidegate::limit::decision::Verdict;
use tidegate::limit::rate::{Burst, Cost, Interval, Rate};
use tidegate::limit::time::Timestamp;
use tidegate::settings::response::{UnknownUse, UsedSource};
use tidegate::settings::{CostSpec, Estimate, KeyDisplay, LimitSpec, StoreLocation, StoreSpec};
use tidegate::store::{self, BucketAsk, BucketKey, ProcessStore, Store};
use tidegate::worker::{self, Orders, Published};
use tokio::runtime::LocalOptions;
use tokio::sync::watch;

use crate::support::bench::{decide, store_spec};
use crate::support::client::get;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::worker::process;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// Some midnight UTC.
const MIDNIGHT: u64 = 19_675 * 86_400_000_000;

fn hours(count: u64) -> Interval {
    Interval::from_micros(count * 3_600_000_000).unwrap()
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn fixed(windows: Windows) -> Algorithm {
    Algorithm::FixedWindow(fixed_window::Params { count: Burst::new(3).unwrap(), windows })
}

/// A store of one process whose time of day a test sets. The steady clock stands.
struct WallBench {
    store: Arc<Store>,
    shared: Arc<ProcessStore>,
    wall: Wall,
    spec: LimitSpec,
    key: BucketKey,
}

impl WallBench {
    const STEADY: u64 = MIDNIGHT;

    fn new() -> Self {
        Self::with_room(100)
    }

    fn with_room(max_keys: usize) -> Self {
        let spec = StoreSpec { max_keys, ..store_spec(StoreLocation::Memory) };
        let wall = Wall::default();
        let shared = ProcessStore::by(wall.clone(), &spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { store, shared, wall, spec: limit("quota"), key: key("somebody") }
    }

    /// Sets the time of day to so many microseconds after midnight.
    fn set(&self, since: i64) {
        self.wall.anchor(at(Self::STEADY), at(MIDNIGHT).plus_signed(since));
    }

    fn ask(&self, algorithm: Algorithm) -> BucketAsk<'_> {
        let mut ask = ask(&self.spec, &self.key, 1);
        ask.ask.algorithm = algorithm;
        ask
    }

    async fn decide(&self, ask: BucketAsk<'_>) -> Verdict {
        decide(&self.store, &[ask], at(Self::STEADY)).await.unwrap().verdict
    }

    /// How many of ten requests pass.
    async fn passes(&self, algorithm: Algorithm) -> usize {
        let mut passed = 0;
        for _ in 0..10 {
            passed += usize::from(self.decide(self.ask(algorithm)).await.passes());
        }
        passed
    }

    /// In microseconds.
    async fn retry_after(&self, algorithm: Algorithm) -> u128 {
        match self.decide(self.ask(algorithm)).await {
            Verdict::Refuse { retry_after: Some(wait), .. } => wait.as_micros(),
            other => panic!("{other:?}"),
        }
    }

    fn sweep(&self) {
        for _ in 0..store::SWEEP_STEPS {
            self.shared.sweep(at(Self::STEADY));
        }
    }

    fn keys(&self) -> usize {
        self.shared.counters().keys
    }
}

/// Windows of an hour and of a day, by the clock and by the calendar.
fn on_the_clock() -> [Algorithm; 2] {
    let text = "[limits.a]\nrate = \"3/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"\n";
    let spec = &settings(text).limits[0];
    [fixed(Windows::Clock(hours(1))), spec.figures.at(at(MIDNIGHT)).unwrap()]
}

#[tokio::test]
async fn a_window_on_the_clock_ends_when_the_time_of_day_says_so() {
    for algorithm in on_the_clock() {
        let bench = WallBench::new();
        bench.set(-60 * SECOND);
        assert_eq!(bench.passes(algorithm).await, 3);
        assert_eq!(bench.retry_after(algorithm).await, 60_000_000);
        bench.set(-10 * SECOND);
        assert_eq!(bench.retry_after(algorithm).await, 10_000_000, "as long as it is by then");
        bench.set(0);
        assert_eq!(bench.passes(algorithm).await, 3);
        bench.set(40 * DAY);
        assert_eq!(bench.passes(algorithm).await, 3, "it slept for long");
    }
}

#[tokio::test]
async fn nothing_else_is_moved_by_a_step() {
    let rate: Rate = "3/h".parse().unwrap();
    for (name, algorithm) in [
        ("token bucket", bucket("3/h", 3)),
        ("leaky bucket", Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, 2).unwrap())),
        ("from the first request", fixed(Windows::Rolling(hours(1)))),
        (
            "sliding window",
            Algorithm::SlidingWindow(sliding_window::Params::new(Burst::new(3).unwrap(), hours(1))),
        ),
        ("sliding log", Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap())),
    ] {
        let bench = WallBench::new();
        assert!(bench.passes(algorithm).await > 0, "{name}");
        let wait = bench.retry_after(algorithm).await;
        for step in [DAY, -DAY, 2 * HOUR, -SECOND, 400 * DAY] {
            bench.set(step);
            bench.sweep();
            assert_eq!(bench.passes(algorithm).await, 0, "{name}, set by {step}");
            assert_eq!(bench.retry_after(algorithm).await, wait, "{name}, set by {step}");
        }
    }
}

#[tokio::test]
async fn a_clock_set_back_does_not_renew_a_spent_window() {
    for algorithm in on_the_clock() {
        // Nobody came in the new window, and the old one may have been forgotten.
        let bench = WallBench::new();
        bench.set(-SECOND);
        assert_eq!(bench.passes(algorithm).await, 3);
        for (beyond, back) in [(0, 1), (SECOND / 2, SECOND), (SECOND - 1, SECOND)] {
            bench.set(beyond);
            bench.sweep();
            bench.set(beyond - back);
            assert_eq!(bench.passes(algorithm).await, 0, "{beyond} and {back} back");
        }
        bench.set(SECOND);
        bench.sweep();
        assert_eq!(bench.keys(), 0, "and it is forgotten in the end");
        // Somebody came: it is the new window that counts from then on.
        bench.set(0);
        assert_eq!(bench.passes(algorithm).await, 3);
        for since in [-1, -SECOND, 5, -SECOND / 2, SECOND] {
            bench.set(since);
            bench.sweep();
            assert_eq!(bench.passes(algorithm).await, 0, "{since} after the end");
        }
    }
}

#[tokio::test]
async fn a_window_that_still_runs_is_never_forgotten() {
    for algorithm in on_the_clock() {
        let bench = WallBench::new();
        bench.set(DAY - HOUR);
        assert_eq!(bench.passes(algorithm).await, 3);
        // Its end is where the steady clock has long been.
        bench.set(DAY - HOUR - 1);
        bench.sweep();
        assert_eq!(bench.passes(algorithm).await, 0);
        // A step back that is too large to be one of a slow clock takes the window along.
        bench.set(-5 * DAY);
        bench.sweep();
        assert_eq!(bench.passes(algorithm).await, 0);
        assert_eq!(bench.keys(), 1);
    }
}

#[tokio::test]
async fn buckets_of_both_clocks_make_room_for_each_other() {
    let bench = WallBench::with_room(2);
    bench.set(10 * DAY);
    let hourly = fixed(Windows::Clock(hours(1)));
    let keys: Vec<_> = (0..20).map(|n| key(&n.to_string())).collect();
    for (key, algorithm) in keys.iter().zip([hourly, bucket("3/h", 3)].into_iter().cycle()) {
        let mut one = bench.ask(algorithm);
        one.key = key;
        assert!(bench.decide(one).await.passes());
        assert!(bench.keys() <= 2);
    }
    let last = bench.ask(hourly);
    assert!(bench.decide(last).await.passes());
    bench.set(10 * DAY + 2 * HOUR);
    bench.sweep();
    assert!(bench.keys() < 2, "the window is over, though the steady clock stands");
}

/// A long response that costs less than was thought made room in the window in which it ended.
#[tokio::test]
async fn what_is_given_back_late_goes_to_no_later_window() {
    for algorithm in on_the_clock() {
        let mut bench = WallBench::new();
        let source = Box::new(UsedSource::Header(http::HeaderName::from_static("x-used")));
        bench.spec.cost = CostSpec::Response {
            source,
            estimate: Estimate { at_least: Cost::ONE, per_byte: None },
            max: None,
            unknown: UnknownUse::Estimate,
        };
        bench.set(-SECOND);
        let mut first = bench.ask(algorithm);
        first.ask.cost = Cost::new(2).unwrap();
        let answer = decide(&bench.store, &[first], at(WallBench::STEADY)).await.unwrap();
        let receipt = answer.receipts[0].unwrap();
        assert_eq!(bench.passes(algorithm).await, 1);
        let give_back = || {
            let one = bench.ask(algorithm);
            bench.store.settle(&one, Difference::Less(1), receipt, at(WallBench::STEADY));
        };
        give_back();
        assert_eq!(bench.passes(algorithm).await, 1, "its window runs still");
        bench.set(0);
        assert_eq!(bench.passes(algorithm).await, 3);
        give_back();
        assert_eq!(bench.passes(algorithm).await, 0, "it is over");
    }
}

/// Settings with these limits on its one route.
fn settings(limits: &str) -> tidegate::settings::Settings {
    let text = format!(
        "{limits}[[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 200 }}\nlimits = [\"a\"]\n"
    );
    config::parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().settings
}

/// A worker whose time of day is what `clock` is told, in a thread of its own until the end of the test.
fn serve(clock: &Clock, limits: &str) -> (SocketAddr, watch::Sender<bool>) {
    let settings = settings(limits);
    let process = process(&settings, clock.clone());
    let published = Published {
        settings: Arc::new(settings),
        upstreams: Vec::new(),
        keys: Vec::new(),
        certificates: [None, None],
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (end, stop) = watch::channel(false);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let (_published, orders) = watch::channel(Arc::new(published));
            let (_drain, draining) = watch::channel(false);
            let orders = Orders { published: orders, draining, stop };
            worker::run(0, vec![(listener.into(), Port::Plain)], Arc::new(process), orders)
                .await
                .unwrap();
        });
    });
    (address, end)
}

#[test]
fn a_months_quota_follows_the_time_of_day() {
    let clock = Clock::starting_at(at(MIDNIGHT));
    let (address, end) = serve(
        &clock,
        "[limits.a]\nrate = \"2/month\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"\n\
         timezone = \"Europe/Berlin\"\n",
    );
    let set = |time: &str| {
        let time: jiff::Timestamp = time.parse().unwrap();
        let micros = u64::try_from(time.as_microsecond()).unwrap();
        clock.wall().anchor(clock.now(), at(micros));
    };
    let ask = || get(address, "/", &[]);
    // Years from where the clock began, so that none of the windows around that is near.
    for (time, statuses) in [
        ("2031-05-31T21:30:00Z", [200, 200, 429]),
        ("2031-05-31T22:00:00Z", [200, 200, 429]),
        ("2031-06-12T00:00:00Z", [429, 429, 429]),
        ("2031-06-30T22:00:00Z", [200, 200, 429]),
    ] {
        set(time);
        let replies = [ask(), ask(), ask()];
        assert_eq!(replies.each_ref().map(|reply| reply.status), statuses, "{time}");
    }
    set("2031-07-31T21:00:00Z");
    let wait: u64 = ask().header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    end.send_replace(true);
}
