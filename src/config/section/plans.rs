//! `[plans]`: which plan a request has. The figures of a plan stand in the `plans` of limits.

use std::collections::BTreeSet;

use super::key::key_source;
use crate::config::reader::{
    Item, Kind, Required, Section, Settings, Shape, Span, Words, Wrong, field, fields,
};
use crate::identity::tier::TierRule;
use crate::limit::name::Name;
use crate::request::key::{KeySource, KeySpec, Missing};
use crate::request::network::ClientPrefixes;

pub(crate) static PLANS: Shape = Shape::new("[plans]", || fields(SETTINGS));

#[rustfmt::skip]
static SETTINGS: Settings<()> = &[
    field("by", Kind::KEY_SOURCE, Required,
        "the part of a request that says its plan, written as a part of a limit's `key`: `\"header:x-plan\"`"),
    field("default", Kind::NAME, Words("none"),
        "the plan of a request without a plan, or with one that no limit names"),
];

/// `[plans]`, with the positions that later checks need.
#[derive(Default)]
pub(crate) struct PlansDraft {
    pub(crate) span: Span,
    /// `None` where it is wrong.
    pub(crate) by: Option<(KeySource, Span)>,
    pub(crate) default: Option<(Name, Span)>,
}

/// `[plans]`. `None` where the file has none, and none is misspelt.
pub(crate) fn build(root: &mut Section<'_>) -> Option<PlansDraft> {
    let Some(item) = root.take("plans") else {
        return root.is_misspelt("plans").then(PlansDraft::default);
    };
    let mut draft = PlansDraft { span: item.span.clone(), ..PlansDraft::default() };
    let Some(mut section) = item.section(&PLANS, PLANS.title) else { return Some(draft) };
    let by = section.require("by", "\"header:x-plan\"");
    draft.by = by.and_then(|item| Some((key_source(&item)?, item.span)));
    draft.default = section.take("default").and_then(|item| Some((name(&item)?, item.span)));
    section.finish();
    Some(draft)
}

fn name(item: &Item<'_>) -> Option<Name> {
    const EXPECTED: &str = "expected the name of a plan: 1 to 64 letters, digits, `_`, `.` or `-`";
    item.parse(EXPECTED, |text| Name::new(text).ok_or(Wrong::Expected))
}

impl PlansDraft {
    /// How the plan of a request is found. `named` are the plans that limits name.
    pub(crate) fn rule(&self, prefixes: ClientPrefixes, named: BTreeSet<Name>) -> Option<TierRule> {
        let (source, _) = self.by.clone()?;
        let by = KeySpec { sources: vec![source].into(), missing: Missing::Skip, prefixes };
        let default = self.default.as_ref().map(|(name, _)| name.clone());
        Some(TierRule { by, default, named })
    }
}
