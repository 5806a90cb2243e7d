//! What a request that passed holds until its response has ended, and what is done then.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::usage::{self, Reader};
use crate::limit::algorithm::{Algorithm, Difference};
use crate::limit::time::Timestamp;
use crate::plan::CostSpec;
use crate::plan::response::UsedSource;
use crate::store::{Settling, Slots, Store, Taken};

/// A response may take so many bursts at once where its limit does not say how much.
const MOST_BURSTS: u64 = 100;

/// What a request holds: nothing for most. It is told what comes of the request, and dropped with the
/// end of the response, its error or the client's going away, it settles what the request took and
/// gives its slots back.
#[derive(Default)]
pub struct Permit(Option<Box<Held>>);

/// What is there to be done at a request's end.
pub(super) struct Held {
    pub(super) store: Arc<Store>,
    /// The request's time, which was at `began`.
    pub(super) now: Timestamp,
    pub(super) began: Instant,
    pub(super) dues: Vec<Due>,
    /// They give themselves back.
    pub(super) slots: Slots,
}

/// What one limit took before it was known what the request uses.
pub(super) struct Due {
    taken: Taken,
    status: Option<StatusCode>,
    used: Used,
}

/// What is known of a response's use.
enum Used {
    /// Nothing: what was taken is taken for it.
    Unsaid,
    /// So many tokens.
    Said(u64),
    /// Its body may say.
    Body(Reader),
}

impl Permit {
    pub(super) fn holding(held: Held) -> Self {
        let holds = !held.dues.is_empty() || !held.slots.is_empty();
        Self(holds.then(|| Box::new(held)))
    }

    /// The slots alone, for what goes on when the response has ended.
    pub fn take_slots(&mut self) -> Slots {
        self.0.as_mut().map(|held| std::mem::take(&mut held.slots)).unwrap_or_default()
    }

    /// The upstream, or the file, has answered with this status and these headers, which are not
    /// changed for the client yet. A body will follow.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        for due in self.dues() {
            due.status = Some(status);
            due.used = Used::of(&due.taken.spec.cost, headers);
        }
    }

    /// The request is answered with this status in place of what an upstream might have said.
    pub fn refused(&mut self, status: StatusCode) {
        self.dues().for_each(|due| due.status = Some(status));
    }

    /// More of the body has come.
    pub fn read(&mut self, piece: &[u8]) {
        for due in self.dues() {
            if let Used::Body(reader) = &mut due.used {
                reader.read(piece);
            }
        }
    }

    fn dues(&mut self) -> impl Iterator<Item = &mut Due> {
        self.0.iter_mut().flat_map(|held| &mut held.dues)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dues = self.0.as_ref().map_or(0, |held| held.dues.len());
        f.debug_struct("Permit").field("dues", &dues).finish()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = self.now.plus(self.began.elapsed());
        let begin = |due: &Due| {
            let used = due.difference()?;
            self.store.begin_settling(&due.taken, used, now)
        };
        let settling: Vec<Settling> = self.dues.iter().filter_map(begin).collect();
        if settling.is_empty() {
            return;
        }
        // Nobody waits for it. Outside of a worker, which has ended then, it is lost.
        if let Ok(worker) = Handle::try_current() {
            worker.spawn(async {
                for settling in settling {
                    // One that is lost was counted and logged.
                    let _ = settling.done().await;
                }
            });
        }
    }
}

impl Due {
    pub(super) fn new(taken: Taken) -> Self {
        Self { taken, status: None, used: Used::Unsaid }
    }

    /// How much more or less than it had taken the request used; `None` where that is the same.
    fn difference(&self) -> Option<Difference> {
        // A client that has left before its answer: nobody knows what that would have been.
        let status = self.status?;
        let taken = self.taken.ask.cost.get();
        let counts = self.taken.spec.count_when.as_ref().is_none_or(|when| when.contain(status));
        let used = match &self.used {
            _ if !counts => 0,
            Used::Said(used) => (*used).min(self.most()),
            Used::Body(reader) => reader.found().map_or(taken, |used| used.min(self.most())),
            Used::Unsaid => taken,
        };
        match used.checked_sub(taken) {
            Some(0) => None,
            Some(more) => Some(Difference::More(more)),
            None => Some(Difference::Less(taken - used)),
        }
    }

    /// The most that the request can take.
    fn most(&self) -> u64 {
        let Taken { spec, ask, .. } = &self.taken;
        match &spec.cost {
            CostSpec::Response { max, .. } => max.unwrap_or_else(|| most_of(&ask.algorithm)),
            CostSpec::Fixed(_) | CostSpec::Header { .. } => ask.cost.get(),
        }
    }
}

/// The most that one response can take of a bucket with these figures, where its limit does not say.
pub fn most_of(algorithm: &Algorithm) -> u64 {
    algorithm.capacity().saturating_mul(MOST_BURSTS)
}

impl Used {
    fn of(cost: &CostSpec, headers: &HeaderMap) -> Self {
        let CostSpec::Response { source, .. } = cost else { return Self::Unsaid };
        match &**source {
            UsedSource::Header(name) => {
                usage::in_header(headers, name).map_or(Self::Unsaid, Self::Said)
            }
            UsedSource::Json(path) => Reader::of(headers, path).map_or(Self::Unsaid, Self::Body),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::config::{Overrides, parse};
    use crate::limit::Mode;
    use crate::limit::algorithm::Receipt;
    use crate::limit::decide::Ask;
    use crate::limit::key::Key;
    use crate::limit::patience::Patience;
    use crate::limit::rate::Cost;
    use crate::plan::Figures;
    use crate::store::By;

    /// A limit of burst 10 with these lines, which took 4 of a request.
    fn due(lines: &str) -> Due {
        let text = format!(
            "[upstreams.api]\nservers = [\"http://a\"]\n[limits.a]\nrate = \"10/h\"\n{lines}\n\
             [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = [\"a\"]\n"
        );
        let plan = parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan;
        let spec = plan.limits[0].clone();
        let Figures::Limited(algorithm) = spec.figures else { panic!("{lines}") };
        let (cost, patience) = (Cost::new(4).unwrap(), Patience::NONE);
        let ask = Ask { algorithm, cost, patience, mode: Mode::Enforce };
        let (key, by) = (Key::of([None]), By::Process);
        Due::new(Taken { spec, key, ask, by, receipt: Receipt::NONE })
    }

    #[test]
    fn the_difference_is_what_the_response_says_within_bounds() {
        use Difference::{Less, More};
        const USED: &str = "cost = { response_header = \"x-used\", estimate = 4 }";
        const BOUNDED: &str = "cost = { response_header = \"x-used\", estimate = 4, max = 20 }";
        const FAILED: &str = "cost = 4\ncount_when = { status = [\"401\"] }";
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
        ] {
            let mut due = due(lines);
            let mut headers = HeaderMap::new();
            if let Some(said) = said {
                let name = HeaderName::from_static("x-used");
                headers.append(name, HeaderValue::from_static(said));
            }
            due.used = Used::of(&due.taken.spec.cost, &headers);
            due.status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(due.difference(), difference, "{name}");
        }
    }
}
