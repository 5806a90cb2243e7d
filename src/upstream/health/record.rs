//! What a server did lately, and whether it gets requests because of it. Nothing here looks at a clock: the time comes
//! with each event.

use std::mem;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::HealthSpec;

/// How long a server is set aside for the first time; doubled with each further time in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time for which a server is set aside.
pub(in crate::upstream) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The number of broken exchanges in a row that sets a server aside. A single exchange may break because of its
/// request.
const MOST_BREAKS: u32 = 3;
/// The broken exchanges of few clients set a server aside only if the server answers nobody for this time.
const FEW_CLIENTS: Duration = Duration::from_secs(10);
/// The most clients with whole answers that a server remembers. It remembers one more of those with breaks.
const MOST_ANSWERED: usize = 8;

/// Whether a server gets requests. If several of these are true, the last one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::upstream) enum Health {
    #[default]
    Up,
    /// It gets requests. But since its last whole answer it was set aside, or an exchange broke.
    Returning,
    /// It refused connections or broke exchanges off. It gets requests only if no server is up.
    Aside,
    /// It failed its health checks. It gets requests only if no server is up.
    Ill,
    /// It has asked for a pause until this time, and gets no requests.
    Paused(Instant),
}

/// What happens to a server, but for a whole answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) enum Event<'e> {
    /// It refused the connection for a request, or did not take it in time.
    Refused,
    /// It refused a connection that no request needs.
    RefusedTrial,
    /// It took a connection. This brings back a server that refused connections.
    Connected,
    /// It broke off an exchange of this client, or did not answer in time.
    Broke(ExchangeBegin),
    /// The client of a trial has left, or has not sent all of its request. This says nothing about the server.
    LeftTrial,
    /// The head of an answer came to a request that was sent while the server was set aside. If the server breaks
    /// this answer off, it is set aside for longer.
    Recovered,
    /// It asked for a pause.
    Paused(Duration),
    /// A health check has ended. It has passed, or not.
    Checked(bool, &'e HealthSpec),
    /// Its health checks have ended for ever.
    Unchecked,
    /// Pauses are not respected any more.
    Unpaused,
    /// Time has gone by.
    Looked,
}

/// How a server that was set aside is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Trial {
    /// By a connection: it refused connections.
    Connection,
    /// By one request of a client: it took connections, but did not answer.
    Request,
}

/// Stands for a client in the record of a server's exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(u64);

/// The client of an exchange, and what the server had counted when the exchange began.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct ExchangeBegin {
    pub(in crate::upstream) client: ClientId,
    /// It tries the server, which was set aside.
    pub(in crate::upstream) is_trial: bool,
    /// Answers that had come whole, and exchanges that had broken.
    pub(in crate::upstream) whole: u32,
    pub(in crate::upstream) broken: u32,
}

/// What a server did lately.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerRecord {
    /// What follows from the rest, as of the last event.
    pub(super) health: Health,
    /// It was set aside. It is tried in this way at this time.
    aside: Option<(Instant, Trial)>,
    /// How often it was set aside since its last whole answer.
    times_aside: u32,
    /// Broken exchanges since its last whole answer, or until it was set aside.
    breaks: u32,
    /// When the first of them broke, or since the server was set aside: when the first trial broke.
    broken_since: Option<Instant>,
    /// Whose exchanges broke since then, and the clients that got the last whole answers. The last one comes first.
    broken_for: [Option<ClientId>; MOST_ANSWERED + 1],
    answered: [Option<ClientId>; MOST_ANSWERED],
    paused_until: Option<Instant>,
    is_ill: bool,
    /// A health check has ended.
    was_checked: bool,
    /// How many checks in a row contradict `is_ill`.
    contrary_checks: u32,
}

impl From<IpAddr> for ClientId {
    /// An IPv6 address counts by its network.
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => !(u64::try_from(address.to_bits() >> 64).unwrap_or_default()),
        })
    }
}

/// Puts a client before the others. If there is no room, the last one is forgotten.
fn put(clients: &mut [Option<ClientId>], client: ClientId) {
    let known = clients.iter().position(|it| *it == Some(client));
    let at = known.unwrap_or(clients.len() - 1);
    clients[..=at].rotate_right(1);
    clients[0] = Some(client);
}

impl Health {
    /// Whether requests are sent to the server.
    pub(in crate::upstream) fn is_up(self) -> bool {
        self <= Self::Returning
    }
}

