//! Limits by claims of verified tokens.

mod attacks;
mod commands;
mod plans;
mod secrets;
mod servers;

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::tokens::{Signer, jwks};

/// A table with the keys of a file beside `proxy.toml`.
fn with_file(folder: &Folder, name: &str, signers: &[&Signer], lines: &str) -> String {
    let file = folder.path().join(format!("{name}.json"));
    fs::write(&file, jwks(signers)).unwrap();
    format!("[jwt.{name}]\nkeys = \"{}\"\n{lines}", file.display())
}

/// A bucket of a key holds one token for an hour.
fn proxy(tables: &str, limit: &str) -> Proxy {
    Proxy::answering().section(tables).limit("one", &format!("rate = \"1/h\"\n{limit}"))
}

fn ask(address: SocketAddr, token: &str) -> Reply {
    get(address, "/", &[("authorization", &format!("Bearer {token}"))])
}

fn statuses(proxy: &Tidegate, tokens: &[&str]) -> Vec<u16> {
    tokens.iter().map(|token| ask(proxy.address, token).status).collect()
}

#[test]
fn each_value_of_a_claim_has_its_own_bucket() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let claims = |claims: Value| signer.token(&claims);
    for (key, same, others) in [
        (
            "jwt:sub",
            [json!({ "sub": "a" }), json!({ "sub": "a", "x": 1 })],
            vec![json!({ "sub": "b" })],
        ),
        (
            "jwt:org.id",
            [json!({ "org": { "id": 7 } }), json!({ "org": { "id": "7" } })],
            vec![
                json!({ "org": { "id": 8 } }),
                json!({ "org.id": "whole" }),
                json!({ "org": { "id": true } }),
            ],
        ),
        (
            "jwt:https://example.com/plan",
            [
                json!({ "https://example.com/plan": "pro" }),
                json!({ "https://example.com/plan": "pro", "sub": "b" }),
            ],
            vec![json!({ "https://example.com/plan": "free" })],
        ),
        (
            "jwt:https://example.com/app.plan",
            [
                json!({ "https://example.com/app": { "plan": "pro" } }),
                json!({ "https://example.com/app": { "plan": "pro" } }),
            ],
            vec![json!({ "https://example.com/app.plan": "free" })],
        ),
        // What is no value counts as missing: these share the bucket of those without the claim.
        ("jwt:aud", [json!({ "aud": ["a"] }), json!({})], vec![json!({ "aud": "" })]),
        (
            "jwt:sub",
            [json!({ "sub": { "a": 1 } }), json!({ "sub": null })],
            vec![json!({ "sub": "-" })],
        ),
    ] {
        let proxy = proxy(&tables, &format!("key = [\"{key}\"]")).start();
        let [first, second] = same.map(claims);
        assert_eq!(statuses(&proxy, &[&first, &second, &first]), [200, 429, 429], "{key}");
        for other in others {
            assert_eq!(ask(proxy.address, &claims(other.clone())).status, 200, "{key} {other}");
        }
    }
}

#[test]
fn an_alternative_stands_in_for_a_missing_token() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let proxy = proxy(&tables, "key = [\"jwt:org | ip\"]").start();
    let token = signer.token(&json!({ "org": "127.0.0.1" }));
    assert_eq!(statuses(&proxy, &[&token, &token]), [200, 429]);
    assert_eq!(get(proxy.address, "/", &[]).status, 200, "the address never meets the claim");
    for other in ["nonsense", &Signer::new("a").of("x")] {
        assert_eq!(ask(proxy.address, other).status, 429, "it counts as none");
    }
}

#[test]
fn missing_decides_about_requests_without_a_token() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    for (missing, expected) in
        [("shared", [200, 429]), ("skip", [200, 200]), ("reject", [401, 401])]
    {
        let limit = format!("key = [\"jwt:sub\"]\nmissing = \"{missing}\"");
        let proxy = proxy(&tables, &limit).start();
        let found = [(), ()].map(|()| get(proxy.address, "/", &[]).status);
        assert_eq!(found, expected, "{missing}");
        assert_eq!(statuses(&proxy, &[&signer.of("a")]), [200]);
    }
}

