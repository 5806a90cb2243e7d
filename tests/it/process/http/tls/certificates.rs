//! Which certificate clients are shown, and what becomes of it when its files change.

use std::fs;

use tidegate::tls::HTTP_1_1;
use webpki::EndEntityCert;

use super::{Place, pair};
use crate::support::client::Connection;
use crate::support::tidegate::{Tidegate, program};
use crate::support::tls::{Folder, Stream, shake_hands};
use crate::support::wait_until;

/// The certificate that a client who asks for `name` is shown.
fn shown(proxy: &Tidegate, folder: &Folder, name: &str) -> Vec<u8> {
    let stream = shake_hands(proxy.address, &folder.client(&[HTTP_1_1], None), name).unwrap();
    certificate(&stream)
}

fn certificate(stream: &Stream) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// The names that it is for.
fn names(certificate: Vec<u8>) -> Vec<String> {
    let certificate = certificate.into();
    let certificate = EndEntityCert::try_from(&certificate).unwrap();
    certificate.valid_dns_names().map(str::to_owned).collect()
}

#[test]
fn the_name_that_is_asked_for_decides() {
    let place = Place::new();
    let others = [
        place.folder.write_server("b", &["b.test"]),
        place.folder.write_server("wild", &["*.b.test"]),
        place.folder.write_server("www", &["www.b.test"]),
    ];
    let all: Vec<_> = [&place.files].into_iter().chain(&others).map(pair).collect();
    let config = place.proxy().text().replace(&all[0], &all.join(", "));
    let proxy = Tidegate::start(&config);
    for (asked, expected) in [
        ("a.test", "a.test"),
        ("b.test", "b.test"),
        ("x.b.test", "*.b.test"),
        ("X.B.Test", "*.b.test"),
        ("www.b.test", "www.b.test"),
        // No name at all: an address is none.
        ("127.0.0.1", "a.test"),
    ] {
        assert_eq!(names(shown(&proxy, &place.folder, asked)), [expected], "{asked}");
    }
}

#[test]
fn a_renewed_certificate_is_shown_without_a_reload() {
    let place = Place::new();
    let proxy = place.start();
    let before = shown(&proxy, &place.folder, "a.test");
    let mut early = Connection::open_tls(proxy.address, &place.client(), "a.test");
    place.folder.write_server("cert", &["a.test", "new.test"]);
    let line = proxy.log.wait("certificates loaded", |_| true);
    assert_eq!(line["names"], "a.test, new.test");
    let after = shown(&proxy, &place.folder, "a.test");
    assert_ne!(after, before);
    assert_eq!(names(after), ["a.test", "new.test"]);
    assert_eq!(early.get("/", &[]).status, 200, "who was there before stays");
    assert_eq!(proxy.log.count("config reloaded"), 0);
}

#[test]
fn a_reload_brings_other_certificates() {
    let mut place = Place::new();
    let proxy = place.start();
    assert_eq!(names(shown(&proxy, &place.folder, "a.test")), ["a.test"]);
    place.files = place.folder.write_server("b", &["a.test", "b.test"]);
    proxy.reload(&place.proxy().text());
    assert_eq!(names(shown(&proxy, &place.folder, "a.test")), ["a.test", "b.test"]);
}

/// The file was read only once, and stayed rejected after its certificate was mended.
#[test]
fn a_file_rejected_for_its_certificate_is_taken_once_that_is_mended() {
    let place = Place::new();
    let proxy = place.start();
    let whole = fs::read(&place.files.cert).unwrap();
    fs::write(&place.files.cert, "broken").unwrap();
    proxy.log.wait("certificates rejected", |_| true);
    proxy.rewrite(&place.proxy().server("max_body_size = \"1MB\"").text());
    let line = proxy.log.wait("config rejected", |_| true);
    assert!(line["errors"].to_string().contains("cert.pem"), "{line}");
    fs::write(&place.files.cert, whole).unwrap();
    let line = proxy.log.wait("config reloaded", |_| true);
    assert!(line["changed"].to_string().contains("max_body_size none -> 1MB"), "{line}");
}

#[test]
fn a_certificate_that_has_ended_is_warned_of() {
    const ENDED: &str = "the certificate for a.test ended at 2020-01-01T00:00:00Z, ";
    let place = Place::new();
    let proxy = place.start();
    let is_told = |line: &serde_json::Value| line["warning"].as_str().unwrap().contains(ENDED);
    place.folder.write_ended_server("cert", "a.test");
    proxy.log.wait("config warning", is_told);
    proxy.reload(&place.proxy().server("max_body_size = \"1MB\"").text());
    wait_until("it is told again", || proxy.log.with("config warning").len() == 2);
    assert!(proxy.log.with("config warning").iter().all(is_told));
    let file = place.folder.path().join("proxy.toml");
    fs::write(&file, place.proxy().text().replace("LISTEN", "127.0.0.1:0")).unwrap();
    let told = program().arg("check").arg(&file).output().unwrap();
    let errors = String::from_utf8(told.stderr).unwrap();
    assert!(told.status.success() && errors.contains(&format!("warning: {ENDED}")), "{errors}");
}
