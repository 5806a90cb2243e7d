//! What `tidegate suggest` is asked for, and the file that it suggests: the routes, with a limit for each key.

use hashbrown::HashSet;
use toml::{Table, Value};

use crate::config::{self, Overrides};
use crate::plan::Plan;
use crate::request::key::KeySource;
use crate::request::route::{Pattern, read_pattern};

/// The settings of `[server]` that the suggested file takes over: they say who the client is, and which paths are
/// the same.
const SERVER: [&str; 5] =
    ["trusted_proxies", "client_ip_header", "ipv6_prefix", "merge_slashes", "loose_paths"];

/// The settings of a route that the suggested file takes over: they say which requests are the route's.
const ROUTE: [&str; 5] = ["name", "path", "methods", "host", "headers"];

/// What `tidegate suggest` is asked for: the routes, the keys, and how many keys a limit may touch.
#[derive(Clone, Debug)]
pub(crate) struct WantedLimits {
    /// The settings of [`SERVER`] that the file has.
    server: Table,
    pub(super) routes: Vec<WantedRoute>,
    /// The keys. Each is a list of sources.
    keys: Vec<Vec<String>>,
    /// The percentage of keys that may be touched, from 0 to 100.
    pub(super) touch: f64,
}

/// A route of the suggested file.
#[derive(Clone, Debug)]
pub(super) struct WantedRoute {
    /// The settings of [`ROUTE`] that the route has.
    settings: Table,
    pub(super) limits: RouteLimits,
}

/// Which routes get limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteLimits {
    /// The route was named on the command line.
    Wanted,
    /// No route was named on the command line. The route gets limits if the log has requests for it.
    IfMet,
    /// Only other routes were named on the command line.
    Unwanted,
}

