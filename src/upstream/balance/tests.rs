use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::request::key::{KeySpec, Missing};
use crate::request::network::ClientPrefixes;
use crate::settings::{Endpoint, Scheme, ServerAddress, UpstreamServer, UpstreamSpec};
use crate::upstream::health::{Event, ServerState, UpstreamState};
use crate::upstream::pool::Pool;
use crate::upstream::server::InFlight;

fn address(index: usize) -> ServerAddress {
    let url = format!("http://10.0.0.{index}:80");
    let endpoint = Endpoint::Tcp { host: format!("10.0.0.{index}"), port: 80 };
    ServerAddress { url, endpoint, scheme: Scheme::Http }
}

/// What all workers share of an upstream with this number of servers.
fn shared(servers: usize) -> Arc<UpstreamState> {
    let servers = (0..servers).map(|index| UpstreamServer { address: address(index), weight: 1 });
    let servers = servers.collect();
    let spec = UpstreamSpec { servers, ..UpstreamSpec::default() };
    Arc::new(UpstreamState::new(&spec, None))
}

fn chooser(balance: Balance, servers: &[Rc<Server>]) -> Chooser {
    Chooser::new(balance, shared(servers.len()), servers)
}

fn server(index: usize, weight: u32) -> Rc<Server> {
    let address = address(index);
    let url = address.url.clone();
    let (state, pool) = (Arc::new(ServerState::new(&url, &Arc::default())), Pool::default());
    Rc::new(Server { address, weight, hash: server_hash(&url), state, upstream: shared(0), pool })
}

fn servers(weights: &[u32]) -> Vec<Rc<Server>> {
    weights.iter().enumerate().map(|(index, weight)| server(index, *weight)).collect()
}

fn by_hash() -> Balance {
    let sources = vec!["ip".parse().unwrap()].into();
    Balance::Hash(KeySpec { sources, missing: Missing::Skip, prefixes: ClientPrefixes::default() })
}

/// How many of these requests each server gets.
fn counts(servers: &[Rc<Server>], balance: Balance, requests: u32) -> Vec<u32> {
    let chooser = chooser(balance, servers);
    let mut counts = vec![0; servers.len()];
    for _ in 0..requests {
        counts[chooser.choose(servers, &[], None).unwrap()] += 1;
    }
    counts
}

/// The server of each of these clients.
fn indices(servers: &[Rc<Server>], clients: u32) -> Vec<usize> {
    let chooser = chooser(by_hash(), servers);
    let affinity = |client: u32| Affinity::of(&Key::of([Some(&client.to_be_bytes()[..])]));
    (0..clients).map(|it| chooser.choose(servers, &[], Some(affinity(it))).unwrap()).collect()
}

#[test]
fn round_robin_spreads_the_turns_of_a_heavy_server() {
    let servers = servers(&[5, 1, 1]);
    let chooser = chooser(Balance::RoundRobin, &servers);
    let chosen: Vec<_> = (0..7).filter_map(|_| chooser.choose(&servers, &[], None)).collect();
    assert_eq!(chosen, [0, 0, 1, 0, 2, 0, 0]);
}

