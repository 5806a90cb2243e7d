//! The table of all routes, as a tree of segments.
//!
//! A request visits the nodes that match its path, a literal before a parameter before a rest, until a
//! route's conditions hold. The cost depends on the length of the path, not on the number of routes: 10,000
//! routes only make larger hash maps. Each node is visited at most once, even if the walk turns back.
//!
//! With many routes most of the table is not in the processor's cache, and each cache line costs time. A
//! node is therefore one cache line. A path with one route without conditions needs no other cache line.

mod leaf;
mod methods;

use std::hash::BuildHasher;
use std::ops::ControlFlow;

use hashbrown::{DefaultHashBuilder, HashTable};
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use self::leaf::{ConfigText, Leaf, ListIndex, index, list_index};
use super::conditions::{Conditions, HostPattern};
use super::pattern::{Pattern, Segment};
use crate::request::path::NormalPath;

/// The table that finds a request's route.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// The first node is the root.
    nodes: Vec<Node>,
    /// A leaf for each path that has several routes, or a route with conditions.
    leaves: Vec<Leaf>,
    /// In the order of the list from which the table was built.
    routes: Vec<RouteEntry>,
    /// Whether paths come in their loose form.
    is_loose: bool,
    hasher: DefaultHashBuilder,
}

/// Why no route was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// No route matches.
    NotFound,
    /// Routes match, except for the method. These are their methods, sorted and without repetition.
    MethodNotAllowed(Vec<Method>),
}

/// A route that can never match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shadowed {
    /// The route's index in the list from which the table was built.
    pub(crate) route: usize,
    /// The index of the route that is tried earlier and takes all of these requests.
    pub(crate) by: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct RouteEntry {
    pattern: Pattern,
    conditions: Conditions,
    /// Among the routes of one path, the route with the lowest rank is tried first.
    rank: usize,
}

/// One segment, shared by all paths with the same segments up to here.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Node {
    /// The text of a literal segment; empty for a parameter.
    literal: ConfigText,
    /// The literal segments that may follow. Most nodes have none.
    literals: Option<Box<HashTable<ListIndex>>>,
    param: Option<ListIndex>,
    /// Routes whose path ends here.
    end: Routes,
    /// Routes whose `{*rest}` begins here.
    rest: Routes,
}

/// The routes of one path.
#[derive(Clone, Copy, Debug, Default)]
enum Routes {
    #[default]
    None,
    /// One route without conditions, by its index in [`RouteTable::routes`].
    One(ListIndex),
    /// All other routes, by the leaf's index in [`RouteTable::leaves`].
    Leaf(ListIndex),
}

/// The parts of a request that select candidates. The other conditions of the candidates are checked afterwards.
#[derive(Clone, Copy)]
struct PathTarget<'t> {
    path: &'t str,
    host: &'t str,
    /// `None` selects the candidates whatever their headers.
    headers: Option<&'t HeaderMap>,
}

/// Everything else in a table follows from its routes.
impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.routes == other.routes
    }
}

impl Eq for RouteTable {}

impl RouteTable {
    /// The table of these routes. Its answers name a route by its index in this list.
    pub fn new(routes: Vec<(Pattern, Conditions)>) -> Self {
        let entry = |(pattern, conditions)| RouteEntry { pattern, conditions, rank: 0 };
        let routes: Vec<_> = routes.into_iter().map(entry).collect();
        let mut order: Vec<_> = (0..routes.len()).collect();
        order.sort_by_key(|route| routes[*route].conditions.rank(*route));
        let is_loose = routes.iter().any(|route| route.pattern.is_loose());
        let mut table = Self { nodes: vec![Node::default()], routes, is_loose, ..Self::default() };
        for (rank, route) in order.into_iter().enumerate() {
            table.routes[route].rank = rank;
            table.insert(route);
        }
        table
    }

    /// The path pattern of the route with this index. Panics if the list has no such index.
    pub(crate) fn pattern(&self, route: usize) -> &Pattern {
        &self.routes[route].pattern
    }

    /// The conditions of the route with this index. Panics if the list has no such index.
    pub(crate) fn conditions(&self, route: usize) -> &Conditions {
        &self.routes[route].conditions
    }

