//! The figures by which a settlement is counted: the figures that are in force when the request's use becomes known.
//!
//! [`Store`](super::Store) asks here before each settlement. A reload gives a bucket new figures, and the
//! settlement must use them. With the old figures the bucket might refill too fast, or its window might end too
//! early. Then a client could get back all that it has used.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::bucket::BucketAsk;
use crate::limit::decide::Ask;
use crate::limit::name::Name;
use crate::limit::time::Now;
use crate::plan::{Figures, LimitSpec};

/// The limits in force and their candidates, by name.
#[derive(Default)]
pub(super) struct CurrentLimits(RwLock<HashMap<Name, Arc<LimitSpec>>>);

impl CurrentLimits {
    /// Puts these limits in force.
    pub(super) fn put(&self, limits: &[Arc<LimitSpec>]) {
        let all = limits.iter().chain(limits.iter().filter_map(|spec| spec.candidate.as_ref()));
        let all = all.map(|spec| (spec.name.clone(), Arc::clone(spec))).collect();
        *self.0.write() = all;
    }

    /// The ask with the figures that are in force now. If the limit, its key or its algorithm has changed, the bucket
    /// no longer exists, and the ask stays unchanged. `running` are the figures of an override that was set for this
    /// key while the process runs. `may_differ` says whether any key ever had such an override.
    pub(super) fn of(
        &self,
        asked: &BucketAsk<'_>,
        now: Now,
        running: Option<&Figures>,
        may_differ: bool,
    ) -> Ask {
        let BucketAsk { spec: before, key, ask } = *asked;
        let limits = self.0.read();
        let limit = limits.get(&before.name).map_or(before, |spec| &**spec);
        let in_plan = before.tier.as_ref().and_then(|tier| limit.of_tier(tier));
        let spec = in_plan.map_or(limit, |spec| &**spec);
        let is_same = std::ptr::eq(spec, before) && !may_differ;
        if is_same || spec.key.sources != before.key.sources {
            return ask;
        }
        match limit.choose(key.plain(), in_plan, running).figures.at(now) {
            Some(algorithm) if algorithm.number() == ask.algorithm.number() => {
                Ask { algorithm, max_wait: spec.wait, ..ask }
            }
            Some(_) | None => ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::algorithm::Algorithm;
    use crate::limit::key::Key;
    use crate::limit::time::Timestamp;

    use crate::plan::WantedFigures;
    use crate::plan::testing::{plan, plan_with};
    use crate::store::BucketKey;

    fn algorithm(spec: &LimitSpec) -> Algorithm {
        spec.figures.at(Timestamp::MIN).unwrap()
    }

    /// The ask of this limit with the figures in force, as a text.
    fn asked(current: &CurrentLimits, spec: &LimitSpec, key: &BucketKey) -> String {
        let ask = Ask::for_one(algorithm(spec));
        let Ask { algorithm, max_wait, .. } =
            current.of(&BucketAsk { spec, key, ask }, Timestamp::MIN.into(), None, false);
        format!("{algorithm}, {} s", max_wait.as_micros() / 1_000_000)
    }

    #[test]
    fn a_bucket_has_the_figures_of_an_override_that_runs() {
        let spec = &plan_with("key = [\"header:x-user\"]\nrate = \"1/s\"").limits[0];
        let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
        let ask = Ask::for_one(algorithm(spec));
        let current = CurrentLimits::default();
        let wanted = WantedFigures { rate: "9/h".into(), ..WantedFigures::default() };
        let running = spec.counting.as_ref().unwrap().figures(&wanted).unwrap();
        let of = |ask, running: Option<&Figures>| {
            let asked = BucketAsk { spec, key: &key, ask };
            current.of(&asked, Timestamp::MIN.into(), running, true).algorithm.to_string()
        };
        for limits in [&[][..], &[Arc::clone(spec)]] {
            current.put(limits);
            assert_eq!(of(ask, Some(&running)), "9/h, burst 9");
            let overridden = Ask { algorithm: running.at(Timestamp::MIN).unwrap(), ..ask };
            assert_eq!(of(overridden, None), "1/s, burst 1", "it has ended");
            assert_eq!(of(ask, Some(&Figures::Unlimited)), "1/s, burst 1");
        }
    }

    #[test]
    fn a_bucket_has_the_figures_of_its_request_s_plan() {
        let limits = |lines: &str| {
            let text = format!(
                "[plans]\nby = \"ip\"\n[limits.a]\nkey = [\"header:x-user\"]\nrate = \"1/s\"\n{lines}\n\
                 [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"a\"]\n"
            );
            plan(&text).limits
        };
        const PLANS: &str = "plans = { pro = \"2/s\", team = \"3/s\" }";
        let before = limits(PLANS);
        let pro = before[0].of_tier(&Name::new("pro").unwrap()).unwrap();
        let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
        let current = CurrentLimits::default();
        for (after, expected) in [
            (PLANS, "2/s, burst 2, 0 s"),
            ("plans = { team = \"3/s\", pro = \"4/s\" }\nwait = \"5s\"", "4/s, burst 4, 5 s"),
            ("plans = { team = \"3/s\" }", "1/s, burst 1, 0 s"),
            ("overrides = [{ key = [\"partner\"], rate = \"9/s\" }]", "9/s, burst 9, 0 s"),
        ] {
            current.put(&limits(after));
            assert_eq!(asked(&current, pro, &key), expected, "{after}");
        }
        current.put(&before);
        let asked = BucketAsk { spec: pro, key: &key, ask: Ask::for_one(algorithm(pro)) };
        let settled = current.of(&asked, Timestamp::MIN.into(), None, true).algorithm;
        assert_eq!(settled.to_string(), "2/s, burst 2", "where an override may have been");
    }

    #[test]
    fn a_bucket_has_the_figures_of_the_last_reload() {
        let limits = |lines: &str| plan_with(lines).limits;
        let limit = |lines: &str| limits(&format!("key = [\"header:x-user\"]\n{lines}"));
        let before = limit("rate = \"1/s\"\ncandidate = { rate = \"2/s\" }");
        let (spec, candidate) = (&before[0], before[0].candidate.as_ref().unwrap());
        let key = BucketKey::from(Key::of([Some(&b"partner"[..])]));
        let current = CurrentLimits::default();
        assert_eq!(asked(&current, spec, &key), "1/s, burst 1, 0 s", "before the first reload");
        current.put(&before);
        assert_eq!(asked(&current, spec, &key), "1/s, burst 1, 0 s", "by itself");
        for (name, after, expected) in [
            ("another rate", "rate = \"3/h\"\nwait = \"5s\"", "3/h, burst 3, 5 s"),
            (
                "an override",
                "rate = \"3/h\"\noverrides = [{ key = [\"partner\"], rate = \"4/h\" }]",
                "4/h, burst 4, 0 s",
            ),
            ("no bucket", "rate = \"unlimited\"", "1/s, burst 1, 0 s"),
            (
                "another algorithm",
                "rate = \"3/h\"\nalgorithm = \"fixed-window\"",
                "1/s, burst 1, 0 s",
            ),
        ] {
            current.put(&limit(after));
            assert_eq!(asked(&current, spec, &key), expected, "{name}");
        }
        current.put(&limits("key = [\"header:x-other\"]\nrate = \"3/h\""));
        assert_eq!(asked(&current, spec, &key), "1/s, burst 1, 0 s", "another key");
        current.put(&limit("rate = \"3/h\"\ncandidate = { rate = \"5/h\" }"));
        assert_eq!(asked(&current, candidate, &key), "5/h, burst 5, 0 s", "a candidate's");
    }
}
