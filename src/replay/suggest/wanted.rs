//! What `tidegate suggest` looks for, and the file that it suggests: the routes, with a limit for each key.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use toml::{Table, Value};

use crate::config::{self, Overrides};
use crate::replay::report::printable;
use crate::request::key::KeySource;
use crate::request::route::{Pattern, read_pattern};
use crate::settings::Settings;

/// The settings of `[server]` that the suggested file takes over: they say who the client is, and which paths are
/// the same.
const SERVER: [&str; 6] = [
    "trusted_proxies",
    "client_ip_header",
    "ipv6_prefix",
    "ipv4_prefix",
    "merge_slashes",
    "loose_paths",
];

/// The settings of a route that the suggested file takes over: they say which requests are the route's, and whether the
/// proxy answers them itself.
const ROUTE: [&str; 6] = ["name", "path", "methods", "host", "headers", "respond"];

/// What `tidegate suggest` looks for: limits for routes, and how many keys a limit may touch.
#[derive(Clone, Debug)]
pub(crate) struct WantedLimits {
    /// The settings of [`SERVER`] that the file has.
    server: Table,
    routes: Vec<WantedRoute>,
    /// The percentage of keys that may be touched, from 0 to 100.
    pub(super) touch: f64,
}

/// A route of the suggested file.
#[derive(Clone, Debug)]
struct WantedRoute {
    /// The settings of [`ROUTE`] that the route has.
    settings: Table,
    /// Whether the command line names the route. If it names none, a route gets its limits only if the log has requests
    /// for it.
    is_named: bool,
    /// The names of its limits, each with the sources of its key.
    limits: Vec<(String, Vec<String>)>,
    /// Comments that say what a request of the route costs in the limits of the file, if it is not 1.
    costs: String,
}

impl WantedLimits {
    /// Limits by each of `keys`, which touch at most `touch` percent of the keys, for the routes with these
    /// paths. Without paths: for all routes of the file with the text `file`, or else for all requests.
    ///
    /// # Errors
    /// If a text is no path or no source, or a path comes twice. The error names it.
    pub(crate) fn new(
        paths: &[String],
        keys: &[Vec<String>],
        touch: f64,
        file: Option<&str>,
    ) -> Result<Self, String> {
        for (index, path) in paths.iter().enumerate() {
            read_pattern(path).map_err(|error| format!("--route `{path}`: {error}"))?;
            if paths[..index].contains(path) {
                return Err(format!("--route `{path}` is there twice"));
            }
        }
        for source in keys.iter().flatten() {
            source.parse::<KeySource>().map_err(|error| format!("--key: {error}"))?;
        }
        let file: Table = file.unwrap_or_default().parse().map_err(|error| format!("{error}"))?;
        let server = file.get("server").and_then(Value::as_table);
        let server = server.map(|server| only(server, &SERVER)).unwrap_or_default();
        let listed = file.get("routes").and_then(Value::as_array).into_iter().flatten();
        let listed = listed.filter_map(Value::as_table);
        let mut routes: Vec<_> = listed.map(|route| WantedRoute::of_file(route, &file)).collect();
        let everything = ["/{*rest}".to_owned()];
        let named = if paths.is_empty() && routes.is_empty() { &everything } else { paths };
        for path in named {
            if !routes.iter().any(|route| route.path() == path) {
                let path = ("path".to_owned(), Value::String(escaped(path)));
                routes.push(WantedRoute::new(Table::from_iter([path])));
            }
        }
        let mut taken = HashSet::new();
        for route in &mut routes {
            route.is_named = named.iter().any(|path| path == route.path());
            let is_wanted =
                |key: &&Vec<String>| route.is_named || named.is_empty() && route.has_params_of(key);
            let limits = keys
                .iter()
                .filter(is_wanted)
                .map(|key| (free_name(&limit_name(route.name(), key), &mut taken), key.clone()));
            route.limits = limits.collect();
        }
        Ok(Self { server, routes, touch })
    }

