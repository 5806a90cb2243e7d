use proptest::prelude::*;

use super::*;
use crate::config::{Overrides, parse};
use crate::limit::decide::{Ask, decide_one};
use crate::limit::decision::Outcome;
use crate::limit::key::Key;
use crate::limit::time::Timestamp;

const BEGIN: u64 = 1_800_000_000_000_000;

/// A plan with one limit that has these lines.
fn plan(lines: &str) -> Plan {
    let text = format!(
        "[upstreams.api]\nservers = [\"http://a\"]\n[limits.a]\n{lines}\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = [\"a\"]\n"
    );
    parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan
}

/// This many seconds after the first reload.
fn after(seconds: u64) -> Now {
    Timestamp::from_micros(BEGIN + seconds * 1_000_000).unwrap().into()
}

/// The new plan, put in force in place of the old one.
fn reload(old: &Plan, new: &str, now: Now) -> Plan {
    let mut new = plan(new);
    new.ramp_down(old, now);
    new
}

fn figures(plan: &Plan, now: Now) -> String {
    plan.limits[0].figures.in_force(now).to_string()
}

/// The figures of a key, by an override or by the limit.
fn figures_of(plan: &Plan, key: &str, now: Now) -> String {
    let spec = &plan.limits[0];
    let key = Key::of([Some(key.as_bytes())]);
    spec.overrides.find(&key).unwrap_or(&spec.figures).in_force(now).to_string()
}

const TEN_MINUTES: u64 = 600;

#[test]
fn figures_are_half_way_at_half_the_time() {
    for (old, new, half, end) in [
        ("rate = \"100/s\"", "rate = \"50/s\"", "75/s, burst 75", "50/s, burst 50"),
        (
            "rate = \"10/s\"\nqueue = 8\nalgorithm = \"leaky-bucket\"",
            "rate = \"10/s\"\nqueue = 0\nalgorithm = \"leaky-bucket\"",
            "10/s at even spacing, queue 4",
            "10/s at even spacing, queue 0",
        ),
        (
            "rate = \"1000/month\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
            "rate = \"500/month\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
            "750/month in UTC",
            "500/month in UTC",
        ),
        (
            "limit = 9\nalgorithm = \"concurrency\"",
            "limit = 1\nalgorithm = \"concurrency\"",
            "5 at once",
            "1 at once",
        ),
    ] {
        let old = plan(old);
        let new = reload(&old, &format!("{new}\nramp = \"10m\""), after(0));
        assert_eq!(figures(&new, after(0)), figures(&old, after(0)));
        assert_eq!(figures(&new, after(TEN_MINUTES / 2)), half);
        assert_eq!(figures(&new, after(TEN_MINUTES)), end);
        assert_eq!(figures(&new, after(10 * TEN_MINUTES)), end);
        assert_eq!(new.limits[0].figures.of_file().to_string(), end);
        assert!(new.limits[0].figures.is_ramping(after(TEN_MINUTES - 1)));
        assert!(!new.limits[0].figures.is_ramping(after(TEN_MINUTES)));
    }
}

#[test]
fn figures_hold_at_once_where_no_even_way_leads_down() {
    let ramp = |lines: &str| format!("{lines}\nramp = \"10m\"");
    for (why, old, new) in [
        ("raised", "rate = \"50/s\"", ramp("rate = \"100/s\"")),
        ("the same", "rate = \"50/s\"", ramp("rate = \"50/s\"")),
        ("no ramp", "rate = \"100/s\"", "rate = \"50/s\"".to_owned()),
        ("from unlimited", "rate = \"unlimited\"", ramp("rate = \"50/s\"")),
        ("closed", "rate = \"50/s\"", ramp("rate = \"0/s\"")),
        (
            "another algorithm",
            "rate = \"100/s\"",
            ramp("rate = \"50/s\"\nalgorithm = \"fixed-window\""),
        ),
        ("another key", "rate = \"100/s\"", ramp("rate = \"50/s\"\nkey = [\"ip\"]")),
        ("another scope", "rate = \"100/s\"", ramp("rate = \"50/s\"\nscope = \"node\"")),
    ] {
        let new_alone = plan(&new);
        let new = reload(&plan(old), &new, after(0));
        assert_eq!(figures(&new, after(0)), figures(&new_alone, after(0)), "{why}");
        assert!(!new.limits[0].figures.is_ramping(after(0)), "{why}");
    }
}

