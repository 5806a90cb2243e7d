//! `[limits.NAME]`.

use std::sync::Arc;

use super::algorithm::{self, AlgorithmChoice};
use super::cost::{self, Bursts};
use super::figures;
use super::server::network_item;
use super::store::STORE_ERRORS;
use super::{
    Named, answer, headers, key, name, named, overrides, redisson, response_cost, waiting,
};
use crate::config::fields::{EXEMPT, LIMIT, REJECT};
use crate::config::file::Section;
use crate::config::problem::Span;
use crate::limit::{Mode, Scope};
use crate::plan::{AnswerSpec, LimitSpec, OnStoreError, StoreLocation};
use crate::request::exempt::{Exempt, Exemptions};
use crate::request::key::{KeySource, KeySpec, Missing};
use crate::request::overrides::Overrides;

/// What a limit has from other sections.
pub(super) struct Inherited<'i> {
    pub(super) ipv6_prefix: u8,
    pub(super) on_store_error: OnStoreError,
    pub(super) reject: &'i AnswerSpec,
    pub(super) store: &'i StoreLocation,
}

/// A limit, and what is only known of its place in the file.
pub(super) struct LimitDraft {
    pub(super) spec: LimitSpec,
    /// Whether routes have it.
    pub(super) on: bool,
    /// The parts of its key with their places.
    pub(super) sources: Vec<(KeySource, Span)>,
    /// Its overrides' parts with their places.
    pub(super) override_spans: Vec<(Vec<crate::request::overrides::Part>, Span)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    On(Mode),
    Off,
}

pub(super) fn build(root: &mut Section<'_>, inherited: &Inherited<'_>) -> Vec<Named<LimitDraft>> {
    let cx = root.cx;
    let built = named(root, "limits", &LIMIT).into_iter().map(|(text, span, section)| {
        let name = name(cx, &text, span.clone());
        let draft = section.and_then(|section| one(section, name, inherited));
        Named { name: text, span, value: draft }
    });
    built.collect()
}

fn one(
    mut section: Section<'_>,
    name: Option<crate::limit::name::Name>,
    inherited: &Inherited<'_>,
) -> Option<LimitDraft> {
    let sources = key::sources(&mut section);
    let missing = section.word(
        "missing",
        &[("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)],
        Missing::Shared,
    );
    let (family, mut limiter) = match algorithm::build(&mut section) {
        AlgorithmChoice::Redisson => (None, Some(redisson::build(&mut section, inherited))),
        AlgorithmChoice::Ours(family) => (family, None),
    };
    if let (Some(_), Some(sources)) = (&limiter, &sources) {
        redisson::refuse_alternatives(&section, sources);
    }
    let figures = match &mut limiter {
        Some(limiter) => limiter.figures.take(),
        None => figures::build(&mut section, family.as_ref()),
    };
    let overrides =
        overrides::build(&mut section, family.as_ref(), sources.as_deref(), inherited.ipv6_prefix);
    let (wait, max_waiting) = waiting::build(&mut section, family.as_ref());
    let candidate = waiting::candidate(&mut section, family.as_ref());
    let bursts: Vec<_> = overrides
        .iter()
        .map(|o| (figures::burst(&o.figures), o.span.clone()))
        .chain(candidate.as_ref().map(|(figures, span)| (figures::burst(figures), span.clone())))
        .collect();
    let own = figures.as_ref().and_then(figures::burst);
    let cost = cost::build(&mut section, family.as_ref(), &Bursts { own, overrides: &bursts });
    if let (Some(figures), Some(cost)) = (&figures, &cost) {
        redisson::bound(&section, figures, cost);
    }
    let count_when = response_cost::count_when(&mut section, family.as_ref());
    let exempt = exempt(&mut section);
    let scope = section.word(
        "scope",
        &[("cluster", Scope::Cluster), ("node", Scope::Node)],
        Scope::Cluster,
    );
    let mode = section.word(
        "mode",
        &[
            ("enforce", Written::On(Mode::Enforce)),
            ("shadow", Written::On(Mode::Shadow)),
            ("off", Written::Off),
        ],
        Written::On(Mode::Enforce),
    );
    let on_store_error = match &limiter {
        Some(limiter) => limiter.on_store_error,
        None => section.word("on_store_error", STORE_ERRORS, inherited.on_store_error),
    };
    let reject = section
        .take("reject")
        .and_then(|item| item.section(&REJECT, "reject"))
        .map(|section| Arc::new(answer::build(section, inherited.reject)));
    section.finish();

    let (name, sources) = (name?, sources?);
    let limiter = match limiter {
        Some(limiter) => Some(limiter.name?),
        None => None,
    };
    let override_spans = overrides.iter().map(|o| (o.parts.clone(), o.span.clone())).collect();
    let mut spec = LimitSpec {
        name,
        key: KeySpec {
            sources: sources.iter().map(|(source, _)| source.clone()).collect::<Vec<_>>().into(),
            missing,
            ipv6_prefix: inherited.ipv6_prefix,
        },
        figures: figures?,
        overrides: Overrides::new(overrides.into_iter().map(|o| (o.parts, o.figures)).collect()),
        cost: cost?,
        wait,
        max_waiting,
        candidate: None,
        count_when: count_when?.map(Box::new),
        exempt,
        mode: match mode {
            Written::On(mode) => mode,
            Written::Off => Mode::Enforce,
        },
        scope,
        on_store_error,
        reject,
        limiter,
    };
    spec.candidate = candidate.map(|(figures, _)| Arc::new(waiting::trying(&spec, figures)));
    Some(LimitDraft { spec, on: mode != Written::Off, sources, override_spans })
}

fn exempt(section: &mut Section<'_>) -> Exempt {
    let inner = section.take("exempt").and_then(|item| item.section(&EXEMPT, "exempt"));
    let Some(mut inner) = inner else { return Exempt::default() };
    let exempt = Exemptions {
        networks: inner.list("ip").iter().filter_map(network_item).collect(),
        paths: inner.list("path").iter().filter_map(super::route::pattern).collect(),
        headers: headers::values(&mut inner, "header"),
    };
    inner.finish();
    exempt.into()
}
