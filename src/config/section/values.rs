//! Reads values that several sections have: addresses, networks, names.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::{HeaderName, HeaderValue, Method};

use crate::config::reader::{
    Context, Item, Kind, NETWORK, Section, Shape, Span, Wrong, enumerate, nearest, network,
};
use crate::limit::name::Name;
use crate::request::host::Host;
use crate::request::route::{Pattern, read_pattern};

/// The longest path of a Unix socket, in bytes. Linux has room for 108 bytes (`man 7 unix`), and one byte
/// ends the path.
pub(super) const LONGEST_SOCKET: usize = 107;

pub(super) const NO_LOGIN: &str = "expected a URL without a user and a password";

/// What an address looks like.
pub(super) const ADDRESS: &str =
    "expected an address with a port, as in \"127.0.0.1:8080\" or \"[::]:8080\"";

/// A table with a name from the operator, such as `[limits.NAME]`.
pub(crate) struct Named<T> {
    pub(crate) name: String,
    pub(crate) span: Span,
    /// `None` if the table is wrong.
    pub(crate) value: Option<T>,
}

/// Reads each table `[KIND.NAME]`. `build` makes a value from the table and its name.
pub(super) fn named<'c, T>(
    root: &mut Section<'c>,
    kind: &'static str,
    shape: &'static Shape,
    mut build: impl FnMut(Section<'c>, Name) -> Option<T>,
) -> Vec<Named<T>> {
    let cx = root.cx;
    let entries = root.take(kind).and_then(|item| item.entries()).unwrap_or_default();
    let each = entries.into_iter().map(|entry| {
        let name = name(cx, entry.name, &entry.name_span);
        let section = entry.item.section(shape, format!("[{kind}.{}]", entry.name));
        let value = section.and_then(|section| build(section, name));
        Named { name: entry.name.to_owned(), span: entry.name_span, value }
    });
    each.collect()
}

/// A path as in routes.
pub(super) fn pattern(item: &Item<'_>) -> Option<Pattern> {
    const EXPECTED: &str = "expected a path, as in \"/users/{id}\" or \"/static/{*rest}\"";
    let pattern = item.parse(EXPECTED, |text| read_pattern(text).map_err(Wrong::Because))?;
    let (_, loose_paths) = item.cx.key_form.get();
    Some(if loose_paths { pattern.loosened() } else { pattern })
}

/// A method in upper case, for editors.
pub(super) const METHOD: Kind = Kind::Form(r"[^a-z\s*]+");

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"];

pub(super) fn method(item: &Item<'_>) -> Option<Method> {
    item.parse("expected a method in upper case, as in \"GET\"", |text| {
        if matches!(text, "TRACE" | "CONNECT") {
            return Err(Wrong::other("this method is never served: remove it"));
        }
        // A method's name may have a `*`, but whoever writes it means several methods.
        if text.contains('*') {
            return Err(Wrong::other("`*` stands for no method: name each method"));
        }
        let is_upper = !text.bytes().any(|b| b.is_ascii_lowercase());
        let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| is_upper);
        method.ok_or_else(|| Wrong::near(nearest(text, METHODS)))
    })
}

/// The name at `span`. If the text is not a name, notes the problem and returns another name: the table
/// is still read, to report its problems as well.
pub(super) fn name(cx: &Context<'_>, text: &str, span: &Span) -> Name {
    Name::new(text).unwrap_or_else(|| {
        cx.error(
            span,
            format!("\"{}\" is no name", text.escape_debug()),
            "expected 1 to 64 letters, digits, `_`, `.` or `-`",
        );
        Name::default()
    })
}

/// All names of one kind in the file. There may be thousands of names, and thousands of entries that use them.
pub(crate) struct Names<'n> {
    /// The kind of the named things, such as `limits`.
    kind: &'static str,
    in_order: Vec<&'n str>,
    indices: HashMap<&'n str, usize>,
    /// How many comparisons are left for wrong names.
    comparisons: Cell<usize>,
}

impl<'n> Names<'n> {
    pub(crate) fn new(kind: &'static str, names: impl Iterator<Item = &'n str>) -> Self {
        /// The most comparisons. Each wrong name is compared with all names: without a bound, a file with many of both
        /// would take minutes. This number takes about half a second.
        const COMPARISONS: usize = 1_000_000;
        let in_order: Vec<_> = names.collect();
        let indices = in_order.iter().enumerate().map(|(index, name)| (*name, index)).collect();
        Self { kind, in_order, indices, comparisons: Cell::new(COMPARISONS) }
    }

    /// The index of a name in the file's order.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.indices.get(name).copied()
    }

    /// The name at an index.
    pub(crate) fn name(&self, index: usize) -> Option<&'n str> {
        self.in_order.get(index).copied()
    }

    /// The advice for a wrong name: the nearest name, or a list of them. `found` is `None` if messages must not
    /// show the text.
    pub(crate) fn instead(&self, found: Option<&str>) -> String {
        const MOST: usize = 12;
        let (kind, names) = (self.kind, self.in_order.iter().copied());
        let left = self.comparisons.get().checked_sub(self.in_order.len());
        self.comparisons.set(left.unwrap_or(0));
        match found.filter(|_| left.is_some()).and_then(|found| nearest(found, names.clone())) {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.in_order.is_empty() => {
                format!("the file has no {kind}: expected a table `[{kind}.NAME]`")
            }
            None if self.in_order.len() > MOST => format!("expected the name of one of the {kind}"),
            None => format!("expected {}", enumerate(names, "or")),
        }
    }
}

