//! Finds the limits whose figures a reload lowers.

use std::collections::HashMap;
use std::sync::Arc;

use super::Plan;
use super::limit::LimitSpec;
use crate::limit::algorithm::Algorithm;
use crate::limit::time::Now;

/// A limit whose figures a reload has lowered.
#[derive(Clone, Debug)]
pub(crate) struct LoweredLimit {
    /// The limit, as the new plan has it.
    pub(crate) spec: Arc<LimitSpec>,
    /// The figures in force before.
    pub(crate) before: Algorithm,
    /// The figures of the file.
    pub(crate) after: Algorithm,
}

impl LimitSpec {
    /// Whether a reload from `old` keeps the limit's buckets, if the algorithm stays too.
    pub(crate) fn keeps_buckets_of(&self, old: &Self) -> bool {
        self.key.sources == old.key.sources && self.scope == old.scope
    }
}

impl Plan {
    /// The limits whose buckets stay, and whose figures are lower in this plan than in the `old` one. The figures of
    /// customers' plans count too. A limit that was `unlimited` had no buckets, and is left out.
    pub(crate) fn lowered_from(&self, old: &Self, now: Now) -> Vec<LoweredLimit> {
        let old: HashMap<_, _> = old.limits.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        let lowered = |new: &Arc<LimitSpec>| {
            let old = old.get(new.name.as_str()).filter(|old| new.keeps_buckets_of(old))?;
            let (before, after) = (old.figures.at(now)?, new.figures.at(now)?);
            let mut plans = new.tiers.iter().filter_map(|new| {
                let old = old.of_tier(new.tier.as_ref()?)?;
                Some(old.figures.at(now)?.is_lowered_by(new.figures.at(now)?))
            });
            let is_lowered = before.is_lowered_by(after) || plans.any(|is_lowered| is_lowered);
            let spec = Arc::clone(new);
            is_lowered.then(|| LoweredLimit { spec, before, after })
        };
        self.limits.iter().filter_map(lowered).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::limit::time::Timestamp;
    use crate::plan::testing::{plan as of_text, plan_with as plan};

    #[test]
    fn a_reload_finds_the_limits_that_it_lowers() {
        for (old, new, is_lowered) in [
            ("rate = \"100/s\"", "rate = \"50/s\"", true),
            ("rate = \"100/s\"", "rate = \"100/s\"\nburst = 99", true),
            ("rate = \"100/s\"", "rate = \"50/s\"\nburst = 200", true),
            ("rate = \"100/s\"", "rate = \"0/s\"", true),
            ("rate = \"0/s\"", "rate = \"0/s\"", false),
            ("rate = \"100/s\"", "rate = \"200/s\"", false),
            ("rate = \"unlimited\"", "rate = \"100/s\"", false),
            ("rate = \"100/s\"", "rate = \"50/s\"\nkey = [\"ip\"]", false),
            ("rate = \"100/s\"", "rate = \"50/s\"\nscope = \"node\"", false),
            ("rate = \"100/s\"", "rate = \"50/s\"\nalgorithm = \"sliding-log\"", false),
        ] {
            let lowered = plan(new).lowered_from(&plan(old), Timestamp::MIN.into());
            assert_eq!(!lowered.is_empty(), is_lowered, "{old} {new}");
        }
    }

    #[test]
    fn a_limit_is_lowered_where_one_of_its_plans_is() {
        let limit = |plans: &str| {
            let limit =
                format!("[limits.a]\nkey = [\"ip\"]\nrate = \"1/s\"\nplans = {{ {plans} }}\n");
            let route = "[[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"a\"]\n";
            of_text(&format!("[plans]\nby = \"ip\"\n{limit}{route}"))
        };
        let old = limit("pro = \"5/s\", team = \"9/s\"");
        for (new, is_lowered) in [
            ("pro = \"5/s\", team = \"8/s\"", true),
            ("pro = \"6/s\", team = \"9/s\"", false),
            ("pro = \"5/s\", other = \"1/s\"", false),
        ] {
            let lowered = limit(new).lowered_from(&old, Timestamp::MIN.into());
            assert_eq!(!lowered.is_empty(), is_lowered, "{new}");
        }
    }

    #[test]
    fn figures_of_every_algorithm_can_be_lower() {
        const MONTH: &str = "algorithm = \"fixed-window\"\nalign = \"clock\"\n";
        for (old, lower, higher) in [
            ("rate = \"10/s\"", "rate = \"599/m\"\nburst = 10", "rate = \"601/m\"\nburst = 10"),
            (
                "rate = \"9/s\"\nalgorithm = \"leaky-bucket\"",
                "rate = \"9/s\"\nqueue = 8\nalgorithm = \"leaky-bucket\"",
                "rate = \"9/s\"\nqueue = 10\nalgorithm = \"leaky-bucket\"",
            ),
            (
                "rate = \"10/m\"\nalgorithm = \"fixed-window\"",
                "rate = \"99/10m\"\nalgorithm = \"fixed-window\"",
                "rate = \"101/10m\"\nalgorithm = \"fixed-window\"",
            ),
            (
                &format!("{MONTH}rate = \"10/month\""),
                &format!("{MONTH}rate = \"9/month\""),
                &format!("{MONTH}rate = \"11/month\""),
            ),
            (
                "rate = \"10/m\"\nalgorithm = \"sliding-window\"",
                "rate = \"9/m\"\nalgorithm = \"sliding-window\"",
                "rate = \"1/s\"\nalgorithm = \"sliding-window\"",
            ),
            (
                "rate = \"10/m\"\nalgorithm = \"sliding-log\"",
                "rate = \"100/h\"\nalgorithm = \"sliding-log\"",
                "rate = \"11/m\"\nalgorithm = \"sliding-log\"",
            ),
            (
                "limit = 9\nalgorithm = \"concurrency\"",
                "limit = 8\nalgorithm = \"concurrency\"",
                "limit = 10\nalgorithm = \"concurrency\"",
            ),
        ] {
            let is_lowered =
                |new: &str| !plan(new).lowered_from(&plan(old), Timestamp::MIN.into()).is_empty();
            assert_eq!([lower, higher, old].map(is_lowered), [true, false, false], "{old}");
        }
    }
}
