//! The limits of a service by their names, decided together in the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::smallvec;

use crate::algorithm::{Difference, Receipt, Settlement};
use crate::answer::{Answer, Quotas};
use crate::bucket::{KeyedAsk, ReceiptUse};
use crate::charge::{Charge, ChargeError, Charged};
use crate::decide::{Ask, PerAsk};
use crate::decision::Decision;
use crate::limit::{Limit, LimitError};
use crate::memory::Memory;
use crate::name::Name;
use crate::rate::Cost;
use crate::time::{Now, Timestamp};
use crate::waiting::MaxWait;

/// The most buckets of a table, unless [`Limits::with_max_keys`] says another number.
pub const MAX_KEYS: usize = 1_000_000;

/// A service's limits, and their buckets in this process. Clones share them. Nothing here waits or reads a clock:
/// [`now`](crate::now) does.
#[derive(Clone)]
pub struct Limits {
    table: Arc<LimitTable>,
}

struct LimitTable {
    limits: Vec<(Name, Ask)>,
    memory: Memory,
    /// The steady time of the last sweep, in microseconds.
    swept: AtomicU64,
}

/// The time between two sweeps, in microseconds. Each visits a part of the table.
const SWEEP_INTERVAL: u64 = 1_000_000;

impl Limits {
    /// These limits, with an empty table of at most [`MAX_KEYS`] buckets.
    ///
    /// # Errors
    /// The first limit that has a fault.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, LimitError> {
        Self::with_max_keys(limits, MAX_KEYS)
    }

    /// The same with a table of at most `max_keys` buckets, of about 70 bytes each. When it is full, the buckets that
    /// are closest to full are forgotten first. One that owes tokens, or whose slots are held, never is.
    ///
    /// # Errors
    /// The first limit that has a fault.
    pub fn with_max_keys(
        limits: impl IntoIterator<Item = Limit>,
        max_keys: usize,
    ) -> Result<Self, LimitError> {
        let mut known = Vec::new();
        for limit in limits {
            known.push(limit.checked(&known)?);
        }
        let (memory, swept) = (Memory::new(max_keys), AtomicU64::new(0));
        Ok(Self { table: Arc::new(LimitTable { limits: known, memory, swept }) })
    }

    /// Asks these limits, each for the key with these values, whether a request of cost one may go at `now`. All of them
    /// count it, or none does. A limit without values counts everything in one bucket.
    ///
    /// # Errors
    /// A limit that [`Limits::new`] did not get, or one key of a limit twice. Nothing was taken.
    pub fn take<const N: usize>(
        &self,
        charges: [(&str, &[&str]); N],
        now: impl Into<Now>,
    ) -> Result<Answer<Permit>, ChargeError> {
        self.take_all(charges.map(|(limit, values)| Charge::new(limit, values)), now)
    }

    /// Like [`Limits::take`], for charges with costs, or as many as are known at run time.
    ///
    /// # Errors
    /// Those of [`Limits::take`], and a cost of zero or of more than a billion tokens. Nothing was taken.
    pub fn take_all<'c>(
        &self,
        charges: impl IntoIterator<Item = Charge<'c>>,
        now: impl Into<Now>,
    ) -> Result<Answer<Permit>, ChargeError> {
        let (quotas, now, table) = (self.quotas(charges)?, now.into(), &*self.table);
        table.sweep(now);
        let asks: PerAsk<KeyedAsk<'_>> = quotas.charged.iter().map(Charged::asked).collect();
        let one = match asks.as_slice() {
            [ask] => table.memory.take_one(ask, ReceiptUse::Needed, now),
            _ => None,
        };
        let one = one.map(|(reply, verdict)| (smallvec![reply], verdict));
        let (replies, verdict): (PerAsk<_>, _) =
            one.unwrap_or_else(|| table.memory.take(&asks, ReceiptUse::Needed, now));
        drop(asks);
        let permit = |quotas| Permit { quotas, limits: self.clone(), now };
        Ok(quotas.answer(replies, verdict, now.wall, permit))
    }

    /// The number of buckets in the table. Buckets that are full again leave it by and by.
    pub fn keys(&self) -> usize {
        self.table.memory.keys()
    }

    /// Turns the charges into questions to their limits.
    pub(crate) fn quotas<'c>(
        &self,
        charges: impl IntoIterator<Item = Charge<'c>>,
    ) -> Result<Quotas, ChargeError> {
        let charges = charges.into_iter();
        // A vector, because values of this size are cheaper on the heap than to move.
        let mut all: Vec<Charged> = Vec::with_capacity(charges.size_hint().0);
        for Charge { limit: name, key, is_keyed, cost } in charges {
            let known = self.table.limits.iter().find(|(known, _)| known.as_str() == name);
            let (limit, ask) = known.ok_or_else(|| ChargeError::Unknown(name.to_owned()))?;
            let cost = match ask.algorithm.lease() {
                Some(_) => Cost::ONE,
                None => Cost::new(cost).ok_or(ChargeError::Cost(cost))?,
            };
            let ask = Ask { cost, ..*ask };
            if all.iter().any(|other| other.limit == *limit && other.key == key) {
                return Err(ChargeError::Twice(name.to_owned()));
            }
            let (limit, decision, receipt) = (limit.clone(), Decision::NEVER, None);
            let (used, window_left) = (cost.get(), None);
            all.push(Charged { limit, key, is_keyed, ask, used, decision, receipt, window_left });
        }
        Ok(Quotas { charged: all, goes: Timestamp::MIN, rejected: None })
    }
}

