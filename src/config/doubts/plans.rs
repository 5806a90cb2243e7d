//! Plans that never come in force, and plans and costs that anybody can write.

use std::collections::BTreeSet;

use crate::config::assembly::Sections;
use crate::config::section::limit::plans::PlanDraft;
use crate::config::section::values::Names;
use crate::request::key::KeySource;
use crate::settings::CostSpec;

/// What is expected of a part that anybody can write.
const WRITERS: &str = "expected `trusted_proxies` in [server]: the proxies that write it";

impl Sections<'_> {
    /// Limits with `plans`, if nothing says which plan a request has.
    pub(super) fn plans_without_rule(&self) {
        if self.plans.is_some() {
            return;
        }
        for plan in self.drafts().filter_map(|draft| draft.plans.first()) {
            let expected = "expected `[plans]` with `by`: the part of a request that says its plan";
            self.cx
                .error(&plan.span, "the limit has `plans`, and the file has no [plans]", expected)
                .help("add `[plans]` with `by = \"header:x-plan\"` below it");
        }
    }

    /// A rule that no limit uses, a default that no limit names, and a plan that strangers can write.
    pub(super) fn doubtful_plans(&self) {
        let Some(plans) = &self.plans else { return };
        let named = self.drafts().flat_map(|draft| &draft.plans);
        let named: BTreeSet<_> = named.map(|PlanDraft { name, .. }| name.as_str()).collect();
        if named.is_empty() {
            let expected = "expected `plans` in a limit, as in `plans = { pro = \"600/m\" }`";
            self.cx.warning(&plans.span, "no limit has `plans`", expected);
            return;
        }
        let names = Names::new("plans", named.iter().copied());
        if let Some((name, span)) = &plans.default
            && names.index(name.as_str()).is_none()
        {
            let title = format!("no limit names the plan \"{name}\"");
            self.cx.warning(span, title, names.instead(Some(name.as_str())));
        }
        // Requests cannot choose a plan of a plans file.
        if let Some((file, span)) = &plans.file {
            if file.table().lines() == 0 {
                let title =
                    format!("{} has no line, and gives nobody a plan", file.path().display());
                self.cx.warning(span, title, "expected a value and its plan in each line");
            }
            for warning in file.unnamed(|plan| names.index(plan).is_some()) {
                self.cx.warning(span, warning, "expected this plan in the `plans` of a limit");
            }
            return;
        }
        let Some((by, span)) = &plans.by else { return };
        let is_written = |source: &&KeySource| {
            matches!(source, KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_))
        };
        if let Some(source) = by.sources.iter().flat_map(KeySource::alternatives).find(is_written)
            && self.server.trust.networks.is_empty()
        {
            let title = format!("the plan is read from `{source}`, which anybody can write");
            self.cx.warning(span, title, WRITERS);
        }
    }

    /// Costs in a header that strangers can write.
    pub(super) fn costs_of_strangers(&self) {
        if !self.server.trust.networks.is_empty() {
            return;
        }
        let limits = self.limits.iter();
        let own = limits.filter_map(|limit| Some((&limit.value.as_ref()?.spec.cost, &limit.span)));
        let lists = self.routes.iter().flat_map(|route| &route.limits).chain(&self.everywhere);
        let of_routes = lists.filter_map(|used| Some((used.cost.as_ref()?, &used.span)));
        for (cost, span) in own.chain(of_routes) {
            if let CostSpec::Header { name, .. } = cost {
                let title = format!("the cost is read from `{name}`, which anybody can write");
                self.cx.warning(span, title, WRITERS);
            }
        }
    }
}
