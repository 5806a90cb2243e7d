//! Reads values that several sections have: addresses, networks, names.

use std::net::SocketAddr;
use std::path::PathBuf;

use http::HeaderName;

use crate::config::reader::{
    Context, Item, NETWORK, Section, Shape, Span, Wrong, enumerate, nearest, network,
};
use crate::limit::name::Name;
use crate::request::route::{Pattern, read_pattern};

/// The longest path of a Unix socket, in bytes. Linux has room for 108 bytes (`man 7 unix`), and one byte
/// ends the path.
pub(super) const LONGEST_SOCKET: usize = 107;

/// What an address looks like.
pub(super) const ADDRESS: &str =
    "expected an address with a port, as in \"127.0.0.1:8080\" or \"[::]:8080\"";

/// A table with a name from the operator, such as `[limits.NAME]`.
pub(crate) struct Named<T> {
    pub(crate) name: String,
    pub(crate) span: Span,
    /// `None` where the table is wrong.
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
    item.parse(EXPECTED, |text| read_pattern(text).map_err(Wrong::Because))
}

/// The name at `span`. Where the text is not a name, notes the problem and returns another name: the table
/// is still read, to report its problems as well.
fn name(cx: &Context<'_>, text: &str, span: &Span) -> Name {
    Name::new(text).unwrap_or_else(|| {
        cx.error(
            span,
            format!("\"{}\" is no name", text.escape_debug()),
            "expected 1 to 64 letters, digits, `_`, `.` or `-`",
        );
        Name::default()
    })
}

/// The advice for a wrong name: the nearest of `names`, or a list of `names`. `found` is `None` where
/// messages must not show the text.
pub(crate) fn one_of<'n, I>(found: Option<&str>, names: I, kind: &str) -> String
where
    I: Iterator<Item = &'n str> + Clone,
{
    const MOST: usize = 12;
    match found.and_then(|found| nearest(found, names.clone())) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.clone().next().is_none() => {
            format!("the file has no {kind}: expected a table `[{kind}.NAME]`")
        }
        None if names.clone().count() > MOST => format!("expected the name of one of the {kind}"),
        None => format!("expected {}", enumerate(names, "or")),
    }
}

/// All of these values, or `None` where one of them is wrong. Each one is read, to report all problems.
pub(super) fn all<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    let values: Vec<_> = values.collect();
    values.into_iter().collect()
}

/// The values of a list, with their positions. A value that is the `same` as an earlier one is an error, and is
/// left out.
pub(super) fn once<T>(
    items: &[Item<'_>],
    read: impl Fn(&Item<'_>) -> Option<T>,
    same: impl Fn(&T, &T) -> bool,
    name: impl Fn(&T) -> String,
) -> Vec<(T, Span)> {
    let mut values: Vec<(T, Span)> = Vec::new();
    for item in items {
        let Some(value) = read(item) else { continue };
        if let Some((_, first)) = values.iter().find(|(other, _)| same(other, &value)) {
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

/// The same for values that are written in one way, without their positions.
pub(super) fn once_each<T: PartialEq + ToString>(
    items: &[Item<'_>],
    read: impl Fn(&Item<'_>) -> Option<T>,
) -> Vec<T> {
    let values = once(items, read, T::eq, T::to_string);
    values.into_iter().map(|(value, _)| value).collect()
}

/// The path of a Unix socket, which stands after `unix:`. Two more slashes may stand in front, as in a `file:` URL.
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

/// A network. A single address is a network of one address.
pub(super) fn network_item(item: &Item<'_>) -> Option<ipnet::IpNet> {
    item.parse(&format!("expected {NETWORK}"), network)
}

pub(super) fn header_name(item: &Item<'_>) -> Option<HeaderName> {
    item.parse("expected a header's name", |text| text.parse().map_err(|_| Wrong::Expected))
}
