use std::net::IpAddr;

use http::StatusCode;
use http::uri::PathAndQuery;
use tokio::time::advance;

use super::record::Trial;
use super::*;
use crate::observe::testing;
use crate::settings::testing::settings;

const TIME_LIMIT: Duration = Duration::from_secs(4);

/// An upstream of two servers.
fn spec(more: &str) -> UpstreamSpec {
    let text = format!(
        "[upstreams.api]\nservers = [\"http://a:1\", \"http://b:1\"]\n{more}\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\n",
    );
    settings(&text).upstreams[0].clone()
}

fn state() -> UpstreamState {
    UpstreamState::new(&spec(""), None)
}

/// One of the clients.
fn client(number: u8) -> ClientId {
    IpAddr::from([192, 0, 2, number]).into()
}

/// An exchange that begins and breaks now.
fn broke_off(state: &UpstreamState, server: &ServerState, error: &dyn Display) {
    let exchange = server.begin(client(1), false);
    state.broke_off(server, exchange, error);
}

/// An exchange that begins and ends now.
fn finished(server: &ServerState) {
    let exchange = server.begin(client(1), false);
    server.finished(exchange);
}

/// The servers that are tried now, by a connection or by a request.
fn due(state: &UpstreamState) -> Vec<(usize, Trial)> {
    let connections = state.due(TIME_LIMIT).map(|index| (index, Trial::Connection));
    let request = state.due_for(client(1), Duration::ZERO).map(|index| (index, Trial::Request));
    connections.chain(request).collect()
}

