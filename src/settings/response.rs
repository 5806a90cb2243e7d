//! The facts that a limit reads from a response: the used tokens, and whether the response counts.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, StatusCode};

use super::weights::WeightedPaths;
use super::write_list;

/// Where a response says how many tokens its request used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedSource {
    /// In this header.
    Header(HeaderName),
    /// In its body: in a JSON document, or in the data of server-sent events.
    Json(Arc<WeightedPaths>),
    /// The number is the size of the body in bytes.
    Bytes,
}

/// The tokens that count for a request if its use is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownUse {
    /// The estimate, which the request took before.
    #[default]
    Estimate,
    /// The most tokens that one request can use. A client gains nothing if it leaves before the number comes.
    Max,
}

impl fmt::Display for UsedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "the response's header {name}"),
            Self::Json(paths) => write!(f, "{paths} in the response's JSON"),
            Self::Bytes => f.write_str("the size of the response's body"),
        }
    }
}

/// One status that a client may get, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatusPattern {
    /// This status.
    Exact(StatusCode),
    /// All statuses with this first digit, 1 to 5.
    Class(u16),
}

impl StatusPattern {
    /// `None` if the text is neither a status that a client can get nor a class of statuses.
    pub(crate) fn new(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'x' | b'X', b'x' | b'X'] => {
                Some(Self::Class(u16::from(class - b'0')))
            }
            // Other 1xx statuses come before the final answer. Only 101 is a final answer.
            [b'2'..=b'5', _, _] | b"101" => text.parse().map(Self::Exact).ok(),
            _ => None,
        }
    }

    /// Whether the pattern matches this status.
    pub(crate) fn fits(self, status: StatusCode) -> bool {
        match self {
            Self::Exact(exact) => exact == status,
            Self::Class(class) => status.as_u16() / 100 == class,
        }
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(status) => f.write_str(status.as_str()),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

/// The statuses of responses that count; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub(crate) Vec<StatusPattern>);

impl Statuses {
    /// Whether a response with this status counts.
    pub(crate) fn contain(&self, status: StatusCode) -> bool {
        self.0.iter().any(|pattern| pattern.fits(status))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.0, ", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_that_a_client_can_get() {
        for text in ["401", "101", "200", "599", "1xx", "5xx"] {
            assert_eq!(StatusPattern::new(text).unwrap().to_string(), text);
        }
        assert_eq!(StatusPattern::new("4XX"), Some(StatusPattern::Class(4)));
        for text in ["", "4", "40", "4x", "40x", "x01", "100", "102", "600", "0xx", "6xx", "4xxx"] {
            assert_eq!(StatusPattern::new(text), None, "{text}");
        }
    }

    #[test]
    fn statuses_fit_one_by_one_or_by_class() {
        let statuses =
            Statuses(["401", "5xx"].map(|text| StatusPattern::new(text).unwrap()).to_vec());
        for (status, fits) in [(401, true), (403, false), (500, true), (599, true), (200, false)] {
            assert_eq!(statuses.contain(StatusCode::from_u16(status).unwrap()), fits, "{status}");
        }
        assert_eq!(statuses.to_string(), "401, 5xx");
    }
}