/// A client without a token, or with one that has expired, was told with 400 that a claim is missing.
#[test]
fn whoever_has_to_show_who_he_is_gets_401_with_the_reason() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "audience = \"api\"");
    let expired = signer.token(&json!({ "sub": "a", "aud": "api", "exp": 1_500_000_000 }));
    let foreign = signer.token(&json!({ "sub": "a", "aud": "other" }));
    let unknown = Signer::new("b").token(&json!({ "sub": "a", "aud": "api" }));
    let bare = signer.token(&json!({ "aud": "api" }));
    let because =
        |fault: &str| format!("Bearer error=\"invalid_token\", error_description=\"{fault}\"");
    for (key, token, status, challenge) in [
        ("jwt:sub", None, 401, Some("Bearer".to_owned())),
        ("jwt:sub", Some(&bare), 401, Some("Bearer".to_owned())),
        ("jwt:sub", Some(&expired), 401, Some(because("it has expired"))),
        ("jwt:sub", Some(&foreign), 401, Some(because("its `aud` is another audience"))),
        ("jwt:sub", Some(&unknown), 401, Some(because("no key has its `kid`"))),
        ("header:authorization", None, 401, Some("Bearer".to_owned())),
        ("header:x-api-key", None, 400, None),
    ] {
        let limit = format!("key = [\"{key}\"]\nmissing = \"reject\"");
        let proxy = proxy(&tables, &limit).start();
        let fields = token.map(|token| ("authorization", format!("Bearer {token}")));
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = get(proxy.address, "/", &fields);
        assert_eq!((reply.status, reply.header("www-authenticate")), (status, challenge), "{key}");
        let call = [&fields[..], &[("content-type", "application/grpc")]].concat();
        let call = Connection::open(proxy.address).request("POST", "/", &call, b"");
        let expected = if status == 401 { "16" } else { "3" };
        assert_eq!(call.header("grpc-status").as_deref(), Some(expected), "{key}");
    }
}

#[test]
fn a_token_that_does_not_verify_is_refused_where_a_limit_reads_it() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "invalid = \"reject\"");
    let proxy = Proxy::answering()
        .section(&tables)
        .limit("user", "key = [\"jwt:sub\"]\nrate = \"100/h\"")
        .limit("shadow", "key = [\"jwt:sub\"]\nrate = \"100/h\"\nmode = \"shadow\"")
        .limit("exempt", "key = [\"jwt:sub\"]\nrate = \"100/h\"\nexempt = { path = [\"/exempt\"] }")
        .limit("ip", "key = [\"ip\"]\nrate = \"100/h\"")
        .route("path = \"/user\"\nlimits = [\"user\", \"ip\"]")
        .route("path = \"/shadow\"\nlimits = [\"shadow\"]")
        .route("path = \"/exempt\"\nlimits = [\"exempt\"]")
        .route("path = \"/ip\"\nlimits = [\"ip\"]")
        .start();
    let stranger = Signer::new("a").of("x");
    let ask = |path: &str, token: &str| {
        get(proxy.address, path, &[("authorization", &format!("Bearer {token}"))])
    };
    for token in [&*stranger, "opaque", "", &signer.token(&json!({ "sub": "a", "exp": 1 }))] {
        let reply = ask("/user", token);
        assert_eq!(reply.status, 401, "{token}");
        assert_eq!(
            reply.header("www-authenticate").as_deref(),
            Some("Bearer error=\"invalid_token\"")
        );
        assert_eq!(reply.json()["status"], 401);
        assert!(reply.json()["detail"].as_str().unwrap().starts_with("the token is not valid: "));
        for path in ["/shadow", "/exempt", "/ip"] {
            assert_eq!(ask(path, token).status, 200, "{path} {token}");
        }
    }
    assert_eq!(ask("/user", &signer.of("a")).status, 200);
    assert_eq!(get(proxy.address, "/user", &[]).status, 200, "`missing` decides about no token");
    let grpc = [("authorization", "Bearer opaque"), ("content-type", "application/grpc")];
    let grpc = Connection::open(proxy.address).request("POST", "/user", &grpc, b"");
    assert_eq!((grpc.status, grpc.header("grpc-status").as_deref()), (200, Some("16")));
    // 401 is not what the limits decided: nothing was taken from the address.
    assert_eq!(get(proxy.address, "/ip", &[]).header("ratelimit").unwrap(), "\"ip\";r=93;t=3600");
}

