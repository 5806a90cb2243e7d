//! Doubts about limits of one route that hold requests.

use std::collections::BTreeSet;

use super::Whole;
use crate::limit::Mode;
use crate::limit::waiting::MaxWait;

impl Whole<'_> {
    /// Pairs of limits of one route that both hold requests. Each limit counts a request at the moment for which it
    /// holds the request. The request itself goes at the later of the two moments.
    pub(super) fn limits_that_hold(&self) {
        let mut reported = BTreeSet::new();
        // A request without a route meets the limits of `[server]` alone.
        let routes = self.routes.iter().map(|route| route.limits.as_slice());
        for own in routes.chain([&[][..]]) {
            let limits = self.everywhere.iter().chain(own).map(|(limit, _)| *limit);
            let held: BTreeSet<usize> = limits.filter(|limit| self.holds(*limit)).collect();
            for (rank, first) in held.iter().enumerate() {
                for second in held.iter().skip(rank + 1) {
                    if reported.insert((*first, *second)) {
                        self.warn_of_pair(*first, *second);
                    }
                }
            }
        }
    }

    fn holds(&self, limit: usize) -> bool {
        let draft = self.draft(limit).filter(|draft| draft.on && draft.spec.mode == Mode::Enforce);
        draft.is_some_and(|draft| draft.spec.wait > MaxWait::NONE)
    }

    fn warn_of_pair(&self, first: usize, second: usize) {
        let [first, second] = [first, second].map(|limit| &self.limits[limit]);
        let title = format!(
            "\"{}\" and \"{}\" hold requests, and each counts them at its own moment",
            first.name, second.name
        );
        let expected = "requests that one limit has held may reach the API all at once, faster than the rate of the other limit";
        let help = "set `wait = \"0s\"` in one of the two limits; the API then gets requests at most at the rate of the other limit";
        self.cx
            .warning(&first.span, title, expected)
            .related(&second.span, "the other one")
            .help(help);
    }
}
