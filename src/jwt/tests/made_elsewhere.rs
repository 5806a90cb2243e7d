//! Tokens that other programs have made, with their keys: `cryptography` 48 for Python, and OpenSSL 3.

use super::*;

/// For each token its algorithm, its key and its text. `sub` is the algorithm, and all end in 2100.
const MADE_ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "RS256",
        RSA_OF_PYTHON,
        "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJSUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.d3mje-xFHi7DOGVW2t5KnkSfclTbjTw4VYqMGsS0F5vpnHxm3Q_j6AucShN0_WLU5IlRgrFHHJ0oRc0q1cSZz488Z0h1Uga_hNUO1ZtPXjCprEtPw6Bsttn3zUvXQTPYfGzV7RW7_TrpVoISvgk9AP_CFZ6ZqoFJTRBkK4ffuWli9abvx6j9egwKhv4rH3wVJTnd2O3yzZIN1PgGCqmgFaFCnugosaqM0bTXyGgUUHeoQzAmVlqhrLwIXgzPQZdtY0t_VoijmqKAaT2mD2JOMY5MPk2tc2qjFeeyoPx72M28gr9TRr6Bc48OgvL76P_9drd-Vjfko7kvA4qZagSnJg",
    ),
    (
        "RS384",
        RSA_OF_PYTHON,
        "eyJhbGciOiJSUzM4NCIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJSUzM4NCIsImV4cCI6NDEwMjQ0NDgwMH0.nmKQoJIyMYHXPUEDZv1s22_5Cc_pW1itsFmh9v96Nlt6qJPSmkCPjQwvw66jR8O2XxucOWFDB9z7I9BlD6z1gm701b0lQ-VdbiufhCJn5CAwhyaNb_gNwcvrq3lECahdFCOR83TD4KcdHWzrFadMn65DgGofPGdyhfx6PSrVJ09qFHdWx_WeMmi7CcwvD1x5bCcz4_b8QB_qLyGzFo8LbRVEEdXzTUnB27IjBhyIhEZJ-VFSUZY-wTCIo1s5RSvNvShHfSa58urqGcnl0Go98d3fkzoDkxCKIOrdR6ibT7LQfEVvjeeTB7TCC-pbOxpPgSINWG1U7N8QoUjZPDHlCw",
    ),
    (
        "PS256",
        RSA_OF_PYTHON,
        "eyJhbGciOiJQUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJQUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.kgok9M0-ATBplvJ_oA_V0YkMuHjizGirKXlzOqqgXPRCo0sozWWW40ZeZo-w4TfeaFw3WO9xEZT_v6G5n9CnobS9552n13sWcDdIScM2P-CUnKlc7jau62tvyfZMK5DSaValQ-5zVoazfwNIq3CMbmjKzK9KytzCnVEOFZdF62Wq3m1gCVls3v2wHeEiaT_paV7c4v8Q5iqaE_eUWWyzo1fxkLx0Fh4-scNSqMOkYdm-1_UT0MlLf7NvkNsScrcrGWmIj46K_5PcDTWty6hybqH40UpbHy0JtopcGYmPhWo7DGqJfG0k4ztioTaVR5dkEWDrgNbb979GR9uaZhMz-w",
    ),
    (
        "PS512",
        RSA_OF_PYTHON,
        "eyJhbGciOiJQUzUxMiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJQUzUxMiIsImV4cCI6NDEwMjQ0NDgwMH0.4D8eCGs7CzpzZiLnSGg0_DQutaYrTMzf1MAtlirN6aQH3FbK-ds8Wfw0Kph7LpUgwjHIL-EwEFpsN9a6eLZdcommb8il2_vL5rik520uO_OEcVR1HwiHNkocmkrbCkgqZKqoKYegqOuk7wUgVk9o7458WJVfjtV2YXuKAqsv6G2-4h24UioNXuWZ_1OKfNh7whwX_3oOG6PUQBn7pZMkSKbKSHCmT31lw2U6A4XsgcFrhYFiEXU8hHzhiFRSqMHn1W1bYNjnwKdpRyvRhk-delBVLWaGwbAlyJFiZl-z9Bm80Tia-LVuzMmgXkLk13PqjlVrgt0IKPV2giypujms7w",
    ),
    (
        "ES256",
        P256_OF_PYTHON,
        "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJFUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.tayc0JrvJIcvkj1Ua9Ewjav94o_QZRM4xVtvEZrYRYiaiVE_a2Udw6RvA39UZnmzvZgc8TUC3ZsiURdNp-MHZQ",
    ),
    (
        "ES384",
        P384_OF_PYTHON,
        "eyJhbGciOiJFUzM4NCIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJFUzM4NCIsImV4cCI6NDEwMjQ0NDgwMH0.5y3V4NvYauvUr6M9kqPhBtD_1bl-vCdFeCf06rHVpylLxWUUpB77UltJOS6uWv4afQr5G36a8M79zU2KyZYbKkjPybZaMYlxLV4nI3_n2ZRPqcv1rzocxudssZO5lX91",
    ),
    (
        "EdDSA",
        ED25519_OF_PYTHON,
        "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJFZERTQSIsImV4cCI6NDEwMjQ0NDgwMH0.mXMLrFurFi75rlCc426eQ7gioQN-jhD0OUY5PKD0gMdb9bceqjOrTVKjItP0OlEg7MB29BiHWnjW9LvO3mjpBw",
    ),
    (
        "RS512",
        RSA_OF_OPENSSL,
        "eyJhbGciOiJSUzUxMiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJSUzUxMiIsImV4cCI6NDEwMjQ0NDgwMH0.dRHH_Cbl0grU8-MaGSM-x_WbwoF4Cl_GG5tJ-SszB0LX0MawKH54EYSOohnv0wnWSedBcOActW-h_9uKlLSFCUBWpek5_TvWMYsQ8IB3wzmRFNPi4_aZx3WNmYc2IBnXQp4yO58Fr40KwN5xKAcw55e1eZ0eDola6fWzSvni5GzRm7gRSsw7jXVyt7ZPkjz5VFJ8e5tb7ehoE6iLPYyl-zd8IisxhnSclD5i6JbwT6mRz9LT3OkfDmM8Kl-E2ZaV9mJ-H7eBuRbfLs3QthOzL69DdYchN-ZADFR35LgLSnDzB9BrmHNZucihXtwhHC5Q7ZvPJYyXfayhxD7u5CMDVA",
    ),
    (
        "PS384",
        RSA_OF_OPENSSL,
        "eyJhbGciOiJQUzM4NCIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJQUzM4NCIsImV4cCI6NDEwMjQ0NDgwMH0.a7sNrzZ15h_cGO31Joo2UeK5wY9hT9RStOh6L5y8oWjE6G_CXGmZwyTtA-Y4FZ8K4YR6JZClB81VFvvECkJWDOgmUsjJJHB3MVBUtPqxHo0XgJxPz6LpLw4MUmuv4cJUHFU_CyaapC-cjZ-PkyLHnNsQUB0vwwWiO9PpTDOPmlDfZI2ccIlI7FH20l-20e2j2vuFehCBWENG1XDgWHQRTJKRR2W4S99N3gSiNpz2WNtvSfnikY1GpeI41mhzlyXxXggo3s2HPreZOQL1rXzCZKReIkCZ5g26dyuNJidqvA_jw5enBasU3TPUjjFOavjQgw6szBTDnrBJ6w6WHutaAQ",
    ),
    (
        "ES256",
        P256_OF_OPENSSL,
        "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJFUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.nVvsQ7xFAQrJNh29dHxEX1bN69XuiVt8uxR06SNhBbmmATscGzMyzvEju8S2-ILjbZ-sMDZebUJa2c5G6ZDPaw",
    ),
    (
        "ES256",
        CERTIFICATE_OF_OPENSSL,
        "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJFUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.nVvsQ7xFAQrJNh29dHxEX1bN69XuiVt8uxR06SNhBbmmATscGzMyzvEju8S2-ILjbZ-sMDZebUJa2c5G6ZDPaw",
    ),
];

