//! Where Rust and Lua meet apart from what they decide (see `cases`): bytes that one of them reads, and
//! the arithmetic of both.

use proptest::prelude::*;
use tidegate::limit::algorithm::{
    BucketState, LUA, Want, fixed_window, sliding_window, token_bucket,
};
use tidegate::limit::rate::{Cost, EXACT};
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;

use crate::library::cases::algorithms::{DAY, SECOND, any_bucket, period};
use crate::library::cases::bytes::{bucket_bytes, fixed_bytes, kept, sliding_bytes};
use crate::support::redis::RedisServer;

const HALF: u64 = EXACT / 2;

/// In place of a rate's mark where it has none.
const NO_MARK: u64 = 1 << 16;

/// Where a state is read again, that it was kept as of an earlier time makes no difference.
#[test]
fn a_state_that_is_kept_goes_on_as_it_was() {
    proptest!(|(
        (algorithm, missing, rest) in (any_bucket(true), 0_u64..2_000, any::<prop::sample::Index>()),
        at in prop_oneof![Just(0), Just(1_700_000_000 * SECOND)],
        (cost, later) in (1_u64..2_000, 0_u64..DAY),
    )| {
        let period = period(&algorithm);
        let rest = u64::try_from(rest.index(usize::MAX)).unwrap() % period;
        let at = Timestamp::from_micros(at).unwrap();
        let state = token_bucket::State { missing, rest, period, at };
        let state = BucketState::Bucket(state);
        let kept = kept(state, &algorithm);
        let want = Want { cost: Cost::new(cost).unwrap(), max_wait: MaxWait::NONE };
        let now = at.plus_micros(later);
        prop_assert_eq!(
            algorithm.decide(Some(kept), want, now),
            algorithm.decide(Some(state), want, now)
        );
        prop_assert_eq!(algorithm.fresh_at(kept), algorithm.fresh_at(state));
    });
}

/// Runs a script, whose only argument is what stands in a bucket.
fn run<T: redis::FromRedisValue>(server: &RedisServer, script: &str, bytes: &[u8]) -> T {
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(0).arg(bytes).query(&mut server.connection()).unwrap()
}

#[test]
fn lua_reads_what_it_does_not_know_as_a_new_bucket() {
    let server = RedisServer::start();
    let now = 1_700_000_000 * SECOND;
    // A bucket of ten: what is missing shows in what remains.
    let script = format!(
        "{LUA} local _, left = decide('token-bucket', {{ 7, 1000000, 10, 65536 }}, 1, 0, ARGV[1], {now})
         return left"
    );
    let state = |missing, rest, period| {
        let at = Timestamp::from_micros(now).unwrap();
        bucket_bytes(token_bucket::State { missing, rest, period, at }, NO_MARK, at)
    };
    let with = |bytes: &[u8], place: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[place] = byte;
        bytes
    };
    let (whole, short) = (state(3, 0, 1_000_000), state(3, 5, 1_000_000));
    let long = state(3, 5, 1 << 24);
    let marked = {
        let at = Timestamp::from_micros(now).unwrap();
        let period = 1_000_000;
        bucket_bytes(token_bucket::State { missing: 3, rest: 0, period, at }, 0x1940, at)
    };
    let sizes = [whole.len(), short.len(), long.len(), marked.len()];
    assert_eq!(sizes, [11, 12, 27, 12]);
    for (name, bytes, left) in [
        ("whole tokens", whole.clone(), 6),
        ("a small remainder", short.clone(), 5),
        ("a large one", long.clone(), 5),
        ("a rate's mark", marked.clone(), 6),
        ("no mark", with(&marked, 7, 0xFF), 6),
        ("whole tokens, cut off", whole[..10].to_vec(), 9),
        ("nothing", vec![], 9),
        ("one byte", vec![whole[0]], 9),
        ("text", b"12".to_vec(), 9),
        ("another format, short", with(&whole, 0, 0x20), 9),
        ("no format, short", with(&short, 0, 0xF0), 9),
        ("another format, long", with(&long, 0, 0x16), 9),
        ("a time from 2^53 on", with(&long, 1, 0x20), 9),
        ("another period", with(&short, 9, 0), 5),
        ("a remainder of a whole period", [&short[..9], &[0, 0, 5]].concat(), 9),
        ("no period", [&short[..9], &[0, 0, 0]].concat(), 9),
        ("a remainder of a whole long period", with(&long, 13, 1), 9),
        ("cut off", long[..26].to_vec(), 9),
        ("too long", [&long[..], &[0]].concat(), 9),
    ] {
        let read: u64 = run(&server, &script, &bytes);
        assert_eq!(read, left, "{name}");
    }
}

