//! Overrides: other figures for some keys.
//!
//! A shape says for each part of a key whether it is exact, a network of some length, or anything. All
//! entries of one shape are in one hash map. The map's key has the value of an exact part, the network of a
//! network part, and nothing for an `Any` part. A look-up tries the shapes, the most specific first. Its
//! cost is one hash for each shape, however many entries there are.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use ipnet::IpNet;

use super::host::Host;
use super::key::KeySource;
use super::network::{ClientPrefixes, canonical, parse};
use super::path::{self, NormalPath};
use super::value;
use crate::limit::key::Key;
use crate::text::trim;

/// The values that one part of an override's key matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    shape: PartShape,
    /// The index of the alternative whose values these are, from 0.
    index: usize,
    /// The value, or the network. Empty for any value.
    text: String,
}

/// Other figures for some keys. The most specific entry wins: an exact value before a network, a longer
/// network before a shorter one, and `Any` last. Parts are compared from the left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverrides<T> {
    /// The entries by shape, the most specific shape first. The copies of a limit with other costs share the entries.
    shapes: BTreeMap<Vec<PartShape>, Arc<HashMap<String, T>>>,
}

/// The kind of a part, without its value. The most specific kind is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PartShape {
    Exact,
    /// The prefix length, the longest first, and the index of the alternative.
    Network(Reverse<u8>, usize),
    Any,
}

impl Part {
    /// Reads an operator's text for a part of a key from `source`: `*`, an address or network for `ip`, or a value. A
    /// value is changed to the form that keys use. If the part has alternatives, the value may begin with the number
    /// of an alternative, as in `2=10.0.0.0/8`. A value without a number belongs to the first alternative.
    /// `loose_paths` says whether keys have paths in their loose form.
    ///
    /// # Errors
    /// A description, if no key can ever have the value.
    pub(crate) fn parse(
        text: &str,
        source: &KeySource,
        prefixes: ClientPrefixes,
        loose_paths: bool,
    ) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self { shape: PartShape::Any, index: 0, text: String::new() });
        }
        let (index, value, source) = of_alternative(text, source)?;
        if value == "*" {
            return Err(format!("`{text}`: expected a value, or \"*\" alone for any"));
        }
        let form = match source {
            KeySource::Ip => return Self::of_address(value, index, prefixes),
            KeySource::Path => match NormalPath::parse(value, true) {
                Ok(path) if loose_paths => Some(path.loosened().matching().to_owned().into()),
                Ok(path) => Some(path.matching().to_owned().into()),
                Err(error) => return Err(format!("`{value}` is no path: {error}")),
            },
            KeySource::Host => match Host::without_port(value) {
                Some(host) => Some(host.as_str().to_owned().into()),
                None => return Err(format!("`{value}` is no host without a port")),
            },
            KeySource::Header(name) => value::normal(name, value.as_bytes()).map(Cow::into_owned),
            KeySource::Jwt(_) => Some(value.into()),
            KeySource::Param(_) if loose_paths => {
                let text = path::lower_case(value.strip_suffix('/').unwrap_or(value));
                Some(trim(text.as_bytes()).to_owned())
            }
            _ => Some(trim(value.as_bytes()).to_owned()),
        };
        let text = form.and_then(|form| String::from_utf8(form).ok()).ok_or_else(|| {
            let fault = match source {
                KeySource::Header(name) if value::OF_MCP.contains(name) => "cannot be decoded",
                _ => "can be read in two ways",
            };
            format!("`{value}` {fault}, and requests with it are refused")
        })?;
        Ok(Self { shape: PartShape::Exact, index, text })
    }

    fn of_address(text: &str, index: usize, prefixes: ClientPrefixes) -> Result<Self, String> {
        let network =
            parse(text).ok_or_else(|| format!("`{text}` is no address and no network"))?;
        let network = canonical(&network);
        let (length, prefix) = (network.prefix_len(), prefixes.of(&network));
        if length > prefix {
            let version = if network.addr().is_ipv4() { 4 } else { 6 };
            let network = counted_network(&network, prefixes);
            return Err(format!(
                "IPv{version} clients are counted by `ipv{version}_prefix = {prefix}`: write `{network}` for the \
                 network of `{text}`"
            ));
        }
        // A network of exactly this length is one value of a key, so it can be found as an exact value.
        Ok(match length {
            32 if network.addr().is_ipv4() => {
                Self { shape: PartShape::Exact, index, text: network.addr().to_string() }
            }
            _ if length == prefix => {
                Self { shape: PartShape::Exact, index, text: network.to_string() }
            }
            _ => Self::of_network(&network, index),
        })
    }

    fn of_network(network: &IpNet, index: usize) -> Self {
        let network = canonical(network);
        let shape = PartShape::Network(Reverse(network.prefix_len()), index);
        Self { shape, index, text: network.to_string() }
    }

    /// The only value that the part matches. `None` if it matches several.
    pub(crate) fn value(&self) -> Option<&str> {
        (self.shape == PartShape::Exact).then_some(&self.text)
    }

    /// Whether the part matches any value.
    pub(crate) fn is_any(&self) -> bool {
        self.shape == PartShape::Any
    }

    /// The text of the part in the key of its map. For a single value, this is the text of the key that has no other
    /// part.
    pub(crate) fn key(&self) -> Cow<'_, str> {
        let Some(value) = self.value() else { return Cow::Borrowed(&self.text) };
        Cow::Owned(Key::of_parts([(self.index, Some(value))]).as_str().to_owned())
    }
}