    /// The index of the most specific route whose pattern and conditions the request meets. `host` must be in its
    /// normal form.
    ///
    /// # Errors
    /// If no route matches.
    pub fn find(
        &self,
        path: &NormalPath<'_>,
        method: &Method,
        host: &str,
        headers: &HeaderMap,
    ) -> Result<usize, NoRoute> {
        let target = PathTarget { path: path.matching(), host, headers: Some(headers) };
        let found = self.walk(target, &mut |route, conditions| {
            let holds = |conditions: &Conditions| {
                conditions.allow_method(method) && conditions.allow_headers(headers)
            };
            match conditions.is_none_or(holds) {
                true => ControlFlow::Break(route),
                false => ControlFlow::Continue(()),
            }
        });
        found.break_value().ok_or_else(|| match self.methods(path, host, headers) {
            none if none.is_empty() => NoRoute::NotFound,
            allowed => NoRoute::MethodNotAllowed(allowed),
        })
    }

    /// Whether a route without conditions matches the path.
    pub(crate) fn has(&self, path: &NormalPath<'_>) -> bool {
        let target = PathTarget { path: path.matching(), host: "", headers: None };
        self.walk(target, &mut |_, _| ControlFlow::Break(())).is_break()
    }

    /// The indices of all routes that match path and host, in the order in which they are tried. `explain` shows
    /// with them why a route was found.
    pub(crate) fn candidates(&self, path: &NormalPath<'_>, host: &str) -> Vec<usize> {
        let mut candidates = Vec::new();
        let target = PathTarget { path: path.matching(), host, headers: None };
        let _: ControlFlow<()> = self.walk(target, &mut |route, _| {
            candidates.push(route);
            ControlFlow::Continue(())
        });
        candidates
    }

    /// The routes that can never match, in the list's order.
    ///
    /// Only a route with the same path can take all requests of another: a route whose path matches more is
    /// tried later.
    pub(crate) fn shadowed(&self) -> Vec<Shadowed> {
        let mut shadowed = Vec::new();
        for (number, leaf) in self.leaves.iter().enumerate() {
            let beside = Routes::Leaf(list_index(number));
            shadowed.extend(leaf.all().filter_map(|route| self.shadow_of(route, beside)));
        }
        shadowed.sort_unstable();
        shadowed
    }

    fn shadow_of(&self, route: usize, beside: Routes) -> Option<Shadowed> {
        let later = &self.routes[route];
        let host = match &later.conditions.host {
            Some(HostPattern::Exact(host) | HostPattern::Below(host)) => host,
            None => "",
        };
        // An earlier route that covers this one has no other headers than these.
        let headers = later.conditions.headers.iter().cloned().collect();
        let target = PathTarget { path: "", host, headers: Some(&headers) };
        let found = self.visit(beside, target, &mut |candidate, _| {
            let earlier = &self.routes[candidate];
            match earlier.rank < later.rank && earlier.conditions.cover(&later.conditions) {
                true => ControlFlow::Break(Shadowed { route, by: candidate }),
                false => ControlFlow::Continue(()),
            }
        });
        found.break_value()
    }

    /// Adds a route after the routes of the same path that are already in the table.
    fn insert(&mut self, route: usize) {
        let Self { nodes, leaves, routes, hasher, .. } = self;
        let RouteEntry { pattern, conditions, .. } = &routes[route];
        let mut here = 0;
        for segment in pattern.segments() {
            let next = list_index(nodes.len());
            let child = match segment {
                Segment::Literal(text) => {
                    // Taken out of the node, since the closures below read `nodes`.
                    let mut literals = nodes[here].literals.take().unwrap_or_default();
                    let text = text.as_bytes();
                    let is_it = |child: &ListIndex| *nodes[index(*child)].literal == *text;
                    let hash = |child: &ListIndex| hasher.hash_one(&*nodes[index(*child)].literal);
                    let child = literals.entry(hasher.hash_one(text), is_it, hash).or_insert(next);
                    let child = *child.get();
                    nodes[here].literals = Some(literals);
                    child
                }
                Segment::Param(_) => *nodes[here].param.get_or_insert(next),
                Segment::Rest(_) => break,
            };
            if child == next {
                let literal = match segment {
                    Segment::Literal(text) => text.as_bytes(),
                    Segment::Param(_) | Segment::Rest(_) => &[],
                };
                nodes.push(Node { literal: literal.into(), ..Node::default() });
            }
            here = index(child);
        }
        let end = match pattern.segments().last() {
            Some(Segment::Rest(_)) => &mut nodes[here].rest,
            _ => &mut nodes[here].end,
        };
        let leaf = match *end {
            Routes::Leaf(leaf) => index(leaf),
            Routes::None if *conditions == Conditions::default() => {
                *end = Routes::One(list_index(route));
                return;
            }
            Routes::None | Routes::One(_) => {
                let mut leaf = Leaf::default();
                if let Routes::One(first) = *end {
                    leaf.any.push(first);
                }
                *end = Routes::Leaf(list_index(leaves.len()));
                leaves.push(leaf);
                leaves.len() - 1
            }
        };
        leaves[leaf].insert(list_index(route), conditions);
    }

