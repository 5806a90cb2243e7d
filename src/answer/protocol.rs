//! Which protocol a request speaks. The protocol decides what a refusal looks like.

use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use mediatype::{MediaType, MediaTypeList, Name, ReadParams as _};

use crate::reading::Seen;

/// The protocol of a request: plain HTTP, or gRPC over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http(ProblemType),
    Grpc(GrpcKind),
}

/// The media type of a JSON problem (RFC 9457) for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemType {
    /// `application/problem+json`.
    Problem,
    /// `application/json`. Some clients fail on a type that they did not ask for, and never try again.
    Json,
}

impl ProblemType {
    pub(crate) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Problem => "application/problem+json",
            Self::Json => "application/json",
        })
    }

    /// The type for a client with these headers. It is JSON if the client accepts JSON of some kind and no
    /// problem (RFC 9110, 12.5.1).
    fn accepted(asked: &HeaderMap, seen: Seen) -> Self {
        if !seen.has(Seen::JSON) {
            return Self::Problem;
        }
        let mut takes_json = false;
        // Of the ranges that match a problem the most specific decides.
        let mut problem = (0, false);
        let lists = asked.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
        for range in lists.flat_map(MediaTypeList::new).flatten() {
            let wanted = range.get_param(Name::new_unchecked("q")).is_none_or(|quality| {
                quality.as_str().parse::<f32>().is_ok_and(|quality| quality > 0.0)
            });
            takes_json |= wanted && is_json(&range);
            let specific = specificity(&range);
            if specific > 0 && specific >= problem.0 {
                problem = (specific, wanted);
            }
        }
        if takes_json && !problem.1 { Self::Json } else { Self::Problem }
    }
}

fn is_json(range: &MediaType<'_>) -> bool {
    range.suffix.unwrap_or(range.subty) == "json"
}

/// How closely a range matches `application/problem+json`; 0 is not at all.
fn specificity(range: &MediaType<'_>) -> u8 {
    match (range.ty.as_str(), range.subty.as_str()) {
        ("*", "*") => 1,
        _ if range.ty != "application" => 0,
        (_, "*") => 2,
        _ if range.subty == "problem" && range.suffix.is_some_and(|suffix| suffix == "json") => 3,
        _ => 0,
    }
}

/// The kinds of gRPC. All have the same answer without messages, each with a type of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcKind {
    /// gRPC over HTTP/2.
    Native,
    /// gRPC-Web, which browsers speak.
    Web,
    /// gRPC-Web in base64.
    WebText,
}

impl GrpcKind {
    /// The kind of a call with this `content-type`. `None` if it is no call of gRPC.
    fn of(media_type: &[u8]) -> Option<Self> {
        // A message's format may follow, or parameters.
        let is_end = |byte: &u8| matches!(byte, b'+' | b';' | b' ' | b'\t');
        let name = media_type.split(is_end).next()?;
        let kinds = [
            (&b"application/grpc"[..], Self::Native),
            (b"application/grpc-web", Self::Web),
            (b"application/grpc-web-text", Self::WebText),
        ];
        // Upper and lower case are alike in media types (RFC 9110, 8.3.1).
        let found = kinds.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map(|(_, kind)| kind)
    }

    /// The type of an answer to a call of this kind. A gRPC-Web client may take no other kind
    /// (`PROTOCOL-WEB.md` of grpc/grpc). These are the types that Envoy answers with.
    pub(crate) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Native => "application/grpc",
            Self::Web => "application/grpc-web+proto",
            Self::WebText => "application/grpc-web-text+proto",
        })
    }
}

/// Plain HTTP, whatever type of content the request has.
pub(crate) fn plain(asked: &HeaderMap, seen: Seen) -> Protocol {
    Protocol::Http(ProblemType::accepted(asked, seen))
}

