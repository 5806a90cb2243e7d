//! The reader as a whole: defaults, overrides, files that cannot be read.

mod fields;
mod files;
mod lists;
mod reference;
mod sample;

use self::fields::assert_same;
use self::sample::with;

use super::section::REJECT;
use super::section::admin::ADMIN;
use super::section::limit::LIMIT;
use super::section::log::LOG;
use super::section::plans::PLANS;
use super::section::route::ROUTE;
use super::section::server::SERVER;
use super::section::store::STORE;
use super::section::upstream::UPSTREAM;
use super::*;
use crate::request::client::ClientHeader;
use crate::settings::{Action, Endpoint, Figures, StoreLocation};

const SMALLEST: &str = r#"
[upstreams.api]
servers = ["http://127.0.0.1:3000"]

[limits.per-client]
key  = ["ip"]
rate = "100/s"

[[routes]]
path     = "/{*rest}"
upstream = "api"
limits   = ["per-client"]
"#;

fn no_env(_: &str) -> Option<String> {
    None
}

fn parsed(text: &str) -> Loaded {
    parse("proxy.toml", text, &no_env, &Overrides::default())
        .unwrap_or_else(|problems| panic!("{}", problems.render(Colour::Never)))
}

fn refused(text: &str) -> String {
    let problems = parse("proxy.toml", text, &no_env, &Overrides::default());
    problems.expect_err("the file was taken").to_string()
}

#[test]
fn the_smallest_file_works() {
    let loaded = parsed(SMALLEST);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    let settings = loaded.settings;
    assert_eq!(
        settings.server.listen,
        [crate::settings::ListenAddress::Tcp("127.0.0.1:8080".parse().unwrap())]
    );
    assert_eq!(settings.server.trust.header, ClientHeader::XForwardedFor);
    assert_eq!(settings.store.location, StoreLocation::Memory);
    assert_eq!(&*settings.routes[0].name, "/{*rest}");
    assert_eq!(settings.routes[0].limits.as_slice(), [0]);
    assert!(matches!(settings.limits[0].figures, Figures::Limited(_)));
}

#[test]
fn defaults_may_be_written_where_they_say_nothing_new() {
    for more in [
        "algorithm = \"leaky-bucket\"\nwait = \"0s\"",
        "algorithm = \"fixed-window\"\ntimezone = \"UTC\"",
        "algorithm = \"fixed-window\"\nalign = \"clock\"\ntimezone = \"UTC\"",
    ] {
        let text = SMALLEST.replace("[[routes]]", &format!("{more}\n[[routes]]"));
        assert!(text.contains(more));
        let loaded = parsed(&text);
        assert!(loaded.warnings.is_empty(), "{more}: {}", loaded.warnings);
    }
}

#[test]
fn the_default_file_has_no_problem() {
    let text = include_str!("../../../proxy.toml");
    let loaded = parsed(text);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    assert_same(&loaded, &parsed(SMALLEST), "the default file adds nothing");
}

#[test]
fn every_setting_that_the_default_file_shows_works() {
    let text = include_str!("../../../proxy.toml");
    let env = |_: &str| Some("secret".to_owned());
    // Two kinds of settings are tested elsewhere: those of another algorithm than the default one, and
    // those that name other files.
    let is_leaky = |line: &str| line.contains("# leaky-bucket: ");
    let is_window = |line: &str| line.contains("# fixed-window: ");
    let is_setting = |line: &str| {
        line.strip_prefix('#')
            .filter(|line| !line.contains("# only of algorithm"))
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
            && !is_leaky(line)
            && !is_window(line)
            && !line.contains("# TLS: ")
            && !line.contains("# a file: ")
            && !line.contains("# of \"hash\": ")
            && !line.contains("# else: ")
    };
    let all: Vec<String> = text
        .lines()
        .map(|line| if is_setting(line) { line[1..].to_owned() } else { line.to_owned() })
        .collect();
    let loaded = parse("proxy.toml", &all.join("\n"), &env, &Overrides::default());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", problems.render(Colour::Never)));
    // The file has every kind of limit, and other proxies cannot tell how a request ended.
    let mut warnings = loaded.warnings.lines();
    assert!(warnings.all(|it| it.contains("leave limits out")), "{}", loaded.warnings);
    // Settings outside the examples show their defaults.
    let defaults: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("# Examples"))
        .chain(text.lines().skip_while(|line| !line.starts_with("# Where tidegate listens")))
        .map(|line| if is_setting(line) && !line.contains("example") { &line[1..] } else { line })
        .collect();
    assert_same(&parsed(&defaults.join("\n")), &parsed(text), "a default is shown wrong");
    for shape in [&SERVER, &UPSTREAM, &LIMIT, &PLANS, &ROUTE, &STORE, &REJECT, &LOG, &ADMIN] {
        for field in (shape.fields)()
            .into_iter()
            .filter(|field| !matches!(field.name, "lease" | "algorithm"))
        {
            let shown = all.iter().any(|line| {
                line.trim_start_matches('#')
                    .strip_prefix(field.name)
                    .is_some_and(|rest| rest.trim_start().starts_with('='))
            });
            assert!(shown, "the default file does not show {} {}", shape.title, field.name);
        }
    }
    let leaky: Vec<&str> = text
        .lines()
        .map(|line| match line {
            _ if line.starts_with("#algorithm = \"token-bucket\"") => {
                "algorithm = \"leaky-bucket\""
            }
            line if is_leaky(line) => &line[1..],
            line => line,
        })
        .collect();
    parsed(&leaky.join("\n"));
    let window: Vec<&str> = text
        .lines()
        .map(|line| match line {
            _ if line.starts_with("#algorithm = \"token-bucket\"") => {
                "algorithm = \"fixed-window\""
            }
            _ if line.starts_with("#align = \"first-request\"") => "align = \"clock\"",
            _ if line.starts_with("rate = ") => "rate = \"100000/month\"",
            line if is_window(line) => &line[1..],
            line => line,
        })
        .collect();
    assert!(matches!(parsed(&window.join("\n")).settings.limits[0].figures, Figures::Calendar(_)));
}

