//! The lines of `plans.file`: who has which plan.
//!
//! There may be a million lines, so the table keeps no value. It has a hash of each value, of 96 bits and with a random
//! secret: nobody can make two values meet. The entries are sorted, and a look-up halves the list until it finds one. A
//! line takes 16 bytes. A line with a name takes its plan and its name besides.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, BufRead, Read as _};
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::request::key::{KeySource, KeySpec, is_hash};
use crate::request::overrides::{KeyOverrides, Part, of_alternative};
use crate::text::misleads;

/// More plans are an error: the columns of such a file are probably in another order.
const MOST_PLANS: usize = 1_000;

/// The most bytes of a line, with its end.
const LONGEST_LINE: u64 = 16 << 10;

/// The most characters of a name. The name of an override has as many.
const LONGEST_NAME: usize = 64;

/// Who has which plan.
pub(crate) struct TierTable {
    secret: (u64, u64),
    /// Sorted.
    entries: Box<[TierEntry]>,
    /// The plans of networks, as indices in `texts`.
    networks: KeyOverrides<u32>,
    /// Whether a value may be a hash.
    has_hashes: bool,
    /// For each entry, its plan, and after a space its name if it has one. Each ends with a line feed.
    texts: Box<str>,
    /// The plans, each with the number of its first line.
    pub(crate) plans: BTreeMap<Name, usize>,
    /// The lines that name a plan.
    pub(crate) lines: usize,
    /// A hash of the file.
    pub(crate) digest: u128,
}

/// A value of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TierEntry {
    high: u64,
    low: u32,
    /// Where its plan stands in `texts`.
    at: u32,
}

/// A line of the file that fits a request.
#[derive(Clone, Debug)]
pub(crate) struct TierLine {
    table: Arc<TierTable>,
    at: u32,
}

/// How the values of a file are read.
#[derive(Clone, Copy)]
pub(crate) struct ValueForm<'f> {
    pub(crate) by: &'f KeySpec,
    /// Whether keys have paths in their loose form.
    pub(crate) loose_paths: bool,
}

/// Why a file is no table of plans.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TierTableError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A line is wrong. The message shows no value, because a value may be a secret.
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
}

impl TierTable {
    /// Reads the lines of a file.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub(crate) fn read(file: impl BufRead, form: ValueForm<'_>) -> Result<Self, TierTableError> {
        let mut builder = TableBuilder::default();
        let random = RandomState::new();
        let secret = (random.hash_one(0), random.hash_one(1));
        let (mut file, mut bytes, mut line) = (file, Vec::new(), 0);
        let mut digest = SipHasher13::new();
        while (&mut file).take(LONGEST_LINE).read_until(b'\n', &mut bytes)? > 0 {
            line += 1;
            digest.write(&bytes);
            let read = builder.add(&bytes, line, form, secret);
            read.map_err(|what| TierTableError::Line { line, what })?;
            bytes.clear();
        }
        builder.finish(secret, digest.finish128().as_u128())
    }

    /// The line for a request with this key.
    pub(crate) fn find(self: &Arc<Self>, by: &KeySpec, key: &Key) -> Option<TierLine> {
        let hashed = || self.has_hashes.then(|| by.hashed(key)).and_then(|key| self.at(&key));
        let at = self.at(key).or_else(hashed).or_else(|| self.networks.find(key).copied())?;
        Some(TierLine { table: Arc::clone(self), at })
    }

    fn at(&self, key: &Key) -> Option<u32> {
        let hash = hash(self.secret, key.as_bytes());
        let found = self.entries.binary_search_by_key(&hash, TierEntry::hash).ok()?;
        Some(self.entries.get(found)?.at)
    }
}

impl TierEntry {
    fn hash(&self) -> (u64, u32) {
        (self.high, self.low)
    }
}

impl std::fmt::Debug for TierTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierTable").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl TierLine {
    /// The plan.
    pub(crate) fn plan(&self) -> &str {
        self.words().0
    }

    /// Who has it, for people who read the log or the page.
    pub(crate) fn name(&self) -> Option<&str> {
        self.words().1
    }

    fn words(&self) -> (&str, Option<&str>) {
        let text = usize::try_from(self.at).ok().and_then(|at| self.table.texts.get(at..));
        let line = text.and_then(|text| text.lines().next()).unwrap_or_default();
        line.split_once(' ').map_or((line, None), |(plan, name)| (plan, Some(name)))
    }
}

/// 96 bits of a hash that nobody can foresee.
fn hash(secret: (u64, u64), value: &[u8]) -> (u64, u32) {
    let hash = SipHasher13::new_with_keys(secret.0, secret.1).hash(value);
    (hash.h1, u32::try_from(hash.h2 >> 32).unwrap_or_default())
}

/// A table while its lines are read.
#[derive(Default)]
struct TableBuilder {
    /// Each entry with the number of its line.
    entries: Vec<(TierEntry, u32)>,
    networks: HashMap<Part, (u32, usize)>,
    has_hashes: bool,
    texts: String,
    /// Where the plans of lines without a name stand.
    nameless: HashMap<Name, u32>,
    plans: BTreeMap<Name, usize>,
}