/// The index of the alternative that a text names, its value, and the alternative's source.
///
/// # Errors
/// If the text was surely meant for another alternative.
pub(crate) fn of_alternative<'t, 's>(
    text: &'t str,
    source: &'s KeySource,
) -> Result<(usize, &'t str, &'s KeySource), String> {
    let (first, others) = match source.alternatives() {
        [only] if !matches!(only, KeySource::Jwt(_)) => return Ok((0, text, only)),
        [first, others @ ..] => (first, others),
        [] => return Ok((0, text, source)),
    };
    if let Some((index, value)) = numbered(text)
        && let Some(of) = source.alternatives().get(index)
    {
        return Ok((index, value, of));
    }
    let is_network = text.contains('/') && parse(text).is_some();
    match others.iter().position(|other| *other == KeySource::Ip) {
        Some(index) if is_network && *first != KeySource::Ip => Err(format!(
            "a value without a number is one of `{first}`: write \"{}={text}\" for this network of `ip`, \
             or \"1={text}\" for this value of `{first}`",
            index + 2
        )),
        _ => Ok((0, text, first)),
    }
}

/// The index and the value of a text with a number in front. Keys have a percent sign before it, as in `%2=10.0.0.0/8`.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, value) = text.strip_prefix('%').unwrap_or(text).split_once('=')?;
    Some((number.parse::<usize>().ok()?.checked_sub(1)?, value))
}

/// An operator's text for a part of a key from `source`. If there are several tables `[jwt.NAME]`, a claim has the name of
/// its table in front, as in keys. Without a name it is one of the first table. Numbers after those of the alternatives
/// stand for the other tables.
pub(crate) fn with_table<'t>(text: &'t str, source: &KeySource, tables: &[String]) -> Cow<'t, str> {
    let all = source.alternatives();
    let (index, value) = numbered(text).unwrap_or((0, text));
    let (table, index) = (index / all.len().max(1), index % all.len().max(1));
    let (Some(KeySource::Jwt(_)), Some(named)) = (all.get(index), tables.get(table)) else {
        return Cow::Borrowed(text);
    };
    let has_name = tables.iter().any(|table| value.split(':').next() == Some(table));
    match tables.len() < 2 || value == "*" || (table == 0 && has_name && value.contains(':')) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{}={named}:{value}", index + 1)),
    }
}