impl ServerRecord {
    pub(super) fn after(&mut self, event: Event<'_>, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
        match event {
            // If no server is up, each request tries one that is set aside. A failure of such a try does not set the
            // server aside for longer.
            Event::Refused if self.aside.is_some_and(|(until, _)| until > now) => {}
            Event::Refused | Event::RefusedTrial => self.set_aside(Trial::Connection, now),
            Event::Connected => self.aside = self.aside.filter(|(_, by)| *by == Trial::Request),
            Event::Broke(exchange) => self.break_off(exchange, now),
            Event::LeftTrial => self.renew_pause(now),
            Event::Recovered => {
                (self.breaks, self.aside) = (self.breaks.min(MOST_BREAKS - 1), None);
                // When the trial began, it was counted as a time aside, in case no answer would come.
                self.times_aside = self.times_aside.saturating_sub(1);
            }
            Event::Paused(pause) => self.paused_until = self.paused_until.max(Some(now + pause)),
            Event::Checked(passed, spec) => self.check(passed, spec),
            Event::Unchecked => {
                (self.is_ill, self.was_checked, self.contrary_checks) = (false, false, 0);
            }
            Event::Unpaused => self.paused_until = None,
            Event::Looked => {}
        }
        self.health = self.health(now);
    }

    pub(super) fn health(&self, now: Instant) -> Health {
        match self.paused_until.filter(|until| *until > now) {
            Some(until) => Health::Paused(until),
            None if self.is_ill => Health::Ill,
            None if self.aside.is_some() => Health::Aside,
            None if self.times_aside > 0 || self.breaks > 0 => Health::Returning,
            None => Health::Up,
        }
    }

    /// An answer came whole. That does not bring the server back if it is set aside: it may be finishing its last
    /// requests. This is no event of `after`, because it comes with each request, and needs no clock.
    pub(super) fn answers(&mut self, client: ClientId) {
        put(&mut self.answered, client);
        (self.breaks, self.times_aside) = (0, 0);
        self.forget_breaks();
    }

    /// Whether a connection is to try the server: it refused connections, and its pause is over. Only one caller in
    /// `time_limit` is told so.
    pub(super) fn is_due(&mut self, time_limit: Duration, now: Instant) -> bool {
        let is_due = self.aside.is_some_and(|(until, by)| by == Trial::Connection && until <= now);
        if is_due {
            self.aside = Some((now + time_limit, Trial::Connection));
        }
        is_due
    }

    /// Whether a request of this client is to try the server: it broke exchanges off, and its pause has been over for as
    /// long as `overdue`. Only one caller is told so until a longer pause is over. No request tries a server that fails
    /// its health checks, or that asked for a pause. If a trial broke, its client may be the reason. For some time the
    /// next trial is then left to requests of other clients.
    pub(super) fn is_due_for(&mut self, client: ClientId, overdue: Duration, now: Instant) -> bool {
        let Some((until, Trial::Request)) = self.aside else { return false };
        let is_doubted = self.broken_for.contains(&Some(client)) && self.is_broken_for_few(now);
        let from = until + if is_doubted { LONGEST_PAUSE } else { overdue };
        let is_due = from <= now && self.health(now) == Health::Aside;
        if is_due {
            self.set_aside(Trial::Request, now);
        }
        is_due
    }

    /// An exchange broke. This sets the server aside, or for longer, unless the clients may be the reason.
    fn break_off(&mut self, exchange: ExchangeBegin, now: Instant) {
        if self.aside.is_some() && !exchange.is_trial {
            // It belongs to the fall.
            return;
        }
        self.breaks = self.breaks.saturating_add(1);
        self.broken_since.get_or_insert(now);
        put(&mut self.broken_for, exchange.client);
        let may_be_clients_fault = self.is_broken_for_few(now);
        match self.aside {
            Some(_) if may_be_clients_fault => self.renew_pause(now),
            None if self.breaks >= MOST_BREAKS && !may_be_clients_fault => {
                self.set_aside(Trial::Request, now);
            }
            _ => {}
        }
    }

    /// Whether at least as many other clients got the last whole answers as there are clients with breaks, and the
    /// breaks are new. Two clients could otherwise take a server away from ten.
    fn is_broken_for_few(&self, now: Instant) -> bool {
        let broken = self.broken_for.iter().flatten().count();
        let others =
            self.answered.iter().filter(|it| it.is_some() && !self.broken_for.contains(it));
        let is_new = |since| now.saturating_duration_since(since) < FEW_CLIENTS;
        (1..=others.count()).contains(&broken) && self.broken_since.is_some_and(is_new)
    }

