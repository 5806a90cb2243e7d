//! The trailers of an upstream's answer on the way to the client.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRAILER};

use crate::reading::{Seen, remove_connection_fields, remove_named};
use crate::request::known_fields::is_protected;
use crate::request::name::{are_alike, is_invalid, remove_all};
use crate::settings::HeaderChanges;

/// Removes the fields of an answer's trailers that have an invalid name, frame a message, or concern the server's
/// connection alone. They must not be trailers (RFC 9110, 6.5.1), and an HTTP/2 client ends the stream because of
/// them. A field that the route's `changes` set or remove in the head is removed too.
pub(super) fn limit_trailers(trailers: &mut HeaderMap, changes: Option<&HeaderChanges>) {
    let seen = Seen::of(trailers);
    remove_named(trailers, seen, is_protected);
    remove_connection_fields(trailers, seen);
    for name in [CONTENT_LENGTH, TRAILER] {
        trailers.remove(name);
    }
    remove_all(trailers, |name| {
        is_invalid(name)
            || changes.is_some_and(|changes| changes.decided().any(|own| are_alike(own, name)))
    });
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn fields_for_the_servers_connection_are_no_trailers() {
        let mut trailers = fields(&[
            ("grpc-status", "0"),
            ("connection", "x-own"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("content-length", "5"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
        ]);
        limit_trailers(&mut trailers, None);
        assert_eq!(trailers, fields(&[("grpc-status", "0")]));
    }
}
