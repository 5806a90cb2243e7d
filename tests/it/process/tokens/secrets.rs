//! Nothing of a token stands anywhere but in the request that goes to the API.

use serde_json::json;

use super::with_file;
use crate::support::client::{Connection, get};
use crate::support::collector::Collector;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::tokens::Signer;
use crate::support::upstream::Upstream;

#[test]
fn nothing_of_a_token_is_told() {
    let (redis, collector, api) = (RedisServer::start(), Collector::start(), Upstream::echoing());
    let (folder, signer) = (Folder::new(), Signer::new("the-kid-of-the-key"));
    let secret = "hunter2 hunter2 hunter2 hunter2 hunter2";
    let tables = with_file(&folder, "main", &[&signer], "issuer = \"https://a.example\"\n")
        + &format!(
            "[jwt.second]\nkeys = {{ secret = \"{secret}\" }}\ncookie = \"session\"\ninvalid = \"reject\"\n"
        );
    let text = Proxy::to(&api)
        .section(&tables)
        .section("[log]\naccess = true\nthrottle = \"each\"\n")
        .section(&collector.section())
        .section("[decide]\nlisten = \"LISTEN\"\n")
        .admin()
        .store(&redis.fields())
        .limit("one", "key = [\"jwt:sub\", \"jwt:org.id | ip\"]\nrate = \"1/h\"")
        .limit("all", "key = [\"jwt:email\"]\nrate = \"2/h\"\nmode = \"shadow\"")
        .text();
    let proxy = Tidegate::start_with(&text, |command| _ = command.env("RUST_LOG", "trace"));
    let claims = json!({
        "iss": "https://a.example", "sub": "subject-of-the-token", "email": "somebody@mail.example",
        "org": { "id": "organisation-of-the-token" },
    });
    let valid = signer.token(&claims);
    let mut wrong = claims.clone();
    wrong["exp"] = 1.into();
    let wrong = signer.token(&wrong);
    let mut answers = Vec::new();
    for token in [&valid, &valid, &wrong, &format!("{valid}x"), &valid[..40].to_owned()] {
        let bearer = format!("Bearer {token}");
        for headers in [
            &[("authorization", &*bearer)][..],
            &[("authorization", &*bearer), ("authorization", &*bearer)],
            &[("cookie", &*format!("session={token}"))],
        ] {
            let reply = get(proxy.address, "/", headers);
            answers.push(format!("{:?} {}", reply.headers, reply.text()));
        }
    }
    let asked = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let asked = asked["address"].as_str().unwrap().parse().unwrap();
    for token in [&valid, &wrong] {
        let bearer = format!("Bearer {token}");
        let of_client = ("authorization", &*bearer);
        let nginx = [("x-original-method", "GET"), ("x-original-uri", "/"), of_client];
        let traefik = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), of_client];
        let check = json!({ "method": "GET", "path": "/", "headers": { "authorization": bearer } });
        let mut connection = Connection::open(asked);
        for reply in [
            get(asked, "/auth-request", &nginx),
            get(asked, "/forward-auth", &traefik),
            connection.request("POST", "/check", &[], check.to_string().as_bytes()),
        ] {
            answers.push(format!("{:?} {}", reply.headers, reply.text()));
        }
    }
    for path in [
        "/api/config",
        "/api/status",
        "/api/limits",
        "/api/history",
        "/api/fleet",
        "/metrics",
        "/",
        "/api/why?limit=user&key=",
    ] {
        answers.push(get(proxy.admin(), path, &[]).text());
    }
    let names: Vec<String> = redis.run(&["KEYS", "*"]);
    assert!(names.iter().any(|name| name.contains(":one")), "{names:?}");
    let spans = format!("{:?}", collector.wait(21));
    let said = [answers.join("\n"), names.join("\n"), spans, proxy.log.text(), proxy.errors.text()];
    let all: Vec<_> = valid.split('.').chain(wrong.split('.')).map(|part| &part[4..28]).collect();
    let claims = [
        "subject-of-the-token",
        "somebody@mail",
        "organisation-of-the-token",
        "the-kid-of-the-key",
        "hunter2",
    ];
    for what in all.iter().chain(&claims) {
        for text in &said {
            assert!(!text.contains(what), "{what} in {text}");
        }
    }
    assert!(api.last().header("authorization").is_some(), "the API gets it as it came");
}