/// The network by which clients of a smaller one are counted.
pub(crate) fn counted_network(network: &IpNet, prefixes: ClientPrefixes) -> IpNet {
    IpNet::new(network.addr(), prefixes.of(network)).map_or(*network, |network| network.trunc())
}

impl<T: Clone> KeyOverrides<T> {
    /// The overrides of these entries, which may come in any order. If two entries have the same key, the first one
    /// counts.
    pub(crate) fn new(entries: Vec<(Vec<Part>, T)>) -> Self {
        let mut overrides = Self::default();
        for (parts, figures) in entries {
            let _ = overrides.add(&parts, figures);
        }
        overrides
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The figures of the entry that has this key already. They stay.
    pub(crate) fn add(&mut self, parts: &[Part], figures: T) -> Result<(), &T> {
        let shape = parts.iter().map(|part| part.shape).collect();
        let common = parts.iter().map(Part::key).collect::<Vec<_>>().join("|");
        match Arc::make_mut(self.shapes.entry(shape).or_default()).entry(common) {
            Entry::Occupied(first) => Err(first.into_mut()),
            Entry::Vacant(place) => {
                place.insert(figures);
                Ok(())
            }
        }
    }

    /// Adds each entry once more, with its exact parts changed. `change` gets the index of a part and its text in a key.
    pub(crate) fn add_changed(&mut self, change: impl Fn(usize, &str) -> String)
    where
        T: Clone,
    {
        for (shape, entries) in &mut self.shapes {
            let changed = |(text, figures): (&String, &T)| {
                let parts = text.split('|').zip(shape).enumerate();
                let parts = parts.map(|(index, (text, part))| match part {
                    PartShape::Exact => change(index, text),
                    PartShape::Network(..) | PartShape::Any => text.to_owned(),
                });
                (parts.collect::<Vec<_>>().join("|"), figures.clone())
            };
            let changed: Vec<_> = entries.iter().map(changed).collect();
            for (text, figures) in changed {
                Arc::make_mut(entries).entry(text).or_insert(figures);
            }
        }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.shapes.values().map(|entries| entries.len()).sum()
    }

    /// The figures of the most specific entry that fits `key`. The key must not be hashed.
    pub(crate) fn find(&self, key: &Key) -> Option<&T> {
        self.shapes.iter().find_map(|(shape, entries)| {
            if shape.iter().all(|part| *part == PartShape::Exact) {
                return entries.get(key.as_str());
            }
            entries.get(common_with(shape, key)?.as_str())
        })
    }
}

impl<T> Default for KeyOverrides<T> {
    fn default() -> Self {
        Self { shapes: BTreeMap::new() }
    }
}

/// The map's key for entries of this shape that fit `key`; `None` if no entry of the shape can fit.
fn common_with(shape: &[PartShape], key: &Key) -> Option<String> {
    let mut common = String::with_capacity(key.as_str().len() + 4);
    let mut values = key.as_str().split('|');
    for (index, part) in shape.iter().enumerate() {
        let value = values.next()?;
        if index > 0 {
            common.push('|');
        }
        match part {
            PartShape::Exact => common.push_str(value),
            PartShape::Network(Reverse(length), index) => {
                let address = match index {
                    0 => value,
                    index => value.strip_prefix(&format!("%{}=", index + 1))?,
                };
                // Writing into a string never fails.
                let _ = write!(common, "{}", network_around(address, *length)?);
            }
            PartShape::Any => {}
        }
    }
    values.next().is_none().then_some(common)
}

/// The network of this length around an address. `value` is the address as keys write it.
fn network_around(value: &str, length: u8) -> Option<IpNet> {
    let inner = parse(value)?;
    let fits = length <= inner.prefix_len();
    IpNet::new(inner.addr(), length).ok().filter(|_| fits).map(|network| network.trunc())
}

#[cfg(test)]
mod tests;