#[test]
fn lua_reads_what_it_does_not_know_as_a_new_window() {
    let server = RedisServer::start();
    let start = Timestamp::from_micros(1_700_000_000 * SECOND).unwrap();
    let fixed = |used| fixed_bytes(fixed_window::State::of(start, used));
    let sliding = |previous, current| {
        sliding_bytes(sliding_window::State { start, previous, current, next: 0 })
    };
    let with = |bytes: Vec<u8>, place: usize, byte: u8| {
        let mut bytes = bytes;
        bytes[place] = byte;
        bytes
    };
    for (name, algorithm, bytes, left) in [
        ("what was used", "fixed-window", fixed(3), 6),
        ("no format", "fixed-window", with(fixed(3), 0, 9), 9),
        ("the other format", "fixed-window", with(fixed(3), 0, 2), 9),
        ("a time from 2^53 on", "fixed-window", with(fixed(3), 1, 0x20), 9),
        ("nothing used", "fixed-window", fixed(0), 9),
        ("cut off", "fixed-window", fixed(3)[..11].to_vec(), 9),
        ("nothing", "fixed-window", vec![], 9),
        ("two windows", "sliding-window", sliding(2, 3), 4),
        ("no format", "sliding-window", with(sliding(2, 3), 0, 9), 9),
        ("the other format", "sliding-window", with(sliding(2, 3), 0, 2), 9),
        ("a time from 2^53 on", "sliding-window", with(sliding(2, 3), 1, 0x20), 9),
        ("nothing counted", "sliding-window", sliding(0, 0), 9),
        ("too long", "sliding-window", [sliding(2, 3), vec![0]].concat(), 9),
    ] {
        // Ten each second, at the begin of a window.
        let script = format!(
            "{LUA} local _, left = decide('{algorithm}', {{ 10, 1, 1000000 }}, 1, 0, ARGV[1], {})
             return left",
            start.as_micros()
        );
        let script = match algorithm {
            "sliding-window" => script.replace("{ 10, 1, 1000000 }", "{ 10, 1000000, 1 }"),
            _ => script,
        };
        let read: u64 = run(&server, &script, &bytes);
        assert_eq!(read, left, "{algorithm}: {name}");
    }
}

/// Lua's `%` and `/` at the ends of what is exact: the steps of the algorithms rest on them.
#[test]
fn lua_divides_whole_numbers_exactly() {
    let server = RedisServer::start();
    let script = "local a, b = tonumber(ARGV[1]), tonumber(ARGV[2])
         local rest = a % b
         return string.format('%.0f %.0f', (a - rest) / b, rest)";
    let connection = std::cell::RefCell::new(server.connection());
    let divide = |a: u64, b: u64| -> String {
        let connection = &mut *connection.borrow_mut();
        redis::cmd("EVAL").arg(script).arg(0).arg(a).arg(b).query(connection).unwrap()
    };
    let check = |a: u64, b: u64| assert_eq!(divide(a, b), format!("{} {}", a / b, a % b));
    for b in [1, 2, 3, 7, 1_000_000, 94_906_264, 94_906_265, 94_906_266, HALF, EXACT - 2] {
        // Just below a multiple is where a rounded quotient would be one too large.
        let last = (EXACT - 1) / b * b;
        for a in [0, b - 1, b, last - 1, last, EXACT - 2, EXACT - 1] {
            check(a, b);
        }
    }
    proptest!(ProptestConfig::with_cases(500), |(b in 1..EXACT, n in 1..EXACT)| {
        check(n, b);
        check((EXACT - 1) / b * b - 1, b);
    });
}