#[test]
fn limits_that_are_off_are_in_no_route() {
    let text = SMALLEST.replace("rate =", "mode = \"off\"\nrate =");
    let settings = parsed(&text).settings;
    assert!(settings.limits.is_empty());
    assert_eq!(settings.off[0].as_str(), "per-client");
    assert!(settings.routes[0].limits.is_empty());
}

#[test]
fn routes_have_names_of_their_own() {
    let text = r#"
[upstreams.api]
servers = ["http://a"]
[[routes]]
path = "/once"
methods = ["GET"]
upstream = "api"
[[routes]]
path = "/users/{id}"
methods = ["GET", "POST"]
host = "api.example.com"
upstream = "api"
[[routes]]
path = "/users/{id}"
host = "*.example.com"
upstream = "api"
[[routes]]
path = "/users/{id}"
methods = ["PUT"]
upstream = "api"
[[routes]]
path = "/users/{id}"
upstream = "api"
[[routes]]
name = "mine"
path = "/users/{id}"
headers = { x-plan = "free" }
upstream = "api"
"#;
    let names: Vec<_> = parsed(text).settings.routes.iter().map(|r| r.name.to_string()).collect();
    assert_eq!(
        names,
        [
            "/once",
            "GET,POST api.example.com/users/{id}",
            "*.example.com/users/{id}",
            "PUT /users/{id}",
            "/users/{id}",
            "mine"
        ]
    );
}

#[test]
fn the_command_line_wins() {
    let overrides = Overrides {
        upstream: Some("http://10.0.0.1:9000".to_owned()),
        listen: Some("[::1]:0".to_owned()),
        ..Overrides::default()
    };
    let settings = parse("proxy.toml", SMALLEST, &no_env, &overrides).unwrap().settings;
    assert_eq!(
        settings.server.listen,
        [crate::settings::ListenAddress::Tcp("[::1]:0".parse().unwrap())]
    );
    let endpoint = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
    assert_eq!(settings.upstreams[0].servers[0].address.endpoint, endpoint("10.0.0.1", 9000));

    let several = format!("{SMALLEST}[upstreams.b]\nservers = [\"http://b\"]\n");
    for (text, upstream, listen, expected) in [
        (several.as_str(), Some("http://a"), None, "the file has several upstreams"),
        ("", Some("http://a"), None, "the file has no upstream"),
        (SMALLEST, Some("a b"), None, "`--upstream` cannot be \"a b\""),
        (
            SMALLEST,
            Some("http://u:p@a"),
            None,
            "`--upstream` cannot be this text: expected a URL without",
        ),
        (SMALLEST, Some("ftp://a"), None, "`--upstream` cannot be \"ftp://a\""),
        (SMALLEST, Some("unix:a"), None, "absolute path"),
        (SMALLEST, None, Some("8080"), "`--listen` cannot be \"8080\""),
    ] {
        let (upstream, listen) = (upstream.map(str::to_owned), listen.map(str::to_owned));
        let overrides = Overrides { upstream, listen, ..Overrides::default() };
        let problems = parse("proxy.toml", text, &no_env, &overrides).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }
}

