//! The reader as a whole: defaults, overrides, files that cannot be read.

mod fields;
mod lists;
mod reference;

use proptest::prelude::*;

use self::fields::{assert_same, with};

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
use crate::plan::{Action, Endpoint, Figures, Scheme, StoreLocation};
use crate::request::client::ClientHeader;
use crate::tls::server::ClientAuth;
use crate::tls::testing::Authority;

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
    let plan = loaded.plan;
    assert_eq!(
        plan.server.listen,
        [crate::plan::ListenAddress::Tcp("127.0.0.1:8080".parse().unwrap())]
    );
    assert_eq!(plan.server.trust.header, ClientHeader::XForwardedFor);
    assert_eq!(plan.store.location, StoreLocation::Memory);
    assert_eq!(&*plan.routes[0].name, "/{*rest}");
    assert_eq!(plan.routes[0].limits.as_slice(), [0]);
    assert!(matches!(plan.limits[0].figures, Figures::Limited(_)));
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
    assert!(matches!(parsed(&window.join("\n")).plan.limits[0].figures, Figures::Calendar(_)));
}

#[test]
fn limits_that_are_off_are_in_no_route() {
    let text = SMALLEST.replace("rate =", "mode = \"off\"\nrate =");
    let plan = parsed(&text).plan;
    assert!(plan.limits.is_empty());
    assert_eq!(plan.off[0].as_str(), "per-client");
    assert!(plan.routes[0].limits.is_empty());
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
    let names: Vec<_> = parsed(text).plan.routes.iter().map(|r| r.name.to_string()).collect();
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
    let plan = parse("proxy.toml", SMALLEST, &no_env, &overrides).unwrap().plan;
    assert_eq!(plan.server.listen, [crate::plan::ListenAddress::Tcp("[::1]:0".parse().unwrap())]);
    let endpoint = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
    assert_eq!(plan.upstreams[0].servers[0].address.endpoint, endpoint("10.0.0.1", 9000));

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
        let plan = parse("proxy.toml", &with_mode(mode), &no_env, &overrides).unwrap().plan;
        assert_eq!(plan.limits[0].mode, crate::limit::Mode::Shadow, "{mode}");
    }
    for mode in ["mode = 3", "mode = \"${NONE}\"", "mode = \"of\""] {
        assert!(parse("proxy.toml", &with_mode(mode), &no_env, &overrides).is_err(), "{mode}");
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
    assert_eq!(loaded.plan.routes.len(), 1);
    assert!(loaded.plan.limits.is_empty());
    assert!(matches!(loaded.plan.routes[0].action, Action::Forward { upstream: 0, rewrite: None }));
    assert_eq!(loaded.plan.upstreams[0].servers[0].address.url, "http://a:1");
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
fn a_file_that_is_no_text_is_an_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    std::fs::write(&path, b"[server]\nlisten = \"\xff\"\n").unwrap();
    let problems = load(&path, &no_env, &Overrides::default()).unwrap_err();
    assert!(problems.to_string().contains(":2:11: this is not UTF-8"), "{problems}");
    assert!(problems.render(Colour::Never).contains("listen"));

    let problems = load(directory.path(), &no_env, &Overrides::default()).unwrap_err();
    assert!(problems.to_string().starts_with("cannot read "), "{problems}");

    let long = vec![b'#'; (16 << 20) + 1];
    std::fs::write(&path, long).unwrap();
    let problems = load(&path, &no_env, &Overrides::default()).unwrap_err();
    assert!(problems.to_string().contains("larger than 16 MiB"), "{problems}");
}

