//! The changes to the headers of an upstream's answer on the way to the client. `proxy::forward` calls
//! this.

use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use smallvec::SmallVec;

use crate::reading::{Seen, has_unknown_coding, listed, remove_connection_fields, remove_named};
use crate::request::known_fields::is_protected;

/// How clearly an answer says where its body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Framing {
    /// There is at most one of `transfer-encoding` and `content-length`.
    Clear,
    /// There are both fields. Where the next answer begins is then in doubt (RFC 9112, 6.3).
    Doubtful,
    /// The transfer coding is other than chunked alone. This proxy would pass the body on wrongly.
    Unknown,
}

/// Removes the fields that concern the server's connection alone (RFC 9110, 7.6.1), and leaves at most one
/// `content-length`. If the framing is unknown, all fields stay.
///
/// `upgrade` stays if the answer `tells_protocols`: with 101 the protocol of the connection, and with 426 those
/// that the server asks for. The client needs them (RFC 9110, 15.2.2 and 15.5.22).
pub(in crate::proxy) fn remove_hop_by_hop(
    headers: &mut HeaderMap,
    seen: Seen,
    tells_protocols: bool,
) -> Framing {
    if has_unknown_coding(headers, seen) {
        return Framing::Unknown;
    }
    remove_named(headers, seen, is_protected);
    let protocols: SmallVec<[HeaderValue; 1]> = match tells_protocols {
        true => headers.get_all(UPGRADE).iter().cloned().collect(),
        false => SmallVec::new(),
    };
    remove_connection_fields(headers, seen);
    if !protocols.is_empty() {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.extend(protocols.into_iter().map(|protocol| (UPGRADE, protocol)));
    }
    if seen.has(Seen::ODD_LENGTH) {
        unite_lengths(headers);
    }
    match seen.has(Seen::CODING) && seen.has(Seen::LENGTH) {
        true => Framing::Doubtful,
        false => Framing::Clear,
    }
}

/// Whether the headers announce a body, even if the status does not allow one.
pub(in crate::proxy) fn announces_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get_all(CONTENT_LENGTH).iter().any(|length| length.as_bytes() != b"0")
}

/// Leaves at most one `content-length`, as a plain number.
///
/// Servers may repeat the length (RFC 9110, 8.6), and not every client can read a repeated one. Lengths
/// that differ, or are not numbers, are removed: they frame no body here.
fn unite_lengths(headers: &mut HeaderMap) {
    let lengths: SmallVec<[_; 4]> = listed(headers, &CONTENT_LENGTH).map(whole_number).collect();
    match lengths.first() {
        Some(Some(length)) if lengths.iter().all(|other| *other == Some(*length)) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(*length));
        }
        _ => {
            headers.remove(CONTENT_LENGTH);
        }
    }
}

/// A number of digits alone, without sign, space or comma.
fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn answer(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    fn without_hop_by_hop(headers: &mut HeaderMap, tells_protocols: bool) -> Framing {
        let seen = Seen::of(headers);
        remove_hop_by_hop(headers, seen, tells_protocols)
    }

    #[test]
    fn a_length_is_said_once_as_a_number() {
        for (said, left) in [
            (&["5"][..], Some("5")),
            (&["5", "5"], Some("5")),
            (&["5, 5"], Some("5")),
            (&["05, 5"], Some("5")),
            (&["5", "6"], None),
            (&["5, 6"], None),
            (&[""], None),
            (&["+5"], None),
            (&["99999999999999999999"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in said {
                headers.append(CONTENT_LENGTH, HeaderValue::from_static(line));
            }
            without_hop_by_hop(&mut headers, false);
            let lines: Vec<_> = headers.get_all(CONTENT_LENGTH).iter().collect();
            assert_eq!(lines, left.as_slice(), "{said:?}");
        }
    }

    #[test]
    fn fields_for_the_servers_connection_are_removed() {
        let mut headers = answer(&[
            ("connection", "keep-alive, x-own"),
            ("keep-alive", "timeout=5"),
            ("x-own", "1"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "Chunked"),
            ("content-length", "5"),
            ("trailer", "x-sum"),
            ("x-kept", "1"),
        ]);
        without_hop_by_hop(&mut headers, false);
        assert_eq!(headers, answer(&[("trailer", "x-sum"), ("x-kept", "1")]));
        let mut telling =
            answer(&[("connection", "x-own, upgrade"), ("upgrade", "b"), ("x-own", "1")]);
        telling.append(UPGRADE, HeaderValue::from_static("c"));
        without_hop_by_hop(&mut telling, true);
        let mut told = answer(&[("connection", "upgrade"), ("upgrade", "b")]);
        told.append(UPGRADE, HeaderValue::from_static("c"));
        assert_eq!(telling, told);
        let mut coded = answer(&[("transfer-encoding", "gzip, chunked")]);
        assert_eq!(without_hop_by_hop(&mut coded, false), Framing::Unknown);
    }
}
