//! Tokens that do not verify, again and again.

use std::net::Ipv4Addr;

use super::*;

fn client(number: u8) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)))
}

/// A regression: to check a wrong signature costs as much as up to 1,300 rejections, and no limit counted it.
#[test]
fn one_client_has_so_many_wrong_signatures_checked() {
    let [own, other] = [Signer::of(Algorithm::EdDSA), Signer::of(Algorithm::EdDSA)];
    let table = table(&jwks(&[own.jwk("own")]), |_| {});
    let tokens = Tokens::new(from_ref(&table));
    let read =
        |number, token: &str, after| tokens.read(client(number), &bearer(token), at(NOW + after));
    let of = |signer: &Signer, number: u32| signer.token(None, &json!({ "sub": number }));
    let wrong = TokenReading::Ignored(TokenFault::Signature);
    let bounded = TokenReading::Refused(PartFault::Invalid(TokenFault::TooMany));
    let known = of(&own, 0);
    assert!(matches!(read(1, &known, 0), TokenReading::Verified(_)));
    // The same one, however often it comes, is one.
    for _ in 0..1_000 {
        assert_eq!(read(1, &of(&other, 1), 0), wrong);
    }
    for number in 2..=100 {
        assert_eq!(read(1, &of(&other, number), 0), wrong);
    }
    // What is not known might be right. It is no token that counts as none, which might be a way out of a limit.
    for token in [of(&other, 101), of(&own, 101)] {
        assert_eq!(read(1, &token, 0), bounded);
    }
    assert_eq!(read(1, &of(&other, 1), 0), wrong, "it is known to be wrong");
    assert!(matches!(read(1, &known, 0), TokenReading::Verified(_)), "it is known to be right");
    assert_eq!(read(2, &of(&other, 101), 0), wrong, "another client");
    assert!(matches!(read(2, &of(&own, 102), 0), TokenReading::Verified(_)));
    assert!(matches!(read(1, &of(&own, 103), 1), TokenReading::Verified(_)), "in the next second");
    assert_eq!(
        tokens.read(None, &bearer("opaque"), at(NOW)),
        TokenReading::Ignored(TokenFault::Malformed)
    );
}

#[test]
fn a_token_that_has_failed_is_checked_by_new_keys_at_once() {
    let [old, new] = [Signer::of(Algorithm::EdDSA), Signer::of(Algorithm::EdDSA)];
    let table = table(&jwks(&[old.jwk("key")]), |_| {});
    let tokens = Tokens::new(from_ref(&table));
    let read = |token: &str| tokens.read(client(1), &bearer(token), at(NOW));
    let wrong = TokenReading::Ignored(TokenFault::Signature);
    let all: Vec<_> = (0..101).map(|n| new.token(Some("key"), &json!({ "sub": n }))).collect();
    assert!(all[..100].iter().all(|token| read(token) == wrong));
    assert_ne!(read(&all[100]), wrong, "its client has sent too many");
    table.replace(KeySet::parse(&jwks(&[new.jwk("key")])).unwrap());
    assert!(all.iter().all(|token| matches!(read(token), TokenReading::Verified(_))));
}

/// An expired token is the one that everybody has who ever had one.
#[test]
fn what_failed_after_its_signature_was_checked_is_remembered_and_counts_for_nobody() {
    let own = Signer::of(Algorithm::EdDSA);
    let table = table(&jwks(&[own.jwk("own")]), |spec| spec.audience = vec!["a".to_owned()]);
    let tokens = Tokens::new(from_ref(&table));
    let read = |claims: &Value| tokens.read(client(1), &bearer(&own.token(None, claims)), at(NOW));
    for number in 0..200 {
        let expired = read(&json!({ "sub": number, "aud": "a", "exp": NOW - 100 }));
        assert_eq!(expired, TokenReading::Ignored(TokenFault::Expired));
        let foreign = read(&json!({ "sub": number, "aud": "b" }));
        assert_eq!(foreign, TokenReading::Ignored(TokenFault::Audience));
    }
    assert_eq!(tokens.failed.borrow().len(), 400);
    assert!(matches!(read(&json!({ "aud": "a" })), TokenReading::Verified(_)));
}

#[test]
fn the_number_of_failed_tokens_is_bounded() {
    let mut failed = cache::FailedTokens::default();
    let reading = TokenReading::Ignored(TokenFault::Signature);
    for number in 0..20_000_u32 {
        let (token, client) = (number.to_be_bytes(), Some(IpAddr::from(number.to_be_bytes())));
        assert_eq!(failed.find((0, &token), client, at(NOW), 0), None);
        failed.insert((0, &token), reading.clone());
    }
    assert_eq!(failed.len(), 10_000);
    let first = 0_u32.to_be_bytes();
    assert_eq!(failed.find((1, &first), None, at(NOW), 0), None, "another place");
    assert_eq!(failed.find((0, &first), None, at(NOW), 0), Some(reading));
    assert_eq!(failed.find((0, &first), None, at(NOW + 1), 0), None);
    assert_eq!(failed.len(), 0);
}
