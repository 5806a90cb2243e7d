//! The manual's commands, examples and tables against the program: README and what users read in `docs`.

mod chinese;
mod recipes;

use std::fs;
use std::path::Path;
use std::process::Command;

use tidegate::config::{self, Colour, Overrides};
use tidegate::settings::Settings;

use crate::support::limits::names;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::program;
use crate::support::tls::Folder;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

const REFERENCE: &str = "docs/reference.md";

const MANUAL: [&str; 9] = [
    "README.md",
    "docs/README.md",
    "docs/runbook.md",
    "docs/recipes.md",
    "docs/routes.md",
    "docs/upstreams.md",
    "docs/limits.md",
    "docs/operating.md",
    REFERENCE,
];

fn manual() -> String {
    MANUAL.map(|name| fs::read_to_string(path(name)).unwrap()).concat()
}

/// The contents of the manual's code blocks of one language.
fn blocks(language: &str) -> Vec<String> {
    blocks_of(&manual(), language)
}

/// The contents of a text's code blocks of one language.
fn blocks_of(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&format!("```{language}\n")) {
        let (block, after) = after.split_once("```").expect("a code block ends");
        blocks.push(block.to_owned());
        rest = after;
    }
    blocks
}

/// The manual's example of a file of plans.
fn plans() -> String {
    let file = blocks("text").into_iter().find(|block| block.starts_with("# value"));
    file.expect("the manual has a file of plans")
}

/// An example of the manual as a file: what it leaves out is put beside it.
fn completed(example: &str) -> String {
    let mut text = example.to_owned();
    if !text.contains("[upstreams.") {
        text.push_str("\n[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n");
    }
    if !text.contains("[[routes]]") {
        let names = names(example);
        text.push_str(&format!(
            "\n[[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = {names:?}\n"
        ));
    }
    text
}

fn parsed(text: &str) -> Settings {
    loaded(text).settings
}

fn loaded(text: &str) -> config::Loaded {
    let env = |_: &str| Some("set".to_owned());
    // What it names stands beside it.
    let folder = Folder::new();
    folder.write_server("cert", &["localhost"]);
    fs::write(folder.path().join("plans.txt"), plans()).unwrap();
    let file = folder.path().join("proxy.toml");
    config::parse(file.to_str().unwrap(), text, &env, &Overrides::default())
        .unwrap_or_else(|problems| panic!("{}\nin\n{text}", problems.render(Colour::Never)))
}

#[test]
fn every_example_is_a_configuration() {
    let examples = blocks("toml");
    assert!(examples.len() >= 3);
    for example in examples {
        let whole = completed(&example);
        let warnings = loaded(&whole).warnings;
        // What people copy as it is. In other examples something may be left out.
        assert!(whole != example || warnings.is_empty(), "{warnings}\nin\n{example}");
    }
}

#[test]
fn each_recipe_is_in_both_places_with_the_same_figures() {
    let recipe = |settings: &Settings, name: &str| {
        let limit = settings.limits.iter().find(|limit| limit.name.as_str() == name)?;
        // The methods in a key are those of all routes of its file.
        let (key, cost) = ((limit.key.sources.clone(), limit.key.missing), limit.cost.clone());
        Some((key, limit.figures.clone(), cost, limit.wait, limit.count_when.clone()))
    };
    let examples: Vec<_> =
        blocks("toml").iter().map(|example| parsed(&completed(example))).collect();
    let shipped = parsed(&switched_on(&fs::read_to_string(path("proxy.toml")).unwrap(), true));
    for name in [
        "nginx-nodelay",
        "nginx",
        "sorted-set",
        "spring",
        "old-redisson",
        "minute-by-address",
        "day-by-user",
        "failed-logins",
        "llm-tokens",
        "monthly",
    ] {
        let here = examples.iter().find_map(|settings| recipe(settings, name));
        assert!(here.is_some(), "the manual has no `{name}`");
        assert!(recipe(&shipped, name) == here, "`{name}` in proxy.toml and in the manual");
    }
}

