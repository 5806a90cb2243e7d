//! What stands in `deploy/` fits the program: its settings, its metrics, its times. `scripts/deploy` checks the
//! files with the tools of those who read them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::config::{self, Overrides};
use tidegate::settings::{ListenAddress, Settings};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The settings of a file, of which the program has nothing to say.
fn settings(name: &str, text: &str) -> Settings {
    let env = |name: &str| match name {
        "TIDEGATE_ADMIN_TOKEN" => Some("a-token".to_owned()),
        "TIDEGATE_STORE_URL" => Some("redis://valkey:6379".to_owned()),
        _ => None,
    };
    let loaded = config::parse(name, text, &env, &Overrides::default());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    loaded.settings
}

/// The text behind `name`, up to the end of the line.
fn value<'t>(text: &'t str, name: &str) -> &'t str {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("{name} is not there"));
    rest.lines().next().unwrap().trim()
}

fn seconds(text: &str, name: &str) -> Duration {
    Duration::from_secs(value(text, name).trim_end_matches('s').parse().unwrap())
}

fn time_to_stop(settings: &Settings) -> Duration {
    settings.server.shutdown_delay + settings.server.drain_timeout
}

const SHIPPED: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";

#[test]
fn the_compose_project_has_time_to_drain_and_a_health_check() {
    let compose = read("deploy/compose/compose.yaml");
    for name in ["config", "api"] {
        let file = format!("deploy/compose/{name}/proxy.toml");
        let settings = settings(&file, &read(&file));
        assert!(compose.contains(&format!("./{name}:/etc/tidegate:ro")), "{name}");
        assert_eq!(
            settings.admin.listen.unwrap().to_string(),
            "127.0.0.1:9090",
            "the image asks it"
        );
        let everywhere = |it: &ListenAddress| it.tcp().unwrap().ip().is_unspecified();
        assert!(settings.server.listen.iter().all(everywhere));
        assert!(seconds(&compose, "stop_grace_period:") > time_to_stop(&settings));
    }
}

#[test]
fn the_project_with_envoy_meets_at_one_socket() {
    let (compose, envoy) = (read("deploy/envoy/compose.yaml"), read("deploy/envoy/envoy.yaml"));
    let settings = settings("proxy.toml", &read("deploy/envoy/config/proxy.toml"));
    assert_eq!(settings.admin.listen.unwrap().to_string(), "127.0.0.1:9090", "the image asks it");
    assert!(settings.server.listen.is_empty());
    let Some(ListenAddress::Unix(socket)) = &settings.decide.listen else { panic!("no socket") };
    assert!(envoy.contains(&format!("pipe: {{ path: {} }}", socket.display())));
    let volume = format!("- socket:{}\n", socket.parent().unwrap().display());
    assert_eq!(compose.matches(&volume).count(), 2, "tidegate and Envoy");
    let user = value(&read("Dockerfile"), "USER ").to_owned();
    assert!(compose.contains(&format!("user: \"{user}:{user}\"")));
    assert!(compose.contains(&format!("uid={user},gid={user},mode=0770")));
    assert!(seconds(&compose, "stop_grace_period:") > time_to_stop(&settings));
    assert!(compose.contains("../compose/api:/etc/tidegate:ro"));
}

#[test]
fn the_manifests_fit_the_configuration_in_them() {
    let manifest = read("deploy/kubernetes/tidegate.yaml");
    let (_, file) = manifest.split_once("  proxy.toml: |\n").unwrap();
    let (file, _) = file.split_once("\n---").unwrap();
    let settings = settings("tidegate.yaml", &file.replace("\n    ", "\n").replacen("    ", "", 1));
    let grace = seconds(&manifest, "terminationGracePeriodSeconds:");
    assert!(grace > time_to_stop(&settings), "{grace:?}");
    assert!(settings.server.shutdown_delay > Duration::ZERO, "endpoints lag");
    let admin = settings.admin.listen.unwrap();
    assert!(
        admin.ip().is_unspecified() && settings.admin.token.is_some(),
        "the kubelet reaches it"
    );
    let http = settings.server.listen[0].tcp().unwrap();
    for (name, port) in [("admin", admin.port()), ("http", http.port())] {
        assert!(manifest.contains(&format!("{{ name: {name}, containerPort: {port} }}")), "{name}");
    }
    for probe in ["path: /readyz, port: admin", "path: /healthz, port: admin"] {
        assert!(manifest.contains(probe), "{probe}");
    }
    assert!(!manifest.contains("subPath:"), "a change of the ConfigMap would never arrive");
    let user = value(&read("Dockerfile"), "USER ").to_owned();
    assert_eq!(value(&manifest, "runAsUser:"), user);
    assert!(manifest.contains(&format!("image: tidegate:{}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_unit_has_time_to_drain_and_enough_files() {
    let unit = read("deploy/systemd/tidegate.service");
    let settings = settings("proxy.toml", SHIPPED);
    assert!(seconds(&unit, "TimeoutStopSec=") > time_to_stop(&settings));
    let files: usize = value(&unit, "LimitNOFILE=").parse().unwrap();
    assert!(files > 2 * settings.server.max_connections, "a client and a server for each");
}

/// The words in a text that begin as our metrics do.
fn metrics(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
    let ours = |word: &&str| word.starts_with("tidegate_") || word.starts_with("process_");
    words.filter(ours).collect()
}

#[test]
fn every_metric_of_the_rules_and_the_dashboard_is_one_of_ours() {
    let page = read("src/admin/expected.txt");
    let of_process = read("src/admin/process.rs");
    let of_process = of_process.split('"').filter(|word| word.starts_with("process_"));
    let mut known: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    known.extend(of_process.map(|name| name.trim_end()));
    assert!(known.len() > 30, "{known:?}");
    for file in ["prometheus/rules.yml", "prometheus/rules_test.yml", "grafana/tidegate.json"] {
        let text = read(&format!("deploy/{file}"));
        let used = metrics(&text);
        assert!(used.len() > 10, "{file}");
        for name in used {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(&family), "{file} has {name}");
        }
    }
}

#[test]
fn every_alert_has_a_test() {
    let (rules, tests) =
        (read("deploy/prometheus/rules.yml"), read("deploy/prometheus/rules_test.yml"));
    let alerts: Vec<_> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10);
    for alert in alerts {
        let fires = [format!("alertname=\"{alert}\""), format!("alertname: {alert}")];
        assert!(fires.iter().any(|fires| tests.contains(fires)), "{alert} has no test");
    }
}
