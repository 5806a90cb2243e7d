//! The hash slot of a key in a Redis cluster, and which server has which hash slot.
//!
//! The source is the Redis cluster specification, sections "Key distribution model" and "Hash tags".

use crc::{CRC_16_XMODEM, Crc};
use redis::Value;

use super::error::CallError;
use crate::settings::Endpoint;

/// The number of hash slots of every cluster.
pub(crate) const HASH_SLOTS: u16 = 16_384;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The hash slot of a key. Without a cluster all keys are in hash slot 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HashSlot(pub(crate) u16);

impl HashSlot {
    /// The hash slot of this key in a cluster.
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(CRC.checksum(hash_tag(key)) % HASH_SLOTS)
    }
}

/// The part of a key that is hashed: the text between the first `{` and the next `}`. If this text is missing
/// or empty, the whole key is hashed.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.get(..rest.iter().position(|byte| *byte == b'}')?)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The hash slots from the first number to the second, and the master that has them.
pub(crate) type HashSlotRange = (u16, u16, Endpoint);

/// Reads the answer of the server `asked` to `CLUSTER SLOTS`.
///
/// # Errors
/// If it is no such answer, or names a server without its address.
pub(crate) fn read_hash_slots(
    answer: &Value,
    asked: &Endpoint,
) -> Result<Vec<HashSlotRange>, CallError> {
    let Value::Array(ranges) = answer else { return Err(CallError::Nonsense) };
    let read = |range| {
        let (first, last, host, port) = read_range(range).ok_or(CallError::Nonsense)?;
        let server = match host {
            // The server that was asked does not know its own address yet. Another server without an address is
            // just joining, and nobody knows where it is.
            Some("" | "?") => matches!(asked, Endpoint::Tcp { port: its, .. } if *its == port)
                .then(|| asked.clone()),
            // The other servers are reached in the same way as the server that was asked.
            host => reached(host.unwrap_or_default(), port, asked),
        };
        let server = server.ok_or_else(|| CallError::NoAddress(asked.clone()))?;
        Ok((first, last, server))
    };
    ranges.iter().map(read).collect()
}

/// The hash slots, and the host and port of the server that has them. The host is `None` if the cluster does not say
/// it.
fn read_range(range: &Value) -> Option<(u16, u16, Option<&str>, u16)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => Some(std::str::from_utf8(host).ok()?),
        Value::SimpleString(host) => Some(host.as_str()),
        Value::Nil => None,
        _ => return None,
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < HASH_SLOTS);
    Some((slot(first)?, slot(last)?, host, u16::try_from(*port).ok()?))
}

/// Reads the address in a redirection by the server `asked`, such as `10.0.0.4:6379`.
pub(crate) fn read_address(text: &str, asked: &Endpoint) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    reached(host, port.parse().ok()?, asked)
}

/// The address of a server that `asked` has named. If it was named without a host, it has the host of `asked`. `None`
/// for port 0.
fn reached(host: &str, port: u16, asked: &Endpoint) -> Option<Endpoint> {
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host.clone(),
        _ => host.trim_matches(['[', ']']).to_owned(),
    };
    (port != 0).then_some(Endpoint::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    /// The expected hash slots are those that `CLUSTER KEYSLOT` answers.
    #[test]
    fn the_slot_of_a_key() {
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{user1000}.following", 3_443),
            ("tidegate:{user1000}:login", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
            ("", 0),
        ] {
            assert_eq!(HashSlot::of(key.as_bytes()), HashSlot(slot), "{key}");
        }
    }

    #[test]
    fn a_server_without_a_name_has_the_host_of_the_asked_server() {
        let asked = at("10.0.0.9", 1);
        for (text, expected) in [
            ("10.0.0.4:6379", Some(at("10.0.0.4", 6_379))),
            (":7000", Some(at("10.0.0.9", 7_000))),
            ("?:7000", Some(at("10.0.0.9", 7_000))),
            ("::1:7000", Some(at("::1", 7_000))),
            ("cache.internal:7000", Some(at("cache.internal", 7_000))),
            ("10.0.0.4", None),
            ("10.0.0.4:x", None),
            ("10.0.0.4:0", None),
            (":0", None),
        ] {
            assert_eq!(read_address(text, &asked), expected, "{text}");
        }
    }

    #[test]
    fn only_a_list_of_ranges_is_read() {
        let (int, text) = (Value::Int, |text: &str| Value::BulkString(text.into()));
        let node = |host: Value| Value::Array(vec![host, int(7_000), text("id")]);
        let range = |first, last, host| Value::Array(vec![int(first), int(last), node(host)]);
        let read = |ranges: Vec<Value>| read_hash_slots(&Value::Array(ranges), &at("a", 1));
        assert_eq!(
            read(vec![range(0, 99, text("b")), range(100, 16_383, Value::Nil)]).unwrap(),
            [(0, 99, at("b", 7_000)), (100, 16_383, at("a", 7_000))]
        );
        assert_eq!(read(vec![]).unwrap(), []);
        for wrong in [range(0, 16_384, text("b")), range(-1, 5, text("b")), Value::Nil] {
            let read = read(vec![wrong.clone()]);
            assert!(matches!(read, Err(CallError::Nonsense)), "{wrong:?}");
        }
        assert!(matches!(read_hash_slots(&Value::Okay, &at("a", 1)), Err(CallError::Nonsense)));
    }

    /// A regression: a server that was just joining got the host of the server that named it.
    #[test]
    fn a_server_without_an_address_is_the_asked_server_or_none() {
        let asked = at("10.0.0.9", 7_000);
        for (host, port, expected) in [
            (Value::BulkString(Vec::new()), 7_000, Some(asked.clone())),
            (Value::BulkString(b"?".into()), 7_000, Some(asked.clone())),
            (Value::BulkString(Vec::new()), 7_001, None),
            (Value::BulkString(b"?".into()), 7_001, None),
            (Value::Nil, 7_001, Some(at("10.0.0.9", 7_001))),
            (Value::BulkString(Vec::new()), 0, None),
            (Value::BulkString(b"10.0.0.4".into()), 0, None),
            (Value::Nil, 0, None),
        ] {
            let range = |host, port| {
                let master = Value::Array(vec![host, Value::Int(port)]);
                Value::Array(vec![Value::Int(0), Value::Int(16_383), master])
            };
            let answer = Value::Array(vec![range(host.clone(), port)]);
            let read = read_hash_slots(&answer, &asked);
            match expected {
                Some(server) => assert_eq!(read.unwrap(), [(0, 16_383, server)], "{host:?}:{port}"),
                None => assert!(matches!(read, Err(CallError::NoAddress(_))), "{host:?}:{port}"),
            }
        }
    }
}
