//! Files that cannot be read, files that they name, and what they have from the environment.

use super::*;
use crate::settings::Scheme;
use crate::tls::server::ClientAuth;
use crate::tls::testing::Authority;

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
    let settings = load(&path, &no_env, &Overrides::default()).unwrap().settings;

    assert!(settings.server.listen.is_empty(), "by TLS alone");
    let tls = settings.server.tls.unwrap().shown;
    assert_eq!(tls.files.certificates, [pair]);
    assert_eq!(tls.files.read().unwrap(), *tls.material);
    assert_eq!(tls.material.clients.as_ref().unwrap().1, ClientAuth::Require);
    let upstream = &settings.upstreams[0];
    let schemes: Vec<_> = upstream.servers.iter().map(|server| server.address.scheme).collect();
    assert_eq!(schemes, [Scheme::Https, Scheme::Http, Scheme::H2c]);
    let spec = upstream.tls.as_ref().unwrap();
    assert_eq!((spec.roots.len(), spec.identity.is_none()), (1, true));

    std::fs::write(&path, SMALLEST.replace("3000\"]", "3000\"]\ntls = { ca = \"ca.pem\" }"))
        .unwrap();
    let settings = load(&path, &no_env, &Overrides::default()).unwrap().settings;
    assert_eq!(settings.upstreams[0].tls, None, "nothing is spoken by TLS");
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
    let settings = parse("proxy.toml", &text, &env, &Overrides::default()).unwrap().settings;
    assert_eq!(settings.upstreams[0].servers[0].address.url, "http://10.0.0.1:81");
    assert_eq!(settings.routes[0].limits.as_slice(), [0]);
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
