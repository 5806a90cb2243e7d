//! The names of a Redisson limiter's keys.

use crate::limit::key::Key;

/// The keys of the limiter of this name, in the order in which scripts take them. First comes the hash, whose key is
/// the name. Then come the keys for all clients together: the permits that are left, and the entries of taken permits.
/// Then come the same two for the client with this id, for a limiter that counts for each client.
pub(crate) fn limiter_keys(name: &[u8], client: &str) -> [Vec<u8>; 5] {
    let [value, permits] = [&b"value"[..], b"permits"].map(|suffix| suffixed(name, suffix));
    let [own_value, own_permits] = [&value, &permits].map(|key| suffixed(key, client.as_bytes()));
    [name.to_vec(), value, permits, own_value, own_permits]
}

/// Redisson's key names: a name with `{` keeps its hash tag, and any other name becomes a hash tag.
fn suffixed(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    match name.contains(&b'{') {
        true => [name, b":", suffix].concat(),
        false => [b"{", name, b"}:", suffix].concat(),
    }
}

/// The name of the limiter for a key: `begin`, then the key's plain values, each with a colon before it. A
/// missing value counts as an empty one.
pub(crate) fn limiter_name(begin: &str, key: Option<&Key>) -> Vec<u8> {
    let mut name = begin.as_bytes().to_vec();
    for value in key.iter().flat_map(|key| key.values()) {
        name.push(b':');
        name.extend_from_slice(&value.unwrap_or_default());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_redissons() {
        for (name, expected) in [
            (
                "orders",
                [
                    "orders",
                    "{orders}:value",
                    "{orders}:permits",
                    "{orders}:value:id",
                    "{orders}:permits:id",
                ],
            ),
            (
                "a:{b}:c",
                [
                    "a:{b}:c",
                    "a:{b}:c:value",
                    "a:{b}:c:permits",
                    "a:{b}:c:value:id",
                    "a:{b}:c:permits:id",
                ],
            ),
            ("x{", ["x{", "x{:value", "x{:permits", "x{:value:id", "x{:permits:id"]),
            ("x}", ["x}", "{x}}:value", "{x}}:permits", "{x}}:value:id", "{x}}:permits:id"]),
        ] {
            let keys = limiter_keys(name.as_bytes(), "id");
            assert_eq!(keys, expected.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn a_limiter_of_a_key_is_named_by_its_plain_values() {
        let name = |values: &[Option<&str>]| {
            let key = Key::of(values.iter().map(|value| value.map(str::as_bytes)));
            String::from_utf8(limiter_name("orders", Some(&key))).unwrap()
        };
        assert_eq!(limiter_name("orders", None), b"orders");
        assert_eq!(name(&[Some("203.0.113.7")]), "orders:203.0.113.7");
        assert_eq!(name(&[Some("a|{b}%"), None, Some("ü")]), "orders:a|{b}%::ü");
    }
}
