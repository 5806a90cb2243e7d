//! `[server]`.

use super::Fallback::{Required, Value, Words};
use super::{Kind, MAX_CONNECTIONS, MAX_WORKERS, Shape, TEXT_LIST, field};

const LISTEN: Kind = Kind::Either(&[Kind::Text, TEXT_LIST]);

/// `[server]`.
pub(in crate::config) static SERVER: Shape = Shape {
    title: "[server]",
    fields: &[
        field(
            "listen",
            LISTEN,
            Value("\"127.0.0.1:8080\""),
            "an address or a list of them, for clear text; `[]` beside `tls` for none",
        ),
        field(
            "tls",
            Kind::Table(&SERVER_TLS),
            Words("none"),
            "where to listen by TLS, and with what",
        ),
        field(
            "workers",
            Kind::Whole { min: 1, max: MAX_WORKERS },
            Words("one for each core"),
            "threads that serve",
        ),
        field("header_timeout", Kind::Duration, Value("\"10s\""), "to receive a request's head"),
        field(
            "body_timeout",
            Kind::Duration,
            Value("\"30s\""),
            "between two reads of a request's body or two writes of a response",
        ),
        field(
            "idle_timeout",
            Kind::Duration,
            Value("\"75s\""),
            "a keep-alive connection without a request",
        ),
        field(
            "tunnel_timeout",
            Kind::Duration,
            Value("\"1h\""),
            "an upgraded connection on which nothing moves",
        ),
        field(
            "shutdown_delay",
            Kind::Duration,
            Value("\"0s\""),
            "after SIGTERM, go on taking connections this long with `/readyz` already 503",
        ),
        field(
            "drain_timeout",
            Kind::Duration,
            Value("\"30s\""),
            "then stop accepting and finish what is under way",
        ),
        field(
            "max_connections",
            Kind::Whole { min: 1, max: MAX_CONNECTIONS },
            Value("20000"),
            "more wait in the accept queue",
        ),
        field(
            "limits",
            TEXT_LIST,
            Value("[]"),
            "limits that every request meets beside those of its route, also one that no route takes",
        ),
        field(
            "request_id",
            Kind::Text,
            Words("none"),
            "a header such as `\"x-request-id\"`: taken from `trusted_proxies`, made where there is none, sent upstream and to the client, and in the log",
        ),
        field("max_header_size", Kind::Size, Value("\"32KiB\""), "a request's head; larger: 431"),
        field("max_body_size", Kind::Size, Words("none"), "a request's body; larger: 413"),
        field(
            "trusted_proxies",
            Kind::List(&Kind::Network),
            Value("[]"),
            "networks whose `client_ip_header` is believed",
        ),
        field(
            "client_ip_header",
            Kind::WordOrText(&["x-forwarded-for", "forwarded"]),
            Value("\"x-forwarded-for\""),
            "where they name the client; or a header that holds one address",
        ),
        field(
            "merge_slashes",
            Kind::Flag,
            Value("true"),
            "`false` leaves doubled slashes in what goes upstream",
        ),
        field(
            "ipv6_prefix",
            Kind::Whole { min: 1, max: 128 },
            Value("64"),
            "IPv6 clients are counted by this prefix",
        ),
    ],
    later: &["max_connections_per_client", "proxy_protocol"],
};

/// `tls` of `[server]`.
pub(in crate::config) static SERVER_TLS: Shape = Shape {
    title: "server.tls",
    fields: &[
        field("listen", LISTEN, Required, "an address or a list of them"),
        field(
            "certificates",
            Kind::List(&Kind::Table(&CERTIFICATE)),
            Required,
            "chosen by the names in them; the first one where none fits. Read again when they change",
        ),
        field(
            "client_ca",
            Kind::Text,
            Words("none"),
            "who signs clients' certificates; without it clients are not asked for one",
        ),
        field(
            "client_auth",
            Kind::Word(&["require", "request"]),
            Words("`\"require\"`"),
            "whether a client must show one that `client_ca` has signed, or may",
        ),
    ],
    later: &[],
};

/// One of `certificates`.
pub(in crate::config) static CERTIFICATE: Shape = Shape {
    title: "a certificate",
    fields: &[
        field("cert", Kind::Text, Required, "PEM: the certificate, then those up to its authority"),
        field("key", Kind::Text, Required, "PEM: its private key, without a password"),
    ],
    later: &[],
};
