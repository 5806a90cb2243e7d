//! The settings of the command line, which replace settings of the file.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::reader::{Problem, Span, environment};
use super::section::server::{LISTEN_ADDRESS, listen_address};
use super::section::upstream::{URL, server_address};

/// Settings of the command line that replace settings of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The URL of the only server of the only upstream.
    pub(crate) upstream: Option<String>,
    /// The address to listen on.
    pub(crate) listen: Option<String>,
    /// Whether the command line names the file. A named file must be there.
    pub(crate) names_file: bool,
    /// `--shadow`: each limit counts and logs, but rejects nobody. It overrides `mode`, except `mode = "off"`.
    pub(crate) shadow: bool,
}

impl Overrides {
    /// Puts the settings of the command line into the file. `env` returns the value of an environment variable. Returns
    /// the problem of a setting that is wrong, or that replaces nothing in this file.
    pub(super) fn apply<'o>(
        &'o self,
        file: &mut DeTable<'o>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Problem> {
        if let Some(listen) = &self.listen {
            if let Err(wrong) = listen_address(listen) {
                let expected = wrong.instead(LISTEN_ADDRESS, true);
                let title = format!("`--listen` cannot be \"{listen}\": {expected}");
                return Some(Problem::general(title));
            }
            if !file.contains_key("server") {
                put(file, "server", DeValue::Table(DeTable::new()), 0..0);
            }
            if let Some(DeValue::Table(server)) = file.get_mut("server").map(Spanned::get_mut) {
                put(server, "listen", list_of_one(listen), 0..0);
            }
        }
        if let Some(url) = &self.upstream {
            let mut upstreams = tables(file, "upstreams");
            let [(span, upstream)] = upstreams.as_mut_slice() else {
                let count = if upstreams.is_empty() { "no upstream" } else { "several upstreams" };
                let title = format!("`--upstream` cannot replace anything: the file has {count}");
                let help = "it is for files with exactly one upstream";
                return Some(Problem::general(title).help(help));
            };
            if let Err(wrong) = server_address(url) {
                let expected = wrong.instead(URL, true);
                // The text in front of `@` may be a password.
                let found = if url.contains('@') { "this text" } else { &format!("\"{url}\"") };
                let title = format!("`--upstream` cannot be {found}: {expected}");
                return Some(Problem::general(title));
            }
            let span = upstream.get("servers").map_or(span.clone(), Spanned::span);
            put(upstream, "servers", list_of_one(url), span);
        }
        let limits = if self.shadow { tables(file, "limits") } else { Vec::new() };
        for (span, limit) in limits {
            // A wrong `mode` stays, so that it is reported.
            let is_enforced = |mode: &Spanned<DeValue<'_>>| {
                let mode = mode.get_ref().as_str().map(|mode| environment::replace(mode, env));
                mode.is_some_and(|mode| mode.is_ok_and(|mode| mode.text == "enforce"))
            };
            if limit.get("mode").is_none_or(is_enforced) {
                put(limit, "mode", DeValue::String("shadow".into()), span);
            }
        }
        None
    }
}

/// The tables `[KIND.NAME]` with their positions.
fn tables<'t, 'o>(file: &'t mut DeTable<'o>, kind: &str) -> Vec<(Span, &'t mut DeTable<'o>)> {
    let Some(DeValue::Table(tables)) = file.get_mut(kind).map(Spanned::get_mut) else {
        return Vec::new();
    };
    let tables = tables.iter_mut().filter_map(|(_, value)| match (value.span(), value.get_mut()) {
        (span, DeValue::Table(table)) => Some((span, table)),
        _ => None,
    });
    tables.collect()
}

/// A list of this text. A `${` in it stands for itself, and begins no variable.
fn list_of_one(text: &str) -> DeValue<'_> {
    let mut list = DeArray::new();
    list.push(Spanned::new(0..0, DeValue::String(text.replace("${", "$${").into())));
    DeValue::Array(list)
}

fn put<'o>(table: &mut DeTable<'o>, name: &'o str, value: DeValue<'o>, span: Span) {
    table.insert(Spanned::new(span.clone(), name.into()), Spanned::new(span, value));
}