/// The host of a request. It must be valid: an upstream would refuse each request with a malformed host.
pub(super) fn host(item: &Item<'_>) -> Option<HeaderValue> {
    const EXPECTED: &str = "expected a host, as in \"api.internal\" or \"api.internal:8080\"";
    item.form(EXPECTED, |text| text.parse::<Host>().ok().and(HeaderValue::from_str(text).ok()))
}

/// The path of a file that a field names. `expected` says what the field can have.
pub(super) fn named_file(item: &Item<'_>, expected: &str) -> Option<PathBuf> {
    item.form(expected, |text| (!text.is_empty()).then(|| item.cx.folder.join(text)))
}

/// Notes what is wrong with a file that a field names. `fault` follows its name.
pub(super) fn file_fault(item: &Item<'_>, path: &Path, fault: &str, expected: &str) {
    let title = match item.is_shown() {
        true => format!("{}{fault}", path.display()),
        false => format!("the file that is named here{fault}"),
    };
    item.fault(title, expected);
}

/// All of these values, or `None` if one of them is wrong. Each one is read, to report all problems.
pub(super) fn all<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    let values: Vec<_> = values.collect();
    values.into_iter().collect()
}

/// The values of a list, with their positions. A value with the same `key` as an earlier one is an error, and is left
/// out. A value without a key may stand in the list twice.
pub(super) fn once<T, K: Eq + Hash>(
    items: &[Item<'_>],
    read: impl Fn(&Item<'_>) -> Option<T>,
    key: impl Fn(&T) -> Option<K>,
    name: impl Fn(&T) -> String,
) -> Vec<(T, Span)> {
    let mut first_spans: HashMap<K, &Span> = HashMap::new();
    let mut values: Vec<(T, Span)> = Vec::new();
    for item in items {
        let Some(value) = read(item) else { continue };
        let first = key(&value).map(|key| *first_spans.entry(key).or_insert(&item.span));
        if let Some(first) = first.filter(|first| **first != item.span) {
            let name = match item.is_shown() {
                true => format!("\"{}\"", name(&value)),
                false => "this".to_owned(),
            };
            let title = format!("`{}` has {name} twice", item.field);
            item.fault(title, "remove it").related(first, "first here");
        } else {
            values.push((value, item.span.clone()));
        }
    }
    values
}

/// Like [`once`], for values that have only one spelling. The values have no positions here.
pub(super) fn once_each<T: Clone + Eq + Hash + ToString, C: FromIterator<T>>(
    items: &[Item<'_>],
    read: impl Fn(&Item<'_>) -> Option<T>,
) -> C {
    let values = once(items, read, |value| Some(value.clone()), T::to_string);
    values.into_iter().map(|(value, _)| value).collect()
}

/// A URL without a user and a password. `expected` says what the field can have.
pub(super) fn url<T>(
    item: &Item<'_>,
    expected: &str,
    read: impl FnOnce(&str) -> Result<T, Wrong>,
) -> Option<T> {
    let text = item.text_as(expected)?;
    if text.contains('@') && !text.starts_with("unix:") {
        // The text in front of `@` may be a password.
        item.clone().secret().reject(NO_LOGIN);
        return None;
    }
    item.parse(expected, read)
}

/// Reads the path of a Unix socket: the text after `unix:`. It may begin with two more slashes, as in a `file:` URL.
pub(super) fn socket_path(path: &str) -> Option<PathBuf> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let fits = path.starts_with('/')
        && !path.ends_with('/')
        && path.len() <= LONGEST_SOCKET
        && !path.chars().any(char::is_control);
    fits.then(|| PathBuf::from(path))
}

/// An address with a port.
pub(super) fn address(item: &Item<'_>) -> Option<SocketAddr> {
    item.parse(ADDRESS, |text| text.parse().map_err(|_| Wrong::near(suggestion(text))))
}

/// The full address for a common short form: a port alone, `*:PORT` or `localhost:PORT`.
pub(super) fn suggestion(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port: u16 = port.parse().ok()?;
    let host = match host {
        "" | "*" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        _ => return None,
    };
    Some(format!("{host}:{port}"))
}

/// A bearer token.
pub(super) fn token(item: &Item<'_>) -> Option<String> {
    item.clone().secret().form("expected a text of visible ASCII without spaces", |text| {
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| text.to_owned())
    })
}

/// A network. A single address is a network of one address.
pub(super) fn network_item(item: &Item<'_>) -> Option<ipnet::IpNet> {
    item.parse(&format!("expected {NETWORK}"), network)
}

pub(super) fn header_name(item: &Item<'_>) -> Option<HeaderName> {
    item.form("expected a header's name", |text| text.parse().ok())
}