/// A regression: each worker took turns by itself, so the first requests of all workers went to one server.
#[test]
fn workers_take_turns_together() {
    let (servers, upstream) = (servers(&[1, 1, 1]), shared(3));
    let worker = || Chooser::new(Balance::RoundRobin, Arc::clone(&upstream), &servers);
    let workers = [worker(), worker()];
    let chosen = |index: usize| workers[index % 2].choose(&servers, &[], None);
    let chosen: Vec<_> = (0..6).filter_map(chosen).collect();
    assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn the_busier_of_two_is_spared() {
    let servers = servers(&[1, 1]);
    let _busy: Vec<_> = (0..5)
        .map(|_| InFlight::at(&servers[0], IpAddr::from([192, 0, 2, 1]).into(), None, false))
        .collect();
    assert_eq!(counts(&servers, Balance::LeastRequests, 10), [0, 10]);
}

#[test]
fn a_heavy_server_may_be_busier() {
    let servers = servers(&[10, 1]);
    let _busy: Vec<_> = (0..5)
        .map(|_| InFlight::at(&servers[0], IpAddr::from([192, 0, 2, 1]).into(), None, false))
        .collect();
    let _one = InFlight::at(&servers[1], IpAddr::from([192, 0, 2, 1]).into(), None, false);
    assert_eq!(counts(&servers, Balance::LeastRequests, 10), [10, 0], "5/10 is less than 1/1");
}

#[test]
fn idle_servers_get_requests_by_their_weights() {
    fastrand::seed(1);
    let counts = counts(&servers(&[1, 2, 7]), Balance::LeastRequests, 10_000);
    for (count, expected) in counts.iter().zip([1_000, 2_000, 7_000]) {
        assert!(count.abs_diff(expected) < expected / 5, "{counts:?}");
    }
}

/// Two requests are in flight at each moment.
#[test]
fn servers_with_few_requests_get_them_by_their_weights() {
    fastrand::seed(1);
    let servers = servers(&[9, 1]);
    let chooser = chooser(Balance::LeastRequests, &servers);
    let (mut in_flight, mut counts) = (VecDeque::new(), [0, 0]);
    for _ in 0..1_000 {
        let index = chooser.choose(&servers, &[], None).unwrap();
        counts[index] += 1;
        in_flight.push_back(InFlight::at(
            &servers[index],
            IpAddr::from([192, 0, 2, 1]).into(),
            None,
            false,
        ));
        if in_flight.len() > 1 {
            in_flight.pop_front();
        }
    }
    assert!(counts[0] > 4 * counts[1] && counts[1] > 0, "{counts:?}");
}

#[test]
fn a_request_goes_to_the_server_of_its_key() {
    let four = servers(&[1, 1, 1, 1]);
    let before = indices(&four, 10_000);
    assert_eq!(before, indices(&four, 10_000));
    for index in 0..4 {
        let count = before.iter().filter(|it| **it == index).count();
        assert!((2_300..2_700).contains(&count), "{index}: {count}");
    }
}

#[test]
fn a_server_that_is_added_takes_its_share_and_moves_no_other_request() {
    let five = servers(&[1; 5]);
    let (before, after) = (indices(&five[..4], 10_000), indices(&five, 10_000));
    let moved: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
    assert!(moved.iter().all(|(_, new)| **new == 4));
    assert!((1_800..2_200).contains(&moved.len()), "{}", moved.len());
}

#[test]
fn the_weight_is_the_share_of_the_keys() {
    let indices = indices(&servers(&[1, 3]), 10_000);
    let heavy = indices.iter().filter(|index| **index == 1).count();
    assert!((7_300..7_700).contains(&heavy), "{heavy}");
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_server_that_is_set_aside_spread_over_the_others() {
    let three = servers(&[1, 1, 1]);
    let before = indices(&three, 3_000);
    three[1].state.note(Event::RefusedTrial, &"");
    let after = indices(&three, 3_000);
    assert!(before.iter().zip(&after).all(|(old, new)| *old == 1 || old == new));
    assert!(after.contains(&0) && after.contains(&2) && !after.contains(&1));
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_set_aside_are_used_where_no_other_is_left() {
    let two = servers(&[1, 1]);
    let chooser = chooser(Balance::RoundRobin, &two);
    two[0].state.note(Event::RefusedTrial, &"");
    assert!((0..4).all(|_| chooser.choose(&two, &[], None) == Some(1)));
    assert_eq!(chooser.choose(&two, &[1], None), Some(0), "better one set aside than none");
    assert_eq!(chooser.choose(&two, &[0, 1], None), None);
    two[1].state.note(Event::RefusedTrial, &"");
    assert!(counts(&two, Balance::RoundRobin, 4).iter().all(|count| *count == 2));
}

/// A few draws among all servers seldom find the one that is open.
#[tokio::test(start_paused = true)]
async fn the_only_open_server_of_many_gets_all_requests() {
    let hundred = servers(&[1; 100]);
    for server in &hundred[1..] {
        server.state.note(Event::RefusedTrial, &"");
    }
    assert_eq!(counts(&hundred, Balance::LeastRequests, 100)[0], 100);
    let chooser = chooser(Balance::LeastRequests, &hundred);
    let others = (0..100).map(|_| chooser.choose(&hundred, &[0], None).unwrap());
    assert!(others.collect::<std::collections::BTreeSet<_>>().len() > 20, "those set aside");
    assert_eq!(chooser.choose(&hundred, &Vec::from_iter(0..100), None), None);
}

#[tokio::test(start_paused = true)]
async fn round_robin_goes_on_in_turn_where_all_are_set_aside() {
    let two = servers(&[1, 1]);
    let chooser = chooser(Balance::RoundRobin, &two);
    assert_eq!(chooser.choose(&two, &[], None), Some(0));
    for server in &two {
        server.state.note(Event::RefusedTrial, &"");
    }
    let chosen: Vec<_> = (0..4).filter_map(|_| chooser.choose(&two, &[], None)).collect();
    assert_eq!(chosen, [1, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asked_for_a_pause_gets_no_request_at_all() {
    let one = servers(&[1]);
    let chooser = chooser(Balance::LeastRequests, &one);
    let pause = Duration::from_secs(7);
    one[0].state.note(Event::Paused(pause), &"");
    assert_eq!(chooser.choose(&one, &[], None), None);
    tokio::time::advance(pause).await;
    assert_eq!(chooser.choose(&one, &[], None), Some(0));
}

#[test]
fn a_request_under_way_counts_until_it_ends() {
    let server = &servers(&[1])[0];
    let guard = InFlight::at(server, IpAddr::from([192, 0, 2, 1]).into(), None, false);
    assert_eq!(server.state.in_flight(), 1);
    drop(guard);
    assert_eq!(server.state.in_flight(), 0);
}