/// A regression: `--shadow` replaced a wrong `mode`, and the file was accepted.
#[test]
fn shadow_hides_no_wrong_mode() {
    let overrides = Overrides { shadow: true, ..Overrides::default() };
    let with_mode = |mode: &str| SMALLEST.replace("[[routes]]", &format!("{mode}\n[[routes]]"));
    for mode in ["", "mode = \"enforce\"", "mode = \"${NONE:-enforce}\"", "mode = \"shadow\""] {
        let settings = parse("proxy.toml", &with_mode(mode), &no_env, &overrides).unwrap().settings;
        assert_eq!(settings.limits[0].mode, crate::limit::Mode::Shadow, "{mode}");
    }
    for mode in ["mode = 3", "mode = \"${NONE}\"", "mode = \"of\""] {
        assert!(parse("proxy.toml", &with_mode(mode), &no_env, &overrides).is_err(), "{mode}");
    }
}

#[test]
fn a_body_is_awaited_only_for_a_limit_that_enforces() {
    let (body, plans) = ("key = [\"body:user\"]", "[plans]\nby = \"body:plan\"");
    let with_plans = "plans = { pro = \"0/s\" }";
    let shadow = format!("{with_plans}\nmode = \"shadow\"");
    for (first, second, rest, awaits) in [
        (body, "", "", true),
        (body, "mode = \"shadow\"", "", true),
        (&format!("{body}\nmode = \"shadow\""), "", "", false),
        (&format!("{body}\nmode = \"mark\""), "", "", false),
        (&format!("{body}\nmode = \"mark\""), with_plans, plans, true),
        (body, &*shadow, plans, true),
        ("key = []", &*shadow, plans, false),
        ("key = []", with_plans, plans, true),
    ] {
        let text = format!(
            "{rest}\n[limits.a]\nrate = \"1/s\"\n{first}\n[limits.b]\nkey = []\nrate = \"1/s\"\n{second}\n\
             [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"a\", \"b\"]"
        );
        let settings = parsed(&text).settings;
        let options = settings.routes[0].options();
        assert!(!options.body_fields.is_empty(), "{text}");
        assert_eq!(options.awaits_body, awaits, "{text}");
        let overrides = Overrides { shadow: true, ..Overrides::default() };
        let settings = parse("proxy.toml", &text, &no_env, &overrides).unwrap().settings;
        assert!(!settings.routes[0].options().awaits_body, "{text}");
    }
}

#[test]
fn without_a_file_everything_is_forwarded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    let problems = load(&path, &no_env, &Overrides::default()).unwrap_err().to_string();
    assert_eq!(problems.trim_end(), format!("there is no {}", path.display()));
    let missing = || Err(std::io::ErrorKind::NotFound.into());
    let unnamed = load_from(Path::new(DEFAULT_FILE), missing(), &no_env, &Overrides::default());
    let problems = unnamed.unwrap_err().to_string();
    for hint in ["there is no proxy.toml", "--upstream", "tidegate demo"] {
        assert!(problems.contains(hint), "{problems}");
    }
    let upstream = Some("http://a:1".to_owned());
    let overrides = Overrides { upstream, ..Overrides::default() };
    let loaded = load(&path, &no_env, &overrides).unwrap();
    assert_eq!(loaded.settings.routes.len(), 1);
    assert!(loaded.settings.limits.is_empty());
    assert!(matches!(
        loaded.settings.routes[0].action,
        Action::Forward { upstream: 0, rewrite: None }
    ));
    assert_eq!(loaded.settings.upstreams[0].servers[0].address.url, "http://a:1");
    assert!(loaded.warnings.to_string().contains("nothing is limited"));
    assert!(!loaded.warnings.has_errors());
    // A misspelt name must not take all limits away.
    let named = Overrides { names_file: true, ..overrides };
    for path in [&path, Path::new(DEFAULT_FILE)] {
        let problems = load_from(path, missing(), &no_env, &named).unwrap_err().to_string();
        assert!(problems.contains(&format!("there is no {}", path.display())), "{problems}");
        assert!(problems.contains("`--config` names must be there"), "{problems}");
    }
}

#[test]
fn both_wildcards_of_a_port_may_be_listened_on() {
    let text = format!("[server]\nlisten = [\"[::]:80\", \"0.0.0.0:80\"]\n{SMALLEST}");
    let settings = parse("proxy.toml", &text, &no_env, &Overrides::default()).unwrap().settings;
    assert_eq!(settings.server.listen.len(), 2);
}
