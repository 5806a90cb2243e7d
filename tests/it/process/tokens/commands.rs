//! What `check`, `explain` and `replay` say of tokens.

use std::fs;

use serde_json::{Value, json};

use super::with_file;
use crate::process::cli::told;
use crate::support::proxy::Proxy;
use crate::support::tls::Folder;
use crate::support::tokens::{KeyServer, Signer};

fn written(folder: &Folder, text: &str) {
    fs::write(folder.path().join("proxy.toml"), text.replace("LISTEN", "127.0.0.1:1")).unwrap();
}

fn explained(folder: &Folder, arguments: &[&str]) -> Value {
    let arguments = [&["explain", "GET /", "--json"], arguments].concat();
    let (code, out, errors) = told(folder.path(), &arguments);
    assert_eq!((code, &*errors), (0, ""), "{arguments:?} {out}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn explain_says_what_the_token_is_worth() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let limit = "key = [\"jwt:sub\", \"jwt:org.id | ip\"]\nrate = \"10/h\"";
    let text = Proxy::answering().section(&tables).limit("user", limit).text();
    written(&folder, &text);
    let bearer = |token: &str| format!("authorization: Bearer {token}");
    let valid = bearer(&signer.token(&json!({ "sub": "ann", "org": { "id": 7 } })));
    let hashed = "VM4vGTdGzJ2LrM2XFpEoyA";
    let plain = explained(&folder, &["--header", &valid, "--plain"]);
    assert_eq!(
        plain["token"],
        json!({ "fate": "verified", "claims": { "sub": "ann", "org.id": "7" }, "errors": [] })
    );
    assert_eq!(plain["limits"][0]["key"], "ann|7");
    assert_eq!(plain["explanation"]["token"][0], "verified by [jwt.main]");
    let facts = explained(&folder, &["--header", &valid]);
    let sub = facts["token"]["claims"]["sub"].as_str().unwrap();
    assert_eq!(sub.len(), hashed.len());
    assert_eq!(facts["limits"][0]["key"].as_str().unwrap().split('|').next(), Some(sub));
    assert!(!facts.to_string().contains("ann"), "{facts}");
    // As for a token that verifies.
    let given =
        explained(&folder, &["--claims", "{\"sub\":\"ann\",\"org\":{\"id\":7}}", "--plain"]);
    assert_eq!(
        (&given["token"], &given["limits"][0]["key"]),
        (&plain["token"], &plain["limits"][0]["key"])
    );
    for (header, fate, sentence) in [
        (
            bearer("opaque"),
            "invalid",
            "counts as none, because it does not verify: it is no signed JWT",
        ),
        (
            bearer(&Signer::new("a").of("x")),
            "invalid",
            "counts as none, because it does not verify: its signature is wrong",
        ),
        (
            bearer(&Signer::new("b").of("x")),
            "invalid",
            "counts as none, because it does not verify: no key has its `kid`",
        ),
        (
            bearer(&signer.token(&json!({ "exp": 1 }))),
            "invalid",
            "counts as none, because it does not verify: it has expired",
        ),
        (bearer("a b"), "ambiguous", "it can be read in two ways"),
        ("x-a: b".to_owned(), "absent", "none: `missing` decides"),
    ] {
        let facts = explained(&folder, &["--header", &header]);
        assert_eq!(facts["token"]["fate"], fate, "{header}");
        assert_eq!(facts["explanation"]["token"][0], sentence, "{header}");
    }
    written(&folder, &text.replace("[jwt.main]", "[jwt.main]\ninvalid = \"reject\""));
    let facts = explained(&folder, &["--header", &bearer("opaque")]);
    assert_eq!((&facts["status"], &facts["token"]["fate"]), (&401.into(), &"invalid".into()));
    let (code, _, errors) = told(folder.path(), &["explain", "GET /", "--claims", "[1]"]);
    assert!(code == 2 && errors.contains("expected a JSON object"), "{errors}");
}

#[test]
fn explain_fetches_the_keys() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let server = KeyServer::start(&[&signer]);
    let limit = "key = [\"jwt:sub\"]\nrate = \"10/h\"";
    written(&folder, &Proxy::answering().section(&server.table("")).limit("user", limit).text());
    let bearer = format!("authorization: Bearer {}", signer.of("ann"));
    assert_eq!(explained(&folder, &["--header", &bearer])["token"]["fate"], "verified");
    server.says("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    let token = &explained(&folder, &["--header", &bearer])["token"];
    assert_eq!(token["fate"], "invalid");
    assert!(token["errors"][0].as_str().unwrap().ends_with("answered 404 Not Found"), "{token}");
    let fetches = server.fetches();
    let _ = explained(&folder, &["--claims", "{}"]);
    assert_eq!(server.fetches(), fetches, "nothing is to be verified");
}

#[test]
fn tests_of_a_file_have_claims() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let limit = "key = [\"jwt:sub\", \"jwt:org.id\"]\nmissing = \"skip\"\nrate = \"2/h\"";
    let test = |claims: &str, allowed: usize| {
        format!(
            "[[tests]]\nsend = \"GET /\"\n{claims}\ntimes = 3\nexpect = {{ allowed = {allowed} }}\n"
        )
    };
    let text = Proxy::answering().section(&tables).limit("user", limit).text()
        + &test("claims = { sub = \"a\", org = { id = 7 } }", 2)
        + &test("claims = { sub = \"b\", org = { id = 7 } }", 2)
        + &test("claims = { sub = \"b\", \"org.id\" = \"7\" }", 0)
        + &test("claims = { sub = \"c\" }", 3)
        + &test("", 3)
        + &test("headers = { authorization = \"Bearer none\" }", 2);
    written(&folder, &text);
    let (code, out, errors) = told(folder.path(), &["check"]);
    assert_eq!(code, 0, "{out}{errors}");
    written(&folder, &text.replace("allowed = 0", "allowed = 1"));
    let (code, out, errors) = told(folder.path(), &["check"]);
    assert_eq!(code, 2, "{out}{errors}");
}

#[test]
fn replay_takes_a_claim_from_the_log() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let limit = "key = [\"jwt:sub\"]\nmissing = \"skip\"\nrate = \"1/h\"";
    written(&folder, &Proxy::answering().section(&tables).limit("user", limit).text());
    let line = |user: &str| {
        format!(
            "203.0.113.7 - {user} [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
        )
    };
    let log: String = ["ann", "ann", "bob", "-", "-", "-"].map(line).concat();
    fs::write(folder.path().join("access.log"), log).unwrap();
    let rejected = |arguments: &[&str]| {
        let arguments = [&["replay", "access.log", "--json"], arguments].concat();
        let (code, out, errors) = told(folder.path(), &arguments);
        assert_eq!(code, 0, "{out}{errors}");
        serde_json::from_str::<Value>(&out).unwrap()["result"]["rejected"].clone()
    };
    assert_eq!(rejected(&["--assume", "jwt:sub=user"]), 1, "ann's second");
    assert_eq!(rejected(&["--assume", "jwt:sub=ip"]), 5);
    assert_eq!(rejected(&["--assume", "jwt:sub=none"]), 0);
    let (_, out, _) = told(folder.path(), &["replay", "access.log"]);
    assert!(out.contains("the claim sub of a token"), "the limit is left out: {out}");
}

#[test]
fn explain_says_which_plan_a_claim_names() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let tables = format!("{tables}\n[plans]\nby = \"jwt:org.plan\"\n");
    let limit = "key = [\"ip\"]\nrate = \"1/h\"\nplans = { pro = \"3/h\" }";
    written(&folder, &Proxy::answering().section(&tables).limit("one", limit).text());
    let token = signer.token(&json!({ "org": { "plan": "pro" } }));
    let header = format!("authorization: Bearer {token}");
    let facts = explained(&folder, &["--header", &header]);
    assert_eq!(facts["token"]["fate"], "verified");
    assert_eq!(facts["plan"]["name"], "pro");
    assert_ne!(facts["plan"]["of"], "pro", "it is hashed, as in the log");
    let plain = explained(&folder, &["--header", &header, "--plain"]);
    assert_eq!((&plain["plan"]["of"], &plain["plan"]["name"]), (&"pro".into(), &"pro".into()));
}
