//! The reader as a whole: defaults, overrides, files that cannot be read.

mod fields;
mod files;
mod lists;
mod reference;
mod sample;

use self::sample::with;

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
fn limits_that_are_off_are_in_no_route() {
    let text = SMALLEST.replace("rate =", "mode = \"off\"\nrate =");
    let settings = parsed(&text).settings;
    assert!(settings.limits.is_empty());
    assert_eq!(settings.off[0].as_str(), "per-client");
    assert!(settings.routes[0].limits.is_empty());
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
