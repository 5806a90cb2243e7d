//! The meanings of the values in a log line, and the table of the names that servers give them.

use super::record::ClientOrigin;

/// What a value of a log line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogField {
    /// A header of the request, by its name.
    Header(Box<str>),
    /// The time. If there are several, the time of the highest rank counts.
    Time(TimeRank),
    /// The client's address. If there are several, the address of the highest rank counts.
    Client(ClientOrigin),
    /// `x-forwarded-for`. It is a header. If the line has no other address, it names the client, too.
    ForwardedFor,
    /// All that is before the time in the combined format.
    CombinedHead,
    /// The request line.
    Request,
    Method,
    /// The path with the query, as sent.
    Target,
    /// The path without the query. A line that also has the query has it as another value.
    Path,
    /// The query, with or without its `?`.
    Query,
    Host,
    /// The name of the user who has logged in.
    User,
    /// The status of the response.
    Status,
    /// Bytes of the response.
    Bytes,
    /// How long the request took. The number is for a value without a unit: how many of its units make a second.
    Duration(u32),
    /// The time from sending the request to the head of the API's answer, in the same units.
    ToHead(u32),
    /// Why tidegate refused the request.
    Refusal,
    /// Seconds of a part of the request's time. The parts of a line are added up.
    PartialSeconds,
    /// The text of a log line. In tidegate's access lines it is `request`.
    Message,
    /// The part of the program that wrote the line.
    Module,
}

/// The rank of a time. If a line has several times, the one counts whose variant comes last here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimeRank {
    /// When the line was written, perhaps in whole seconds.
    Written,
    /// The same, with fractions of a second.
    Precise,
    /// When the request began.
    Began,
}

/// The meaning of a name. `None` if no record has such a value.
pub(super) fn named(name: &str) -> Option<LogField> {
    use LogField::{
        Bytes, Client, CombinedHead, Duration, ForwardedFor, Header, Host, Message, Method, Module,
        PartialSeconds, Path, Query, Refusal, Request, Status, Target, Time, ToHead, User,
    };
    #[allow(clippy::match_same_arms, reason = "the names are in order of the servers")]
    let field = match name {
        // No server has this name. The template `COMBINED` begins with it.
        "combined_head" => CombinedHead,
        // Nginx's variables. In Caddy's lines `request` is an object.
        "remote_addr" | "realip_remote_addr" => Client(ClientOrigin::Peer),
        "time_local" | "time_iso8601" | "time" | "@timestamp" => Time(TimeRank::Written),
        "msec" => Time(TimeRank::Precise),
        "request" => Request,
        "request_method" => Method,
        "request_uri" => Target,
        "uri" | "document_uri" => Path,
        "args" | "query_string" | "query" => Query,
        "status" => Status,
        "body_bytes_sent" | "bytes_sent" => Bytes,
        "request_time" => Duration(1),
        "upstream_header_time" => ToHead(1),
        "host" | "http_host" => Host,
        "remote_user" | "user" => User,
        // Caddy.
        "ts" => Time(TimeRank::Precise),
        "client_ip" => Client(ClientOrigin::Client),
        "remote_ip" => Client(ClientOrigin::Peer),
        "size" => Bytes,
        "user_id" => User,
        // Envoy, and what Istio and Envoy Gateway write with it.
        "duration" => Duration(1_000),
        "start_time" => Time(TimeRank::Began),
        "downstream_remote_address" => Client(ClientOrigin::Client),
        "x_forwarded_for" | "x-forwarded-for" | "http_x_forwarded_for" => ForwardedFor,
        "method" | ":method" => Method,
        "path" | ":path" | "x-envoy-origin-path" => Target,
        "authority" | ":authority" => Host,
        "response_code" => Status,
        // Traefik.
        "StartUTC" | "StartLocal" => Time(TimeRank::Began),
        "ClientHost" => Client(ClientOrigin::Client),
        "ClientAddr" => Client(ClientOrigin::Peer),
        "RequestMethod" => Method,
        "RequestPath" => Target,
        "RequestHost" => Host,
        "ClientUsername" => User,
        "DownstreamStatus" => Status,
        "DownstreamContentSize" => Bytes,
        "Duration" => Duration(1_000_000_000),
        // AWS's load balancer.
        "request_creation_time" => Time(TimeRank::Began),
        "elb_status_code" => Status,
        "sent_bytes" => Bytes,
        "request_processing_time" | "target_processing_time" | "response_processing_time" => {
            PartialSeconds
        }
        // tidegate.
        "timestamp" => Time(TimeRank::Precise),
        "client" => Client(ClientOrigin::Client),
        "bytes" => Bytes,
        "duration_ms" => Duration(1_000),
        "upstream_ms" => ToHead(1_000),
        "limit" | "reason" => Refusal,
        "message" => Message,
        "target" => Module,
        _ => return header(name).map(|name| Header(name.into())),
    };
    Some(field)
}

/// The name of a header: of nginx's `http_user_agent` and `content_length`, and of Traefik's `request_User-Agent`.
/// Nginx's own names, such as `request_length`, have a small letter there.
fn header(name: &str) -> Option<&str> {
    match name {
        "user_agent" | "user-agent" | "referer" | "content_length" => Some(name),
        _ => name.strip_prefix("http_").or_else(|| {
            let header = name.strip_prefix("request_")?;
            header.starts_with(|c: char| c.is_ascii_uppercase()).then_some(header)
        }),
    }
}
