//! The key that a path names: KEY as the log and Redis have it, or the plain values with `?plain`.

use super::ApiProblem;
use crate::limit::key::{Key, KeyBuilder};
use crate::percent::decode;
use crate::request::key::{KeySource, Missing, ip_text, is_hash};
use crate::request::network::ClientPrefixes;
use crate::request::overrides::Part;
use crate::settings::{KeyDisplay, LimitSpec};
use crate::store::stored_text;

/// A key of a limit.
#[derive(Clone, Debug)]
pub(in crate::admin) struct AskedKey {
    /// The key with plain values. `None` if the path has hashes of them.
    pub(super) plain: Option<Key>,
    /// The key by which the stores know the bucket: hashed if the limit or `log.keys` says so.
    pub(in crate::admin) shown: Key,
    /// The text of `shown`, or a hash of this text if it is long. An override is stored under it.
    pub(in crate::admin) text: String,
}

/// Whether a query says that the key in the path has plain values.
pub(super) fn is_plain(query: Option<&str>) -> bool {
    let mut pairs = query.into_iter().flat_map(|query| query.split('&'));
    pairs.any(|pair| matches!(pair, "plain" | "plain=" | "plain=1" | "plain=true"))
}

impl AskedKey {
    /// Reads the percent-encoded text of a key of this limit.
    pub(super) fn read(
        spec: &LimitSpec,
        encoded: &str,
        is_plain: bool,
        display: KeyDisplay,
        loose_paths: bool,
    ) -> Result<Self, ApiProblem> {
        let decoded = decode(encoded);
        let text = std::str::from_utf8(&decoded);
        let text = text.map_err(|_| ApiProblem::nonsense("KEY is not UTF-8"))?;
        let key = Key::parse(text).ok_or_else(|| {
            ApiProblem::nonsense(format!(
                "`{text}` is no key as the log shows it: in a value, `|`, `%`, braces and control \
                 characters are percent-encoded, and once more in a URL"
            ))
        })?;
        let sources = &spec.key.sources;
        let parts = if text.is_empty() && sources.is_empty() { 0 } else { key.parts().count() };
        if parts != sources.len() {
            let sources: Vec<_> = sources.iter().map(|source| format!("`{source}`")).collect();
            return Err(ApiProblem::nonsense(match sources.is_empty() {
                true => "the limit counts all requests in one bucket: its KEY is empty".to_owned(),
                false => {
                    format!("KEY has {parts} of {} values: {}", sources.len(), sources.join(", "))
                }
            }));
        }
        let is_hashed = display.hides(spec);
        let mut builder = KeyBuilder::default();
        for (source, (index, value)) in sources.iter().zip(key.parts()) {
            let Some(value) = value else {
                check_absent(source, spec.key.missing)?;
                builder.push_absent();
                continue;
            };
            let Some(source) = source.alternatives().get(index) else {
                return Err(ApiProblem::nonsense(format!(
                    "`{source}` has no alternative {}",
                    index + 1
                )));
            };
            builder.alternative(index);
            if is_hashed && !is_plain && source.is_secret() {
                check_hash(&value, source)?;
                builder.push(&value);
            } else {
                builder.push(&normal(&value, source, spec.key.prefixes, loose_paths)?);
            }
        }
        let given = builder.finish();
        let (plain, shown) = match is_hashed {
            true if is_plain => (Some(given.clone()), spec.key.hashed(&given)),
            true => (None, given),
            false => (Some(given.clone()), given),
        };
        let text = stored_text(&shown).into_owned();
        Ok(Self { plain, shown, text })
    }
}

/// Refuses an absent part if the limit counts no request without it. Nothing would match the key.
fn check_absent(source: &KeySource, missing: Missing) -> Result<(), ApiProblem> {
    let done = match missing {
        Missing::Shared => return Ok(()),
        Missing::Skip => "(`missing = \"skip\"`)",
        Missing::Reject => "(`missing = \"reject\"`: such a request gets 400)",
    };
    Err(ApiProblem::nonsense(format!(
        "the limit counts no request without `{source}`, so it has no such key {done}"
    )))
}

/// Refuses a value that is no hash. No bucket has such a value, and the operator would not learn why.
fn check_hash(value: &[u8], source: &KeySource) -> Result<(), ApiProblem> {
    if is_hash(value) {
        return Ok(());
    }
    Err(ApiProblem::nonsense(format!(
        "`{source}` is hashed in keys (log_keys of the limit, or log.keys), and this is no hash; give the value itself with `?plain`"
    )))
}