    fn check(&mut self, passed: bool, spec: &HealthSpec) {
        let was_checked = mem::replace(&mut self.was_checked, true);
        if self.is_ill != passed {
            self.contrary_checks = 0;
            return;
        }
        self.contrary_checks += 1;
        let needed = match self.is_ill {
            // For a server that is new to this process, the first check decides.
            _ if !was_checked => 1,
            true => spec.healthy_after,
            false => spec.unhealthy_after,
        };
        if self.contrary_checks >= needed {
            (self.is_ill, self.contrary_checks) = (!passed, 0);
        }
    }

    /// A trial has said nothing about the server. The next one comes after the same pause.
    fn renew_pause(&mut self, now: Instant) {
        if let Some((_, by)) = self.aside {
            self.times_aside = self.times_aside.saturating_sub(2);
            self.set_aside(by, now);
        }
    }

    /// Sets the server aside, or for longer. While it is aside, it is tried in the same way.
    fn set_aside(&mut self, by: Trial, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.times_aside.min(16)).min(LONGEST_PAUSE);
        self.times_aside = self.times_aside.saturating_add(1);
        if self.aside.is_none() {
            // From now on the trials are counted.
            self.forget_breaks();
        }
        let by = self.aside.map_or(by, |(_, by)| by);
        self.aside = Some((now + pause, by));
    }

    fn forget_breaks(&mut self) {
        (self.broken_since, self.broken_for) = (None, Default::default());
    }
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What happens at the same server.
    struct Scene {
        record: ServerRecord,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self { record: ServerRecord::default(), now: Instant::now() }
        }

        /// An exchange of this client ends well, breaks, or is left; and whether the server is up then.
        fn ends(&mut self, client: u64, how: u8) -> bool {
            let client = ClientId(client);
            let exchange = ExchangeBegin { client, is_trial: false, whole: 0, broken: 0 };
            match how {
                0 => self.record.answers(client),
                1 => self.record.after(Event::LeftTrial, self.now),
                _ => self.record.after(Event::Broke(exchange), self.now),
            }
            self.record.health(self.now).is_up()
        }
    }

    proptest! {
        /// Whatever one client does, a server that answers anybody else at least every second stays up.
        #[test]
        fn one_client_sets_no_server_aside_that_answers_others(
            seconds in prop::collection::vec(
                (2..20_u64, prop::collection::vec(0..5_u8, 0..12)), 1..40),
        ) {
            let mut scene = Scene::new();
            for (other, ends) in seconds {
                prop_assert!(scene.ends(other, 0));
                for end in ends {
                    scene.now += SECOND / 12;
                    prop_assert!(scene.ends(1, end));
                }
            }
        }

        /// Whatever went before, a server that breaks for two clients and answers no others is set aside within three
        /// breaks.
        #[test]
        fn a_server_that_breaks_for_two_clients_is_soon_set_aside(
            before in prop::collection::vec((1..3_u64, 0..5_u8), 0..20),
            breaks in prop::sample::select(vec![[1, 1, 2], [1, 2, 1], [1, 2, 2], [2, 1, 1]]),
        ) {
            let mut scene = Scene::new();
            for (client, end) in before {
                scene.now += SECOND / 12;
                scene.ends(client, end);
            }
            for client in breaks {
                scene.ends(client, 2);
            }
            prop_assert!(!scene.record.health(scene.now).is_up());
        }
    }

    #[test]
    fn the_worst_state_counts() {
        let mut scene = Scene::new();
        let spec = HealthSpec {
            host: None,
            path: PathAndQuery::from_static("/"),
            interval: SECOND,
            timeout: SECOND,
            unhealthy_after: 1,
            healthy_after: 1,
        };
        let pause = Health::Paused(scene.now + SECOND);
        for (event, health) in [
            (Event::Looked, Health::Up),
            (Event::Refused, Health::Aside),
            (Event::Checked(false, &spec), Health::Ill),
            (Event::Paused(SECOND), pause),
            (Event::Connected, pause),
            (Event::Unpaused, Health::Ill),
            (Event::Unchecked, Health::Returning),
        ] {
            scene.record.after(event, scene.now);
            assert_eq!(scene.record.health, health, "{event:?}");
        }
        scene.ends(1, 0);
        assert_eq!(scene.record.health(scene.now), Health::Up);
    }

    /// A regression: the client of a trial left, and the server was set aside although it had come back meanwhile.
    #[test]
    fn a_trial_that_is_left_late_says_nothing() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.ends(1, 2);
        }
        assert_eq!(scene.record.health, Health::Aside);
        for event in [Event::Recovered, Event::LeftTrial] {
            scene.record.after(event, scene.now);
            assert_eq!(scene.record.health, Health::Returning);
        }
    }
}