#[test]
fn files_that_the_file_names_stand_beside_it() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    std::fs::create_dir(folder.path().join("certs")).unwrap();
    let pair = authority.issue(&["api.test"]).write(&folder.path().join("certs"), "api");
    authority.write(folder.path(), "ca.pem");
    let tls = "[server]\nlisten = []\n[server.tls]\nlisten = [\"0.0.0.0:8443\"]\n\
               certificates = [{ cert = \"certs/api.pem\", key = \"certs/api.key\" }]\n\
               client_ca = \"ca.pem\"\n";
    let servers =
        "\"https://10.0.0.2\", \"unix:/run/a.sock\", \"h2c://a\"]\ntls = { ca = \"ca.pem\" }";
    let text = SMALLEST.replace("\"http://127.0.0.1:3000\"]", servers);
    let path = folder.path().join("proxy.toml");
    std::fs::write(&path, format!("{tls}{text}")).unwrap();
    let plan = load(&path, &no_env, &Overrides::default()).unwrap().plan;

    assert!(plan.server.listen.is_empty(), "by TLS alone");
    let tls = plan.server.tls.unwrap().shown;
    assert_eq!(tls.files.certificates, [pair]);
    assert_eq!(tls.files.read().unwrap(), *tls.material);
    assert_eq!(tls.material.clients.as_ref().unwrap().1, ClientAuth::Require);
    let upstream = &plan.upstreams[0];
    let schemes: Vec<_> = upstream.servers.iter().map(|server| server.address.scheme).collect();
    assert_eq!(schemes, [Scheme::Https, Scheme::Http, Scheme::H2c]);
    let spec = upstream.tls.as_ref().unwrap();
    assert_eq!((spec.roots.len(), spec.identity.is_none()), (1, true));

    std::fs::write(&path, SMALLEST.replace("3000\"]", "3000\"]\ntls = { ca = \"ca.pem\" }"))
        .unwrap();
    let plan = load(&path, &no_env, &Overrides::default()).unwrap().plan;
    assert_eq!(plan.upstreams[0].tls, None, "nothing is spoken by TLS");
}

#[test]
fn both_wildcards_of_a_port_may_be_listened_on() {
    let text = format!("[server]\nlisten = [\"[::]:80\", \"0.0.0.0:80\"]\n{SMALLEST}");
    let plan = parse("proxy.toml", &text, &no_env, &Overrides::default()).unwrap().plan;
    assert_eq!(plan.server.listen.len(), 2);
}

#[test]
fn variables_stand_in_strings_everywhere() {
    let env = |name: &str| match name {
        "SERVER" => Some("http://10.0.0.1:81".to_owned()),
        "RATE" => Some("7/s".to_owned()),
        _ => None,
    };
    let text = SMALLEST
        .replace("http://127.0.0.1:3000", "${SERVER}")
        .replace("100/s", "${RATE}")
        .replace("\"per-client\"]", "\"${LIMIT:-per-client}\"]");
    let plan = parse("proxy.toml", &text, &env, &Overrides::default()).unwrap().plan;
    assert_eq!(plan.upstreams[0].servers[0].address.url, "http://10.0.0.1:81");
    assert_eq!(plan.routes[0].limits.as_slice(), [0]);
}

#[test]
fn a_body_from_the_environment_is_not_shown() {
    let env = |_: &str| Some("{limit-of-hunter2}".to_owned());
    let body = format!("{SMALLEST}[reject]\nbody = \"${{BODY}}\"\n");
    let loaded = parse("proxy.toml", &body, &env, &Overrides::default()).unwrap();
    assert!(!loaded.warnings.to_string().contains("hunter2"), "{}", loaded.warnings);
}

#[test]
fn lines_and_rendered_places_agree() {
    let text = "[sérver]\n[server]\nliste = 1\n\tworkers = \"ä\"\n";
    let problems = parse("p.toml", text, &no_env, &Overrides::default()).unwrap_err();
    let shown = problems.render(Colour::Never);
    for line in problems.lines() {
        let position: Vec<&str> = line.split(": ").next().unwrap().split(' ').collect();
        assert!(shown.contains(&format!("--> {}\n", position[0])), "{line}\n{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        let _ = parse("p", &text, &no_env, &Overrides::default());
    }

    /// A valid file with one piece replaced. Mistakes of people look like this.
    #[test]
    fn no_damaged_file_panics(start in 0..400_usize, length in 0..30_usize, piece in "[\\[\\]{}=\"a0/*$:.\\n-]{0,6}") {
        let text = with(&ROUTE, "methods = [\"GET\"]") + "[store]\nurl = \"redis://a\"\n";
        let boundary = |at: usize| (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let (from, to) = (boundary(start.min(text.len())), boundary((start + length).min(text.len())));
        let damaged = format!("{}{piece}{}", &text[..from], &text[to..]);
        if let Err(problems) = parse("p", &damaged, &no_env, &Overrides::default()) {
            prop_assert!(!problems.is_empty());
            prop_assert!(!problems.render(Colour::Never).is_empty());
        }
    }
}
