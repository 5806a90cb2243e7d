//! What requests hold that were allowed by `/check`, until `/settle` or the end of a lease. All workers share them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::check::RequestEnd;
use crate::throttle::Permit;

/// The most requests that wait for their end at once.
const MOST: usize = 100_000;

/// After this time a request that holds no slot ends by itself. A slot's lease may be shorter.
const LONGEST: Duration = Duration::from_secs(600);

/// The requests that were allowed and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<LeaseTable>);

#[derive(Debug, Default)]
struct LeaseTable {
    /// By number. The number is in the request's id.
    permits: HashMap<u128, (Permit, Instant)>,
    /// When each ends by itself.
    ends: BTreeSet<(Instant, u128)>,
}

impl Leases {
    /// The requests of one call, of which none is kept yet.
    pub(crate) fn untold(&self) -> UntoldLeases<'_> {
        UntoldLeases { leases: self, numbers: Vec::new() }
    }

    /// Keeps what a request holds, and returns its number.
    ///
    /// # Errors
    /// The permit, where too many requests have not ended.
    fn keep(&self, permit: Permit, now: Instant) -> Result<u128, Permit> {
        let mut table = self.0.lock();
        if table.permits.len() >= MOST {
            return Err(permit);
        }
        let until = now + permit.lease().map_or(LONGEST, |lease| lease.min(LONGEST));
        // No process makes a number twice, and none makes that of another.
        let number = fastrand::u128(..);
        table.ends.insert((until, number));
        table.permits.insert(number, (permit, until));
        Ok(number)
    }

    /// Ends a request. Returns false where there is none with this id.
    pub(crate) fn settle(&self, ended: &RequestEnd) -> bool {
        let is_id = ended.id.len() == 32 && !ended.id.starts_with('+');
        let number = u128::from_str_radix(&ended.id, 16).ok().filter(|_| is_id);
        let Some(mut permit) = number.and_then(|number| self.take(number)) else { return false };
        permit.ended(ended.status(), ended.used);
        true
    }

    fn take(&self, number: u128) -> Option<Permit> {
        let mut table = self.0.lock();
        let (permit, until) = table.permits.remove(&number)?;
        table.ends.remove(&(until, number));
        Some(permit)
    }

    /// Ends the requests whose lease is over at `now`. `None` ends all.
    pub(crate) fn sweep(&self, now: Option<Instant>) {
        let mut over = Vec::new();
        let mut table = self.0.lock();
        while let Some((until, number)) = table.ends.first().copied()
            && now.is_none_or(|now| until <= now)
        {
            table.ends.pop_first();
            over.extend(table.permits.remove(&number));
        }
        // They are settled when they are dropped, and that is not done under the lock.
        drop(table);
    }
}

/// The requests of a call that is not answered yet. If its caller leaves before, nobody learns their ids, and they end.
pub(crate) struct UntoldLeases<'l> {
    leases: &'l Leases,
    numbers: Vec<u128>,
}

impl UntoldLeases<'_> {
    /// Keeps what a request of the call holds, and returns its id.
    ///
    /// # Errors
    /// The permit, where too many requests have not ended.
    pub(crate) fn keep(&mut self, permit: Permit, now: Instant) -> Result<String, Permit> {
        let number = self.leases.keep(permit, now)?;
        self.numbers.push(number);
        Ok(format!("{number:032x}"))
    }

    /// The caller is answered now.
    pub(crate) fn tell(mut self) {
        self.numbers.clear();
    }
}

impl Drop for UntoldLeases<'_> {
    fn drop(&mut self) {
        for number in &self.numbers {
            self.leases.take(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlement(id: &str) -> RequestEnd {
        RequestEnd::read(format!("{{\"id\": \"{id}\"}}").as_bytes()).unwrap_or_else(|_| panic!())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_once_or_by_itself() {
        let leases = Leases::default();
        let keep = || {
            let mut call = leases.untold();
            let id = call.keep(Permit::default(), Instant::now()).unwrap();
            call.tell();
            id
        };
        let (first, second) = (keep(), keep());
        for (id, is_there) in
            [(&*first, true), (&first, false), ("", false), ("0", false), (&second[1..], false)]
        {
            assert_eq!(leases.settle(&settlement(id)), is_there, "{id}");
        }
        tokio::time::advance(LONGEST - Duration::from_millis(1)).await;
        leases.sweep(Some(Instant::now()));
        assert_eq!(leases.0.lock().permits.len(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        leases.sweep(Some(Instant::now()));
        assert!(!leases.settle(&settlement(&second)));
        assert!(leases.0.lock().ends.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_most_are_kept_and_those_of_a_caller_that_leaves_end() {
        let leases = Leases::default();
        let keep = |call: &mut UntoldLeases<'_>| call.keep(Permit::default(), Instant::now());
        let mut call = leases.untold();
        assert!((0..MOST).all(|_| keep(&mut call).is_ok()));
        let mut other = leases.untold();
        assert!(keep(&mut other).is_err());
        drop(call);
        assert!(keep(&mut other).is_ok());
        other.tell();
        let table = leases.0.lock();
        assert_eq!((table.permits.len(), table.ends.len()), (1, 1));
    }
}
