//! Long lists. A reader that compares each entry with every other one would need minutes for these.

use std::fmt::Display;

use super::{no_env, parsed};
use crate::config::{Colour, Overrides, parse};

const MANY: usize = 10_000;

/// The items of a list in the file.
fn list<T: Display>(item: impl Fn(usize) -> T) -> String {
    (0..MANY).map(|number| item(number).to_string()).collect::<Vec<_>>().join(",\n")
}

/// Many tables, or fields of a table.
fn lines<T: Display>(item: impl Fn(usize) -> T) -> String {
    (0..MANY).map(|number| format!("{}\n", item(number))).collect()
}

fn ip(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}

fn file(server: &str, limit: &str, more: &str) -> String {
    format!(
        "[server]\n{server}\n[upstreams.api]\nservers = [\"http://a\"]\n\
         [limits.all]\nkey = [\"ip\"]\nrate = \"1/s\"\n{limit}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"all\"]\n{more}\n"
    )
}

#[test]
fn a_limit_may_have_many_overrides_and_exemptions() {
    let overrides = list(|it| format!("{{ key = [\"{}\"], rate = \"5/s\" }}", ip(it)));
    let settings = parsed(&file("", &format!("overrides = [{overrides}]"), "")).settings;
    assert_eq!(settings.limits[0].overrides.len(), MANY);

    let (ips, paths) = (list(|it| format!("\"{}\"", ip(2 * it))), list(|it| format!("\"/{it}\"")));
    let headers = lines(|it| format!("x-{it} = \"a\""));
    let trusted = format!("trusted_proxies = [{ips}]");
    let exempt = format!("exempt.ip = [{ips}]\nexempt.path = [{paths}]\n");
    let settings =
        parsed(&file(&trusted, &format!("{exempt}[limits.all.exempt.header]\n{headers}"), ""))
            .settings;
    assert!(settings.server.trust.trusts(ip(2 * MANY - 2).parse().unwrap()));
    assert_eq!(settings.limits[0].exempt.headers().count(), MANY);
}

#[test]
fn a_file_may_have_many_routes_upstreams_limits_and_tests() {
    let upstreams = lines(|it| {
        format!(
            "[upstreams.u{it}]\nservers = [\"http://a\"]\nbalance = \"hash\"\nhash_key = [\"param:id\"]"
        )
    });
    let limits = lines(|it| format!("[limits.l{it}]\nrate = \"1/s\""));
    let routes = lines(|it| {
        format!("[[routes]]\npath = \"/{it}/{{id}}\"\nupstream = \"u{it}\"\nlimits = [\"l{it}\"]")
    });
    let tests = lines(|it| {
        format!(
            "[[tests]]\nsend = \"GET /{it}/1\"\nexpect = {{ limit = \"l{it}\", route = \"/{it}/{{id}}\" }}"
        )
    });
    let headers = lines(|it| {
        format!(
            "[[routes]]\npath = \"/{{*rest}}\"\nheaders = {{ x = \"1\", y = \"{it}\" }}\nupstream = \"api\""
        )
    });
    let more = format!("{limits}{upstreams}{routes}{tests}{headers}");
    let loaded = parsed(&file("", "", &more));
    // A limit without a key is a doubt.
    assert_eq!(loaded.warnings.iter().count(), MANY);
    assert_eq!(loaded.settings.routes.len(), 2 * MANY + 1);
    let lines: Vec<_> = loaded.settings.tests.iter().map(|test| test.line).collect();
    assert!(lines.windows(2).all(|pair| pair[1] == pair[0] + 3));
}

#[test]
fn many_wrong_names_are_reported_in_one_go() {
    let limits = lines(|it| format!("[limits.l{it}]\nkey = []\nrate = \"1/s\""));
    let wrong = lines(|it| {
        format!("[[routes]]\npath = \"/{it}\"\nupstream = \"api\"\nlimits = [\"wrong-{it}\"]")
    });
    let text = file("", "", &format!("{limits}{wrong}"));
    let problems = parse("proxy.toml", &text, &no_env, &Overrides::default()).unwrap_err();
    assert_eq!(problems.iter().count(), MANY);
    assert!(problems.render(Colour::Never).len() < 300 * MANY);
}

/// A regression: each of these problems was shown with the whole line, which made gigabytes of text.
#[test]
fn many_problems_of_one_long_line_make_a_short_report() {
    let twice = list(|it| format!("{{ key = [\"{}\"], rate = \"5/s\" }}", ip(it / 2)));
    let text = file("", &format!("overrides = [{}]", twice.replace('\n', "")), "");
    let problems = parse("proxy.toml", &text, &no_env, &Overrides::default()).unwrap_err();
    assert_eq!(problems.iter().count(), MANY / 2);
    assert!(problems.render(Colour::Never).len() < 300 * MANY);
}
