//! The lines of `plans.file`: who has which plan.
//!
//! There may be a million lines, so the table keeps no value. It has a hash of each value, with a random secret: nobody
//! can make two values with the same hash. The hashes are sorted, and a look-up halves the list until it finds one. A
//! line takes 16 bytes. A line with a name also takes the bytes of its plan and its name.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;

use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::request::key::{KeySource, KeySpec, is_hash};
use crate::request::overrides::{KeyOverrides, Part, of_alternative};
use crate::text::misleads;

/// The most characters of a name. The name of an override has as many.
const LONGEST_NAME: usize = 64;

/// Who has which plan.
#[derive(Default)]
pub(crate) struct PlanTable {
    hasher: RandomState,
    /// Sorted.
    values: Vec<HashedValue>,
    /// The plan of each network: its place in `texts`, and the number of its line.
    networks: KeyOverrides<(u32, u32)>,
    /// Whether a value may be a hash.
    has_hashes: bool,
    /// For each line, its plan, a space, its name if it has one, and a line feed. Lines without a name share the text
    /// of their plan.
    texts: String,
    /// The plans, each with the number of its first line, and the place of the text for lines without a name.
    plans: BTreeMap<Name, (u32, Option<u32>)>,
}

/// A value of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HashedValue {
    hash: u64,
    /// The number of its line.
    line: u32,
    /// The place of its plan in `texts`.
    at: u32,
}

/// A line of the file that fits a request.
#[derive(Clone, Debug)]
pub(crate) struct PlanLine {
    table: Arc<PlanTable>,
    at: u32,
}

/// The lines of the table in force, and those of the table that is to replace it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanLineCounts {
    pub(crate) before: usize,
    pub(crate) now: usize,
}

impl PlanLineCounts {
    pub(super) fn of(before: &PlanTable, now: &PlanTable) -> Self {
        Self { before: before.lines(), now: now.lines() }
    }

    /// Whether one of so many `parts` of the lines is lost, or more.
    pub(crate) fn have_lost_one_of(self, parts: usize) -> bool {
        self.before > 0 && parts * self.now <= (parts - 1) * self.before
    }
}

/// Why a file is no table of plans.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanFileError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A line is wrong. The message shows no value, because a value may be a secret.
    #[error("line {0}: {1}")]
    Line(u32, String),
    /// Half of the lines or more is lost, or all.
    #[error("it has {} lines with a plan, and had {} before", .0.now, .0.before)]
    Cut(PlanLineCounts),
}

impl PlanFileError {
    /// What to do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::Read(_) => "see that the file is there, and that tidegate may read it",
            Self::Cut(_) => "if this is meant, send SIGHUP: then the file is taken as it is",
            Self::Line(..) => {
                "correct it: a line has a value, its plan and perhaps a name, as in `key-of-acme team Acme`"
            }
        }
    }
}