/// A value in the form that keys use, by the rules of a limit's `overrides`. An IPv6 address stands for the network by
/// which it is counted.
fn normal(
    value: &[u8],
    source: &KeySource,
    prefixes: ClientPrefixes,
    loose_paths: bool,
) -> Result<Vec<u8>, ApiProblem> {
    let Ok(text) = std::str::from_utf8(value) else { return Ok(value.to_vec()) };
    if let (KeySource::Ip, Ok(address)) = (source, text.parse()) {
        return Ok(ip_text(address, prefixes).to_vec());
    }
    let part = Part::parse(text, source, prefixes, loose_paths).map_err(ApiProblem::nonsense)?;
    part.value().map(|value| value.as_bytes().to_owned()).ok_or_else(|| {
        ApiProblem::nonsense(format!(
            "`{text}` is more than one key; overrides for some keys stand in proxy.toml, and one '*' alone stands for all keys in `tidegate limits`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::limit;

    fn read(
        key: &str,
        asked: &str,
        display: KeyDisplay,
    ) -> Result<(String, Option<String>), String> {
        let limit = limit(&format!("key = {key}\nrate = \"1/s\""));
        let (path, query) = asked.split_once('?').map_or((asked, None), |(a, b)| (a, Some(b)));
        AskedKey::read(&limit, path, is_plain(query), display, false)
            .map(|key| (key.text, key.plain.map(|plain| plain.to_string())))
            .map_err(|ApiProblem(status, detail)| {
                assert_eq!(status.as_u16(), 422);
                detail
            })
    }

    #[test]
    fn a_key_is_read_as_requests_write_it() {
        const HASH: &str = "n4bQgYhMfWWaL-qgxVrQFQ";
        use KeyDisplay::{Hashed, Plain};
        for (key, asked, display, expected) in [
            ("[\"ip\"]", "192.0.2.1", Hashed, "192.0.2.1"),
            ("[\"ip\"]", "2001:db8::%2F64", Hashed, "2001:db8::/64"),
            ("[\"path\"]", "%2Fa%25252Fb", Hashed, "error `/a%2Fb` is no path"),
            ("[\"path\"]", "%2Fa;x=1", Hashed, "/a"),
            ("[\"host\"]", "API.test.", Hashed, "api.test"),
            ("[\"ip\", \"method\"]", "192.0.2.1%7CGET", Hashed, "192.0.2.1|GET"),
            ("[\"header:x-a\"]", "te%257Cst", Plain, "te%7Cst"),
            ("[\"header:x-a\"]", "%25-", Plain, "%-"),
            ("[\"header:x-a\"]", "test?plain", Hashed, HASH),
            ("[\"header:x-a\"]", HASH, Hashed, HASH),
            ("[\"header:x-a | ip\"]", "%252=192.0.2.1", Hashed, "%2=192.0.2.1"),
            ("[]", "", Hashed, ""),
            ("[\"header:x-a\"]", "test", Hashed, "error `header:x-a` is hashed in keys"),
            ("[\"header:x-a\"]", "*?plain", Hashed, "error `*` is more than one key"),
            ("[\"ip\"]", "10.0.0.0%2F8", Hashed, "error `10.0.0.0/8` is more than one key"),
            ("[\"ip\"]", "2001:db8::1", Hashed, "2001:db8::/64"),
            ("[\"ip\"]", "::ffff:192.0.2.1", Hashed, "192.0.2.1"),
            ("[\"ip\"]", "64:ff9b::192.0.2.1", Hashed, "192.0.2.1"),
            ("[\"header:authorization\"]", "Bearer%20a", Plain, "a"),
            ("[\"cookie:a\"]", "%20a%C2%A0", Plain, "a"),
            ("[\"ip\"]", "a", Hashed, "error `a` is no address"),
            ("[\"ip\"]", "192.0.2.1%7CGET", Hashed, "error KEY has 2 of 1 values: `ip`"),
            ("[\"ip\", \"method\"]", "192.0.2.1", Hashed, "error KEY has 1 of 2 values"),
            ("[]", "a", Hashed, "error the limit counts all requests in one bucket"),
            ("[\"method\"]", "%FF", Hashed, "error KEY is not UTF-8"),
            ("[\"method\"]", "%7Ba", Hashed, "error `{a` is no key"),
            (
                "[\"header:x-a | ip\"]",
                "%259=a",
                Hashed,
                "error `header:x-a | ip` has no alternative",
            ),
        ] {
            let answer = match read(key, asked, display) {
                Ok((text, _)) => text,
                Err(error) => format!("error {error}"),
            };
            match expected.starts_with("error") {
                true => assert!(answer.starts_with(expected), "{asked}: {answer}"),
                false => assert_eq!(answer, expected, "{asked}"),
            }
        }
        for (missing, expected) in
            [("shared", None), ("skip", Some("skip")), ("reject", Some("gets 400"))]
        {
            let answer =
                read(&format!("[\"header:x-a\"]\nmissing = \"{missing}\""), "%25-", Hashed);
            let answer = answer.err();
            let has = |words: &str| answer.as_ref().is_some_and(|answer| answer.contains(words));
            assert!(expected.map_or(answer.is_none(), has), "{missing}: {answer:?}");
        }
        let plain = |asked| read("[\"header:x-a\"]", asked, Hashed).unwrap().1;
        assert_eq!(plain("test?plain").as_deref(), Some("test"));
        assert_eq!(plain(HASH), None, "nobody can say what was hashed");
    }
}
