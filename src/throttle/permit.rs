//! What a request that passed holds until its response has ended, and the settlement at that time.
//!
//! [`Throttle::admit`](super::Throttle::admit) makes a [`Permit`], and `proxy` tells it of the response.
//! `usage` reads the cost.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::usage::{self, Reader};
use crate::limit::algorithm::{Algorithm, Difference};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::settings::CostSpec;
use crate::settings::response::{UnknownUse, UsedSource};
use crate::store::{Grant, Store};

/// The most bursts that one response can take if its limit sets no maximum.
const MOST_BURSTS: u64 = 100;

/// What a request holds until its response ends. For most requests this is empty. When it is dropped at the
/// end of the response, at an error, or because the client has left, it settles what the request took and
/// gives its slots back.
#[derive(Debug, Default)]
pub(crate) struct Permit(Vec<HeldGrant>);

/// What one limit gave, until the request's use is known. A slot is held until the response has ended.
#[derive(Debug)]
struct HeldGrant {
    grant: Box<Grant>,
    status: Option<StatusCode>,
    used: Used,
    /// Whether the response has come to its end. Before the end, more tokens may be used than the response has said.
    is_whole: bool,
}

/// What is known about the tokens that a response used.
#[derive(Debug)]
enum Used {
    /// Nothing. Then the request has used what it took. With `unknown = "max"` it has used the most that it can take.
    Unsaid,
    /// The number of tokens used.
    Said(u64),
    /// The body may contain the number of tokens.
    Body(Box<Reader>),
    /// The bytes of the body so far, which are the tokens.
    Bytes(u64),
}

impl Permit {
    /// Takes out what a tunnel holds: slots, and costs that are counted in bytes. A tunnel lives longer than its
    /// response.
    pub(crate) fn take_for_tunnel(&mut self) -> Self {
        let stays =
            |held: &mut HeldGrant| held.grant.is_slot() || matches!(held.used, Used::Bytes(_));
        let mut tunnel = Self(self.0.extract_if(.., stays).collect());
        // Nothing says whether a tunnel ended too early.
        tunnel.completed();
        tunnel
    }

    /// Notes an answer of the upstream or a fixed answer: its status, and its headers before they are changed for
    /// the client. A body will follow.
    pub(crate) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        for held in &mut self.0 {
            held.status = Some(status);
            held.used = Used::of(&held.grant.spec.cost, headers);
        }
    }

    /// The proxy answers with this status in place of an upstream. The request has used what it took.
    pub(crate) fn refused(&mut self, status: StatusCode) {
        for held in &mut self.0 {
            (held.status, held.used) = (Some(status), Used::Said(held.grant.ask.cost.get()));
        }
        self.completed();
    }

    /// The response has come to its end.
    pub(crate) fn completed(&mut self) {
        self.0.iter_mut().for_each(|held| held.is_whole = true);
    }

    /// Ends a request that another proxy has forwarded: with the status of its response, and the tokens that the response
    /// used, if they are known.
    pub(crate) async fn end(
        mut self,
        status: Option<StatusCode>,
        used: Option<u64>,
        store: &Store,
        now: Timestamp,
    ) {
        for held in &mut self.0 {
            let is_told = matches!(held.grant.spec.cost, CostSpec::Response { .. });
            held.status = status;
            held.used = used.filter(|_| is_told).map_or(Used::Unsaid, Used::Said);
        }
        self.completed();
        for held in &mut self.0 {
            if let Used::Said(used) = &mut held.used {
                *used = store.most_reported(&held.grant, now).await.min(*used);
            }
        }
    }

    /// The shortest lease of the slots.
    pub(crate) fn lease(&self) -> Option<Duration> {
        let lease = |held: &HeldGrant| match held.grant.ask.algorithm {
            Algorithm::Concurrency(params) => Some(params.lease()),
            _ => None,
        };
        self.0.iter().filter_map(lease).min()
    }

    /// Notes a whole answer at once: its status, and the bytes of its body if they are known. `used` returns what a
    /// limit counted in the end.
    pub(super) fn answered_with(
        &mut self,
        status: Option<StatusCode>,
        bytes: Option<u64>,
        used: impl Fn(&Name) -> Option<u64>,
    ) {
        for held in &mut self.0 {
            held.status = status;
            // Without headers, only bytes can be counted.
            held.used = match Used::of(&held.grant.spec.cost, &HeaderMap::new()) {
                _ if let Some(used) = used(&held.grant.spec.name) => Used::Said(used),
                Used::Bytes(_) => bytes.map_or(Used::Unsaid, Used::Bytes),
                _ => Used::Unsaid,
            };
        }
        self.completed();
    }

    /// Ends what the request holds at the time `now`, instead of when the permit is dropped.
    pub(super) fn end_at(mut self, now: Timestamp) {
        self.0.iter_mut().for_each(|held| held.end(|_| now));
    }

    /// What each limit will have taken if the request ends now.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.0.iter().map(|held| {
            let taken = held.grant.ask.cost.get();
            let used = match held.difference() {
                None => taken,
                Some(Difference::More(more)) => taken.saturating_add(more),
                Some(Difference::Less(less)) => taken.saturating_sub(less),
            };
            (&held.grant.spec.name, used)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next piece of the body.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        for held in &mut self.0 {
            match &mut held.used {
                Used::Body(reader) => reader.read(piece),
                Used::Bytes(bytes) => *bytes = bytes.saturating_add(piece.len() as u64),
                Used::Unsaid | Used::Said(_) => {}
            }
        }
    }
}

