//! The state that all readers of a file share.

use std::cell::{Cell, RefCell};
use std::path::Path;

use super::problem::{Problem, Severity, Span, line_starts};
use crate::request::network::ClientPrefixes;

/// The text, its folder, the environment, and the problems so far.
pub(crate) struct Context<'c> {
    pub(crate) source: &'c str,
    /// A relative path in the text starts at this folder.
    pub(crate) folder: &'c Path,
    pub(crate) env: &'c dyn Fn(&str) -> Option<String>,
    /// The networks by which clients are counted, and whether keys have paths in their loose form: what `[server]` says.
    /// The sections with keys are read after it.
    pub(crate) key_form: Cell<(ClientPrefixes, bool)>,
    problems: RefCell<Vec<Problem>>,
    /// How many of the problems are errors.
    errors: Cell<usize>,
    /// Where each line starts.
    starts: Vec<usize>,
}

impl<'c> Context<'c> {
    pub(crate) fn new(
        source: &'c str,
        folder: &'c Path,
        env: &'c dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self {
            source,
            folder,
            env,
            key_form: Cell::default(),
            problems: RefCell::default(),
            errors: Cell::default(),
            starts: line_starts(source),
        }
    }

    /// Notes an error at a position: what was found there, and what was expected.
    pub(crate) fn error(
        &self,
        span: &Span,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> NotedProblem<'_> {
        self.note(Problem::error(span.clone(), title, expected))
    }

    /// Notes a warning at a position.
    pub(crate) fn warning(
        &self,
        span: &Span,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> NotedProblem<'_> {
        self.note(Problem::error(span.clone(), title, expected).into_warning())
    }

    pub(crate) fn note(&self, problem: Problem) -> NotedProblem<'_> {
        if problem.severity == Severity::Error {
            self.errors.set(self.errors.get() + 1);
        }
        let mut problems = self.problems.borrow_mut();
        problems.push(problem);
        NotedProblem { problems: &self.problems, index: problems.len() - 1 }
    }

    /// The number of the line where `span` begins, from 1.
    pub(crate) fn line(&self, span: &Span) -> usize {
        self.starts.partition_point(|start| *start <= span.start)
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors.get() > 0
    }

    /// What `read` returns, and whether it noted no error.
    pub(crate) fn watched<T>(&self, read: impl FnOnce() -> T) -> (T, bool) {
        let before = self.errors.get();
        let value = read();
        (value, self.errors.get() == before)
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}

/// A problem that was noted. More can be said about it.
pub(crate) struct NotedProblem<'c> {
    problems: &'c RefCell<Vec<Problem>>,
    index: usize,
}

impl NotedProblem<'_> {
    /// Adds another position that explains the problem.
    pub(crate) fn related(self, span: &Span, label: impl Into<String>) -> Self {
        self.change(|problem| problem.related = Some((span.clone(), label.into())))
    }

    /// Adds advice what to do.
    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        self.change(|problem| problem.help = Some(help.into()))
    }

    /// Says whether the line of the file may hold a secret, and must not be shown.
    pub(super) fn secret(self, secret: bool) -> Self {
        self.change(|problem| problem.secret = secret)
    }

    fn change(self, change: impl FnOnce(&mut Problem)) -> Self {
        if let Some(problem) = self.problems.borrow_mut().get_mut(self.index) {
            change(problem);
        }
        self
    }
}
