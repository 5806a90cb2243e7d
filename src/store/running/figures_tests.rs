//! Tests of the figures by which a settlement is counted.

use super::tests::entry;
use super::*;
use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::settings::testing::{settings, settings_with};

fn algorithm(spec: &LimitSpec) -> Algorithm {
    spec.figures.at(Timestamp::MIN).unwrap()
}

/// The ask of this limit with the figures in force, as a text.
fn asked(running: &RunningOverrides, spec: &LimitSpec, key: &BucketKey) -> String {
    let ask = Ask::for_one(algorithm(spec));
    let Ask { algorithm, max_wait, .. } =
        running.in_force(&BucketAsk { spec, key, ask }, Timestamp::MIN.into());
    format!("{algorithm}, {} s", max_wait.as_micros() / 1_000_000)
}

#[test]
fn a_bucket_has_the_figures_of_an_override_that_runs() {
    let spec = &settings_with("key = [\"header:x-user\"]\nrate = \"1/s\"").limits[0];
    let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
    let ask = Ask::for_one(algorithm(spec));
    let running = RunningOverrides::default();
    running.put_limits(&[Arc::clone(spec)]);
    let of = |ask| {
        let asked = BucketAsk { spec, key: &key, ask };
        running.in_force(&asked, Timestamp::MIN.into()).algorithm
    };
    let set = |rate| {
        let entry = entry("partner", rate, None);
        running.set_here(RunningOverride { sources: spec.key.parts_text(), ..entry }, None);
    };
    set("9/h");
    let overridden = of(ask);
    assert_eq!(overridden.to_string(), "9/h, burst 9");
    set("unlimited");
    assert_eq!(of(ask).to_string(), "1/s, burst 1");
    running.end_here("a", "partner");
    assert_eq!(
        of(Ask { algorithm: overridden, ..ask }).to_string(),
        "1/s, burst 1",
        "it has ended"
    );
}

#[test]
fn a_bucket_has_the_figures_of_its_request_s_plan() {
    let limits = |lines: &str| {
        let text = format!(
            "[plans]\nby = \"ip\"\n[limits.a]\nkey = [\"header:x-user\"]\nrate = \"1/s\"\n{lines}\n\
             [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"a\"]\n"
        );
        settings(&text).limits
    };
    const PLANS: &str = "plans = { pro = \"2/s\", team = \"3/s\" }";
    let before = limits(PLANS);
    let pro = before[0].of_plan(&Name::new("pro").unwrap()).unwrap();
    let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
    let running = RunningOverrides::default();
    for (after, expected) in [
        (PLANS, "2/s, burst 2, 0 s"),
        ("plans = { team = \"3/s\", pro = \"4/s\" }\nwait = \"5s\"", "4/s, burst 4, 5 s"),
        ("plans = { team = \"3/s\" }", "1/s, burst 1, 0 s"),
        ("overrides = [{ key = [\"partner\"], rate = \"9/s\" }]", "9/s, burst 9, 0 s"),
    ] {
        running.put_limits(&limits(after));
        assert_eq!(asked(&running, pro, &key), expected, "{after}");
    }
    running.put_limits(&before);
    let asked = BucketAsk { spec: pro, key: &key, ask: Ask::for_one(algorithm(pro)) };
    running.were_any.store(true, Ordering::Relaxed);
    let settled = running.in_force(&asked, Timestamp::MIN.into()).algorithm;
    assert_eq!(settled.to_string(), "2/s, burst 2", "where an override may have been");
}

#[test]
fn a_bucket_has_the_figures_of_the_last_reload() {
    let limits = |lines: &str| settings_with(lines).limits;
    let limit = |lines: &str| limits(&format!("key = [\"header:x-user\"]\n{lines}"));
    let before = limit("rate = \"1/s\"\ncandidate = { rate = \"2/s\" }");
    let (spec, candidate) = (&before[0], before[0].candidate.as_ref().unwrap());
    let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
    let running = RunningOverrides::default();
    assert_eq!(asked(&running, spec, &key), "1/s, burst 1, 0 s", "before the first reload");
    running.put_limits(&before);
    assert_eq!(asked(&running, spec, &key), "1/s, burst 1, 0 s", "by itself");
    for (name, after, expected) in [
        ("another rate", "rate = \"3/h\"\nwait = \"5s\"", "3/h, burst 3, 5 s"),
        (
            "an override",
            "rate = \"3/h\"\noverrides = [{ key = [\"partner\"], rate = \"4/h\" }]",
            "4/h, burst 4, 0 s",
        ),
        ("no bucket", "rate = \"unlimited\"", "1/s, burst 1, 0 s"),
        ("another algorithm", "rate = \"3/h\"\nalgorithm = \"fixed-window\"", "1/s, burst 1, 0 s"),
    ] {
        running.put_limits(&limit(after));
        assert_eq!(asked(&running, spec, &key), expected, "{name}");
    }
    running.put_limits(&limits("key = [\"header:x-other\"]\nrate = \"3/h\""));
    assert_eq!(asked(&running, spec, &key), "1/s, burst 1, 0 s", "another key");
    running.put_limits(&limit("rate = \"3/h\"\ncandidate = { rate = \"5/h\" }"));
    assert_eq!(asked(&running, candidate, &key), "5/h, burst 5, 0 s", "a candidate's");
}
