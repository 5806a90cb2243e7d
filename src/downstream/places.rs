//! The places for connections, of clients or at the admin endpoint. If all are taken, the connection that has been idle
//! for longest is closed for the next one. A client may be allowed only some of them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::exchange::client::Idleness;
use crate::observe::events;
use crate::observe::repeated::{RefusedConnections, Repeated};

/// For this time nobody's connection is idle: the first request of a new client may be on its way. If no connection is
/// idle, this is also the time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The places for connections.
#[derive(Debug)]
pub(crate) struct ConnectionPlaces {
    /// The connections that were closed at once, because their client had too many.
    pub(super) refused: RefusedConnections,
    /// Wakes somebody who waits for a place.
    freed: Notify,
    connections: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// The most connections at once.
    most: usize,
    next: u64,
    all: HashMap<u64, Arc<Idleness>>,
    /// The number of connections of each client that has any.
    of_clients: HashMap<IpAddr, usize>,
    /// The connections that were idle at the last look. Each has the time at which it became idle. The one that became
    /// idle first is the last of the list.
    found: Vec<(u64, Arc<Idleness>)>,
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    id: u64,
    places: Arc<ConnectionPlaces>,
    /// The client under which the connection is counted.
    client: Option<IpAddr>,
    pub(crate) idleness: Arc<Idleness>,
}

impl ConnectionPlaces {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let refused = Repeated::new(events::connections_refused);
        let connections = Mutex::new(OpenConnections { most, ..OpenConnections::default() });
        Arc::new(Self { refused, freed: Notify::new(), connections })
    }

    /// Changes the maximum. Open connections stay open.
    pub(super) fn resize(&self, most: usize) {
        self.connections.lock().most = most;
        self.freed.notify_waiters();
    }

    /// Connections that are open now.
    pub(super) fn open(&self) -> usize {
        self.connections.lock().all.len()
    }

    /// A place, if one is free.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<ConnectionPlace> {
        let mut connections = self.connections.lock();
        if connections.all.len() >= connections.most {
            return None;
        }
        let (id, idleness) = (connections.next, Arc::new(Idleness::new()));
        connections.next += 1;
        connections.all.insert(id, idleness.clone());
        Some(ConnectionPlace { id, places: self.clone(), client: None, idleness })
    }

    /// A place. If none is free, asks the connection that has been idle for longest to close, and waits.
    pub(crate) async fn take(self: &Arc<Self>) -> ConnectionPlace {
        loop {
            // Enabled before the count is read: a connection that ends later wakes this task.
            let mut freed = pin!(self.freed.notified());
            let was_freed = freed.as_mut().enable();
            if let Some(place) = self.try_take() {
                return place;
            }
            // The news may be older than the connection that has the place now.
            if !was_freed {
                self.connections.lock().give_up();
                let _ = timeout(LOOK, freed).await;
            }
        }
    }
}

impl OpenConnections {
    /// Gives up the connection that has been idle for longest.
    fn give_up(&mut self) {
        // Whoever was not found is idle for a shorter time than those that were, and still are.
        if !self.give_up_found() {
            self.look();
            self.give_up_found();
        }
    }

    fn give_up_found(&mut self) -> bool {
        while let Some((since, idleness)) = self.found.pop() {
            if idleness.give_up(since) {
                return true;
            }
        }
        false
    }

    fn look(&mut self) {
        let latest = Instant::now().checked_sub(LOOK);
        let idle = self.all.values().filter_map(|it| Some((it.since(latest?)?, it)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(since, _)| Reverse(*since));
        self.found = idle.into_iter().map(|(since, it)| (since, it.clone())).collect();
    }
}

impl ConnectionPlace {
    /// Counts this connection as one of `client`, which may have `most` at once. Returns false if the client has too
    /// many: then the connection must be closed. `client` is the network by which clients are counted.
    pub(super) fn count_for(&mut self, client: IpAddr, most: usize) -> bool {
        let mut connections = self.places.connections.lock();
        let count = connections.of_clients.entry(client).or_default();
        let fits = *count < most;
        *count += usize::from(fits);
        self.client = fits.then_some(client);
        fits
    }

    pub(super) fn refused(&self) -> &RefusedConnections {
        &self.places.refused
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut connections = self.places.connections.lock();
        connections.all.remove(&self.id);
        if let Some(client) = self.client
            && let Some(count) = connections.of_clients.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                connections.of_clients.remove(&client);
            }
        }
        drop(connections);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_was_idle_for_longest_goes() {
        let places = ConnectionPlaces::new(60);
        let mut open = Vec::new();
        for _ in 0..60 {
            advance(MOMENT).await;
            open.push(places.try_take().unwrap());
        }
        assert!(places.try_take().is_none());
        // A permit that nobody waits for must not close a second one.
        drop(open.pop());
        open.push(places.try_take().unwrap());
        advance(LOOK).await;
        let mut given_up = Vec::new();
        for _ in 0..60 {
            assert!(places.take().now_or_never().is_none());
            let numbers = 0..open.len();
            let new: Vec<_> = numbers.filter(|n| open[*n].idleness.is_given_up()).collect();
            let new = new.into_iter().find(|number| !given_up.contains(number));
            given_up.extend(new);
            if given_up.len() == 3 {
                // They have had requests since it was found who is idle for longest.
                open[5].idleness.busy();
                open[6].idleness.busy();
                open[6].idleness.idle(Instant::now());
            }
        }
        let expected: Vec<_> = (0..5).chain(7..60).collect();
        assert_eq!(given_up, expected);
        assert!(!open[6].idleness.is_given_up(), "it may be about to send a request");
        advance(LOOK).await;
        assert!(places.take().now_or_never().is_none());
        assert!(open[6].idleness.is_given_up() && !open[5].idleness.is_given_up());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gets_the_place_of_whoever_closes() {
        let places = ConnectionPlaces::new(2);
        let [first, second] = [places.try_take().unwrap(), places.try_take().unwrap()];
        first.idleness.busy();
        second.idleness.busy();
        let mut waiting = Box::pin(places.take());
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(!first.idleness.is_given_up() && !second.idleness.is_given_up(), "both are busy");
        second.idleness.idle(Instant::now());
        advance(LOOK + MOMENT).await;
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(second.idleness.is_given_up());
        drop(second);
        let third = waiting.as_mut().now_or_never().unwrap();
        assert_eq!((places.open(), third.idleness.is_given_up()), (2, false));
        drop((first, third));
        assert_eq!(places.open(), 0);
    }

    #[test]
    fn connections_of_each_client_are_bounded_and_a_client_that_left_costs_no_memory() {
        let places = ConnectionPlaces::new(9);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let take = |client, most| {
            let mut place = places.try_take().unwrap();
            place.count_for(client, most).then_some(place)
        };
        let open = [take(one, 2).unwrap(), take(one, 2).unwrap(), take(other, 2).unwrap()];
        assert!(take(one, 2).is_none() && take(one, 2).is_none(), "a refused one is not counted");
        assert!(take(one, 3).is_some(), "a reload allows more");
        drop(open);
        assert!(places.connections.lock().of_clients.is_empty());
    }
}