#[test]
fn a_second_reload_begins_from_the_figures_of_its_moment() {
    let first = reload(&plan("rate = \"100/s\""), "rate = \"50/s\"\nramp = \"10m\"", after(0));
    let half = after(TEN_MINUTES / 2);
    let lower = reload(&first, "rate = \"25/s\"\nramp = \"10m\"", half);
    assert_eq!(figures(&lower, half), "75/s, burst 75");
    assert_eq!(figures(&lower, after(TEN_MINUTES)), "50/s, burst 50");
    assert_eq!(figures(&lower, after(TEN_MINUTES / 2 + TEN_MINUTES)), "25/s, burst 25");
    let raised = reload(&first, "rate = \"80/s\"\nramp = \"10m\"", half);
    assert_eq!(figures(&raised, half), "80/s, burst 80");
    let longer = reload(&first, "rate = \"50/s\"\nramp = \"20m\"", half);
    assert_eq!(figures(&longer, after(TEN_MINUTES / 2 + TEN_MINUTES)), "62/s, burst 62");
    let at_once = reload(&first, "rate = \"50/s\"", half);
    assert_eq!(figures(&at_once, half), "50/s, burst 50");
    for later in [TEN_MINUTES / 2, TEN_MINUTES, 2 * TEN_MINUTES] {
        let same = reload(
            &first,
            "rate = \"50/s\"\nramp = \"10m\"\nmax_waiting = 7\nwait = \"1s\"",
            after(later),
        );
        assert_eq!(figures(&same, after(later)), figures(&first, after(later)));
        assert_eq!(figures(&same, after(TEN_MINUTES.max(later))), "50/s, burst 50", "not longer");
    }
}

#[test]
fn overrides_with_the_same_key_come_down_too() {
    const KEY: &str = "key = [\"header:x-user\"]\nrate = \"10/s\"\nramp = \"10m\"\n";
    let with = |overrides: &str| format!("{KEY}overrides = [{overrides}]");
    let old = plan(&with(
        "{ key = [\"a\"], rate = \"100/s\" }, { key = [\"*\"], rate = \"40/s\" }, \
         { key = [\"gone\"], rate = \"100/s\" }",
    ));
    let new = with(
        "{ key = [\"a\"], rate = \"50/s\" }, { key = [\"*\"], rate = \"20/s\" }, \
         { key = [\"new\"], rate = \"5/s\" }",
    );
    let new = reload(&old, &new, after(0));
    let half = after(TEN_MINUTES / 2);
    for (key, expected) in [
        ("a", "75/s, burst 75"),
        ("other", "30/s, burst 30"),
        ("new", "5/s, burst 5"),
        ("gone", "30/s, burst 30"),
    ] {
        assert_eq!(figures_of(&new, key, half), expected, "{key}");
    }
    assert_eq!(figures(&new, half), "10/s, burst 10");
    assert_eq!(figures_of(&new, "a", after(TEN_MINUTES)), "50/s, burst 50");
}

