//! Doubts about limits of one route that hold requests, each for itself.

use std::collections::BTreeSet;

use crate::config::reader::{Context, Span};
use crate::limit::Scope;
use crate::plan::{LimitSpec, NO_ROUTE, RedisTopology, RouteSpec, StoreLocation, holds};

/// The finished limits with the places of their names, and all routes, that for requests without a route too.
pub(crate) struct LineDoubts<'l> {
    pub(crate) cx: &'l Context<'l>,
    pub(crate) limits: &'l [LimitSpec],
    pub(crate) spans: &'l [Span],
    pub(crate) routes: &'l [&'l RouteSpec],
    pub(crate) store: &'l StoreLocation,
}

impl LineDoubts<'_> {
    /// Warns of each pair once. What one limit of a pair holds, the other has counted before: it may reach the API all
    /// at once.
    pub(crate) fn check(&self) {
        let mut told = BTreeSet::new();
        for route in self.routes {
            let places = route.limits.iter().filter_map(|place| usize::try_from(*place).ok());
            let held: Vec<_> = places
                .filter_map(|place| Some((place, self.limits.get(place)?)))
                .filter(|(_, limit)| holds(limit))
                .collect();
            for (rank, (place, limit)) in held.iter().enumerate() {
                for (other_place, other) in held.iter().skip(rank + 1) {
                    let pair = ((*place).min(*other_place), (*place).max(*other_place));
                    if let Some((reason, remedy)) = self.apart(pair, limit, other)
                        && told.insert(pair)
                    {
                        self.tell(pair, &reason, &remedy);
                    }
                }
            }
        }
    }

    fn tell(&self, (one, other): (usize, usize), reason: &str, remedy: &str) {
        let (Some(first), Some(second)) = (self.limits.get(one), self.limits.get(other)) else {
            return;
        };
        let (Some(span), Some(related)) = (self.spans.get(one), self.spans.get(other)) else {
            return;
        };
        self.cx
            .warning(
                span,
                format!(
                    "\"{}\" and \"{}\" hold requests and do not count them together: {reason}",
                    first.name, second.name
                ),
                "what one of them held may reach the API all at once, faster than the other's rate",
            )
            .related(related, "the other one")
            .help(format!(
                "{remedy}set `wait = \"0s\"` in one of them; the API then gets no more than the rate of the one \
                 that holds"
            ));
    }

    /// Why two limits do not count a held request together, and what may be done. `None` where they do.
    fn apart(
        &self,
        pair: (usize, usize),
        one: &LimitSpec,
        other: &LimitSpec,
    ) -> Option<(String, String)> {
        if let Some(java) = [one, other].into_iter().find(|limit| limit.limiter.is_some()) {
            return Some((format!("Java writes \"{}\" too", java.name), String::new()));
        }
        if one.key.sources != other.key.sources {
            return Some(("they have different keys".to_owned(), String::new()));
        }
        let differ = [
            ("missing", one.key.missing != other.key.missing),
            ("scope", one.scope != other.scope),
            ("exempt", one.exempt != other.exempt),
        ];
        if let Some((field, _)) = differ.into_iter().find(|(_, differs)| *differs) {
            let remedy = format!("give both the same `{field}`, or ");
            return Some((format!("they differ in `{field}`"), remedy));
        }
        if one.line.is_none() || one.line != other.line {
            let remedy = "name both wherever one is named, or ".to_owned();
            return Some((self.alone(pair)?, remedy));
        }
        let in_cluster = match self.store {
            StoreLocation::Redis(redis) => matches!(redis.topology, RedisTopology::Cluster(_)),
            StoreLocation::Memory => false,
        };
        (in_cluster && one.scope == Scope::Cluster && one.key.sources.is_empty()).then(|| {
            let reason = "without a `key` they may be on two servers of the cluster";
            (reason.to_owned(), String::new())
        })
    }

    /// Which route has only one of the two limits.
    fn alone(&self, (one, other): (usize, usize)) -> Option<String> {
        self.routes.iter().find_map(|route| {
            let has = |place| route.limits.iter().any(|it| usize::try_from(*it) == Ok(place));
            let place = match (has(one), has(other)) {
                (true, false) => one,
                (false, true) => other,
                (true, true) | (false, false) => return None,
            };
            let name = &self.limits.get(place)?.name;
            Some(match &*route.name {
                NO_ROUTE => format!("requests without a route meet only \"{name}\""),
                route => format!("the route \"{route}\" has only \"{name}\""),
            })
        })
    }
}
