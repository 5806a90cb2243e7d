//! All routes, found by a tree of segments.
//!
//! A request visits the nodes whose path so far matches its own, literal before parameter before
//! rest, until a route's conditions hold. So it costs what its own path is long, not what the file
//! is long: 10,000 routes are a larger hash map. Each node is visited once at most, however the
//! walk turns back.

use std::ops::ControlFlow;

use hashbrown::HashMap;
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use super::conditions::{Conditions, HostPattern};
use super::params::Params;
use super::pattern::{Pattern, Segment};
use crate::request::path::NormalPath;

/// All routes, for finding one.
#[derive(Debug, Default)]
pub struct Table {
    /// The first is the root.
    nodes: Vec<Node>,
    /// In the order in which those of one path are tried.
    routes: Vec<Entry>,
}

/// A route that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'p> {
    /// Its place in the list that the table was built from.
    pub route: usize,
    /// The path's parameters.
    pub params: Params<'p>,
}

/// Why no route was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// None matches.
    NotFound,
    /// Routes match but for the method; these would do, without repetition, sorted.
    MethodNotAllowed(Vec<Method>),
}

/// A route that can never match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shadowed {
    /// Its place in the list that the table was built from.
    pub route: usize,
    /// The place of the route that is tried before it and takes all of its requests.
    pub by: usize,
}

#[derive(Debug)]
struct Entry {
    pattern: Pattern,
    conditions: Conditions,
    place: usize,
}

/// Small, and with its lists inside: of ten thousand routes hardly any is in a processor's cache, and
/// each piece of memory that a request has to look at is waited for.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Text, usize>,
    param: Option<usize>,
    /// Routes whose path ends here.
    end: Leaf,
    /// Routes whose `{*rest}` begins here.
    rest: Leaf,
}

/// The routes of one path, by their host, so that a table of a thousand hosts is searched as
/// quickly as one of ten. Places in [`Table::routes`], each list in ascending order.
#[derive(Debug, Default)]
struct Leaf {
    any: Places,
    /// Most routes name no host.
    hosts: Option<Box<Hosts>>,
}

#[derive(Debug, Default)]
struct Hosts {
    exact: HashMap<Text, Places>,
    below: HashMap<Text, Places>,
}

/// Text of the configuration, so that it needs no hash that is safe from those who choose it.
type Text = SmallVec<[u8; 24]>;

/// Places in [`Table::routes`], in ascending order.
type Places = SmallVec<[usize; 2]>;

/// What a request's candidates are narrowed by before their other conditions are looked at.
#[derive(Clone, Copy)]
struct Target<'t> {
    path: &'t str,
    host: &'t str,
}

impl Table {
    /// The table of these routes, each known by its place.
    pub fn new(routes: &[(Pattern, Conditions)]) -> Self {
        let mut order: Vec<_> = routes.iter().enumerate().collect();
        order.sort_by_key(|(place, (_, conditions))| conditions.rank(*place));
        let mut table = Self { nodes: vec![Node::default()], routes: Vec::new() };
        for (place, (pattern, conditions)) in order {
            table.insert(Entry { pattern: pattern.clone(), conditions: conditions.clone(), place });
        }
        table
    }

