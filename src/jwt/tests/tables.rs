//! What a table `[jwt.NAME]` demands of a token, where the token is, and which keys the table has.

use super::*;

#[test]
fn times_are_read_strictly_and_with_leeway() {
    let signer = Signer::of(Algorithm::EdDSA);
    let keys = jwks(&[signer.jwk("own")]);
    let exact = table(&keys, |_| {});
    let lenient = table(&keys, |spec| spec.leeway = Duration::from_secs(30));
    let (expired, early, wrong) = (TokenFault::Expired, TokenFault::Early, TokenFault::Time);
    for (claims, without, with) in [
        (json!({}), None, None),
        (json!({ "exp": NOW + 1 }), None, None),
        (json!({ "exp": NOW }), Some(expired), None),
        (json!({ "exp": NOW - 29 }), Some(expired), None),
        (json!({ "exp": NOW - 30 }), Some(expired), Some(expired)),
        (json!({ "exp": 0 }), Some(expired), Some(expired)),
        (json!({ "exp": 1_800_000_000.5 }), None, None),
        (json!({ "exp": u64::MAX }), None, None),
        (json!({ "exp": "9999999999" }), Some(wrong), Some(wrong)),
        (json!({ "exp": null }), Some(wrong), Some(wrong)),
        (json!({ "exp": -1 }), Some(wrong), Some(wrong)),
        (json!({ "exp": 1e300 }), Some(wrong), Some(wrong)),
        (json!({ "exp": [NOW + 1] }), Some(wrong), Some(wrong)),
        (json!({ "nbf": NOW }), None, None),
        (json!({ "nbf": NOW + 30 }), Some(early), None),
        (json!({ "nbf": NOW + 31 }), Some(early), Some(early)),
        (json!({ "nbf": "0" }), Some(wrong), Some(wrong)),
    ] {
        let token = signer.token(None, &claims);
        assert_eq!(fault(from_ref(&exact), &token), without, "{claims}");
        assert_eq!(fault(from_ref(&lenient), &token), with, "{claims}");
    }
}

#[test]
fn issuer_and_audience_must_be_the_right_ones() {
    let signer = Signer::of(Algorithm::EdDSA);
    let keys = jwks(&[signer.jwk("own")]);
    let issuer = table(&keys, |spec| spec.issuer = Some("https://a.example".to_owned()));
    let audience = table(&keys, |spec| spec.audience = vec!["api".to_owned(), "web".to_owned()]);
    let (iss, aud) = (Some(TokenFault::Issuer), Some(TokenFault::Audience));
    for (claims, of_issuer, of_audience) in [
        (json!({}), iss, aud),
        (json!({ "iss": "https://a.example", "aud": "api" }), None, None),
        (json!({ "iss": "https://a.example/", "aud": "API" }), iss, aud),
        (json!({ "iss": ["https://a.example"], "aud": ["other", "web"] }), iss, None),
        (json!({ "iss": 1, "aud": { "api": true } }), iss, aud),
        (json!({ "iss": null, "aud": [["api"]] }), iss, aud),
        (json!({ "iss": "https://a.example", "aud": [] }), None, aud),
    ] {
        let token = signer.token(None, &claims);
        assert_eq!(fault(from_ref(&issuer), &token), of_issuer, "{claims}");
        assert_eq!(fault(from_ref(&audience), &token), of_audience, "{claims}");
    }
}

#[test]
fn the_issuer_chooses_the_table() {
    let signers = [Algorithm::EdDSA, Algorithm::ES256].map(Signer::of);
    let [keys_a, keys_b] = [0, 1].map(|index: usize| jwks(&[signers[index].jwk("own")]));
    let named = |keys: &[u8], issuer: Option<&str>| {
        table(keys, |spec| spec.issuer = issuer.map(str::to_owned))
    };
    let tables = [named(&keys_a, Some("a")), named(&keys_b, Some("b")), named(&keys_b, None)];
    let table_of = |token: &str| match Tokens::new(&tables).read(None, &bearer(token), at(NOW)) {
        TokenReading::Verified(claims) => Ok(claims.table),
        TokenReading::Ignored(fault) => Err(fault),
        other => panic!("{other:?}"),
    };
    let [a, b] = &signers;
    assert_eq!(table_of(&a.token(None, &json!({ "iss": "a" }))), Ok(0));
    assert_eq!(table_of(&b.token(None, &json!({ "iss": "b" }))), Ok(1));
    assert_eq!(table_of(&b.token(None, &json!({ "iss": "c" }))), Ok(2));
    assert_eq!(table_of(&b.token(None, &json!({}))), Ok(2));
    // The keys of one issuer cannot sign tokens of another issuer.
    assert_eq!(table_of(&b.token(None, &json!({ "iss": "a" }))), Err(TokenFault::Algorithm));
    assert_eq!(table_of(&a.token(None, &json!({ "iss": "c" }))), Err(TokenFault::Algorithm));
}