#[test]
fn the_shipped_file_is_right() {
    let output = program().arg("check").arg("--config").arg(path("proxy.toml")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The lines of a section of the shipped file: settings, with or without the `#` before them.
fn shipped_settings(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if line.starts_with('[') {
            let line = line.split('#').next().unwrap_or_default().trim_end();
            // Not every setting fits into one limit.
            let is_limit = line.starts_with("[limits.");
            section = if is_limit { "[limits.per-client]" } else { line }.to_owned();
        } else if let Some((name, _)) = line.split_once(" = ")
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        {
            settings.push((section.clone(), name.to_owned()));
        }
    }
    settings
}

#[test]
fn the_shipped_file_shows_every_setting() {
    let text = fs::read_to_string(path("proxy.toml")).unwrap();
    let shown = shipped_settings(&text);
    let mut section = String::new();
    for line in fs::read_to_string(path(REFERENCE)).unwrap().lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            // `[limits.NAME]` and the like; what stands within a field is shown in its line.
            let table = heading.trim_matches('`').replace("upstreams.NAME", "upstreams.api");
            let table = table.replace("jwt.NAME", "jwt.main");
            section = table.replace("limits.NAME", "limits.per-client");
        } else if let Some((name, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`'))
            && section.starts_with('[')
        {
            let wanted = (section.clone(), name.to_owned());
            assert!(shown.contains(&wanted), "proxy.toml lacks `{name}` in {section}");
        }
    }
}

/// A `#` without a space behind it switches off a setting; a whole table is always an example, and
/// what is only of another algorithm stays off.
fn switched_on(text: &str, examples: bool) -> String {
    let mut in_example = false;
    let lines = text.lines().map(|line| {
        in_example = line.starts_with("#[") || (in_example && line.starts_with('#'));
        let is_example = in_example || line.contains("# example");
        let fits = !line.contains("# only of algorithm");
        // A setting of another algorithm than the one that is shown, or one that names other files.
        if ["leaky-bucket", "fixed-window", "TLS", "of \"hash\"", "else"]
            .iter()
            .any(|of| line.contains(&format!("# {of}: ")))
        {
            return line;
        }
        match line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#'])) {
            Some(rest) if fits && (examples || !is_example) => rest,
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_shows_defaults_and_right_examples() {
    let text = fs::read_to_string(path("proxy.toml")).unwrap();
    let (shipped, defaults) = (loaded(&text), switched_on(&text, false));
    assert_ne!(defaults, text);
    let changes = shipped.changes_to(&loaded(&defaults), &|_| None);
    assert_eq!(changes, config::Changes::default());
    parsed(&switched_on(&text, true));
    // What is shown of other algorithms, with that algorithm.
    for (of, changes) in [
        ("leaky-bucket", &[("#algorithm = \"token-bucket\"", "algorithm = \"leaky-bucket\"")][..]),
        (
            "fixed-window",
            &[
                ("#algorithm = \"token-bucket\"", "algorithm = \"fixed-window\""),
                ("#align = \"first-request\"", "align = \"clock\""),
                ("\nrate = \"100/s\"", "\nrate = \"100000/month\""),
            ],
        ),
    ] {
        let mut text = text.clone();
        for (shown, other) in changes {
            assert!(text.contains(shown), "{of}: {shown}");
            text = text.replace(shown, other);
        }
        let mark = format!("# {of}: ");
        let on =
            |line: &str| line.strip_prefix('#').filter(|_| line.contains(&mark)).map(str::to_owned);
        let lines = text.lines().map(|line| on(line).unwrap_or_else(|| line.to_owned()));
        parsed(&lines.collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn what_the_shipped_file_shows_of_tls_is_right() {
    let folder = Folder::new();
    folder.write_server("cert", &["localhost"]);
    let text = fs::read_to_string(path("proxy.toml")).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if line.contains("# TLS: ") => setting,
        _ => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n").replace("http://127.", "https://127.");
    let text = text.replace("#url = \"memory:\"", "url = \"rediss://127.0.0.1\"");
    let text = text.replace("#listen = \"127.0.0.1:9091\"", "listen = \"127.0.0.1:9091\"");
    let file = folder.path().join("proxy.toml");
    fs::write(&file, text).unwrap();
    let loaded = config::load(&file, &|_| None, &Overrides::default())
        .unwrap_or_else(|problems| panic!("{}", problems.render(Colour::Never)));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    assert!(loaded.settings.server.tls.is_some());
    assert!(loaded.settings.upstreams.iter().all(|upstream| upstream.tls.is_some()));
}

#[test]
fn the_readme_has_every_command_and_no_other() {
    let help = program().arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let (_, commands) = help.split_once("Commands:\n").expect("--help lists the commands");
    let in_program: Vec<_> = commands
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(in_program.contains(&"explain"));
    let text = manual();
    for command in &in_program {
        assert!(
            text.contains(&format!("| `tidegate {command}")),
            "`{command}` is not in the manual"
        );
    }
    let in_readme = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `tidegate "))
        .filter_map(|line| line.split([' ', '`']).next());
    for command in in_readme {
        assert!(in_program.contains(&command), "the manual names `tidegate {command}`");
    }
}

#[test]
fn the_test_command_is_there_and_ci_runs_it() {
    assert!(manual().contains("./scripts/test"));
    let ci = fs::read_to_string(path(".ci/run")).unwrap();
    assert!(ci.contains("./scripts/test"));
    let parsed = Command::new("bash").arg("-n").arg(path("scripts/test")).status().unwrap();
    assert!(parsed.success());
}

#[test]
fn every_metric_in_the_readme_exists() {
    let text = manual();
    let proxy = Proxy::answering().admin().start();
    let Metrics(page) = Metrics::of(proxy.admin());
    let named: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `tidegate_"))
        .filter_map(|line| line.split(['`', '{']).next())
        .collect();
    assert!(named.len() >= 8);
    for name in &named {
        assert!(page.contains(&format!("# TYPE tidegate_{name} ")), "no metric tidegate_{name}");
    }
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE tidegate_")) {
        let name = line.split(' ').next().unwrap();
        assert!(named.contains(&name), "tidegate_{name} is not in the manual");
    }
}

/// A place in a document that another document names.
#[test]
fn every_link_leads_somewhere() {
    let anchor = |heading: &str| {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    let others =
        ["README.zh-CN.md", "docs/changing.md", "docs/decisions.md", "docs/performance.md"];
    let documents = MANUAL.iter().chain(&others);
    for name in documents {
        let text = fs::read_to_string(path(name)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let file = match file {
                "" => path(name),
                file => path(name).parent().unwrap().join(file),
            };
            let target = fs::read(&file).unwrap_or_else(|_| panic!("{name} links to {link}"));
            let target = String::from_utf8_lossy(&target);
            let headings = target.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            assert!(place.is_empty() || anchors.any(|it| it == place), "{name} links to {link}");
        }
    }
}