impl LimitTable {
    /// Forgets full buckets of a part of the table, if the last time was a second ago.
    fn sweep(&self, now: Now) {
        let (relaxed, time) = (Ordering::Relaxed, now.steady.as_micros());
        let last = self.swept.load(relaxed);
        let is_due = last.saturating_add(SWEEP_INTERVAL) <= time;
        if is_due && self.swept.compare_exchange(last, time, relaxed, relaxed).is_ok() {
            self.memory.sweep(now);
        }
    }
}

/// The names of the limits, and how they count.
impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.table.limits.iter();
        let shown = limits.map(|(name, ask)| (name.as_str(), ask.algorithm.to_string()));
        f.debug_map().entries(shown).finish()
    }
}

/// What a request has taken. Its slots are free again when it is dropped; tokens stay taken.
#[derive(Debug)]
pub struct Permit {
    quotas: Quotas,
    limits: Limits,
    now: Now,
}

impl Permit {
    /// What the limits say to the client.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Corrects the charge to this limit when its real use is known, `used` tokens: what was used beyond the cost is
    /// taken in any case, down below zero, and what was not used goes back. Of several charges to the limit it corrects the
    /// first. Slots are not settled.
    ///
    /// # Errors
    /// A limit that has taken nothing.
    pub fn settle(
        &mut self,
        limit: &str,
        used: u64,
        now: impl Into<Now>,
    ) -> Result<(), ChargeError> {
        if let Some((index, settled)) = self.quotas.settle(limit, used)? {
            self.correct(&self.quotas.charged[index], &settled, now.into());
        }
        Ok(())
    }

    fn correct(&self, charged: &Charged, settled: &Settlement, now: Now) {
        if let Some(taken) = charged.receipt {
            self.limits.table.memory.settle(&charged.asked(), settled, taken, now);
        }
    }
}

/// Gives a slot back.
const RELEASE: Settlement =
    Settlement { used: Difference::Less(1), receipt: Receipt::NONE, max_wait: MaxWait::NONE };

impl Drop for Permit {
    fn drop(&mut self) {
        let slots = self.quotas.charged.iter().filter(|it| it.ask.algorithm.lease().is_some());
        slots.for_each(|slot| self.correct(slot, &RELEASE, self.now));
    }
}
