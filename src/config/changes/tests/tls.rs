use super::*;
use crate::tls::testing::Authority;

const LISTENER: &str = r#"
[server.tls]
listen = "127.0.0.1:8443"
certificates = [{ cert = "a.pem", key = "a.key" }]
client_ca = "ca.pem"

[decide]
listen = "127.0.0.1:9091"
tls = { certificates = [{ cert = "c.pem", key = "c.key" }] }
"#;

#[test]
fn changes_of_tls_are_listed() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let issue = |name: &str| authority.issue(&["localhost"]).write(folder.path(), name);
    authority.write(folder.path(), "ca.pem");
    Authority::new().write(folder.path(), "other.pem");
    issue("a");
    issue("b");
    issue("c");
    let text = FILE.replace("[upstreams.api]", &format!("{LISTENER}[upstreams.api]")).replace(
        "[\"http://127.0.0.1:3001\"]",
        "[\"https://127.0.0.1:3001\"]\ntls = { ca = \"ca.pem\" }",
    );
    let file = folder.path().join("proxy.toml");
    let settings = |text: &str| loaded_as(file.to_str().unwrap(), text);
    let diff = |old: &Loaded, new: &Loaded| old.changes_to(new, &env);
    let before = settings(&text);
    assert!(diff(&before, &settings(&text)).is_empty());
    for (from, to, expected) in [
        (
            "a.pem\", key = \"a.key",
            "b.pem\", key = \"b.key",
            "server.tls.certificates [{ cert a.pem, key a.key }] -> [{ cert b.pem, key b.key }]",
        ),
        ("client_ca = \"ca.pem\"\n", "", "server.tls.client_ca ca.pem -> none"),
        ("client_ca = \"ca", "client_ca = \"other", "server.tls.client_ca ca.pem -> other.pem"),
        (
            "client_ca",
            "client_auth = \"request\"\nclient_ca",
            "server.tls.client_auth require -> request",
        ),
        (
            "c.pem\", key = \"c.key",
            "b.pem\", key = \"b.key",
            "decide.tls.certificates [{ cert c.pem, key c.key }] -> [{ cert b.pem, key b.key }]",
        ),
        ("{ ca = \"ca", "{ ca = \"other", "upstreams.other tls.ca ca.pem -> other.pem"),
        (
            "{ ca",
            "{ server_name = \"api.internal\", ca",
            "upstreams.other tls.server_name none -> api.internal",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let changes = diff(&before, &settings(&text.replace(from, to)));
        assert_eq!(changes.changed, [expected], "{from} -> {to}");
        assert!(changes.restart.is_empty(), "{from} -> {to}");
    }
    let changes = diff(&before, &settings(&text.replace("8443", "8444")));
    let restart = |changes: &Changes| changes.restart.first().map(|it| it.line.clone());
    assert_eq!(
        (restart(&changes).as_deref(), changes.changed.len()),
        (Some("server.tls.listen [127.0.0.1:8443] -> [127.0.0.1:8444] with a restart"), 0)
    );
    assert_eq!(
        restart(&diff(&loaded(FILE), &before)).as_deref(),
        Some("server.tls.listen none -> [127.0.0.1:8443] with a restart")
    );

    let clear = settings(&text.replace("tls = { certificates", "#tls = { certificates"));
    for changes in [diff(&before, &clear), diff(&clear, &before)] {
        let expected = Some("decide.tls changes with a restart");
        assert_eq!((restart(&changes).as_deref(), changes.changed.len()), (expected, 0));
    }

    // The same file names with other content: a renewed certificate.
    issue("a");
    issue("c");
    Authority::new().write(folder.path(), "ca.pem");
    let changes = diff(&before, &settings(&text));
    let expected = [
        "server.tls.certificates changed",
        "server.tls.client_ca changed",
        "decide.tls.certificates changed",
        "upstreams.other tls changed",
    ];
    assert_eq!(changes.changed, expected);
    assert_ne!(before.settings.upstreams[1], settings(&text).settings.upstreams[1]);
}