/// A token of Python, and its secret.
const HMAC_OF_PYTHON: (&str, &[u8]) = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJIUzI1NiIsImV4cCI6NDEwMjQ0NDgwMH0.me76PdvGvgJyQJCNhv0Nw0TxHdW87V-oX_Q_4NjZ4fg",
    b"a secret of thirty-two bytes ....",
);

const RSA_OF_PYTHON: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA8Ob9K05Y8hqiQ3vgtFOL\n\
0qyv9O+g0JKdZh7bCrBWo1i4GKNTzRfPosbhZkUwM6nQIYNgFbUw/GJ7b88vzk7w\n\
EWy9EI905zX7GI5Z8FRYD11BWHQe0gq2kGdP855CWU1OE6ISb4l0817Eahj9l0d0\n\
oYFXjwK6kntATedDy7lmOJl9fFAImbmRiZOxFpBXiCQp9Wme27Exxld4fuE3ggG/\n\
/RYgdSpIoWW+3CQZ2b58n828cX2h9Pu4jsmxykS7u0yAIf+xT4amQHPgrj2TL+3Y\n\
LEfAVl5iny/fdWkTKAqPVWthpdczRa4Njv7UYXMYsDtocXC/I0O58r8PcpPyM7aI\n\
4wIDAQAB\n\
-----END PUBLIC KEY-----\n\
";

