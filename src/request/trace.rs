//! The trace that a request belongs to, as the header `traceparent` names it (W3C Trace Context, level 1).

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Names the trace and the caller's span.
pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What tracing systems add to [`TRACEPARENT`]. Without a `traceparent` it means nothing.
pub(crate) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Names a trace. Never zero: the id of zeros is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(NonZeroU128);

/// Names a span of a trace. Never zero: the id of zeros is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(NonZeroU64);

/// The value of `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace: TraceId,
    /// The span that the receiver's span is a child of.
    pub(crate) span: SpanId,
    /// Whether the caller has recorded its span.
    pub(crate) is_sampled: bool,
}

/// The length of a value of version 00. Later versions may only add to it.
const LENGTH: usize = 55;

/// The only bit of the flags that level 1 defines.
const SAMPLED: u128 = 1;

impl TraceId {
    /// A new id from a random number.
    pub(crate) fn from_random(random: u128) -> Self {
        Self(NonZeroU128::new(random).unwrap_or(NonZeroU128::MIN))
    }

    /// The id's bytes, the highest first.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl SpanId {
    /// A new id from a random number.
    pub(crate) fn from_random(random: u64) -> Self {
        Self(NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN))
    }

    /// The id's bytes, the highest first.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

/// In 32 lower-case hex digits.
impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// In 16 lower-case hex digits.
impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TraceParent {
    /// The `traceparent` of a request. `None` if there is none, more than one, or an invalid one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut fields = headers.get_all(&TRACEPARENT).iter();
        let field = fields.next()?;
        Self::parse(field.as_bytes()).filter(|_| fields.next().is_none())
    }

    /// Reads a field's value (W3C Trace Context, 3.2.2). A version that is not known yet is read by the
    /// fields that version 00 has (3.2.4).
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(LENGTH)?;
        let mut fields = std::str::from_utf8(known).ok()?.split('-');
        let mut field = |digits| hex(fields.next().filter(|field| field.len() == digits)?);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_readable = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let trace = TraceId(NonZeroU128::new(trace)?);
        let span = SpanId(NonZeroU64::new(u64::try_from(span).ok()?)?);
        is_readable.then_some(Self { trace, span, is_sampled: flags & SAMPLED != 0 })
    }

    /// The field's value, in version 00.
    pub(crate) fn value(&self) -> HeaderValue {
        let text = self.to_string();
        // The text is ASCII, so it is a value.
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u128::from(self.is_sampled) * SAMPLED)
    }
}

/// The number that lower-case hex digits write.
fn hex(digits: &str) -> Option<u128> {
    let is_lower = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(digits, 16).ok().filter(|_| is_lower)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn valid_headers_are_read() {
        for (version, flags, more, is_sampled) in [
            ("00", "01", "", true),
            ("00", "00", "", false),
            ("00", "03", "", true),
            ("00", "fe", "", false),
            ("01", "01", "", true),
            ("cc", "01", "-more", true),
            ("fe", "01", "-", true),
        ] {
            let text = format!("{version}-{TRACE}-{SPAN}-{flags}{more}");
            let read = TraceParent::parse(text.as_bytes()).expect(&text);
            assert_eq!(read.is_sampled, is_sampled, "{text}");
            assert_eq!(
                (read.trace.to_string(), read.span.to_string()),
                (TRACE.into(), SPAN.into())
            );
        }
    }

    #[test]
    fn invalid_headers_are_not_read() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("ff-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("0-{TRACE}-{SPAN}-011"),
            format!("0g-{TRACE}-{SPAN}-01"),
            format!("0A-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-+{}-01", &SPAN[1..]),
        ] {
            assert_eq!(TraceParent::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn two_headers_count_as_none() {
        let value = || HeaderValue::from_str(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of(&headers), None);
        headers.append(&TRACEPARENT, value());
        assert!(TraceParent::of(&headers).is_some());
        headers.append(&TRACEPARENT, value());
        assert_eq!(TraceParent::of(&headers), None);
    }

    #[test]
    fn a_random_zero_is_an_id_all_the_same() {
        let (trace, span) = (TraceId::from_random(0), SpanId::from_random(0));
        let made = TraceParent { trace, span, is_sampled: true };
        assert_eq!(TraceParent::parse(made.value().as_bytes()), Some(made));
    }

    proptest! {
        #[test]
        fn a_written_header_is_read_back(trace: u128, span: u64, is_sampled: bool) {
            let (trace, span) = (TraceId::from_random(trace), SpanId::from_random(span));
            let written = TraceParent { trace, span, is_sampled };
            prop_assert_eq!(TraceParent::parse(written.value().as_bytes()), Some(written));
        }

        #[test]
        fn a_header_that_was_read_is_written_back(
            version in "[0-9a-f]{2}",
            trace in "[0-9a-f]{32}",
            span in "[0-9a-f]{16}",
            flags in "[0-9a-f]{2}",
        ) {
            let text = format!("{version}-{trace}-{span}-{flags}");
            if let Some(read) = TraceParent::parse(text.as_bytes()) {
                let flags = if read.is_sampled { "01" } else { "00" };
                prop_assert_eq!(read.to_string(), format!("00-{trace}-{span}-{flags}"));
            }
        }

        #[test]
        fn no_value_panics(value in prop::collection::vec(any::<u8>(), 0..80)) {
            TraceParent::parse(&value);
        }
    }
}