impl FromIterator<Box<Grant>> for Permit {
    fn from_iter<I: IntoIterator<Item = Box<Grant>>>(grants: I) -> Self {
        let (status, is_whole) = (None, false);
        let held = |grant| HeldGrant { grant, status, used: Used::Unsaid, is_whole };
        Self(grants.into_iter().map(held).collect())
    }
}

impl HeldGrant {
    /// Settles what the request used, or gives a slot back, at this time.
    fn end(&mut self, now: impl FnOnce(&Grant) -> Timestamp) {
        match self.difference() {
            Some(used) => self.grant.settle_at(used, now(&self.grant)),
            None => self.grant.spend(),
        }
    }

    /// How much more or less the request used than the limit gave. `None` if both are equal, and nothing goes back.
    fn difference(&self) -> Option<Difference> {
        let grant = &*self.grant;
        let (spec, taken) = (&grant.spec, grant.ask.cost.get());
        // Without an answer there is no status. Then the request counts.
        let counts = |status| spec.count_when.as_ref().is_none_or(|when| when.contain(status));
        let (said, is_whole) = match &self.used {
            Used::Said(used) | Used::Bytes(used) => (Some(*used), self.is_whole),
            Used::Body(reader) => (reader.found(), self.is_whole || reader.is_done()),
            Used::Unsaid => (None, self.is_whole),
        };
        let used = match (said, &spec.cost) {
            _ if self.status.is_some_and(|status| !counts(status)) => 0,
            (Some(used), _) if is_whole => used.min(most(grant)),
            (_, CostSpec::Response { unknown: UnknownUse::Max, .. }) => most(grant),
            // The response was cut, and may have used more.
            (Some(used), _) => used.min(most(grant)).max(taken),
            (None, _) => taken,
        };
        match used.checked_sub(taken) {
            // A slot is free again, whatever was used.
            Some(0) => grant.is_slot().then_some(Difference::Less(taken)),
            Some(more) => Some(Difference::More(more)),
            None => Some(Difference::Less(taken - used)),
        }
    }
}

impl Drop for HeldGrant {
    fn drop(&mut self) {
        self.end(Grant::present);
    }
}

