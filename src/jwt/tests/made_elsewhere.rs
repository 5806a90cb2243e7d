//! Tokens that other programs have made, with their keys: `cryptography` 48 for Python, and OpenSSL 3.

use super::*;

/// For each token its algorithm, its key and its text. `sub` is the algorithm, and all end in 2100.
const MADE_ELSEWHERE: &str = include_str!("made_elsewhere.json");

/// A token of Python, and its secret.
const HMAC_OF_PYTHON: (&str, &[u8]) = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJIUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.me76PdvGvgJyQJCNhv0Nw0TxHdW87V-oX_Q_4NjZ4fg",
    b"a secret of thirty-two bytes ....",
);

#[test]
fn tokens_that_others_have_made_verify_with_their_own_keys_alone() {
    let made: Vec<[String; 3]> = serde_json::from_str(MADE_ELSEWHERE).unwrap();
    for [algorithm, key, token] in &made {
        let own = table(key.as_bytes(), |_| {});
        let claims = read(from_ref(&own), &bearer(token), NOW);
        assert_eq!(claims, Ok(json!({ "sub": algorithm, "exp": 4_102_444_800_u64 })), "{key}");
        for [_, other, of_other] in made.iter().filter(|[_, _, it]| it != token) {
            // One key may have signed several tokens.
            if other != key {
                let other = table(other.as_bytes(), |_| {});
                assert!(fault(from_ref(&other), token).is_some(), "{algorithm} {token}");
            }
            let (message, _) = token.rsplit_once('.').unwrap();
            let (_, signature) = of_other.rsplit_once('.').unwrap();
            let mixed = format!("{message}.{signature}");
            assert_eq!(fault(from_ref(&own), &mixed), Some(TokenFault::Signature), "{mixed}");
        }
    }
    let (token, secret) = HMAC_OF_PYTHON;
    assert_eq!(fault(&[secret_table(secret)], token), None);
    assert_eq!(fault(&[secret_table(b"another")], token), Some(TokenFault::Signature));
}
