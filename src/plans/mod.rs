//! Plans: what a customer has bought. A limit may have other figures for each plan.
//!
//! `table` has the lines of `plans.file`, and `file` reads the file again when it changes.

mod file;
mod table;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) use self::file::{MANY, PlanFile};
pub(crate) use self::table::{PlanLine, PlanLineCounts};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::request::key::{KeyError, KeySource, KeySpec, Token, TokenReading, View};

/// `[plans]`: how the plan of a request is found.
#[derive(Debug)]
pub(crate) struct PlanRule {
    /// The part of a request that names its plan. With a file, the part that names the customer.
    pub(crate) by: KeySpec,
    /// The place in the file, from 0, of the `[jwt.NAME]` whose tokens may say a plan.
    pub(crate) jwt: usize,
    /// The name of that table in keys. `None` if the file has no other table.
    pub(crate) issuer: Option<Arc<str>>,
    /// Who has which plan.
    pub(crate) file: Option<PlanFile>,
    /// The plan of a request without a plan, or with one that no limit names.
    pub(crate) default: Option<Name>,
    /// The plans that limits name.
    pub(crate) named: BTreeSet<Name>,
}

/// The token of a request, if this table has verified it. A token of another table counts as none.
struct TableToken<'r> {
    token: Token<'r>,
    table: usize,
}

impl Deref for TableToken<'_> {
    type Target = TokenReading;

    fn deref(&self) -> &TokenReading {
        match &**self.token.0 {
            TokenReading::Verified(claims) if claims.table != self.table => &TokenReading::Absent,
            reading => reading,
        }
    }
}

/// The plan of a request.
#[derive(Debug)]
pub(crate) struct RequestPlan<'r> {
    /// The part of the request that names the plan.
    pub(crate) by: &'r KeySpec,
    /// Its name. `None` if each limit counts the request by its own figures.
    pub(crate) name: Option<&'r Name>,
    /// Whether the plan is `plans.default`.
    pub(crate) is_default: bool,
    /// The line of the file for the customer.
    pub(crate) line: Option<PlanLine>,
}

impl PlanRule {
    /// The plan of a request.
    ///
    /// # Errors
    /// If the part that names the plan comes twice or can be read in two ways.
    pub(crate) fn plan(&self, request: &View<'_>) -> Result<RequestPlan<'_>, KeyError> {
        Ok(self.of_key(self.key(request)?.as_ref()))
    }

    /// The part of a request that names its plan. `None` if the request lacks it.
    ///
    /// # Errors
    /// If the part comes twice or can be read in two ways.
    pub(crate) fn key(&self, request: &View<'_>) -> Result<Option<Key>, KeyError> {
        let token = TableToken { token: request.token, table: self.jwt };
        let key = self.by.key(&View { token: Token(&token), ..*request })?;
        Ok(key.filter(|key| !key.is_absent()))
    }

    /// The plan of a request whose part is this key. `None` if it lacks the part.
    pub(crate) fn of_key(&self, key: Option<&Key>) -> RequestPlan<'_> {
        let key = key.and_then(|key| self.as_of_one_table(key));
        let key = key.as_deref();
        let (mut line, mut value) = (None, None);
        match &self.file {
            Some(file) => line = key.and_then(|key| file.table().find(&self.by, key)),
            None => value = key.and_then(|key| key.values().next()?),
        }
        let said = match &line {
            Some(line) => Some(line.plan()),
            None => value.as_deref().and_then(|value| std::str::from_utf8(value).ok()),
        };
        let plan = self.named(said);
        RequestPlan { line, ..plan }
    }

    /// The plan with this name. Without a name, or for an unknown one, it is the default plan.
    pub(crate) fn named(&self, said: Option<&str>) -> RequestPlan<'_> {
        let said = said.and_then(|said| self.named.get(said));
        let name = said.or(self.default.as_ref());
        let is_default = said.is_none() && name.is_some();
        RequestPlan { by: &self.by, name, is_default, line: None }
    }

    /// The key as if the file had no other table: the lines of `plans.file` name none. `None` if another table than that
    /// of this rule has verified the token.
    fn as_of_one_table<'k>(&self, key: &'k Key) -> Option<Cow<'k, Key>> {
        let (index, value) = key.parts().next()?;
        let source = self.by.sources.first()?.alternatives().get(index)?;
        let (KeySource::Jwt(_), Some(issuer), Some(value)) = (source, &self.issuer, value) else {
            return Some(Cow::Borrowed(key));
        };
        let value = value.strip_prefix(issuer.as_bytes())?.strip_prefix(b":")?;
        Some(Cow::Owned(Key::of_parts([(index, Some(value))])))
    }

    /// The plan of the requests that a limit counts under this key. `None` if they may have different plans.
    pub(crate) fn of_limit_key(&self, limit: &KeySpec, key: &Key) -> Option<RequestPlan<'_>> {
        if limit.sources == self.by.sources {
            return Some(self.of_key(Some(key)));
        }
        // The parts whose values the key has, and those that its requests lack.
        let mut told = Vec::new();
        for (part, (index, value)) in limit.sources.iter().zip(key.parts()) {
            let sources = part.alternatives();
            let lacks = if value.is_some() { index } else { sources.len() };
            told.extend(sources.iter().take(lacks).map(|source| (source, None)));
            told.extend(sources.get(lacks).map(|source| (source, value)));
        }
        // Perhaps the token does not verify. Then no other secret was looked for.
        let is_unsure = told.iter().any(|it| matches!(it, (KeySource::Jwt(_), None)));
        for (index, source) in self.by.sources.first()?.alternatives().iter().enumerate() {
            match told.iter().find(|(part, _)| *part == source)? {
                (_, Some(value)) => {
                    return Some(self.of_key(Some(&Key::of_parts([(index, Some(value))]))));
                }
                (_, None) if is_unsure => return None,
                (_, None) => {}
            }
        }
        Some(self.of_key(None))
    }
}