/// The most tokens that the request can take.
fn most(grant: &Grant) -> u64 {
    match &grant.spec.cost {
        CostSpec::Response { max, .. } => max.unwrap_or_else(|| most_of(&grant.ask.algorithm)),
        CostSpec::Fixed(_) | CostSpec::Header { .. } => grant.ask.cost.get(),
    }
}

/// The most tokens that one response can take from a bucket with these figures, if its limit sets no
/// maximum.
pub(crate) fn most_of(algorithm: &Algorithm) -> u64 {
    algorithm.capacity().saturating_mul(MOST_BURSTS)
}

impl Used {
    fn of(cost: &CostSpec, headers: &HeaderMap) -> Self {
        let CostSpec::Response { source, .. } = cost else { return Self::Unsaid };
        match &**source {
            UsedSource::Header(name) => {
                usage::in_header(headers, name).map_or(Self::Unsaid, Self::Said)
            }
            UsedSource::Json(paths) => {
                usage::reader(headers, paths).map_or(Self::Unsaid, |it| Self::Body(Box::new(it)))
            }
            UsedSource::Bytes => Self::Bytes(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::limit::decide::Ask;
    use crate::limit::key::Key;

    use crate::limit::rate::Cost;
    use crate::limit::time::Timestamp;
    use crate::settings::testing::settings_with;
    use crate::settings::{Figures, KeyDisplay};
    use crate::store::{Claim, ClockReading, ProcessStore, Store};

    /// The grant of 4 tokens by a limit with a burst of 10 and these lines.
    fn held(lines: &str) -> HeldGrant {
        let settings = settings_with(&format!("rate = \"10/h\"\n{lines}"));
        let spec = &settings.limits[0];
        let Figures::Limited(algorithm) = spec.figures else { panic!("{lines}") };
        let ask = Ask { cost: Cost::new(4).unwrap(), ..Ask::for_one(algorithm) };
        let store =
            Store::new(ProcessStore::new(&settings.store), &settings.store, KeyDisplay::Plain);
        let mut claim = Claim::new(&store, spec, Key::of([None]).into(), ask);
        store.take_locally(&mut [&mut claim], ClockReading::now(Timestamp::MIN));
        Permit::from_iter(claim.take_held()).0.pop().unwrap()
    }

    #[test]
    fn the_bytes_of_a_body_are_counted() {
        let held = held("cost = { response_bytes = true, estimate = 4, max = 20 }");
        let mut permit = Permit(vec![held]);
        permit.answered(StatusCode::OK, &HeaderMap::new());
        assert_eq!(permit.0[0].difference(), None, "it may still come");
        permit.completed();
        for (piece, difference) in [
            (&b""[..], Some(Difference::Less(4))),
            (b"four", None),
            (b"more", Some(Difference::More(4))),
            (&[0; 100], Some(Difference::More(16))),
        ] {
            permit.read(piece);
            assert_eq!(permit.0[0].difference(), difference, "{piece:?}");
        }
        permit.refused(StatusCode::BAD_GATEWAY);
        assert_eq!(permit.0[0].difference(), None, "an own answer costs what was taken");
    }

    #[test]
    fn the_difference_is_what_the_response_says_within_bounds() {
        use Difference::{Less, More};
        const USED: &str = "cost = { response_header = \"x-used\", estimate = 4 }";
        const BOUNDED: &str = "cost = { response_header = \"x-used\", estimate = 4, max = 20 }";
        const FAILED: &str = "cost = 4\ncount_when = { status = [\"401\"] }";
        const MOST: &str =
            "cost = { response_header = \"x-used\", estimate = 4, max = 20, unknown = \"max\" }";
        let both = format!("{BOUNDED}\ncount_when = {{ status = [\"401\"] }}");
        for (name, lines, status, said, difference) in [
            ("more", USED, Some(200), Some("9"), Some(More(5))),
            ("less", USED, Some(200), Some("3"), Some(Less(1))),
            ("nothing", USED, Some(200), Some("0"), Some(Less(4))),
            ("as much", USED, Some(200), Some("4"), None),
            ("unsaid", USED, Some(200), None, None),
            ("not to be read", USED, Some(200), Some("many"), None),
            ("most", USED, Some(200), Some("1000"), Some(More(996))),
            ("100 bursts", USED, Some(200), Some("99999999999999999999"), Some(More(996))),
            ("`max`", BOUNDED, Some(200), Some("21"), Some(More(16))),
            ("left", USED, None, None, None),
            ("counts", FAILED, Some(401), None, None),
            ("does not count", FAILED, Some(200), Some("9"), Some(Less(4))),
            ("nobody knows whether", FAILED, None, None, None),
            ("both", &both, Some(401), Some("5"), Some(More(1))),
            ("neither", &both, Some(200), Some("5"), Some(Less(4))),
            ("unsaid is the most", MOST, Some(200), None, Some(More(16))),
            ("left, and pays the most", MOST, None, None, Some(More(16))),
            ("said is what was said", MOST, Some(200), Some("5"), Some(More(1))),
        ] {
            let mut held = held(lines);
            let mut headers = HeaderMap::new();
            if let Some(said) = said {
                let name = HeaderName::from_static("x-used");
                headers.append(name, HeaderValue::from_static(said));
            }
            held.used = Used::of(&held.grant.spec.cost, &headers);
            held.status = status.map(|status| StatusCode::from_u16(status).unwrap());
            held.is_whole = status.is_some();
            assert_eq!(held.difference(), difference, "{name}");
        }
    }

    /// A regression: a client that left after the first event of a stream paid only what that event said.
    #[test]
    fn a_response_that_is_cut_costs_no_less_than_the_estimate() {
        use Difference::{Less, More};
        const ESTIMATE: &str = "";
        const MOST: &str = ", unknown = \"max\"";
        const PART: &str = "data: {\"used\":3}\n\n";
        const MORE: &str = "data: {\"used\":9}\n\n";
        const DONE: &str = "data: {\"used\":3}\n\ndata: [DONE]\n\n";
        for (source, unknown, text, whole, cut) in [
            ("response_json = \"used\"", ESTIMATE, PART, Some(Less(1)), None),
            ("response_json = \"used\"", ESTIMATE, MORE, Some(More(5)), Some(More(5))),
            ("response_json = \"used\"", ESTIMATE, "", None, None),
            ("response_json = \"used\"", ESTIMATE, DONE, Some(Less(1)), Some(Less(1))),
            ("response_json = \"used\"", MOST, PART, Some(Less(1)), Some(More(16))),
            ("response_json = \"used\"", MOST, "", Some(More(16)), Some(More(16))),
            ("response_json = \"used\"", MOST, DONE, Some(Less(1)), Some(Less(1))),
            ("response_bytes = true", ESTIMATE, "abc", Some(Less(1)), None),
            ("response_bytes = true", ESTIMATE, PART, Some(More(14)), Some(More(14))),
            ("response_bytes = true", MOST, "abc", Some(Less(1)), Some(More(16))),
            ("response_header = \"x-used\"", ESTIMATE, "", Some(Less(3)), None),
            ("response_header = \"x-used\"", MOST, "", Some(Less(3)), Some(More(16))),
        ] {
            for (is_whole, difference) in [(false, cut), (true, whole)] {
                let lines = format!("cost = {{ {source}, estimate = 4, max = 20{unknown} }}");
                let mut permit = Permit(vec![held(&lines)]);
                let mut headers = HeaderMap::new();
                headers.insert("x-used", HeaderValue::from_static("1"));
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                permit.answered(StatusCode::OK, &headers);
                permit.read(text.as_bytes());
                if is_whole {
                    permit.completed();
                }
                let found = permit.0[0].difference();
                assert_eq!(found, difference, "{lines} {text:?} whole: {is_whole}");
            }
        }
    }
}