#[test]
fn the_token_is_where_its_table_says() {
    let signer = Signer::of(Algorithm::EdDSA);
    let keys = jwks(&[signer.jwk("own")]);
    let token = signer.token(None, &json!({ "sub": "a" }));
    let other = signer.token(None, &json!({ "sub": "b" }));
    let place = |place: &str| {
        let source = place.parse().unwrap();
        [table(&keys, |spec| spec.place = source)]
    };
    let headers = |lines: &[(&str, &str)]| {
        let line = |(name, value): &(&str, &str)| {
            let value = value.replace("TOKEN", &token).replace("OTHER", &other);
            (name.parse::<HeaderName>().unwrap(), HeaderValue::try_from(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        lines.iter().map(line).for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    };
    for (source, lines, expected) in [
        ("header:authorization", &[("authorization", "Bearer TOKEN")][..], "verified"),
        ("header:authorization", &[("authorization", "bearer  \t TOKEN ")], "verified"),
        ("header:authorization", &[("authorization", "BEARER TOKEN")], "verified"),
        ("header:authorization", &[], "absent"),
        ("header:authorization", &[("authorization", "Basic YTpi")], "absent"),
        ("header:authorization", &[("authorization", "Digest a=\"b\"")], "absent"),
        // An API that takes the last word of the header would accept these tokens.
        ("header:authorization", &[("authorization", "Token TOKEN")], "verified"),
        ("header:authorization", &[("authorization", "TOKEN")], "verified"),
        ("header:authorization", &[("authorization", "Bearer opaque")], "invalid"),
        ("header:authorization", &[("authorization", "Bearer")], "invalid"),
        ("header:authorization", &[("authorization", "Bearer TOKEN, Bearer OTHER")], "ambiguous"),
        ("header:authorization", &[("authorization", "Bearer TOKEN OTHER")], "ambiguous"),
        (
            "header:authorization",
            &[("authorization", "Bearer TOKEN"), ("authorization", "Bearer TOKEN")],
            "repeated",
        ),
        (
            "header:authorization",
            &[("authorization", "Basic YTpi"), ("authorization", "Bearer TOKEN")],
            "repeated",
        ),
        ("header:x-token", &[("x-token", "TOKEN")], "verified"),
        ("header:x-token", &[("x-token", "Bearer TOKEN")], "verified"),
        ("header:x-token", &[("x-token", "opaque")], "invalid"),
        ("header:x-token", &[("x_token", "TOKEN")], "ambiguous"),
        ("header:x-token", &[("authorization", "Bearer TOKEN")], "absent"),
        ("cookie:session", &[("cookie", "a=b; session=TOKEN")], "verified"),
        ("cookie:session", &[("cookie", "session=\"TOKEN\"")], "verified"),
        ("cookie:session", &[("cookie", "session=TOKEN; session=OTHER")], "repeated"),
        ("cookie:session", &[("cookie", "Session=TOKEN")], "ambiguous"),
        ("cookie:session", &[("cookie", "a=b")], "absent"),
    ] {
        let headers = headers(lines);
        let found = match Tokens::new(&place(source)).read(None, &headers, at(NOW)) {
            TokenReading::Absent => "absent",
            TokenReading::Refused(PartFault::Repeated) => "repeated",
            TokenReading::Refused(
                PartFault::Ambiguous | PartFault::Undecodable | PartFault::Unreadable,
            ) => "ambiguous",
            TokenReading::Refused(PartFault::Invalid(_)) => "refused",
            TokenReading::Ignored(_) => "invalid",
            TokenReading::Verified(_) => "verified",
        };
        assert_eq!(found, expected, "{source} {headers:?}");
    }
    assert!(headers(&[("cookie", "a=b")]).contains_key(COOKIE));
}

/// The token was verified before it expired. A remembered token must expire too.
#[test]
fn a_token_that_is_remembered_ends_all_the_same() {
    let signer = Signer::of(Algorithm::EdDSA);
    let keys = jwks(&[signer.jwk("own")]);
    for (leeway, refresh, claims, end) in [
        (0, 600, json!({ "exp": NOW + 100 }), 100),
        (30, 600, json!({ "exp": NOW + 100 }), 130),
        (0, 10, json!({ "exp": NOW + 100 }), 100),
    ] {
        let table = table(&keys, |spec| {
            spec.leeway = Duration::from_secs(leeway);
            spec.refresh = Duration::from_secs(refresh);
        });
        let tokens = Tokens::new(from_ref(&table));
        let headers = bearer(&signer.token(None, &claims));
        let read = |after| tokens.read(None, &headers, at(NOW + after));
        for after in [0, end - 1] {
            assert!(matches!(read(after), TokenReading::Verified(_)), "{claims} after {after}");
        }
        assert_eq!(read(end), TokenReading::Ignored(TokenFault::Expired), "{claims}");
    }
}

/// A request may have a token that counts as none in one place, and a token that is refused in another place.
#[test]
fn a_place_whose_table_refuses_decides() {
    let [own, other] = [Signer::of(Algorithm::EdDSA), Signer::of(Algorithm::EdDSA)];
    let at_place = |place: &str, invalid| {
        table(&jwks(&[own.jwk("own")]), |spec| {
            spec.place = place.parse().unwrap();
            spec.invalid = invalid;
        })
    };
    let refused = TokenReading::Refused(PartFault::Invalid(TokenFault::Signature));
    for (first, second) in
        [(OnInvalid::Ignore, OnInvalid::Reject), (OnInvalid::Reject, OnInvalid::Ignore)]
    {
        let tables = [at_place("header:x-a", first), at_place("header:x-b", second)];
        let read = |[a, b]: [&Signer; 2]| {
            let [a, b] = [a, b].map(|it| it.token(Some("own"), &json!({})).parse().unwrap());
            let headers =
                [(HeaderName::from_static("x-a"), a), (HeaderName::from_static("x-b"), b)];
            Tokens::new(&tables).read(None, &HeaderMap::from_iter(headers), at(NOW))
        };
        assert_eq!(read([&other, &other]), refused);
        for signers in [[&own, &other], [&other, &own], [&own, &own]] {
            assert!(matches!(read(signers), TokenReading::Verified(_)));
        }
    }
}

#[test]
fn an_unknown_key_is_asked_for() {
    let signer = Signer::of(Algorithm::EdDSA);
    let table = table(&jwks(&[signer.jwk("own")]), |_| {});
    let is_missed = || {
        use futures_util::FutureExt as _;
        table.is_missed.notified().now_or_never().is_some()
    };
    for (kid, missed) in [(Some("own"), false), (None, false), (Some("new"), true)] {
        let _ = fault(from_ref(&table), &signer.token(kid, &json!({})));
        assert_eq!(is_missed(), missed, "{kid:?}");
    }
    // The issuer may have given a new key the name of the old one.
    let other = Signer::of(Algorithm::EdDSA).token(Some("own"), &json!({}));
    assert_eq!(fault(from_ref(&table), &other), Some(TokenFault::Signature));
    assert!(is_missed(), "the signature is another");
}

#[test]
fn claims_are_read_without_a_look_at_the_signature_where_the_file_says_so() {
    let signer = Signer::of(Algorithm::EdDSA);
    let trusting = table(b"", |spec| spec.keys = None);
    let token = signer.token(None, &json!({ "sub": "a", "exp": NOW + 1 }));
    assert_eq!(fault(from_ref(&trusting), &token), None);
    let parts =
        [json!({ "alg": "none" }), json!({ "sub": "a" })].map(|it| BASE64.encode(it.to_string()));
    assert_eq!(fault(from_ref(&trusting), &format!("{}.{}.", parts[0], parts[1])), None);
    let ended = signer.token(None, &json!({ "exp": NOW - 1 }));
    assert_eq!(fault(&[trusting], &ended), Some(TokenFault::Expired), "times still count");
}

/// RFC 9864 gives the algorithm another name. Keys and tokens may have either.
#[test]
fn ed25519_is_eddsa() {
    let signer = Signer::of(Algorithm::EdDSA);
    for of_key in ["EdDSA", "Ed25519"] {
        let mut jwk = signer.jwk("own");
        jwk["alg"] = of_key.into();
        let table = table(&jwks(&[jwk]), |_| {});
        for (of_token, expected) in
            [("EdDSA", None), ("Ed25519", None), ("Ed448", Some(TokenFault::Algorithm))]
        {
            let token = signer.sign(&json!({ "alg": of_token }), &json!({ "sub": "a" }));
            assert_eq!(fault(from_ref(&table), &token), expected, "{of_key} {of_token}");
        }
    }
}

#[test]
fn what_others_know_is_no_secret() {
    use base64::engine::general_purpose::STANDARD;
    for algorithm in [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA] {
        let signer = Signer::of(algorithm);
        let pem = signer.pair.public_key_pem();
        let body: Vec<_> = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let (jwk, set) = (signer.jwk("k").to_string(), jwks(&[signer.jwk("k")]));
        for text in [pem.as_bytes(), jwk.as_bytes(), &set] {
            assert!(keys::is_public(text), "{}", String::from_utf8_lossy(text));
            assert!(keys::is_public(STANDARD.encode(text).as_bytes()));
        }
        for body in [body.join(""), body.join("\n")] {
            assert!(keys::is_public(body.as_bytes()), "{body}");
        }
    }
    assert!(keys::is_public(super::STANDARD[0].1.as_bytes()), "the secret in a JWK");
    for secret in [
        "",
        "hunter2",
        "{}",
        r#"{"a":1}"#,
        "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A",
        "a secret of 32 bytes or even more",
    ] {
        assert!(!keys::is_public(secret.as_bytes()), "{secret}");
    }
}

#[test]
fn keys_of_all_supported_forms_are_read() {
    let signers = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA].map(Signer::of);
    let all: Vec<_> = signers.iter().map(|signer| signer.jwk("k")).collect();
    let count = |text: &[u8]| {
        KeySet::parse(text).map(|keys| keys.count(&[])).map_err(|error| error.to_string())
    };
    assert_eq!(count(&jwks(&all)), Ok(3));
    let mut mixed = all.clone();
    mixed.extend([
        json!({ "kty": "new", "kid": "x" }),
        json!({ "kty": "RSA", "n": 1 }),
        json!("text"),
        json!({ "kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA" }),
        json!({ "kty": "RSA", "use": "enc", "n": all[0]["n"], "e": "AQAB" }),
        json!({ "kty": "RSA", "alg": "RSA-OAEP", "n": all[0]["n"], "e": "AQAB" }),
    ]);
    assert_eq!(count(&jwks(&mixed)), Ok(3), "keys of other kinds hide no others");
    // Such keys were counted, and no token ever verified.
    for (index, field, value) in [
        (0, "n", json!(BASE64.encode([0xff; 128]))),
        (0, "key_ops", json!(["encrypt", "wrapKey"])),
        (1, "x", json!("AA")),
        (2, "x", json!("AA")),
        (2, "alg", json!("ES256")),
    ] {
        let mut useless = all.clone();
        useless[index][field] = value;
        assert_eq!(count(&jwks(&useless)), Ok(2), "{field} {index}");
    }
    let two = KeySet::parse(&jwks(&all)).unwrap().count(&[Algorithm::EdDSA, Algorithm::ES256]);
    assert_eq!(two, 2, "the table allows no other");
    let pem: String = signers.iter().map(|signer| signer.pair.public_key_pem()).collect();
    assert_eq!(count(pem.as_bytes()), Ok(3));
    let certificate = rcgen::CertificateParams::default().self_signed(&signers[1].pair).unwrap();
    assert_eq!(count(certificate.pem().as_bytes()), Ok(1));
    for (text, error) in [
        (&b""[..], "it is neither a JWKS nor PEM"),
        (b"{}", "it is neither a JWKS nor PEM"),
        (b"{\"keys\":{}}", "it is neither a JWKS nor PEM"),
        (b"<html>", "it is neither a JWKS nor PEM"),
        (b"{\"keys\":[]}", "it has no key that verifies signatures (RSA, P-256, P-384, Ed25519)"),
        (
            signers[1].pair.serialize_pem().as_bytes(),
            "it has a private key: public keys are enough",
        ),
        (&jwks(&vec![all[2].clone(); 65]), "it has more than 64 keys"),
    ] {
        assert_eq!(count(text), Err(error.to_owned()), "{}", String::from_utf8_lossy(text));
    }
}