/// What is logged: the message, and the server.
fn logged(run: impl FnOnce()) -> Vec<String> {
    let text = |line: &serde_json::Value, name: &str| line[name].as_str().unwrap_or("").to_owned();
    let lines = testing::lines(run);
    lines.iter().map(|it| format!("{} {}", text(it, "message"), text(it, "server"))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_set_aside_and_told_once_each_way() {
    let state = state();
    let server = &state.servers()[0];
    assert_eq!(
        logged(|| state.note(server, Event::Refused, &"refused")),
        ["server down http://a:1"]
    );
    assert!(!server.is_up());
    assert!(logged(|| state.note(server, Event::Refused, &"refused")).is_empty());
    assert_eq!(logged(|| state.note(server, Event::Connected, &"")), ["server up http://a:1"]);
    assert!(server.is_up());
}

#[tokio::test(start_paused = true)]
async fn the_log_says_when_no_server_is_left() {
    let state = state();
    let lines =
        logged(|| state.servers().iter().for_each(|it| state.note(it, Event::Refused, &"refused")));
    assert_eq!(lines, ["server down http://a:1", "server down http://b:1", "upstream down "]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_aside_is_tried_once_and_the_pauses_grow() {
    let state = state();
    let server = &state.servers()[0];
    state.note(server, Event::Refused, &"refused");
    let mut pause = Duration::from_millis(100);
    for _ in 0..12 {
        advance(pause - Duration::from_millis(1)).await;
        assert!(due(&state).is_empty(), "{pause:?}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(due(&state), [(0, Trial::Connection)], "{pause:?}");
        assert!(due(&state).is_empty(), "it is being tried");
        state.note(server, Event::RefusedTrial, &"refused");
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_lost_is_followed_by_another() {
    let state = state();
    state.note(&state.servers()[0], Event::Refused, &"refused");
    advance(Duration::from_millis(100)).await;
    assert_eq!(due(&state), [(0, Trial::Connection)]);
    advance(TIME_LIMIT).await;
    assert_eq!(due(&state), [(0, Trial::Connection)]);
}

#[tokio::test(start_paused = true)]
async fn three_broken_exchanges_in_a_row_set_a_server_aside() {
    let state = state();
    let server = &state.servers()[0];
    for _ in 0..10 {
        (0..2).for_each(|_| broke_off(&state, server, &"reset"));
        finished(server);
    }
    assert!(server.is_up(), "whole answers came between");
    (0..3).for_each(|_| broke_off(&state, server, &"reset"));
    assert!(!server.is_up());
    state.note(server, Event::Connected, &"");
    assert!(!server.is_up(), "it took connections all the time");
    assert_eq!(logged(|| state.note(server, Event::Recovered, &"")), ["server up http://a:1"]);
}

/// A regression: three calls of one client that broke at once set a server aside that had answered all others.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_others_is_not_down() {
    let state = state();
    let server = &state.servers()[0];
    let slow: Vec<_> = (0..90).map(|_| server.begin(client(1), false)).collect();
    for number in 0..100 {
        let exchange = server.begin(client(2 + number % 9), false);
        server.finished(exchange);
    }
    slow.into_iter().for_each(|exchange| state.broke_off(server, exchange, &"no answer"));
    assert!(server.is_up(), "most that ended meanwhile ended well");
    let all: Vec<_> = (1..=10).map(|number| server.begin(client(number), false)).collect();
    finished(server);
    all.into_iter().for_each(|exchange| state.broke_off(server, exchange, &"no answer"));
    assert!(!server.is_up(), "most that ended meanwhile broke");
}

/// What happens to one exchange of each of these clients now: it ends well, or it breaks.
fn outcomes(state: &UpstreamState, clients: std::ops::RangeInclusive<u8>, is_whole: bool) {
    let server = &state.servers()[0];
    for number in clients {
        let exchange = server.begin(client(number), false);
        match is_whole {
            true => server.finished(exchange),
            false => state.broke_off(server, exchange, &"reset"),
        }
    }
}

/// A regression: two addresses whose requests made the API break off set a server aside that answered ten others, and one
/// did it if it had two good answers itself before.
#[tokio::test(start_paused = true)]
async fn breaks_of_few_clients_set_no_server_aside_that_answers_others() {
    for breaking in 1..=3 {
        let state = state();
        let server = &state.servers()[0];
        for _ in 0..10 {
            outcomes(&state, 1..=10, true);
            outcomes(&state, 1..=breaking, true);
            outcomes(&state, 1..=breaking, true);
            (0..8).for_each(|_| outcomes(&state, 1..=breaking, false));
            assert!(server.is_up(), "{breaking} clients of ten");
        }
        outcomes(&state, 1..=10, false);
        assert!(!server.is_up(), "all clients of ten");
    }
    let state = state();
    outcomes(&state, 1..=10, true);
    outcomes(&state, 1..=2, false);
    advance(Duration::from_secs(10)).await;
    outcomes(&state, 1..=2, false);
    assert!(!state.servers()[0].is_up(), "it has answered nobody for long");
}

/// A regression: after one true fall a client whose requests break kept the server aside for as long as it went on.
#[tokio::test(start_paused = true)]
async fn a_trial_that_breaks_for_a_client_alone_or_is_left_is_not_followed_by_a_longer_pause() {
    let state = state();
    let server = &state.servers()[0];
    outcomes(&state, 1..=10, true);
    outcomes(&state, 1..=10, false);
    let try_by = |number| usize::from(state.due_for(client(number), Duration::ZERO).is_some());
    let pause = Duration::from_millis(100);
    advance(pause).await;
    assert_eq!(try_by(1), 1);
    state.broke_off(server, server.begin(client(1), true), &"reset");
    advance(pause).await;
    assert_eq!(try_by(1), 0, "it is others' turn");
    for _ in 0..5 {
        assert_eq!(try_by(2), 1);
        state.note(server, Event::LeftTrial, &"");
        assert_eq!(try_by(2), 0, "not at once");
        advance(pause).await;
    }
    assert_eq!(try_by(3), 1);
    state.note(server, Event::Recovered, &"");
    assert!(server.is_up());
    // A server that is away for all is left alone for longer each time.
    outcomes(&state, 1..=10, false);
    let mut pauses = Vec::new();
    for number in 1..=8 {
        let began = Instant::now();
        while try_by(number) == 0 {
            advance(Duration::from_millis(10)).await;
        }
        pauses.push(began.elapsed());
        state.broke_off(server, server.begin(client(number), true), &"reset");
    }
    assert!(pauses.last() > pauses.first(), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn one_request_tries_a_server_that_did_not_answer_and_the_pauses_grow() {
    let state = state();
    let server = &state.servers()[0];
    (0..3).for_each(|_| broke_off(&state, server, &"no answer"));
    for pause in [100, 200, 400].map(Duration::from_millis) {
        advance(pause - Duration::from_millis(1)).await;
        assert!(due(&state).is_empty(), "{pause:?}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(due(&state), [(0, Trial::Request)], "{pause:?}");
        assert!(due(&state).is_empty(), "it is being tried");
        broke_off(&state, server, &"no answer");
    }
    state.note(server, Event::Recovered, &"");
    assert!(server.is_up());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_off_its_answers_is_left_alone_for_longer_each_time() {
    let state = state();
    let server = &state.servers()[0];
    (0..3).for_each(|_| broke_off(&state, server, &"broken"));
    for pause in [100, 200, 400].map(Duration::from_millis) {
        advance(pause - Duration::from_millis(1)).await;
        assert!(due(&state).is_empty(), "{pause:?}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(due(&state), [(0, Trial::Request)], "{pause:?}");
        state.note(server, Event::Recovered, &"");
        assert!(server.is_up(), "the head has come");
        broke_off(&state, server, &"broken");
        assert!(!server.is_up(), "and the body has not");
    }
    advance(Duration::from_millis(800)).await;
    state.note(server, Event::Recovered, &"");
    finished(server);
    (0..2).for_each(|_| broke_off(&state, server, &"broken"));
    assert!(server.is_up(), "a whole answer came between");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_does_not_bring_a_stopped_server_back() {
    let state = state();
    let server = &state.servers()[0];
    state.note(server, Event::Refused, &"refused");
    assert!(logged(|| finished(server)).is_empty());
    assert!(!server.is_up());
}

/// A regression: a server whose pause was over stayed down until a request came, so an alert fired for an idle API.
#[tokio::test(start_paused = true)]
async fn a_pause_ends_without_a_request() {
    let state = state();
    let [server, other] = state.servers() else { panic!("two servers") };
    state.note(server, Event::Paused(Duration::from_secs(7)), &"");
    state.note(server, Event::Paused(Duration::from_secs(3)), &"");
    state.note(other, Event::Refused, &"refused");
    advance(Duration::from_millis(6_999)).await;
    assert!(logged(|| state.end_pauses()).is_empty());
    assert!(!server.is_up(), "the longer of two pauses counts");
    advance(Duration::from_millis(1)).await;
    assert!(server.is_up(), "at once");
    assert_eq!(logged(|| state.end_pauses()), ["server up http://a:1"]);
    assert!(logged(|| state.end_pauses()).is_empty(), "told once");
    assert!(server.is_up() && !other.is_up(), "it refuses connections");
}

fn health() -> HealthSpec {
    HealthSpec {
        host: None,
        path: PathAndQuery::from_static("/healthz"),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
        unhealthy_after: 3,
        healthy_after: 2,
    }
}

#[tokio::test(start_paused = true)]
async fn health_checks_set_a_server_aside_and_bring_it_back() {
    let (state, health) = (state(), health());
    let server = &state.servers()[0];
    let check = |results: &[bool]| {
        for passed in results {
            let failed = || CheckError::Status(StatusCode::SERVICE_UNAVAILABLE);
            state.checked(server, passed.then_some(()).ok_or_else(failed), &health);
        }
        server.is_up()
    };
    assert!(check(&[true, false, false, true, false, false]), "never three in a row");
    assert!(!check(&[false]));
    assert!(!check(&[true, false, true]), "never two in a row");
    state.note(server, Event::Connected, &"");
    assert!(!server.is_up(), "a connection alone does not say that it is well");
    assert!(check(&[true]));
}

#[tokio::test(start_paused = true)]
async fn the_first_check_of_a_server_decides_alone() {
    let (state, health) = (state(), health());
    let server = &state.servers()[0];
    state.checked(server, Err(CheckError::Status(StatusCode::NOT_FOUND)), &health);
    assert!(!server.is_up());
    state.checked(server, Ok(()), &health);
    assert!(!server.is_up(), "it comes back as any other");
    state.checked(server, Ok(()), &health);
    assert!(server.is_up());
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_each_servers_health_unless_its_checks_ended() {
    let (state, health) = (state(), health());
    let [first, second] = state.servers() else { panic!("two servers") };
    state.note(first, Event::Refused, &"refused");
    for _ in 0..3 {
        state.checked(second, Err(CheckError::Status(StatusCode::NOT_FOUND)), &health);
    }
    assert!(!first.is_up() && !second.is_up());
    let checked = UpstreamState::new(&spec("health = { path = \"/healthz\" }"), Some(&state));
    assert!(checked.servers().iter().all(|server| !server.is_up()));
    let after = UpstreamState::new(&spec(""), Some(&checked));
    let up: Vec<_> = after.servers().iter().map(|server| server.is_up()).collect();
    assert_eq!(up, [false, true]);
}

/// Requests look for servers that are not sound only if there are some.
#[tokio::test(start_paused = true)]
async fn a_server_that_fails_for_old_requests_counts_after_a_reload_until_it_is_removed() {
    let old = state();
    let new = UpstreamState::new(&spec(""), Some(&old));
    assert!(new.are_sound());
    old.note(&old.servers()[0], Event::Refused, &"refused");
    assert!(!new.are_sound() && !old.are_sound());
    new.note(&new.servers()[0], Event::Connected, &"");
    finished(&new.servers()[0]);
    assert!(!new.are_sound(), "nobody has looked");
    new.end_pauses();
    assert!(new.are_sound() && old.are_sound());
    new.note(&new.servers()[0], Event::Refused, &"refused");
    let mut other = spec("");
    other.servers.remove(0);
    let rest = UpstreamState::new(&other, Some(&new));
    assert!(!rest.are_sound());
    rest.end_pauses();
    assert!(rest.are_sound());
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_respects_no_pauses_ends_earlier_pauses() {
    let state = state();
    state.note(&state.servers()[0], Event::Paused(Duration::from_secs(60)), &"");
    let respecting = UpstreamState::new(&spec("respect_retry_after = true"), Some(&state));
    assert!(!respecting.servers()[0].is_up());
    let after = UpstreamState::new(&spec(""), Some(&respecting));
    assert!(after.servers()[0].is_up());
}

#[tokio::test(start_paused = true)]
async fn a_request_tries_one_server_at_a_time_and_the_others_keep_their_turn() {
    let state = state();
    for server in state.servers() {
        (0..3).for_each(|_| broke_off(&state, server, &"no answer"));
    }
    advance(Duration::from_millis(100)).await;
    assert_eq!(due(&state), [(0, Trial::Request)]);
    assert_eq!(due(&state), [(1, Trial::Request)]);
    assert!(due(&state).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_repeated_tries_a_server_only_after_long() {
    let state = state();
    (0..3).for_each(|_| broke_off(&state, &state.servers()[0], &"no answer"));
    let due = || usize::from(state.due_for(client(1), LONGEST_PAUSE).is_some());
    advance(LONGEST_PAUSE).await;
    assert_eq!(due(), 0);
    advance(Duration::from_millis(100)).await;
    assert_eq!(due(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_request_tries_a_server_that_is_ill_or_asked_for_a_pause() {
    let state = state();
    for server in state.servers() {
        (0..3).for_each(|_| broke_off(&state, server, &"no answer"));
    }
    let [ill, paused] = state.servers() else { panic!("two servers") };
    for _ in 0..3 {
        state.checked(ill, Err(CheckError::Status(StatusCode::NOT_FOUND)), &health());
    }
    state.note(paused, Event::Paused(Duration::from_secs(60)), &"");
    advance(Duration::from_secs(30)).await;
    assert!(due(&state).is_empty());
    advance(Duration::from_secs(30)).await;
    assert_eq!(due(&state), [(1, Trial::Request)]);
}