impl TableBuilder {
    /// Adds a line.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn add(
        &mut self,
        bytes: &[u8],
        line: usize,
        ValueForm { by, loose_paths }: ValueForm<'_>,
        secret: (u64, u64),
    ) -> Result<(), String> {
        if bytes.len() as u64 == LONGEST_LINE {
            return Err(format!("it is longer than {LONGEST_LINE} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no UTF-8".to_owned())?;
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let Some((value, plan, name)) = words(text)? else { return Ok(()) };
        let at = self.text(plan, name, line)?;
        let source = by.sources.first().unwrap_or(&KeySource::Ip);
        // In a key's text a percent sign is in front of the number of an alternative.
        let value = value.strip_prefix('%').filter(|_| is_numbered(value)).unwrap_or(value);
        let part = match of_alternative(value, source) {
            Ok((index, hash, of)) if of.is_secret() && is_hash(hash.as_bytes()) => {
                self.has_hashes = true;
                Ok(Part::exact(index, hash))
            }
            _ => Part::parse(value, source, by.prefixes, loose_paths),
        };
        let part = part.map_err(|why| match source.is_secret() {
            // The reason shows the value.
            true => format!("its value can be none of `{source}`"),
            false => why,
        })?;
        match part.key() {
            Some(key) => {
                let line = u32::try_from(line).map_err(|_| "the file is too long".to_owned())?;
                let (high, low) = hash(secret, key.as_bytes());
                self.entries.push((TierEntry { high, low, at }, line));
            }
            None if part == Part::Any => {
                return Err(
                    "\"*\" is no value: `plans.default` is everybody else's plan".to_owned()
                );
            }
            None => {
                if let Some((_, first)) = self.networks.insert(part, (at, line)) {
                    return Err(twice(first));
                }
            }
        }
        Ok(())
    }

    /// The place of a plan and a name in the texts.
    fn text(&mut self, plan: &str, name: Option<&str>, line: usize) -> Result<u32, String> {
        let name_of_plan = Name::new(plan);
        let plan = name_of_plan
            .ok_or("expected a plan after the value: 1 to 64 letters, digits, `_`, `.` or `-`")?;
        if name.is_none()
            && let Some(at) = self.nameless.get(&plan)
        {
            return Ok(*at);
        }
        self.plans.entry(plan.clone()).or_insert(line);
        if self.plans.len() > MOST_PLANS {
            return Err(format!(
                "the file has more than {MOST_PLANS} plans: expected the value first, then the plan"
            ));
        }
        let at = u32::try_from(self.texts.len()).map_err(|_| "the file is too long".to_owned())?;
        self.texts.push_str(plan.as_str());
        if let Some(name) = name {
            self.texts.extend([" ", name]);
        } else {
            self.nameless.insert(plan, at);
        }
        self.texts.push('\n');
        Ok(at)
    }

    fn finish(mut self, secret: (u64, u64), digest: u128) -> Result<TierTable, TierTableError> {
        self.entries.sort_unstable();
        let twins = self.entries.windows(2).filter_map(|pair| match pair {
            [(one, first), (other, second)] if one.hash() == other.hash() => {
                Some((*first.max(second), *first.min(second)))
            }
            _ => None,
        });
        if let Some((line, first)) = twins.min() {
            let [line, first] = [line, first].map(|it| usize::try_from(it).unwrap_or_default());
            return Err(TierTableError::Line { line, what: twice(first) });
        }
        let lines = self.entries.len() + self.networks.len();
        let networks = self.networks.into_iter().map(|(part, (at, _))| (vec![part], at));
        Ok(TierTable {
            secret,
            entries: self.entries.into_iter().map(|(entry, _)| entry).collect(),
            networks: KeyOverrides::new(networks.collect()),
            has_hashes: self.has_hashes,
            texts: self.texts.into_boxed_str(),
            plans: self.plans,
            lines,
            digest,
        })
    }
}

/// The value, the plan and perhaps the name of a line.
type Words<'l> = (&'l str, &'l str, Option<&'l str>);

/// The words of a line. `None` for a line without anything but a comment.
fn words(line: &str) -> Result<Option<Words<'_>>, String> {
    let comment = line.char_indices().find(|(at, character)| {
        *character == '#' && line[..*at].chars().next_back().is_none_or(char::is_whitespace)
    });
    let line = comment.map_or(line, |(at, _)| &line[..at]).trim();
    if line.is_empty() {
        return Ok(None);
    }
    let (value, rest) = line
        .split_once(char::is_whitespace)
        .ok_or("expected a value and a plan, with white space between")?;
    let rest = rest.trim_start();
    let (plan, name) = match rest.split_once(char::is_whitespace) {
        Some((plan, name)) => (plan, Some(name.trim_start())),
        None => (rest, None),
    };
    match name {
        Some(name) if name.chars().count() > LONGEST_NAME || name.contains(misleads) => {
            Err(format!("expected a name of at most {LONGEST_NAME} characters after the plan"))
        }
        name => Ok(Some((value, plan, name))),
    }
}

/// Whether a text begins with the number of an alternative, as a key has it: `%2=`.
fn is_numbered(value: &str) -> bool {
    matches!(value.as_bytes(), [b'%', b'2'..=b'9', b'=', ..])
}

fn twice(first: usize) -> String {
    format!("this value has a plan already, in line {first}")
}

#[cfg(test)]
mod tests;
