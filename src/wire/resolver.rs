//! Finds the addresses of names. The system's function for this holds a thread until the name servers answer, perhaps
//! for half a minute. So each name is looked up by one thread at a time, for all who wait.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// How long addresses are remembered. Failures are told only to those who waited for them.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The most lookups at once. A runtime has 512 threads for those of all upstreams.
const MOST_LOOKUPS: usize = 16;

/// Looks up the names of one upstream.
#[derive(Debug)]
pub(super) struct Resolver {
    /// By name: what was found last. The thread that looks the name up holds the lock, also if nobody waits any more.
    names: Mutex<HashMap<String, Arc<Turn<Option<FoundAddresses>>>>>,
    room: Arc<Semaphore>,
}

/// The addresses of a name, or why there are none.
type Addresses = io::Result<Arc<[IpAddr]>>;

#[derive(Debug)]
struct FoundAddresses {
    at: Instant,
    result: Addresses,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { names: Mutex::default(), room: Arc::new(Semaphore::new(MOST_LOOKUPS)) }
    }
}

impl Resolver {
    /// The addresses of a name, the system's preferred one first. The caller bounds the time.
    pub(super) async fn addresses(&self, name: &str) -> Addresses {
        self.addresses_by(name, by_system).await
    }

    /// The same, by another function.
    async fn addresses_by(
        &self,
        name: &str,
        find: impl FnOnce(&str) -> Addresses + Send + 'static,
    ) -> Addresses {
        let asked = Instant::now();
        let mut found = self.turn(name).lock_owned().await;
        if let Some(found) = found.as_ref().filter(|it| it.at > asked || it.is_fresh()) {
            return copy(&found.result);
        }
        let room = self.room.clone().acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let looking = spawn_blocking(move || {
            let result = find(&name);
            drop(room);
            copy(&found.insert(FoundAddresses { at: Instant::now(), result }).result)
        });
        looking.await.map_err(io::Error::other)?
    }

    /// The place of a name. Names that were not asked for lately lose theirs.
    fn turn(&self, name: &str) -> Arc<Turn<Option<FoundAddresses>>> {
        let mut names = self.names.lock();
        if let Some(known) = names.get(name) {
            return known.clone();
        }
        names.retain(|_, it| Arc::strong_count(it) > 1);
        names.entry(name.to_owned()).or_default().clone()
    }
}

impl FoundAddresses {
    fn is_fresh(&self) -> bool {
        self.result.is_ok() && self.at.elapsed() < REMEMBERED
    }
}

fn by_system(name: &str) -> Addresses {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// The same for another caller.
fn copy(result: &Addresses) -> Addresses {
    result.as_ref().map(Arc::clone).map_err(|error| match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use tokio::time::{advance, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(10);

    fn here() -> Addresses {
        Ok([IpAddr::from([127, 0, 0, 1])].into())
    }

    /// A lookup that ends when something is sent, or the sender is dropped.
    fn hanging() -> (Sender<()>, impl FnOnce(&str) -> Addresses + Send) {
        let (end, ends): (_, Receiver<()>) = channel();
        let find = move |_: &str| {
            let _ = ends.recv();
            here()
        };
        (end, find)
    }

    fn never(name: &str) -> Addresses {
        panic!("{name} is looked up already")
    }

    /// A regression: 500 requests for a name whose name server did not answer took all threads of a worker. Upstreams
    /// with other names got 504, though their names stood in /etc/hosts.
    #[tokio::test]
    async fn a_name_that_hangs_has_one_lookup_and_holds_no_other_name_up() {
        let resolver = Resolver::default();
        let (end, find) = hanging();
        assert!(timeout(LIMIT, resolver.addresses_by("hangs", find)).await.is_err());
        let all = (0..600).map(|_| timeout(LIMIT, resolver.addresses_by("hangs", never)));
        assert!(join_all(all).await.iter().all(Result::is_err), "each waits for its own time");
        assert!(resolver.addresses_by("other", |_| here()).await.is_ok());
        assert_eq!(resolver.room.available_permits(), MOST_LOOKUPS - 1);
        let waiting = (0..600).map(|_| resolver.addresses_by("hangs", never));
        let (found, ()) = tokio::join!(join_all(waiting), async { end.send(()).unwrap() });
        assert!(found.iter().all(Result::is_ok), "one answer is for all who wait");
    }

    #[tokio::test]
    async fn an_upstream_has_at_most_so_many_lookups() {
        let resolver = Resolver::default();
        let mut ends = Vec::new();
        for name in 0..MOST_LOOKUPS {
            let (end, find) = hanging();
            let asking = resolver.addresses_by(&name.to_string(), find).now_or_never();
            assert!(asking.is_none());
            ends.push(end);
        }
        let one_more = resolver.addresses_by("one more", |_| here());
        tokio::pin!(one_more);
        assert!(one_more.as_mut().now_or_never().is_none(), "it waits for a thread");
        ends.pop();
        assert!(one_more.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_remembered_for_a_moment_and_failures_are_not() {
        let (resolver, lookups) = (Resolver::default(), Arc::<AtomicUsize>::default());
        let ask = |is_found: bool| {
            let lookups = lookups.clone();
            let find = move |_: &str| {
                lookups.fetch_add(1, Ordering::Relaxed);
                if is_found { here() } else { Err(io::ErrorKind::NotFound.into()) }
            };
            resolver.addresses_by("a", find)
        };
        for (is_found, so_far) in [(false, 1), (false, 2), (true, 3), (true, 3)] {
            let found = ask(is_found).await.map_err(|error| error.kind());
            assert_eq!(found.err(), (!is_found).then_some(io::ErrorKind::NotFound));
            assert_eq!(lookups.load(Ordering::Relaxed), so_far);
        }
        advance(REMEMBERED).await;
        ask(true).await.unwrap();
        assert_eq!(lookups.load(Ordering::Relaxed), 4);
    }

    /// A runtime that ends takes the lookups along that it has not begun.
    #[tokio::test]
    async fn a_lookup_that_was_cut_off_is_made_again() {
        let resolver = Resolver::default();
        let cut_off = resolver.turn("a").lock_owned().await;
        let waiting = resolver.addresses_by("a", |_| here());
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(cut_off);
        assert!(waiting.await.is_ok());
    }
}
