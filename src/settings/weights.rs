//! Where a response's JSON says how many tokens its request used: paths to numbers, each with a weight.

use std::fmt;
use std::str::FromStr;

/// The tokens that a request used, by its response's JSON: a sum of numbers, each times its weight.
///
/// A path leads through nested objects, as in `usage.total_tokens`: one key or more, no key empty. It cannot name a
/// key that has a dot, a bar or a bracket, begins with a slash or a blank, or is a dollar sign. Such a text is more
/// likely a JSONPath or a JSON Pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedPaths {
    terms: Vec<Term>,
    /// The keys of all paths as a tree. The first one stands for the document.
    keys: Vec<PathKey>,
}

/// A part of the sum.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    weight: u64,
    /// The last keys of its paths, in order. The first one at which the response has a number counts.
    alternatives: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PathKey {
    name: Box<str>,
    /// The key of the object in which this key stands. `None` for the document.
    parent: Option<usize>,
    /// Whether a path ends here.
    is_end: bool,
}

/// The error for a text that is no path, and no paths with bars between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoJsonPath;

impl WeightedPaths {
    /// The document, of which the first keys of all paths are children.
    pub(crate) const DOCUMENT: usize = 0;

    /// Adds a term to the sum: a number of the response, multiplied by `weight`. `text` is the path of this number. It
    /// may be several paths with `|` between them. The first of them that the response has is used.
    ///
    /// # Errors
    /// If a part of the text is no path.
    pub fn add(&mut self, text: &str, weight: u64) -> Result<(), NoJsonPath> {
        let paths = text.split('|').map(|path| self.path(path.trim()));
        let alternatives = paths.collect::<Result<_, _>>()?;
        self.terms.push(Term { weight, alternatives });
        Ok(())
    }

    /// The last key of this path, which is added if it is new.
    fn path(&mut self, text: &str) -> Result<usize, NoJsonPath> {
        let mut at = Self::DOCUMENT;
        for name in text.split('.') {
            if name.is_empty() || name == "$" || name.starts_with('/') || name.contains(['[', ']'])
            {
                return Err(NoJsonPath);
            }
            at = self.child(at, name.as_bytes()).unwrap_or_else(|| {
                self.keys.push(PathKey { name: name.into(), parent: Some(at), is_end: false });
                self.keys.len() - 1
            });
        }
        self.keys[at].is_end = true;
        Ok(at)
    }

    /// The number of keys, with that of the document.
    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    /// The key of this name in the object at the key `parent`.
    pub(crate) fn child(&self, parent: usize, name: &[u8]) -> Option<usize> {
        let is_it = |key: &PathKey| key.parent == Some(parent) && key.name.as_bytes() == name;
        self.keys.iter().position(is_it)
    }

    /// The key of the object in which this key stands.
    pub(crate) fn parent(&self, key: usize) -> Option<usize> {
        self.keys.get(key)?.parent
    }

    /// Whether a path goes on after this key.
    pub(crate) fn leads_on(&self, key: usize) -> bool {
        self.keys.iter().any(|child| child.parent == Some(key))
    }

    /// Whether a path ends at this key.
    pub(crate) fn is_end(&self, key: usize) -> bool {
        self.keys.get(key).is_some_and(|key| key.is_end)
    }

    /// The sum for these numbers, one for each key. A number that is missing counts as nothing. `None` if all are
    /// missing.
    pub(crate) fn sum(&self, numbers: &[Option<u64>]) -> Option<u64> {
        let number = |key: &usize| numbers.get(*key).copied().flatten();
        let found = self.terms.iter().filter_map(|term| {
            Some(term.alternatives.iter().find_map(number)?.saturating_mul(term.weight))
        });
        found.reduce(u64::saturating_add)
    }

    /// Writes the path that leads to this key.
    fn write(&self, f: &mut fmt::Formatter<'_>, key: usize) -> fmt::Result {
        let PathKey { name, parent, .. } = &self.keys[key];
        if let Some(parent @ 1..) = *parent {
            self.write(f, parent)?;
            f.write_str(".")?;
        }
        f.write_str(name)
    }
}

impl Default for WeightedPaths {
    fn default() -> Self {
        let document = PathKey { name: "".into(), parent: None, is_end: false };
        Self { terms: Vec::new(), keys: vec![document] }
    }
}

impl FromStr for WeightedPaths {
    type Err = NoJsonPath;

    /// One path, perhaps with alternatives, of weight 1.
    fn from_str(text: &str) -> Result<Self, NoJsonPath> {
        let mut paths = Self::default();
        paths.add(text, 1)?;
        Ok(paths)
    }
}

impl fmt::Display for WeightedPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for Term { weight, alternatives } in &self.terms {
            for key in alternatives {
                f.write_str(before)?;
                self.write(f, *key)?;
                before = " | ";
            }
            if *weight != 1 {
                write!(f, " * {weight}")?;
            }
            before = " + ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_key_between_its_dots() {
        for (text, written) in [
            ("tokens", Some("tokens")),
            ("usage.total_tokens", Some("usage.total_tokens")),
            ("a b.ü", Some("a b.ü")),
            (" a.b|c|  a.d ", Some("a.b | c | a.d")),
            ("", None),
            (".a", None),
            ("a.", None),
            ("a..b", None),
            ("a|", None),
            ("|a", None),
            ("a||b", None),
            ("$.a", None),
            ("a | $.b", None),
            ("/a", None),
            ("a[0].b", None),
        ] {
            let paths = text.parse::<WeightedPaths>().ok().map(|paths| paths.to_string());
            assert_eq!(paths.as_deref(), written, "{text}");
        }
    }

    #[test]
    fn numbers_are_added_by_their_weights() {
        let mut paths = WeightedPaths::default();
        for (text, weight) in [("a.b | c", 1), ("a | a.b", 5), ("a.b.d", u64::MAX)] {
            paths.add(text, weight).unwrap();
        }
        assert_eq!(paths.to_string(), format!("a.b | c + a | a.b * 5 + a.b.d * {}", u64::MAX));
        // Of a.b, c, a, a.b.d.
        for ([ab, c, a, abd], sum) in [
            ([None, None, None, None], None),
            ([Some(7), None, None, None], Some(7 + 5 * 7)),
            ([None, Some(2), None, None], Some(2)),
            ([Some(7), Some(2), Some(3), None], Some(7 + 5 * 3)),
            ([Some(0), Some(2), None, Some(0)], Some(0)),
            ([Some(1), None, None, Some(2)], Some(u64::MAX)),
        ] {
            // The tree's keys: the document, a, a.b, c, a.b.d.
            let numbers = [None, a, ab, c, abd];
            assert_eq!(paths.sum(&numbers), sum, "{numbers:?}");
        }
    }
}