    /// Settings with a limit in shadow for each route and key. The limits read the keys of the requests, and reject
    /// nothing. `env` has the environment variables that the file names.
    ///
    /// # Errors
    /// If the file with these limits would be wrong. The text says why.
    pub(crate) fn settings(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings, String> {
        if self.routes.iter().all(|route| route.limits.is_empty()) {
            return Err("--key: no route of the file has this parameter in its path".to_owned());
        }
        let figures = "rate = \"1000000/s\"\nburst = 1000000000\nmode = \"shadow\"\n";
        let text = self.file(|_, _| Some(figures.to_owned()), |_| String::new());
        let parsed = config::parse("the suggestion", &text, env, &Overrides::default());
        Ok(parsed.map_err(|problems| problems.to_string())?.settings)
    }

    /// A file with these routes, and a limit for each route and key. `figures` returns the lines of a limit, or `None`
    /// to leave the limit out. It gets the limit's name, and whether the command line names the route. `notes` returns
    /// the comments for the route with this index.
    pub(super) fn file(
        &self,
        figures: impl Fn(bool, &str) -> Option<String>,
        notes: impl Fn(usize) -> String,
    ) -> String {
        let mut file = String::new();
        if !self.server.is_empty() {
            file = format!("[server]\n{}\n", lines(&self.server, &SERVER));
        }
        file.push_str("[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"] # your API\n");
        let mut routes = String::new();
        for (index, route) in self.routes.iter().enumerate() {
            let mut limits = Vec::new();
            for (name, key) in &route.limits {
                let Some(figures) = figures(route.is_named, name) else { continue };
                let key: Vec<_> = key.iter().map(|source| quoted(source)).collect();
                let key = key.join(", ");
                let costs = &route.costs;
                file.push_str(&format!("\n{costs}[limits.{name}]\nkey = [{key}]\n{figures}"));
                limits.push(quoted(name));
            }
            let (mut notes, settings) = (notes(index), lines(&route.settings, &ROUTE));
            if limits.is_empty() && notes.is_empty() && !route.limits.is_empty() {
                notes.push_str("# No request of the log came here, so the route has no limit.\n");
            }
            routes.push_str(&format!("\n{notes}[[routes]]\n{settings}"));
            if !route.settings.contains_key("respond") {
                routes.push_str("upstream = \"api\"\n");
            }
            if !limits.is_empty() {
                routes.push_str(&format!("limits = [{}]\n", limits.join(", ")));
            }
        }
        file + &routes
    }
}

/// The name, or the name with a number if it is taken.
fn free_name(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|number: u64| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| taken.insert(name.clone())).unwrap_or_default()
}

impl WantedRoute {
    fn new(settings: Table) -> Self {
        Self { settings, is_named: false, limits: Vec::new(), costs: String::new() }
    }

    /// A route of this file. The suggested file has other limits, and `usage` cannot name those of this file.
    fn of_file(route: &Table, file: &Table) -> Self {
        let mut settings = only(route, &ROUTE);
        if let Some(Value::Table(respond)) = settings.get_mut("respond") {
            respond.remove("usage");
        }
        Self { costs: costs(route, file), ..Self::new(settings) }
    }

    /// Whether the path has each parameter that the key names.
    fn has_params_of(&self, key: &[String]) -> bool {
        let Ok(path) = self.path().parse::<Pattern>() else { return false };
        let sources: Vec<KeySource> = key.iter().filter_map(|source| source.parse().ok()).collect();
        sources.iter().flat_map(KeySource::alternatives).all(|source| match source {
            KeySource::Param(name) => path.params().any(|param| param == name),
            _ => true,
        })
    }

    fn path(&self) -> &str {
        self.settings.get("path").and_then(Value::as_str).unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.settings.get("name").and_then(Value::as_str).unwrap_or(self.path())
    }
}

/// The settings with these names.
fn only(settings: &Table, names: &[&str]) -> Table {
    let named = settings.iter().filter(|(name, _)| names.contains(&name.as_str()));
    named.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Comments that say what a request of this route costs in the limits of the file, if it is not 1.
fn costs(route: &Table, file: &Table) -> String {
    let everywhere = file.get("server").and_then(|server| server.get("limits"));
    let lists = [everywhere, route.get("limits")].into_iter().flatten();
    let mut costs = BTreeMap::new();
    for used in lists.filter_map(Value::as_array).flatten() {
        let Some(name) = used.get("name").unwrap_or(used).as_str() else { continue };
        let of_limit = || file.get("limits")?.get(name)?.get("cost");
        costs.insert(name, used.get("cost").or_else(of_limit));
    }
    let dear = costs.into_iter().filter_map(|(name, cost)| Some((name, cost?)));
    let dear = dear.filter(|(_, cost)| cost.as_integer() != Some(1));
    let lines = dear.map(|(name, cost)| format!("#   {name}: {}\n", printable(&cost.to_string())));
    let lines: String = lines.collect();
    let head =
        "# Each request counts as 1 here. In these limits of the file it has another cost:\n";
    if lines.is_empty() { lines } else { format!("{head}{lines}") }
}

/// The settings as lines of a file, in the order of `names`.
fn lines(settings: &Table, names: &[&str]) -> String {
    let settings = names.iter().filter_map(|name| Some((name, settings.get(*name)?)));
    settings.map(|(name, value)| format!("{name} = {value}\n")).collect()
}

/// A name for the limit of this route and key.
fn limit_name(route: &str, key: &[String]) -> String {
    let text = format!("{route} {}", key.join(" "));
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let mut name = words.join("-");
    // A limit's name has at most 64 characters, and a number may follow.
    name.truncate(56);
    name
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    Value::String(escaped(text)).to_string()
}

/// A text of the command line, as a file has it: `${` would be a variable of the environment.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}