impl WantedLimits {
    /// Limits by each of `keys`, which touch at most `touch` percent of the keys, for the routes with these
    /// paths. Without paths: for all routes of the file with the text `file`, or else for all requests.
    ///
    /// # Errors
    /// Where a text is no path or no source, or a path comes twice. The error says which.
    pub(crate) fn new(
        paths: &[String],
        keys: Vec<Vec<String>>,
        touch: f64,
        file: Option<&str>,
    ) -> Result<Self, String> {
        for (place, path) in paths.iter().enumerate() {
            read_pattern(path).map_err(|error| format!("--route `{path}`: {error}"))?;
            if paths[..place].contains(path) {
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
        let mut routes: Vec<_> = listed
            .filter_map(Value::as_table)
            .map(|route| WantedRoute::new(only(route, &ROUTE), paths))
            .collect();
        let everything = ["/{*rest}".to_owned()];
        let paths = if paths.is_empty() && routes.is_empty() { &everything } else { paths };
        for path in paths {
            if !routes.iter().any(|route| route.path() == path) {
                let settings =
                    Table::from_iter([("path".to_owned(), Value::String(escaped(path)))]);
                routes.push(WantedRoute { settings, limits: RouteLimits::Wanted });
            }
        }
        Ok(Self { server, routes, keys, touch })
    }

    /// A plan with a limit in shadow for each route and key. The limits read the keys of the requests, and reject
    /// nothing. `env` has the environment variables that the file names.
    ///
    /// # Errors
    /// Where the file with these limits would be wrong. The text says why.
    pub(crate) fn plan(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Plan, String> {
        if self.named().iter().all(Vec::is_empty) {
            return Err("--key: no route of the file has this parameter in its path".to_owned());
        }
        let figures = "rate = \"1000000/s\"\nburst = 1000000000\nmode = \"shadow\"\n";
        let text = self.file(|_, _| Some(figures.to_owned()), |_| String::new());
        let parsed = config::parse("the suggestion", &text, env, &Overrides::default());
        Ok(parsed.map_err(|problems| problems.to_string())?.plan)
    }

    /// A file with these routes, and a limit for each route and key. `figures` has the lines of each limit, by
    /// its name. It has none for a limit that the file leaves out. `notes` has the comments for a route, by its
    /// place.
    pub(super) fn file(
        &self,
        figures: impl Fn(RouteLimits, &str) -> Option<String>,
        notes: impl Fn(usize) -> String,
    ) -> String {
        let mut file = String::new();
        if !self.server.is_empty() {
            file = format!("[server]\n{}\n", lines(&self.server, &SERVER));
        }
        file.push_str("[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"] # your API\n");
        let mut routes = String::new();
        for (place, (route, named)) in self.routes.iter().zip(self.named()).enumerate() {
            let mut limits = Vec::new();
            for (name, key) in &named {
                let Some(figures) = figures(route.limits, name) else { continue };
                let key: Vec<_> = key.iter().map(|source| quoted(source)).collect();
                let key = key.join(", ");
                file.push_str(&format!("\n[limits.{name}]\nkey = [{key}]\n{figures}"));
                limits.push(quoted(name));
            }
            let (mut notes, settings) = (notes(place), lines(&route.settings, &ROUTE));
            if limits.is_empty()
                && notes.is_empty()
                && !named.is_empty()
                && route.limits == RouteLimits::IfMet
            {
                notes.push_str("# No request of the log came here, so the route has no limit.\n");
            }
            routes.push_str(&format!("\n{notes}[[routes]]\n{settings}upstream = \"api\"\n"));
            if !limits.is_empty() {
                routes.push_str(&format!("limits = [{}]\n", limits.join(", ")));
            }
        }
        file + &routes
    }

    /// The limits of each route: a name for each key.
    fn named(&self) -> Vec<Vec<(String, &[String])>> {
        let mut taken = HashSet::new();
        let mut free = |name: String| {
            let numbered = (2..).map(|number: u64| format!("{name}-{number}"));
            let free = std::iter::once(name.clone()).chain(numbered).find(|it| !taken.contains(it));
            let free = free.unwrap_or(name);
            taken.insert(free.clone());
            free
        };
        let limits = |route: &WantedRoute| {
            let keys = self.keys.iter().filter(|key| match route.limits {
                RouteLimits::Wanted => true,
                RouteLimits::IfMet => route.has_params_of(key),
                RouteLimits::Unwanted => false,
            });
            keys.map(|key| (free(limit_name(route.name(), key)), key.as_slice())).collect()
        };
        self.routes.iter().map(limits).collect()
    }
}

impl WantedRoute {
    /// A route with these settings. `paths` are the paths that were named on the command line.
    fn new(settings: Table, paths: &[String]) -> Self {
        let mut route = Self { settings, limits: RouteLimits::IfMet };
        if !paths.is_empty() {
            let is_named = paths.iter().any(|path| path == route.path());
            route.limits = if is_named { RouteLimits::Wanted } else { RouteLimits::Unwanted };
        }
        route
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

/// The settings as lines of a file, in the order of `names`.
fn lines(settings: &Table, names: &[&str]) -> String {
    let settings = names.iter().filter_map(|name| Some((name, settings.get(*name)?)));
    settings.map(|(name, value)| format!("{name} = {value}\n")).collect()
}

/// A name for the limit of this route and key.
fn limit_name(route: &str, key: &[String]) -> String {
    let mut name = String::new();
    for part in route.split('/').chain(key.iter().map(String::as_str)) {
        let part: String = part
            .chars()
            .filter_map(|c| match c {
                c if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') => Some(c),
                ':' | '.' => Some('-'),
                _ => None,
            })
            .collect();
        if !part.is_empty() {
            name.push_str(if name.is_empty() { "" } else { "-" });
            name.push_str(&part);
        }
    }
    // A limit's name has at most 64 characters, and a number may follow.
    name.truncate(56);
    if name.is_empty() { "all".to_owned() } else { name }
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    Value::String(escaped(text)).to_string()
}

/// A text of the command line, as a file has it: `${` would be a variable of the environment.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}