    /// The most specific route whose pattern and conditions the request meets; `host` is in its
    /// normal form.
    ///
    /// # Errors
    /// Where there is none.
    pub fn find<'p>(
        &'p self,
        path: &'p NormalPath<'_>,
        method: &Method,
        host: &str,
        headers: &HeaderMap,
    ) -> Result<Match<'p>, NoRoute> {
        let target = Target { path: path.matching(), host };
        let found = self.walk(target, &mut |entry| {
            let conditions = &entry.conditions;
            match conditions.allow_method(method) && conditions.allow_headers(headers) {
                true => ControlFlow::Break(entry),
                false => ControlFlow::Continue(()),
            }
        });
        match found {
            ControlFlow::Break(entry) => {
                Ok(Match { route: entry.place, params: Params::of(&entry.pattern, path) })
            }
            ControlFlow::Continue(()) => Err(self.why_none(target, headers)),
        }
    }

    /// The places of all routes whose path and host the request has, in the order in which they
    /// are tried: for telling somebody why one was found.
    pub fn candidates(&self, path: &NormalPath<'_>, host: &str) -> Vec<usize> {
        let mut candidates = Vec::new();
        let _: ControlFlow<()> = self.walk(Target { path: path.matching(), host }, &mut |entry| {
            candidates.push(entry.place);
            ControlFlow::Continue(())
        });
        candidates
    }

    /// The routes that can never match, in the list's order.
    ///
    /// Only a route with the same path can stand in the way: one whose path matches more is tried
    /// later.
    pub fn shadowed(&self) -> Vec<Shadowed> {
        let mut shadowed = Vec::new();
        for leaf in self.nodes.iter().flat_map(|node| [&node.end, &node.rest]) {
            for later in leaf.all().filter_map(|place| Some((place, self.routes.get(place)?))) {
                shadowed.extend(self.shadow_of(leaf, later));
            }
        }
        shadowed.sort_unstable();
        shadowed
    }

    fn shadow_of(&self, leaf: &Leaf, (place, later): (usize, &Entry)) -> Option<Shadowed> {
        let host = match &later.conditions.host {
            Some(HostPattern::Exact(host) | HostPattern::Below(host)) => host,
            None => "",
        };
        let found = leaf.visit(host, &mut |candidate| match self.routes.get(candidate) {
            Some(earlier) if candidate < place && earlier.conditions.cover(&later.conditions) => {
                ControlFlow::Break(Shadowed { route: later.place, by: earlier.place })
            }
            _ => ControlFlow::Continue(()),
        });
        found.break_value()
    }

    fn why_none(&self, target: Target<'_>, headers: &HeaderMap) -> NoRoute {
        let mut allowed: Vec<Method> = Vec::new();
        let _: ControlFlow<()> = self.walk(target, &mut |entry| {
            if entry.conditions.allow_headers(headers) {
                allowed.extend(entry.conditions.methods.iter().cloned());
            }
            ControlFlow::Continue(())
        });
        if allowed.is_empty() {
            return NoRoute::NotFound;
        }
        allowed.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        allowed.dedup();
        NoRoute::MethodNotAllowed(allowed)
    }

    fn insert(&mut self, entry: Entry) {
        let route = self.routes.len();
        let mut here = 0;
        for segment in entry.pattern.segments() {
            let next = self.nodes.len();
            let Some(node) = self.nodes.get_mut(here) else { return };
            here = match segment {
                Segment::Literal(text) => {
                    *node.literals.entry(text.as_bytes().into()).or_insert(next)
                }
                Segment::Param(_) => *node.param.get_or_insert(next),
                Segment::Rest(_) => {
                    node.rest.insert(route, entry.conditions.host.as_ref());
                    self.routes.push(entry);
                    return;
                }
            };
            if here == next {
                self.nodes.push(Node::default());
            }
        }
        if let Some(node) = self.nodes.get_mut(here) {
            node.end.insert(route, entry.conditions.host.as_ref());
            self.routes.push(entry);
        }
    }

    /// Shows the routes whose path and host match to `visit`, the most specific first.
    fn walk<'t, B>(
        &'t self,
        target: Target<'_>,
        visit: &mut impl FnMut(&'t Entry) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut visit = |place: usize| match self.routes.get(place) {
            Some(entry) => visit(entry),
            None => ControlFlow::Continue(()),
        };
        match (self.nodes.first(), target.path.strip_prefix('/')) {
            (Some(root), Some(path)) => self.descend(root, Some(path), target.host, &mut visit),
            _ => ControlFlow::Continue(()),
        }
    }

    /// `path` is what is left of it, without the slash in front; `None` where nothing is. No deeper
    /// than [`Pattern::MAX_SEGMENTS`].
    fn descend<B>(
        &self,
        node: &Node,
        path: Option<&str>,
        host: &str,
        visit: &mut impl FnMut(usize) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(path) = path else { return node.end.visit(host, visit) };
        let (segment, left) = match path.split_once('/') {
            Some((segment, left)) => (segment, Some(left)),
            None => (path, None),
        };
        let literal = node.literals.get(segment.as_bytes()).copied();
        let param = node.param.filter(|_| !segment.is_empty());
        for child in [literal, param].into_iter().flatten() {
            if let Some(child) = self.nodes.get(child) {
                self.descend(child, left, host, visit)?;
            }
        }
        node.rest.visit(host, visit)
    }
}

impl Leaf {
    fn insert(&mut self, route: usize, host: Option<&HostPattern>) {
        let Some(host) = host else { return self.any.push(route) };
        let hosts = self.hosts.get_or_insert_default();
        match host {
            HostPattern::Exact(host) => hosts.exact.entry(host.as_bytes().into()),
            HostPattern::Below(end) => hosts.below.entry(end.as_bytes().into()),
        }
        .or_default()
        .push(route);
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        let hosts =
            self.hosts.iter().flat_map(|hosts| hosts.exact.values().chain(hosts.below.values()));
        self.any.iter().chain(hosts.flatten()).copied()
    }

    /// Shows the routes whose host matches to `visit`, in ascending order.
    fn visit<B>(
        &self,
        host: &str,
        visit: &mut impl FnMut(usize) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(hosts) = &self.hosts else { return self.any.iter().copied().try_for_each(visit) };
        let mut lists: SmallVec<[&[usize]; 6]> = SmallVec::new();
        lists.push(&self.any);
        lists.extend(hosts.exact.get(host.as_bytes()).map(Places::as_slice));
        if !hosts.below.is_empty() {
            let ends = host.match_indices('.').filter_map(|(dot, _)| host.get(dot..));
            let below = ends.filter_map(|end| hosts.below.get(end.as_bytes()));
            lists.extend(below.map(Places::as_slice));
        }
        while let Some(list) = lists.iter_mut().filter(|l| !l.is_empty()).min_by_key(|l| l.first())
            && let Some((&first, rest)) = list.split_first()
        {
            *list = rest;
            visit(first)?;
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