#[test]
fn values_of_different_tables_never_meet() {
    let folder = Folder::new();
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let tables = with_file(&folder, "main", &[&a], "issuer = \"one\"\n")
        + &with_file(&folder, "second", &[&b], "issuer = \"two\"\nheader = \"x-token\"\n")
        + &with_file(&folder, "third", &[&b], "");
    let limit = "key = [\"jwt:sub | ip\"]\n\
        overrides = [{ key = [\"vip\"], rate = \"2/h\" }, { key = [\"3=vip\"], rate = \"3/h\" }]";
    let proxy = proxy(&tables, limit).start();
    let claims = |signer: &Signer, issuer: &str, sub: &str| {
        signer.token(&json!({ "iss": issuer, "sub": sub }))
    };
    let by_header = |token: &str| get(proxy.address, "/", &[("x-token", token)]).status;
    let (of_one, of_two, of_none) =
        (claims(&a, "one", "u"), claims(&b, "two", "u"), claims(&b, "three", "u"));
    assert_eq!(statuses(&proxy, &[&of_one, &of_one]), [200, 429]);
    assert_eq!([by_header(&of_two), by_header(&of_two)], [200, 429]);
    assert_eq!(statuses(&proxy, &[&of_none, &of_none]), [200, 429]);
    // A value without a table is one of the first in overrides. Numbers after the alternatives stand for the others.
    let vip = claims(&a, "one", "vip");
    assert_eq!(statuses(&proxy, &[&vip, &vip, &vip]), [200, 200, 429]);
    let vip = claims(&b, "two", "vip");
    assert_eq!([0; 4].map(|_| by_header(&vip)), [200, 200, 200, 429]);
    // A key of one issuer does not speak for another: this token counts as none.
    assert_eq!(statuses(&proxy, &[&claims(&b, "one", "u")]), [200]);
    assert_eq!(get(proxy.address, "/", &[]).status, 429, "it was counted by its address");
}

/// The place of a table in the file named its buckets: other places were other buckets, or those of others' users.
#[test]
fn the_order_of_the_tables_changes_nothing() {
    let folder = Folder::new();
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let one = with_file(&folder, "one", &[&a], "issuer = \"one\"\n");
    let two = with_file(&folder, "two", &[&b], "issuer = \"two\"\n");
    let three = with_file(&folder, "three", &[&b], "issuer = \"three\"\n");
    let limit = "key = [\"jwt:sub | ip\"]\noverrides = [{ key = [\"two:vip\"], rate = \"2/h\" }]";
    let of = |signer: &Signer, issuer: &str, sub: &str| {
        signer.token(&json!({ "iss": issuer, "sub": sub }))
    };
    let (of_one, vip) = (of(&a, "one", "u"), of(&b, "two", "vip"));
    let proxy = proxy(&format!("{one}{two}"), limit).start();
    assert_eq!(statuses(&proxy, &[&of_one, &vip]), [200, 200]);
    let reordered = crate::support::proxy::Proxy::answering()
        .section(&format!("{three}{two}{one}"))
        .limit("one", &format!("rate = \"1/h\"\n{limit}"));
    proxy.reload(&reordered.text());
    assert_eq!(statuses(&proxy, &[&of_one, &vip, &vip]), [429, 200, 429]);
    let others = [of(&b, "two", "u"), of(&b, "three", "u"), of(&b, "three", "vip")];
    assert_eq!(others.each_ref().map(|token| ask(proxy.address, token).status), [200; 3]);
}