    /// Calls `visit` for each route whose path and host match, the most specific first. The second argument
    /// is the route's conditions; it may be `None` for a route without conditions.
    fn walk<'t, B>(
        &'t self,
        target: PathTarget<'_>,
        visit: &mut impl FnMut(usize, Option<&'t Conditions>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        match (self.nodes.first(), target.path.strip_prefix('/')) {
            (Some(root), Some(path)) => self.descend(root, Some(path), target, visit),
            _ => ControlFlow::Continue(()),
        }
    }

    /// `path` is the rest of the path without its first slash; `None` if the path has ended. The
    /// recursion is no deeper than [`Pattern::MAX_SEGMENTS`].
    fn descend<'t, B>(
        &'t self,
        node: &Node,
        path: Option<&str>,
        target: PathTarget<'_>,
        visit: &mut impl FnMut(usize, Option<&'t Conditions>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(path) = path else {
            self.visit(node.end, target, visit)?;
            // A loose path has lost the slash before an empty rest.
            let rest = if self.is_loose { node.rest } else { Routes::None };
            return self.visit(rest, target, visit);
        };
        let (segment, left) = match path.split_once('/') {
            Some((segment, left)) => (segment, Some(left)),
            None => (path, None),
        };
        let literal = self.literal(node, segment.as_bytes());
        let param = node.param.filter(|_| !segment.is_empty());
        for child in [literal, param].into_iter().flatten() {
            self.descend(&self.nodes[index(child)], left, target, visit)?;
        }
        self.visit(node.rest, target, visit)
    }

    fn literal(&self, node: &Node, segment: &[u8]) -> Option<ListIndex> {
        let literals = node.literals.as_ref()?;
        let is_it = |child: &ListIndex| *self.nodes[index(*child)].literal == *segment;
        literals.find(self.hasher.hash_one(segment), is_it).copied()
    }

    /// Calls `visit` for each of `routes` whose host matches, in the order of the ranks. If the headers of `target`
    /// are known, routes are left out that need another value of a header.
    fn visit<'t, B>(
        &'t self,
        routes: Routes,
        target: PathTarget<'_>,
        visit: &mut impl FnMut(usize, Option<&'t Conditions>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let leaf = match routes {
            Routes::None => return ControlFlow::Continue(()),
            Routes::One(route) => return visit(index(route), None),
            Routes::Leaf(leaf) => &self.leaves[index(leaf)],
        };
        let mut visit = |route: &ListIndex| {
            let route = index(*route);
            let conditions = &self.routes[route].conditions;
            let is_here = |host: &HostPattern| match host {
                HostPattern::Exact(host) => host == target.host,
                HostPattern::Below(end) => target.host.ends_with(end.as_str()),
            };
            match conditions.host.as_ref().is_none_or(is_here) {
                true => visit(route, Some(conditions)),
                false => ControlFlow::Continue(()),
            }
        };
        let Some(indexed) = &leaf.indexed else { return leaf.any.iter().try_for_each(visit) };
        let mut lists: SmallVec<[&[ListIndex]; 6]> = SmallVec::new();
        lists.push(&leaf.any);
        indexed.select(target.host, target.headers, &mut lists);
        let rank = |route: &ListIndex| self.routes[index(*route)].rank;
        while let Some(list) =
            lists.iter_mut().filter(|l| !l.is_empty()).min_by_key(|l| l.first().map(rank))
            && let Some((first, rest)) = list.split_first()
        {
            *list = rest;
            visit(first)?;
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