/// Slow figures, and a request each second: with another period at each step the bucket would lose what it has
/// gained, and would let hardly any request pass.
#[test]
fn a_bucket_goes_on_while_its_figures_come_down() {
    let old = plan("rate = \"60/h\"\nburst = 10");
    let new = reload(&old, "rate = \"30/h\"\nburst = 5\nramp = \"1h\"", after(0));
    let mut state = None;
    let mut passed = [0; 4];
    for second in 0..2 * 3_600 {
        let now = after(second);
        let ask = Ask::for_one(new.limits[0].figures.at(now).unwrap());
        let (decision, change, _) = decide_one(&ask, state, now);
        state = change.state().or(state);
        let quarter = usize::try_from(second / 1_800).unwrap();
        passed[quarter] += u64::from(decision.outcome == Outcome::Allow);
    }
    // In half an hour 26.25 come, then 18.75, and then 15. The burst of 10 is spent first. While the bucket
    // shrinks by 5 tokens it owes them, half of them in each of the first two half hours.
    assert_eq!(passed, [10 + 26 - 3, 19 - 3, 15, 15]);
}

#[test]
fn a_reload_finds_the_limits_that_it_lowers() {
    for (old, new, is_lowered) in [
        ("rate = \"100/s\"", "rate = \"50/s\"", true),
        ("rate = \"100/s\"", "rate = \"50/s\"\nramp = \"10m\"", true),
        ("rate = \"100/s\"", "rate = \"100/s\"\nburst = 99", true),
        ("rate = \"100/s\"", "rate = \"0/s\"", true),
        ("rate = \"0/s\"", "rate = \"0/s\"", false),
        ("rate = \"100/s\"", "rate = \"200/s\"", false),
        ("rate = \"unlimited\"", "rate = \"100/s\"", false),
        ("rate = \"100/s\"", "rate = \"50/s\"\nkey = [\"ip\"]", false),
        ("rate = \"100/s\"", "rate = \"50/s\"\nalgorithm = \"sliding-log\"", false),
    ] {
        let lowered = plan(new).lowered_from(&plan(old), after(0));
        assert_eq!(!lowered.is_empty(), is_lowered, "{old} {new}");
    }
    let ramping = reload(&plan("rate = \"100/s\""), "rate = \"50/s\"\nramp = \"10m\"", after(0));
    let same = plan("rate = \"50/s\"\nramp = \"10m\"");
    for time in [0, TEN_MINUTES / 2, TEN_MINUTES] {
        assert!(same.lowered_from(&ramping, after(time)).is_empty(), "it comes down already");
    }
    let at_once = plan("rate = \"50/s\"");
    assert_eq!(at_once.lowered_from(&ramping, after(TEN_MINUTES / 2)).len(), 1);
    assert!(at_once.lowered_from(&ramping, after(TEN_MINUTES)).is_empty(), "it has come down");
}

proptest! {
    #[test]
    fn figures_in_force_lie_between_and_only_fall(
        old in (1..10_000_u64, 1..10_000_u64), new in (1..10_000_u64, 1..10_000_u64),
        unit in 0..4_usize, new_unit in 0..4_usize, lasts in 1..5_000_u64, step in 1..400_u64,
    ) {
        let file = |(rate, burst): (u64, u64), unit: usize| {
            format!("rate = \"{rate}/{}\"\nburst = {burst}\n", ["s", "m", "h", "d"][unit])
        };
        let old = plan(&file(old, unit));
        let new = reload(&old, &format!("{}ramp = \"{lasts}s\"", file(new, new_unit)), after(0));
        let of = |algorithm: Algorithm| match algorithm {
            Algorithm::TokenBucket(params) => (params.rate, params.burst),
            _ => panic!("{algorithm}"),
        };
        let end = of(new.limits[0].figures.of_file().at(after(0)).unwrap());
        let old = of(old.limits[0].figures.at(after(0)).unwrap());
        let mut before = (if old.0.is_above(end.0) { old.0 } else { end.0 }, old.1.max(end.1));
        for second in (0..lasts + 2 * step).step_by(usize::try_from(step).unwrap()) {
            let now = of(new.limits[0].figures.at(after(second)).unwrap());
            prop_assert!(!now.0.is_above(before.0) && now.1 <= before.1, "{second} {before:?} {now:?}");
            prop_assert!(!end.0.is_above(now.0) && now.1 >= end.1, "{second} {now:?} {end:?}");
            before = now;
        }
        prop_assert_eq!(before, end);
    }
}