/// The protocol of a request with this method and these headers.
///
/// Every call of gRPC is a POST. A refusal by gRPC has the status 200, and a cache would keep it as the answer to a GET.
pub(crate) fn protocol(method: &Method, asked: &HeaderMap, seen: Seen) -> Protocol {
    let may_call = seen.has(Seen::TYPE) && *method == Method::POST;
    let kind = if may_call { asked.get(CONTENT_TYPE) } else { None };
    match kind.and_then(|kind| GrpcKind::of(kind.as_bytes())) {
        Some(kind) => Protocol::Grpc(kind),
        None => plain(asked, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_names_the_protocol_in_any_case() {
        use GrpcKind::{Native, Web, WebText};
        for (kind, spoken) in [
            ("application/grpc", Protocol::Grpc(Native)),
            ("application/grpc+proto", Protocol::Grpc(Native)),
            ("Application/GRPC+proto", Protocol::Grpc(Native)),
            ("application/grpc-web+proto", Protocol::Grpc(Web)),
            ("application/gRPC-Web", Protocol::Grpc(Web)),
            ("APPLICATION/GRPC-WEB-TEXT", Protocol::Grpc(WebText)),
            ("application/grpc;charset=utf-8", Protocol::Grpc(Native)),
            ("application/grpc-web-text+proto", Protocol::Grpc(WebText)),
            ("application/grp", Protocol::Http(ProblemType::Problem)),
            ("application/grpcx", Protocol::Http(ProblemType::Problem)),
            ("application/grpc-other", Protocol::Http(ProblemType::Problem)),
            ("application/grpc-webx", Protocol::Http(ProblemType::Problem)),
            ("application/json", Protocol::Http(ProblemType::Problem)),
            ("", Protocol::Http(ProblemType::Problem)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            let of = |method| protocol(&method, &headers, Seen::of(&headers));
            assert_eq!(of(Method::POST), spoken, "{kind}");
            for method in [Method::GET, Method::HEAD, Method::PUT, Method::OPTIONS] {
                let plain = Protocol::Http(ProblemType::Problem);
                assert_eq!(of(method), plain, "{kind}: every call is a POST");
            }
        }
    }

    #[test]
    fn a_client_that_takes_json_and_no_problem_gets_json() {
        use ProblemType::{Json, Problem};
        for (accept, answered) in [
            (vec!["application/json"], Json),
            (vec!["Application/JSON"], Json),
            (vec!["application/vnd.elasticsearch+json; compatible-with=8"], Json),
            (vec!["text/json"], Json),
            (vec!["text/html, application/json;q=0.5"], Json),
            (vec!["text/html", "application/json"], Json),
            (vec!["application/json, application/problem+json;q=0"], Json),
            (vec!["application/json, application/*;q=0"], Json),
            (vec!["application/json, */*;q=0.0"], Json),
            (vec!["application/*, application/json, application/problem+json;q=0"], Json),
            (vec!["application/json;note=\"application/problem+json, */*\""], Json),
            (vec![",, application/json,"], Json),
            (vec!["application/json, application/problem+xml, text/problem+json"], Json),
            (vec![], Problem),
            (vec![""], Problem),
            (vec!["*/*"], Problem),
            (vec!["text/html"], Problem),
            (vec!["application/json, */*"], Problem),
            (vec!["application/json, text/plain, */*;q=0.1"], Problem),
            (vec!["application/json", "application/*"], Problem),
            (vec!["application/problem+json, application/json"], Problem),
            (vec!["application/json, application/Problem+JSON"], Problem),
            (vec!["application/problem+json, */*;q=0, application/json"], Problem),
            (vec!["application/json;q=0"], Problem),
            (vec!["application/jsonp, json"], Problem),
        ] {
            let mut headers = HeaderMap::new();
            for list in &accept {
                headers.append(ACCEPT, HeaderValue::from_static(list));
            }
            let found = plain(&headers, Seen::of(&headers));
            assert_eq!(found, Protocol::Http(answered), "{accept:?}");
        }
    }
}