#[test]
fn a_token_may_be_in_a_cookie_and_is_passed_on() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let api = crate::support::upstream::Upstream::echoing();
    let tables = with_file(&folder, "main", &[&signer], "cookie = \"session\"");
    let proxy = Proxy::to(&api)
        .section(&tables)
        .limit("one", "key = [\"jwt:sub\"]\nmissing = \"skip\"\nrate = \"1/h\"")
        .start();
    let token = signer.of("a");
    let ask = |cookie: &str| get(proxy.address, "/", &[("cookie", cookie)]).status;
    assert_eq!(
        [ask(&format!("a=b; session={token}")), ask(&format!("session=\"{token}\""))],
        [200, 429]
    );
    assert_eq!(api.last().header("cookie").unwrap(), format!("a=b; session={token}"));
    assert_eq!(ask(&format!("session={token}; session={token}")), 400);
    assert_eq!(ask("session=opaque"), 200);
}

#[test]
fn the_secret_of_hs256_verifies() {
    let secret = "a secret that is as long as it must be";
    let tables = "[jwt.main]\nkeys = { secret = \"${SECRET}\" }\ninvalid = \"reject\"";
    let text = proxy(tables, "key = [\"jwt:sub\"]").text();
    let proxy = Tidegate::start_with(&text, |command| _ = command.env("SECRET", secret));
    for algorithm in ["HS256", "HS384", "HS512"] {
        let sign = |secret: &str| {
            let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
            let header = json!({ "alg": algorithm });
            let claims = json!({ "sub": algorithm });
            crate::support::tokens::sign(&key, algorithm.parse().unwrap(), &header, &claims)
        };
        assert_eq!(statuses(&proxy, &[&sign(secret), &sign(secret)]), [200, 429]);
        assert_eq!(statuses(&proxy, &[&sign("another"), &sign("")]), [401, 401]);
    }
}

#[test]
fn a_changed_file_of_keys_is_in_force_and_a_broken_one_is_not() {
    let folder = Folder::new();
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let tables = with_file(&folder, "main", &[&old], "invalid = \"reject\"");
    let file = folder.path().join("main.json");
    let limit = "key = [\"jwt:sub\"]\nrate = \"1000/h\"";
    let proxy = Proxy::answering().section(&tables).limit("one", limit).start();
    assert_eq!(statuses(&proxy, &[&old.of("a"), &new.of("a")]), [200, 401]);
    fs::write(&file, jwks(&[&old, &new])).unwrap();
    let line = proxy.log.wait("jwt keys read", |line| line["keys"] == 2);
    assert_eq!(line["jwt"], "main");
    assert_eq!(statuses(&proxy, &[&old.of("a"), &new.of("a")]), [200, 200]);
    fs::write(&file, "{\"keys\":[]}").unwrap();
    let line = proxy.log.wait("jwt keys unavailable", |_| true);
    assert_eq!((&line["level"], &line["jwt"]), (&"WARN".into(), &"main".into()));
    assert!(
        line["error"]
            .as_str()
            .unwrap()
            .ends_with("it has no key that verifies signatures (RSA, P-256, P-384, Ed25519)")
    );
    assert_eq!(statuses(&proxy, &[&old.of("a"), &new.of("a")]), [200, 200], "the last keys stay");
    fs::write(&file, new.pair.public_key_pem()).unwrap();
    proxy.log.wait("jwt keys read", |line| line["keys"] == 1);
    assert_eq!(
        statuses(&proxy, &[&old.of("a"), &new.of("a")]),
        [401, 200],
        "the old one is withdrawn"
    );
}

/// Nothing else of the route reads the token.
#[test]
fn a_claim_says_the_plan() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "invalid = \"reject\"\n");
    let tables = format!("{tables}\n[plans]\nby = \"jwt:plan\"\n");
    let proxy = proxy(&tables, "key = [\"ip\"]\nplans = { pro = \"3/h\" }").start();
    let [pro, free] = ["pro", "free"].map(|plan| signer.token(&json!({ "plan": plan })));
    assert_eq!(statuses(&proxy, &[&free, &free, &pro, &pro, &pro]), [200, 429, 200, 200, 429]);
    assert_eq!(ask(proxy.address, "a.b.c").status, 401);
}
