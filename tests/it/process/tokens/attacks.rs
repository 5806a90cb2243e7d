//! Tokens of somebody who has no key.

use serde_json::json;

use super::{proxy, statuses, with_file};
use crate::support::client::get;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::tokens::Signer;

#[test]
fn two_tokens_are_refused() {
    let (folder, signer) = (Folder::new(), Signer::new("own"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let proxy = proxy(&tables, "key = [\"jwt:sub\"]").start();
    let (a, b) = (signer.of("a"), signer.of("b"));
    let (bearer_a, bearer_b) = (format!("Bearer {a}"), format!("Bearer {b}"));
    for lines in [
        &[("authorization", &*bearer_a), ("authorization", &*bearer_b)][..],
        &[("authorization", &*bearer_a), ("authorization", &*bearer_a)],
        &[("authorization", &*bearer_a), ("authorization", "Basic YTpi")],
        &[("authorization", &*format!("{bearer_a}, {bearer_b}"))],
        &[("authorization", &*format!("{bearer_a},{bearer_b}"))],
        &[("authorization", &*format!("{bearer_a} {b}"))],
        &[("authorization", &*format!("Bearer {bearer_a}"))],
    ] {
        let reply = get(proxy.address, "/", lines);
        assert_eq!(reply.status, 400, "{lines:?}");
        assert!(
            reply.json()["detail"].as_str().unwrap().starts_with("the token with the claim `sub` ")
        );
    }
    assert_eq!(statuses(&proxy, &[&a, &b]), [200, 200], "nothing was counted");
}

/// APIs take a token behind any scheme, with padding or other unused bits in its signature, or with `Bearer ` in it, and
/// for minutes after its end. The limit that did not know such a token let it pass.
#[test]
fn a_token_that_only_the_api_takes_gets_rid_of_no_limit() {
    let (folder, signer) = (Folder::new(), Signer::new("own"));
    let tables = with_file(&folder, "main", &[&signer], "");
    let token = signer.of("a");
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (kept, last) = signature.split_at(signature.len() - 1);
    let last = char::from(last.as_bytes()[0] + 1);
    let inner = message.len() / 2;
    let within = |at: usize| format!("{}Bearer {}", &token[..at], &token[at..]);
    let odd = [
        format!("Bearer {token}="),
        format!("Bearer {token}=="),
        format!("Basic {token}=="),
        format!("Token {message}.{kept}{last}"),
        format!("{message}.{kept}{last}"),
        format!("Basic {message}.!{signature}"),
        format!("x=1 {token}="),
        within(5),
        within(inner),
        within(message.len() + 5),
        format!("Bearer {}", within(inner)),
        format!("Bearer {message}. {signature}"),
        format!("Bearer {message}.\t{signature}"),
        format!("Bearer {}", signer.token(&json!({ "sub": "a", "exp": 1_500_000_000 }))),
        format!("Bearer {}", signer.token(&json!({ "sub": "a", "nbf": 32_503_680_000_u64 }))),
    ];
    let with = |proxy: &Tidegate, value: &str, key: &str| {
        get(proxy.address, "/", &[("authorization", value), ("x-api-key", key)]).status
    };
    for key in ["jwt:sub", "jwt:sub | header:x-api-key", "jwt:sub | ip"] {
        let limit = format!("key = [\"{key}\"]\nmissing = \"skip\"");
        let proxy = proxy(&tables, &limit).start();
        assert_eq!(with(&proxy, "Bearer none", "0"), 200, "the bucket of all unverified tokens");
        for (index, value) in odd.iter().enumerate() {
            let status = with(&proxy, value, &index.to_string());
            assert!(matches!(status, 400 | 429), "{key} {value}: {status}");
        }
        assert_eq!(with(&proxy, &format!("Basic {token}"), ""), 200, "{key}: the token counts");
        for scheme in ["Basic ", "basic\t", "Bearer ", "AWS4 ", "Negotiate  ", ""] {
            assert_eq!(with(&proxy, &format!("{scheme}{token}"), ""), 429, "{key} {scheme}");
        }
    }
    let proxy = proxy(&tables, "key = [\"jwt:sub\"]\nmissing = \"skip\"").start();
    for value in ["Basic YTpi", "Digest username=\"a.b.c\", realm=\"d.e.f\"", "Negotiate YII=="] {
        assert_eq!([0, 1].map(|_| with(&proxy, value, "")), [200, 200], "{value} is no token");
    }
    let cookie = format!("{tables}cookie = \"session\"\n");
    let limit = "key = [\"jwt:sub\"]\nmissing = \"skip\"";
    let proxy = super::proxy(&cookie, limit).start();
    let cookies =
        [format!("{token}="), format!("Bearer%20{token}"), format!("{message}.{kept}{last}")];
    let statuses = cookies
        .map(|token| get(proxy.address, "/", &[("cookie", &format!("session={token}"))]).status);
    assert_eq!(statuses, [200, 429, 429]);
}

/// `Basic` hid a token from `invalid = "reject"`.
#[test]
fn no_scheme_hides_a_token_that_must_verify() {
    let (folder, signer) = (Folder::new(), Signer::new("own"));
    let tables = with_file(&folder, "main", &[&signer], "invalid = \"reject\"\n");
    let proxy = proxy(&tables, "key = [\"jwt:sub\"]\nmissing = \"skip\"").start();
    let token = signer.of("a");
    for (value, status) in [
        (format!("Basic {token}"), 200),
        (format!("Basic {token}"), 429),
        (format!("Basic {token}="), 401),
        (format!("Basic {}", Signer::new("own").of("a")), 401),
        ("Basic YTpi".to_owned(), 200),
    ] {
        let reply = get(proxy.address, "/", &[("authorization", &value)]);
        assert_eq!(reply.status, status, "{value}");
    }
}
