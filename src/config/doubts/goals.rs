//! What routes and upstreams say about an upstream that is full, and whether it does what was meant.

use std::time::Duration;

use super::upstream_of;
use crate::config::assembly::Sections;
use crate::config::reader::{Span, Spelled as _};
use crate::config::section::route::RouteDraft;
use crate::request::key::KeySource;
use crate::settings::{Priority, UpstreamSpec};

/// A goal below this is near to what the network and this process take.
const SHORT: Duration = Duration::from_millis(20);

impl Sections<'_> {
    /// Options of routes for a full upstream, where their upstream is never full in this way.
    pub(super) fn goals_without_meaning(&self) {
        for route in self.routes.iter().filter(|route| route.action.is_some()) {
            let upstream = upstream_of(route).and_then(|index| self.upstreams.get(index));
            // An upstream with an error is missing here.
            if upstream.is_some_and(|upstream| upstream.value.is_none()) {
                continue;
            }
            let max_requests = upstream.and_then(|it| it.value.as_ref()?.max_requests);
            let has_goal = max_requests.is_some_and(|it| it.goal().is_some());
            let title = |field| format!("`{field}` means nothing here");
            let is_told = max_requests.is_none() && route.options.priority != Priority::Normal;
            if let Some(span) = route.priority_span.as_ref().filter(|_| is_told) {
                let expected = "expected `max_requests` in the route's upstream: nobody waits";
                self.cx.error(span, title("priority"), expected);
            }
            if let Some(span) = route.goal_span.as_ref().filter(|_| !has_goal) {
                let expected = "expected a goal in the route's upstream";
                self.cx
                    .error(span, title("slower_than"), expected)
                    .help("set `max_requests = { slower_than = \"300ms\" }` there");
            }
        }
    }

    pub(super) fn doubtful_goals(&self) {
        for (index, upstream) in self.upstreams.iter().enumerate() {
            let Some(spec) = &upstream.value else { continue };
            let span = &upstream.span;
            if let Some(goal) = spec.max_requests.as_ref().and_then(|it| it.goal()) {
                self.goal(span, goal.slower_than, spec.response_timeout);
            }
            self.shares_of_strangers(span, spec);
            let routes = self.routes.iter().filter(|route| upstream_of(route) == Some(index));
            let routes: Vec<&RouteDraft> = routes.collect();
            for route in &routes {
                let timeout = route.options.response_timeout.unwrap_or(spec.response_timeout);
                if let Some((span, goal)) = route.goal_span.as_ref().zip(route.options.slower_than)
                {
                    self.goal(span, goal, timeout);
                }
            }
            let stated = routes
                .iter()
                .find_map(|route| Some((route.priority_span.as_ref()?, route.options.priority)));
            if let Some((span, priority)) = stated
                && priority != Priority::Normal
                && routes.iter().all(|route| route.options.priority == priority)
            {
                let name = &upstream.name;
                let word = priority.spelling();
                let title = format!("all routes of the upstream \"{name}\" are \"{word}\"");
                self.cx.warning(span, title, "expected different ones: nobody goes before others");
            }
        }
    }

    fn goal(&self, span: &Span, goal: Duration, response_timeout: Duration) {
        if goal >= response_timeout {
            let title = "the goal `slower_than` is not below `response_timeout`";
            let expected = "expected a shorter one: such a request fails before it is slow";
            self.cx.warning(span, title, expected);
        } else if goal < SHORT {
            let title = "the goal `slower_than` is under 20 ms";
            let expected = "expected twice the slowest hundredth of the healthy API";
            self.cx.warning(span, title, expected);
        }
    }

    /// Each key that a client invents would get a share of its own.
    fn shares_of_strangers(&self, span: &Span, spec: &UpstreamSpec) {
        let sources = spec.share_by.iter().flat_map(|key| &*key.sources);
        let written = sources.flat_map(KeySource::alternatives).find(|source| {
            matches!(source, KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_))
        });
        if let Some(source) = written.filter(|_| self.server.trust.networks.is_empty()) {
            let title = format!("`share_by` goes by `{source}`, which anybody can write");
            self.cx
                .warning(span, title, "whoever invents many values gets a share for each of them")
                .help("use `ip`, `cert` or `jwt:CLAIM`, or name your proxies: `trusted_proxies` in [server]");
        }
    }
}
