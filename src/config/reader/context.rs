//! The state that all readers of a file share.

use std::cell::RefCell;
use std::path::Path;

use super::problem::Problem;

/// The state that all readers of a file share: text, folder, environment, and the problems so far.
pub(in crate::config) struct Context<'c> {
    pub(in crate::config) source: &'c str,
    /// A relative path in the text starts at this folder.
    pub(in crate::config) folder: &'c Path,
    pub(in crate::config) env: &'c dyn Fn(&str) -> Option<String>,
    problems: RefCell<Vec<Problem>>,
}

impl<'c> Context<'c> {
    pub(in crate::config) fn new(
        source: &'c str,
        folder: &'c Path,
        env: &'c dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self { source, folder, env, problems: RefCell::new(Vec::new()) }
    }

    pub(in crate::config) fn note(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(in crate::config) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}
