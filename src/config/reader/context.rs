//! The state that all readers of a file share.

use std::cell::RefCell;
use std::path::Path;

use super::problem::{Problem, Severity, Span};

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

    /// Notes an error at a place: what was found there, and what was expected.
    pub(in crate::config) fn error(
        &self,
        span: &Span,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> Noted<'_> {
        self.note(Problem::error(span.clone(), title, expected))
    }

    /// Notes a warning at a place.
    pub(in crate::config) fn warning(
        &self,
        span: &Span,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> Noted<'_> {
        self.note(Problem::error(span.clone(), title, expected).into_warning())
    }

    pub(in crate::config) fn note(&self, problem: Problem) -> Noted<'_> {
        let mut problems = self.problems.borrow_mut();
        problems.push(problem);
        Noted { problems: &self.problems, place: problems.len() - 1 }
    }

    pub(in crate::config) fn has_errors(&self) -> bool {
        self.problems.borrow().iter().any(|problem| problem.severity() == Severity::Error)
    }

    pub(in crate::config) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}

/// A problem that was noted. More can be said about it.
pub(in crate::config) struct Noted<'c> {
    problems: &'c RefCell<Vec<Problem>>,
    place: usize,
}

impl Noted<'_> {
    /// Adds another place that explains the problem.
    pub(in crate::config) fn related(self, span: &Span, label: impl Into<String>) -> Self {
        self.change(|problem| problem.related = Some((span.clone(), label.into())))
    }

    /// Adds advice what to do.
    pub(in crate::config) fn help(self, help: impl Into<String>) -> Self {
        self.change(|problem| problem.help = Some(help.into()))
    }

    /// Says whether the line of the file may hold a secret, and must not be shown.
    pub(super) fn secret(self, secret: bool) -> Self {
        self.change(|problem| problem.secret = secret)
    }

    fn change(self, change: impl FnOnce(&mut Problem)) -> Self {
        if let Some(problem) = self.problems.borrow_mut().get_mut(self.place) {
            change(problem);
        }
        self
    }
}
