//! `[trace]`: which requests are traced, and where their spans go.

use std::fmt;

/// `[trace]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TraceSpec {
    /// The collector that the spans are sent to; `None` if nothing is traced.
    pub(crate) otlp: Option<CollectorAddress>,
    /// The share of the requests that are traced. Requests that a trusted proxy has chosen are traced besides.
    pub(crate) sample: SampleShare,
}

/// Where an OpenTelemetry collector takes spans: OTLP by gRPC, in clear text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectorAddress {
    /// A name, an IPv4 address or an IPv6 address without brackets, in lower case.
    pub(crate) host: String,
    /// The port, not 0.
    pub(crate) port: u16,
}

/// As a URL: an IPv6 address stands in brackets.
impl fmt::Display for CollectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { host, port } if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Self { host, port } => write!(f, "http://{host}:{port}"),
        }
    }
}

/// A share of the requests, from 0 (none) to 1 (all).
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct SampleShare(f64);

impl SampleShare {
    /// `None` if `share` is not from 0 to 1.
    pub(crate) fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// Whether a request with this random number belongs to the share. `random` is at least 0 and below 1.
    pub(crate) fn takes(self, random: f64) -> bool {
        random < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_from_none_to_all() {
        let above = 1.0 + f64::EPSILON;
        for wrong in [-0.1, above, 2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(SampleShare::new(wrong), None, "{wrong}");
        }
        let below_one = 1.0 - f64::EPSILON / 2.0;
        for (share, random, takes) in [
            (0.0, 0.0, false),
            (0.0, below_one, false),
            (1.0, 0.0, true),
            (1.0, below_one, true),
            (0.25, 0.2, true),
            (0.25, 0.25, false),
        ] {
            assert_eq!(SampleShare::new(share).unwrap().takes(random), takes, "{share} {random}");
        }
    }
}
