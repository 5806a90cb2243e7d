//! Connects to servers by their names. A name may have several addresses, and some of them may be dead
//! (RFC 8305, Happy Eyeballs).
//!
//! An address that failed comes last for a minute. The address that worked last does not come first: a name with
//! several sound addresses often stands for several servers, and all connections would go to one of them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::resolver::Resolver;

/// When the next address is tried while the attempt before goes on (RFC 8305, 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// For this time an address that failed comes after the others. Then one connection finds out whether it is back.
const AVOIDED: Duration = Duration::from_secs(60);

/// After this time without an attempt, an address that failed is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3_600);

/// Connects to the servers of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Dialer {
    resolver: Resolver,
    /// The addresses that have not taken their last connection, each with the time of the attempt.
    failed: Mutex<HashMap<SocketAddr, Instant>>,
}

impl Dialer {
    /// Connects to a server within `limit`.
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        limit: Duration,
    ) -> io::Result<TcpStream> {
        let connecting = async {
            let stream = match host.parse::<IpAddr>() {
                Ok(address) => TcpStream::connect((address, port)).await?,
                Err(_) => {
                    let addresses = self.resolver.addresses(host).await?;
                    // Even if the time is short, there is some for a second address.
                    let delay = ATTEMPT_DELAY.min(limit / 2);
                    self.race(self.in_order(&addresses, port), delay).await?
                }
            };
            // Otherwise the system holds a small packet back until the packet before it is acknowledged. Requests and
            // calls are small packets, and each would be late by a round trip.
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        timeout(limit, connecting).await?
    }

    /// The addresses in the order in which they are tried: those that failed come last, the latest failure at the very
    /// end. Otherwise the families take turns, so that one broken family is not tried for long.
    fn in_order(&self, addresses: &[IpAddr], port: u16) -> Vec<SocketAddr> {
        let (failed, mut turns) = (self.failed.lock(), [0_usize; 2]);
        let ranked = addresses.iter().map(|ip| {
            let (address, turn) =
                (SocketAddr::new(*ip, port), &mut turns[usize::from(ip.is_ipv4())]);
            *turn += 1;
            let failed = failed.get(&address).copied().filter(|at| at.elapsed() < AVOIDED);
            (failed, *turn, address)
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(failed, turn, _)| (*failed, *turn));
        ranked.into_iter().map(|(_, _, address)| address).collect()
    }

    /// Tries the addresses one after the other. The next attempt begins when one has failed, or has gone on for `delay`.
    async fn race(&self, addresses: Vec<SocketAddr>, delay: Duration) -> io::Result<TcpStream> {
        let (mut addresses, mut attempts) = (addresses.into_iter(), FuturesUnordered::new());
        let mut last = io::Error::other("the name has no address");
        loop {
            let latest = addresses.next();
            attempts.extend(latest.map(|to| async move { (to, TcpStream::connect(to).await) }));
            tokio::select! {
                biased;
                ended = attempts.next() => match ended {
                    Some((address, Ok(stream))) => {
                        self.failed.lock().remove(&address);
                        return Ok(stream);
                    }
                    Some((address, Err(error))) => {
                        self.fails(address);
                        last = error;
                    }
                    None => return Err(last),
                },
                () = sleep(delay), if addresses.len() > 0 => {
                    latest.into_iter().for_each(|it| self.fails(it));
                }
            }
        }
    }

    fn fails(&self, address: SocketAddr) {
        let mut failed = self.failed.lock();
        failed.retain(|_, at| at.elapsed() < FORGOTTEN);
        failed.insert(address, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};
    use tokio::net::TcpListener;
    use tokio::time::advance;

    use super::*;

    const PORT: u16 = 80;

    /// An address that takes no more connections, and does not refuse them: its backlog is full.
    fn silent() -> (SocketAddr, [Socket; 2]) {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let (server, client) = (socket(), socket());
        server.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        server.listen(0).unwrap();
        let address = server.local_addr().unwrap();
        client.connect(&address).unwrap();
        (address.as_socket().unwrap(), [server, client])
    }

    async fn working() -> (SocketAddr, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap(), listener)
    }

    async fn refusing() -> SocketAddr {
        working().await.0
    }

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    /// Connects to the first of these addresses that works, and returns it.
    async fn dial(dialer: &Dialer, addresses: &[SocketAddr]) -> SocketAddr {
        let stream = dialer.race(addresses.to_vec(), ATTEMPT_DELAY).await.unwrap();
        stream.peer_addr().unwrap()
    }

    /// A regression: each new connection waited for half of `connect_timeout` at a dead address.
    #[tokio::test(start_paused = true)]
    async fn a_dead_address_is_left_for_the_next() {
        let ((dead, _held), (alive, _listener)) = (silent(), working().await);
        let (dialer, begin) = (Dialer::default(), Instant::now());
        assert_eq!(dial(&dialer, &[dead, alive]).await, alive);
        assert_eq!(begin.elapsed().as_millis(), ATTEMPT_DELAY.as_millis());
    }

    #[tokio::test]
    async fn a_refused_address_leads_to_the_next_at_once() {
        let (dead, (alive, _listener)) = (refusing().await, working().await);
        let dialer = Dialer::default();
        let dialling = dialer.race(vec![dead, alive], Duration::MAX / 4);
        assert_eq!(dialling.await.unwrap().peer_addr().unwrap(), alive);
        let dialling = dialer.race(vec![dead, dead], Duration::MAX / 4);
        assert_eq!(dialling.await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    /// The first attempt goes on while the second runs.
    #[tokio::test]
    async fn an_address_that_answers_late_is_used() {
        let ((late, [server, _client]), (dead, _held)) = (silent(), silent());
        let dialer = Dialer::default();
        let dialling = dialer.race(vec![late, dead], Duration::from_millis(1));
        let (dialled, accepted) = tokio::join!(
            dialling,
            tokio::task::spawn_blocking(move || {
                server.accept().unwrap();
                server
            })
        );
        assert_eq!(dialled.unwrap().peer_addr().unwrap(), late);
        drop(accepted);
        assert!(!dialer.failed.lock().contains_key(&late));
    }

    #[tokio::test]
    async fn an_address_that_is_back_is_no_longer_avoided() {
        let (dead, (alive, listener)) = (refusing().await, working().await);
        let dialer = Dialer::default();
        assert_eq!(dial(&dialer, &[dead, alive]).await, alive);
        drop(listener);
        let _listener = TcpListener::bind(dead).await.unwrap();
        assert_eq!(dial(&dialer, &[alive, dead]).await, dead);
        assert!(!dialer.failed.lock().contains_key(&dead));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_failed_come_last_for_a_while() {
        let dialer = Dialer::default();
        let [one, two, three] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let order = || {
            let order = dialer.in_order(&[one, two, three], PORT);
            order.into_iter().map(|address| address.ip()).collect::<Vec<_>>()
        };
        assert_eq!(order(), [one, two, three]);
        dialer.fails(SocketAddr::new(one, PORT));
        assert_eq!(order(), [two, three, one]);
        advance(AVOIDED / 2).await;
        dialer.fails(SocketAddr::new(two, PORT));
        assert_eq!(order(), [three, one, two]);
        advance(AVOIDED / 2).await;
        assert_eq!(order(), [one, three, two], "somebody finds out whether it is back");
    }

    #[test]
    fn the_families_take_turns() {
        let addresses = ["fd00::1", "fd00::2", "fd00::3", "10.0.0.1", "10.0.0.2"].map(ip);
        let order = Dialer::default().in_order(&addresses, PORT);
        let order: Vec<_> = order.into_iter().map(|address| address.ip()).collect();
        assert_eq!(order, ["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "fd00::3"].map(ip));
    }
}
