//! What the Dockerfile expects of the manifest and of the shipped proxy.toml.

use std::fs;
use std::path::Path;

use tidegate::config::{self, Overrides};

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The image is built from the sources alone. Without a path, cargo looks for the file of each target, and
/// does not even build the dependencies where one is missing.
#[test]
fn the_manifest_gives_the_path_of_each_target() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for kind in ["bin", "test", "bench"] {
        let targets = manifest[kind].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            assert!(target.get("path").is_some(), "[[{kind}]] {}", target["name"]);
        }
    }
}

#[test]
fn the_image_listens_for_others_and_its_health_check_has_an_endpoint() {
    let dockerfile = read("Dockerfile");
    let edits = dockerfile.split("-e 's/^").skip(1).map(|rest| {
        let (edit, _) = rest.split_once("/'").expect("the end of an edit");
        edit.split_once('/').expect("two sides")
    });
    let mut shipped = read("proxy.toml");
    for (from, to) in edits {
        let (from, to) = (format!("\n{from}"), format!("\n{to}"));
        assert_eq!(shipped.matches(&from).count(), 1, "lines of proxy.toml that begin with {from}");
        shipped = shipped.replace(&from, &to);
    }
    let loaded = config::parse("proxy.toml", &shipped, &|_| None, &Overrides::default());
    let settings = loaded.unwrap_or_else(|problems| panic!("{problems}")).settings;
    assert!(
        settings.server.listen.iter().all(|address| address.tcp().unwrap().ip().is_unspecified())
    );
    let admin = settings.admin.listen.expect("an admin endpoint");
    assert!(dockerfile.contains(&format!("\"health\", \"http://{admin}\"")), "{admin}");
}
