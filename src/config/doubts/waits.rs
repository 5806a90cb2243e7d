//! Doubts about limits of one route that hold requests.

use std::collections::BTreeSet;

use crate::config::reader::{Context, Span};
use crate::limit::Mode;
use crate::limit::waiting::MaxWait;
use crate::plan::{LimitSpec, RouteSpec};

/// Warns of each pair of limits of a route that hold requests. A request goes at the latest of their moments, and each
/// limit has counted it at its own. `spans` has the places of the limits' names.
pub(crate) fn check<'r>(
    cx: &Context<'_>,
    limits: &[LimitSpec],
    spans: &[Span],
    routes: impl Iterator<Item = &'r RouteSpec>,
) {
    let mut told = BTreeSet::new();
    for route in routes {
        let places = route.limits.iter().filter_map(|place| usize::try_from(*place).ok());
        let held: Vec<_> = places
            .filter_map(|place| Some((place, limits.get(place)?, spans.get(place)?)))
            .filter(|(_, limit, _)| limit.mode == Mode::Enforce && limit.wait > MaxWait::NONE)
            .collect();
        for (rank, one) in held.iter().enumerate() {
            for other in held.iter().skip(rank + 1) {
                let (first, second) = if one.0 < other.0 { (one, other) } else { (other, one) };
                if told.insert((first.0, second.0)) {
                    warn(cx, (first.1, first.2), (second.1, second.2));
                }
            }
        }
    }
}

fn warn(
    cx: &Context<'_>,
    (first, span): (&LimitSpec, &Span),
    (second, related): (&LimitSpec, &Span),
) {
    let (one, other) = (&first.name, &second.name);
    cx.warning(
        span,
        format!("\"{one}\" and \"{other}\" hold requests, and each counts them at its own moment"),
        "what one of them held may reach the API all at once, faster than the other's rate",
    )
    .related(related, "the other one")
    .help(
        "set `wait = \"0s\"` in one of them; the API then gets no more than the rate of the one that holds"
            .to_owned(),
    );
}