const P256_OF_PYTHON: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE6ok+8n1tMEXN4uRHyWt5SADG9FFo\n\
sSI2l5yLQGgJ2B3ztpErHVUxEyLKn8xX5WszKC/Hrp5bUAmcdO+U6qjcpw==\n\
-----END PUBLIC KEY-----\n\
";

const P384_OF_PYTHON: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAElHVK2vYrzgqXpfhSdBAiNOexIK7frZHY\n\
L0k806L5dj7N74wKmLj1oZuLmWnlaMAC44ALl158FU8u1tD3H/DdCLPZ9iOjaoaV\n\
gIYhnB2Kyqg+LuVdeLguUjl2Kq0NR8zh\n\
-----END PUBLIC KEY-----\n\
";

const ED25519_OF_PYTHON: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MCowBQYDK2VwAyEAVfLttYkj/iQQyMeslr/sk6vmzh/N25Re2EBwwVLLEow=\n\
-----END PUBLIC KEY-----\n\
";

const RSA_OF_OPENSSL: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEApYG3CVrQs+YBELO3oWS+\n\
udf7rjWEqHzzxy7OoVUm256skxK/oOUE8Seibcg8smFlXE699ETuSJ/PPJQSohfZ\n\
ByHAN5XApkD9MM5Ayj6g772c3xiZnSo9J3CkHNJgzZOUa4ZcAVRBna6yKPgPr/qu\n\
AThtFo174uGcwJ6+6tteLDde0CoqqeKa5bqFhvDy84f9BSsrZs4G5bxSDmlbNK2C\n\
I4uu4u0lhmjmma3lwzbkJDDQgIBUXdhxHvCQoalB1+T1ldba6fbnsKVmVqFMv4tm\n\
yNaQamPNv9xOBBjhuYU8c58VgtKBO6vsYyGuQD6tgMnWxxk0HjR+pqkVuEIXc38L\n\
eQIDAQAB\n\
-----END PUBLIC KEY-----\n\
";

const P256_OF_OPENSSL: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEi3bkeeinwcIKOfOmdwwFujKFLpzO\n\
79nUevF3/mWI9MA99LxydCQI+1gan9emCp2/+PzNc3EXHmne184gBQKHFw==\n\
-----END PUBLIC KEY-----\n\
";

const CERTIFICATE_OF_OPENSSL: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBdzCCAR2gAwIBAgIUd95f0xuyB6iJ5tKzgNxHHajN2nQwCgYIKoZIzj0EAwIw\n\
EDEOMAwGA1UEAwwFbG9naW4wIBcNMjYxMTI3MDM1NjQyWhgPMjEyNjExMDMwMzU2\n\
NDJaMBAxDjAMBgNVBAMMBWxvZ2luMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
i3bkeeinwcIKOfOmdwwFujKFLpzO79nUevF3/mWI9MA99LxydCQI+1gan9emCp2/\n\
+PzNc3EXHmne184gBQKHF6NTMFEwHQYDVR0OBBYEFPa5ipEEV1kRdDb8SZCDpCuB\n\
9ggoMB8GA1UdIwQYMBaAFPa5ipEEV1kRdDb8SZCDpCuB9ggoMA8GA1UdEwEB/wQF\n\
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgZIZlJReewqWZf2//vOj1VJq77x1LC3UI\n\
/tssCRdBqsYCIQDPU9xcilgor5z97xoccHvoZCWP8HLNx9vs48axQcDC2Q==\n\
-----END CERTIFICATE-----\n\
";

#[test]
fn tokens_that_others_have_made_verify_with_their_own_keys_alone() {
    for (algorithm, key, token) in MADE_ELSEWHERE {
        let own = table(key.as_bytes(), |_| {});
        let claims = read(from_ref(&own), &bearer(token), NOW);
        assert_eq!(claims, Ok(json!({ "sub": algorithm, "exp": 4_102_444_800_u64 })), "{key}");
        for (_, other, of_other) in MADE_ELSEWHERE.iter().filter(|(_, _, it)| it != token) {
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
