//! What requests hold that were allowed by `/check`, until `/settle` or the end of a lease. All workers share them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::limit::time::Timestamp;
use crate::throttle::Permit;

/// The most requests that wait for their end at once.
const MOST: usize = 100_000;

/// After this time a request ends by itself that holds no slot. A slot has a lease of its own.
const WITHOUT_SLOT: Duration = Duration::from_secs(600);

/// The requests that were allowed and have not ended. The number of each is in its id. It begins with the time at which
/// the request ends by itself, in microseconds, and has 64 random bits: no process makes the number of another.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<BTreeMap<u128, Permit>>);

impl Leases {
    /// A place for what a request may hold. It is there before the limits are asked: a request that finds none takes
    /// nothing. `None` if too many requests have not ended.
    pub(super) fn reserve(&self) -> Option<Lease<'_>> {
        let mut permits = self.0.lock();
        let number = (permits.len() < MOST).then(|| number(u64::MAX))?;
        permits.insert(number, Permit::default());
        Some(Lease { leases: self, number: Some(number) })
    }

    /// Takes out what the request with this id holds.
    pub(super) fn take(&self, id: &str) -> Option<Permit> {
        let is_id = id.len() == 32 && !id.starts_with('+');
        let number = u128::from_str_radix(id, 16).ok().filter(|_| is_id)?;
        self.0.lock().remove(&number)
    }

    /// Ends the requests whose lease is over at `now`. `None` ends all.
    pub(crate) fn sweep(&self, now: Option<Timestamp>) {
        let mut over = Vec::new();
        let mut permits = self.0.lock();
        while let Some(first) = permits.first_entry()
            && now.is_none_or(|now| first.key() >> 64 <= u128::from(now.as_micros()))
        {
            over.push(first.remove());
        }
        // They are settled when they are dropped, and that is not done under the lock.
        drop(permits);
    }
}

/// What a request holds whose caller is not answered yet. If the caller leaves before, nobody learns the id, and the
/// request ends.
pub(crate) struct Lease<'l> {
    leases: &'l Leases,
    /// `None` once the caller is answered.
    number: Option<u128>,
}

/// A new number that begins with this time.
fn number(until: u64) -> u128 {
    u128::from(until) << 64 | u128::from(fastrand::u64(..))
}

impl Lease<'_> {
    /// Keeps in its place what a request holds.
    pub(super) fn keep(mut self, permit: Permit, now: Timestamp) -> Self {
        let until = now.plus(permit.lease().unwrap_or(WITHOUT_SLOT));
        let number = number(until.as_micros());
        let mut permits = self.leases.0.lock();
        if let Some(place) = self.number.replace(number) {
            permits.remove(&place);
        }
        permits.insert(number, permit);
        drop(permits);
        self
    }

    /// The request's id, for the answer to the caller.
    pub(super) fn tell(mut self) -> String {
        format!("{:032x}", self.number.take().unwrap_or_default())
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let permit = self.number.and_then(|number| self.leases.0.lock().remove(&number));
        // It is settled here, and no longer under the lock.
        drop(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::decide::Ask;
    use crate::limit::key::Key;
    use crate::settings::testing::settings_with;
    use crate::settings::{Figures, KeyDisplay};
    use crate::store::{Claim, ClockReading, ProcessStore, Store};

    #[test]
    fn a_request_ends_once_or_by_itself() {
        let (leases, now) = (Leases::default(), Timestamp::from_micros(1_000).unwrap());
        let keep = || leases.reserve().unwrap().keep(Permit::default(), now).tell();
        let (first, second) = (keep(), keep());
        for (id, is_there) in
            [(&*first, true), (&first, false), ("", false), ("0", false), (&second[1..], false)]
        {
            assert_eq!(leases.take(id).is_some(), is_there, "{id}");
        }
        leases.sweep(Some(now.plus(WITHOUT_SLOT - Duration::from_micros(1))));
        assert_eq!(leases.0.lock().len(), 1);
        leases.sweep(Some(now.plus(WITHOUT_SLOT)));
        assert!(leases.take(&second).is_none());
    }

    /// What a request holds of a limit with this lease.
    fn slot(lease: &str) -> Permit {
        let text = format!("algorithm = \"concurrency\"\nlimit = 1\nlease = \"{lease}\"");
        let settings = settings_with(&text);
        let spec = &settings.limits[0];
        let Figures::Limited(algorithm) = spec.figures else { panic!("{lease}") };
        let store =
            Store::new(ProcessStore::new(&settings.store), &settings.store, KeyDisplay::Plain);
        let mut claim = Claim::new(&store, spec, Key::of([None]).into(), Ask::for_one(algorithm));
        store.take_locally(&mut [&mut claim], ClockReading::now(Timestamp::MIN));
        Permit::from_iter(claim.take_held())
    }

    /// A regression: after ten minutes a slot was free whose lease was an hour, and its request went on.
    #[test]
    fn a_slot_is_held_as_long_as_its_lease() {
        let (leases, now) = (Leases::default(), Timestamp::MIN);
        for (lease, seconds) in [("1s", 1), ("1h", 3_600)] {
            let until = now.plus(Duration::from_secs(seconds));
            let id = || leases.reserve().unwrap().keep(slot(lease), now).tell();
            let (settled, left) = (id(), id());
            leases.sweep(Some(until.plus_signed(-1)));
            assert!(leases.take(&settled).is_some(), "{lease}");
            leases.sweep(Some(until));
            assert!(leases.take(&left).is_none(), "{lease}");
        }
    }

    #[test]
    fn no_more_than_the_most_are_kept_and_those_of_a_caller_that_leaves_end() {
        let leases = Leases::default();
        let mut call: Vec<_> = (0..MOST).map(|_| leases.reserve().unwrap()).collect();
        assert!(leases.reserve().is_none());
        let kept = call.pop().unwrap().keep(Permit::default(), Timestamp::from_micros(1).unwrap());
        assert!(leases.reserve().is_none());
        drop(call);
        kept.tell();
        assert_eq!(leases.0.lock().len(), 1);
    }
}
