//! `[plans]`: which plan a request has. The figures of a plan stand in the `plans` of limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::key::key_source;
use super::values::{file_fault, named_file};
use crate::config::reader::{
    Item, Kind, Required, Section, SettingList, Shape, Span, Words, field, fields,
};
use crate::limit::name::Name;
use crate::plans::{PlanFile, PlanRule};
use crate::request::key::{KeySpec, Missing};
use crate::settings::JwtSpec;

pub(crate) static PLANS: Shape = Shape::new("[plans]", || fields(SETTINGS));

#[rustfmt::skip]
static SETTINGS: SettingList<()> = &[
    field("by", Kind::KEY_SOURCE, Required,
        "the part of a request that names its plan, written as a part of a limit's `key`: `\"header:x-plan\"`"),
    field("jwt", Kind::NAME, Words("the first `[jwt.NAME]` table"),
        "whose tokens may say a plan, if `by` reads a claim: a token of another table has no plan"),
    field("file", Kind::Text, Words("none"),
        "a file with a value of `by`, its plan, and perhaps a name in each line; then `by` names the customer. Read again when it changes"),
    field("default", Kind::NAME, Words("none"),
        "the plan of a request without a plan, or with one that no limit names"),
];

/// `[plans]`, with the positions that later checks need.
#[derive(Default)]
pub(crate) struct PlansDraft {
    pub(crate) span: Span,
    /// `None` if it is wrong.
    pub(crate) by: Option<(KeySpec, Span)>,
    /// The name of a `[jwt.NAME]`.
    pub(crate) jwt: Option<(Name, Span)>,
    pub(crate) file: Option<(PlanFile, Span)>,
    pub(crate) default: Option<(Name, Span)>,
}

/// `[plans]`. `None` if the file has none, and none is misspelt.
pub(crate) fn build(root: &mut Section<'_>) -> Option<PlansDraft> {
    let (prefixes, loose_paths) = root.cx.key_form.get();
    let Some(item) = root.take("plans") else {
        return root.is_misspelt("plans").then(PlansDraft::default);
    };
    let mut draft = PlansDraft { span: item.span.clone(), ..PlansDraft::default() };
    let Some(mut section) = item.section(&PLANS, PLANS.title) else { return Some(draft) };
    let by = section.require("by", "\"header:x-plan\"");
    draft.by = by.and_then(|item| {
        let sources = vec![key_source(&item)?].into();
        Some((KeySpec { sources, missing: Missing::Skip, prefixes }, item.span))
    });
    let by = draft.by.as_ref().map(|(by, _)| by);
    let file = section.take("file").zip(by);
    draft.file = file.and_then(|(item, by)| Some((file_of(&item, by, loose_paths)?, item.span)));
    let mut name = |field, expected| {
        let item = section.take(field)?;
        let name = item.form(expected, Name::new)?;
        Some((name, item.span))
    };
    draft.jwt = name("jwt", "expected the name of a table `[jwt.NAME]`");
    draft.default = name("default", NAME);
    section.finish();
    Some(draft)
}

const NAME: &str = "expected the name of a plan: 1 to 64 letters, digits, `_`, `.` or `-`";

fn file_of(item: &Item<'_>, by: &KeySpec, loose_paths: bool) -> Option<PlanFile> {
    const EXPECTED: &str = "expected the name of a file with a value and a plan in each line";
    let path = named_file(item, EXPECTED)?;
    match PlanFile::open(path.clone(), by, loose_paths) {
        Ok(file) => Some(file),
        Err(error) => {
            file_fault(item, &path, &format!(": {error}"), error.advice());
            None
        }
    }
}

impl PlansDraft {
    /// How the plan of a request is found. `named` are the plans that limits name, and `tables` the `[jwt.NAME]`.
    pub(crate) fn rule(self, named: BTreeSet<Name>, tables: &[Arc<JwtSpec>]) -> Option<PlanRule> {
        let (file, default) = (self.file.map(|it| it.0), self.default.map(|it| it.0));
        let is_it = |(name, _): &(Name, Span)| tables.iter().position(|table| table.name == *name);
        let jwt = self.jwt.as_ref().and_then(is_it).unwrap_or_default();
        let issuer = tables.get(jwt).and_then(|table| table.named_of(tables.len()));
        Some(PlanRule { by: self.by?.0, jwt, issuer, file, default, named })
    }
}
