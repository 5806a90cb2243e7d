//! `[reject]`: the answer to a throttled client.

use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::jitter::RetryJitter;

/// The answer to a throttled client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerSpec {
    /// The answer's status, 400 to 599.
    pub(crate) status: StatusCode,
    /// The answer's body.
    pub(crate) body: AnswerBody,
    /// The header fields about the limit.
    pub(crate) headers: AnswerHeaders,
    /// The media type of a [`AnswerBody::Custom`].
    pub(crate) content_type: Option<HeaderValue>,
    /// Whether banned clients get the answer. Then a problem body has another type.
    pub(crate) is_for_banned: bool,
    /// How much later than necessary clients may come back.
    pub(crate) jitter: RetryJitter,
    /// A longer wait is left out of `retry-after` and `retry-after-ms`.
    pub(crate) longest_retry_after: Option<Duration>,
}

/// The header fields that tell a client about its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerHeaders {
    /// Whether `retry-after` is sent.
    pub(crate) retry_after: bool,
    /// Whether `retry-after-ms` is sent.
    pub(crate) retry_after_ms: bool,
    /// Whether `ratelimit-policy` and `ratelimit` are sent, also on allowed answers.
    pub(crate) ratelimit: bool,
    /// Whether `x-ratelimit-limit`, `-remaining` and `-reset` are sent, also on allowed answers.
    pub(crate) x_ratelimit: bool,
}

/// The body of the answer to a throttled client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum AnswerBody {
    /// A JSON problem (RFC 9457).
    #[default]
    Problem,
    /// One line of text.
    Text,
    /// No body.
    Empty,
    /// The operator's own text.
    Custom(BodyTemplate),
}

/// The operator's own text of an answer to a throttled client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BodyTemplate(pub(crate) Vec<TemplatePiece>);

/// A piece of a [`BodyTemplate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePiece {
    /// This text, as it stands.
    Text(String),
    /// The first limit that rejects, in the route's order.
    Limit,
    /// The answer's status.
    Status,
    /// The seconds until the request may pass; empty if it never passes.
    RetryAfter,
    /// The same in milliseconds.
    RetryAfterMs,
    /// The rejection's ID.
    Id,
    /// Which limit rejects, its figures and the wait, as a sentence.
    Detail,
}

impl BodyTemplate {
    pub(crate) const NAMES: [(&str, TemplatePiece); 6] = [
        ("{limit}", TemplatePiece::Limit),
        ("{status}", TemplatePiece::Status),
        ("{retry_after}", TemplatePiece::RetryAfter),
        ("{retry_after_ms}", TemplatePiece::RetryAfterMs),
        ("{id}", TemplatePiece::Id),
        ("{detail}", TemplatePiece::Detail),
    ];

    /// The pieces of a text. Braces around any other word stay in the text.
    pub(crate) fn new(mut text: &str) -> Self {
        let mut pieces = Vec::new();
        let next = |text: &str| {
            let found = Self::NAMES
                .into_iter()
                .filter_map(|(name, piece)| text.find(name).map(|at| (at, at + name.len(), piece)));
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, end, piece)) = next(text) {
            pieces.extend([TemplatePiece::Text(text[..at].to_owned()), piece]);
            text = &text[end..];
        }
        pieces.push(TemplatePiece::Text(text.to_owned()));
        Self(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_names_in_braces_are_replaced_and_all_else_stays() {
        let text = |text: &str| TemplatePiece::Text(text.to_owned());
        for (body, pieces) in [
            ("", vec![text("")]),
            ("{\"a\":{}}", vec![text("{\"a\":{}}")]),
            ("{{limit}}", vec![text("{"), TemplatePiece::Limit, text("}")]),
            (
                "{retry_after_ms}{retry_after} {status}",
                vec![
                    text(""),
                    TemplatePiece::RetryAfterMs,
                    text(""),
                    TemplatePiece::RetryAfter,
                    text(" "),
                    TemplatePiece::Status,
                    text(""),
                ],
            ),
            (
                "{id}: {detail}",
                vec![text(""), TemplatePiece::Id, text(": "), TemplatePiece::Detail, text("")],
            ),
            ("{Limit} {limit {retry-after}", vec![text("{Limit} {limit {retry-after}")]),
            ("\u{e9}{limit}\u{e9}", vec![text("\u{e9}"), TemplatePiece::Limit, text("\u{e9}")]),
        ] {
            assert_eq!(BodyTemplate::new(body), BodyTemplate(pieces), "{body}");
        }
    }
}