impl PlanTable {
    /// Reads the content of a file. `by` is the part of a request that says who asks. With `loose_paths`, keys have
    /// paths in their loose form.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub(crate) fn read(
        content: &[u8],
        by: &KeySpec,
        loose_paths: bool,
    ) -> Result<Self, PlanFileError> {
        let mut table = Self::default();
        for (number, line) in (1..).zip(content.split(|byte| *byte == b'\n')) {
            let added = table.add(number, line, by, loose_paths);
            added.map_err(|what| PlanFileError::Line(number, what))?;
        }
        table.values.sort_unstable();
        let twins = table.values.windows(2).filter_map(|pair| match pair {
            [one, other] if one.hash == other.hash => Some((other.line, one.line)),
            _ => None,
        });
        if let Some((line, first)) = twins.min() {
            return Err(PlanFileError::Line(line, twice(first)));
        }
        table.values.shrink_to_fit();
        table.texts.shrink_to_fit();
        Ok(table)
    }

    /// Adds a line.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn add(
        &mut self,
        line: u32,
        bytes: &[u8],
        by: &KeySpec,
        loose_paths: bool,
    ) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no UTF-8")?;
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let mut words = text.split_whitespace().take_while(|word| !word.starts_with('#'));
        let Some(value) = words.next() else { return Ok(()) };
        let plan = words.next().ok_or("expected a value and a plan, with white space between")?;
        let plan = Name::new(plan)
            .ok_or("expected a plan after the value: 1 to 64 letters, digits, `_`, `.` or `-`")?;
        let name = words.collect::<Vec<_>>().join(" ");
        if name.chars().count() > LONGEST_NAME || name.contains(misleads) {
            return Err(format!(
                "expected a name of at most {LONGEST_NAME} characters after the plan"
            ));
        }
        let at = self.place(line, &plan, &name)?;
        let source = by.sources.first().unwrap_or(&KeySource::Ip);
        let part = Part::parse(value, source, by.prefixes, loose_paths);
        let part = part.map_err(|why| match source.is_secret() {
            // The reason would show the value.
            true => format!("its value cannot be one of `{source}`"),
            false => why,
        })?;
        match part.value() {
            _ if value == "*" => {
                Err("\"*\" is no value: `plans.default` is the plan of everybody else".to_owned())
            }
            Some(_) => {
                // A number may stand in front of the value. Everybody who reads the log has the hashes, so that what
                // looks like one is never the value itself.
                let is_hashed = of_alternative(value, source)
                    .is_ok_and(|(_, value, of)| of.is_secret() && is_hash(value.as_bytes()));
                self.has_hashes |= is_hashed;
                let hash = self.hasher.hash_one((is_hashed, part.key().as_bytes()));
                self.values.push(HashedValue { hash, line, at });
                Ok(())
            }
            None => {
                let added = self.networks.add(&[part], (at, line));
                added.map_err(|(_, first)| twice(*first))
            }
        }
    }

    /// The place in the texts of a plan and a name, which may be empty.
    fn place(&mut self, line: u32, plan: &Name, name: &str) -> Result<u32, String> {
        let at = u32::try_from(self.texts.len()).map_err(|_| "the file is too long")?;
        let (_, shared) = self.plans.entry(plan.clone()).or_insert((line, None));
        if name.is_empty() {
            if let Some(shared) = shared {
                return Ok(*shared);
            }
            *shared = Some(at);
        }
        self.texts.extend([plan.as_str(), " ", name, "\n"]);
        Ok(at)
    }

    /// The line for a request with this key.
    pub(crate) fn find(self: &Arc<Self>, by: &KeySpec, key: &Key) -> Option<PlanLine> {
        let hashed = || self.has_hashes.then(|| by.hashed(key)).and_then(|key| self.at(true, &key));
        let in_network = || self.networks.find(key).map(|(at, _)| *at);
        let at = self.at(false, key).or_else(hashed).or_else(in_network)?;
        Some(PlanLine { table: Arc::clone(self), at })
    }

    /// The place of the text for a key, or for a key whose values are hashed.
    fn at(&self, is_hashed: bool, key: &Key) -> Option<u32> {
        let hash = self.hasher.hash_one((is_hashed, key.as_bytes()));
        let found = self.values.binary_search_by_key(&hash, |value| value.hash).ok()?;
        Some(self.values.get(found)?.at)
    }

    /// The number of lines that name a plan.
    pub(crate) fn lines(&self) -> usize {
        self.values.len() + self.networks.len()
    }

    /// The plans, each with the number of its first line.
    pub(crate) fn plans(&self) -> impl Iterator<Item = (&str, u32)> {
        self.plans.iter().map(|(plan, (line, _))| (plan.as_str(), *line))
    }
}

impl std::fmt::Debug for PlanTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanTable").field("lines", &self.lines()).finish_non_exhaustive()
    }
}

impl PlanLine {
    /// The plan.
    pub(crate) fn plan(&self) -> &str {
        self.words().0
    }

    /// Who has it, for people who read the log or the page.
    pub(crate) fn name(&self) -> Option<&str> {
        Some(self.words().1).filter(|name| !name.is_empty())
    }

    fn words(&self) -> (&str, &str) {
        let text = usize::try_from(self.at).ok().and_then(|at| self.table.texts.get(at..));
        let line = text.and_then(|text| text.lines().next()?.split_once(' '));
        line.unwrap_or_default()
    }
}

fn twice(first: u32) -> String {
    format!("this value has a plan already, in line {first}")
}

#[cfg(test)]
mod tests;
