//! What a server did lately, and when this sets the server aside.
//!
//! A single broken exchange may be the fault of its request, and several may be the fault of one client. So three in a
//! row are needed, and clients with breaks do not count while at least as many others get answers. The price: a server
//! with many clients is set aside only after up to nine of them got no answer.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How long a server is set aside for the first time; doubled with each further time in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time for which a server is set aside.
pub(in crate::upstream) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The number of broken exchanges in a row that sets a server aside. A single exchange may break because of its
/// request.
pub(super) const MOST_BREAKS: u32 = 3;
/// The broken exchanges of few clients set a server aside only if the server answers nobody for this time.
const FEW_CLIENTS: Duration = Duration::from_secs(10);
/// The most clients with whole answers that a server remembers.
pub(super) const MOST_ANSWERED: usize = 8;

/// No address has this identity.
pub(super) const NOBODY: ClientId = ClientId(1 << 63);

/// What a server did lately.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::upstream) struct ServerRecord {
    /// It was set aside, and is tried again at this time.
    pub(in crate::upstream) aside_until: Option<Instant>,
    /// How often it was set aside since its last whole answer.
    pub(in crate::upstream) times_aside: u32,
    /// Broken exchanges since its last whole answer.
    pub(super) breaks: u32,
    /// When the first of them broke, or since the server was set aside: when the first trial broke.
    broken_since: Option<Instant>,
    /// Whose exchanges broke since then.
    broken_for: [Option<ClientId>; MOST_ANSWERED + 1],
    /// It asked for a pause until this time.
    pub(in crate::upstream) paused_until: Option<Instant>,
    /// It has failed its health checks.
    pub(super) is_ill: bool,
    /// A health check has ended.
    pub(super) was_checked: bool,
    /// How many checks in a row contradict `is_ill`.
    pub(super) contrary_checks: u32,
}

/// Stands for a client in the record of a server's exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(pub(super) u64);

impl From<IpAddr> for ClientId {
    /// An IPv6 address counts by its network.
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => !(u64::try_from(address.to_bits() >> 64).unwrap_or_default()),
        })
    }
}

impl ClientId {
    /// The client's place among those that got the last whole answers.
    pub(super) fn place(self) -> usize {
        // Fibonacci hashing: the highest bits of the product depend on all bits.
        let mixed = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61;
        usize::try_from(mixed).unwrap_or(0) % MOST_ANSWERED
    }
}

impl ServerRecord {
    pub(super) fn is_open(&self) -> bool {
        self.aside_until.is_none() && self.paused_until.is_none() && !self.is_ill
    }

    pub(super) fn is_sound(&self) -> bool {
        let quiet = self.times_aside == 0 && self.breaks == 0;
        self.is_open() && quiet
    }

    /// Forgets a pause that is over.
    pub(super) fn end_pause(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// An exchange broke. This sets the server aside, or for longer, unless the clients may be the reason. `answered` are
    /// the clients that got the last whole answers. `is_trial` says whether the exchange tried the server, which was set
    /// aside.
    pub(super) fn breaks_off(
        &mut self,
        client: ClientId,
        is_trial: bool,
        answered: &[ClientId; MOST_ANSWERED],
        now: Instant,
    ) {
        self.breaks = self.breaks.saturating_add(1);
        if self.aside_until.is_some() && !is_trial {
            // It belongs to the fall.
            return;
        }
        self.broken_since.get_or_insert(now);
        if !self.broken_for.contains(&Some(client))
            && let Some(free) = self.broken_for.iter_mut().find(|it| it.is_none())
        {
            *free = Some(client);
        }
        let may_be_clients_fault = self.is_broken_for_few(answered, now);
        match self.aside_until {
            Some(_) if may_be_clients_fault => self.renew_pause(now),
            None if self.breaks >= MOST_BREAKS && !may_be_clients_fault => self.set_aside(now),
            _ => {}
        }
    }

    /// Whether at least as many other clients got the last whole answers as there are clients with breaks, and the
    /// breaks are new. Two clients could otherwise take a server away from ten.
    fn is_broken_for_few(&self, answered: &[ClientId; MOST_ANSWERED], now: Instant) -> bool {
        let broken = self.broken_for.iter().flatten().count();
        let others = answered
            .iter()
            .filter(|it| **it != NOBODY && !self.broken_for.contains(&Some(**it)))
            .count();
        let is_new = |since| now.saturating_duration_since(since) < FEW_CLIENTS;
        (1..=others).contains(&broken) && self.broken_since.is_some_and(is_new)
    }

    /// Whether a broken trial may be the fault of this client.
    pub(super) fn doubts(
        &self,
        client: ClientId,
        answered: &[ClientId; MOST_ANSWERED],
        now: Instant,
    ) -> bool {
        self.broken_for.contains(&Some(client)) && self.is_broken_for_few(answered, now)
    }

    /// A trial has said nothing about the server. The next one comes after the same pause.
    pub(super) fn renew_pause(&mut self, now: Instant) {
        self.times_aside = self.times_aside.saturating_sub(2);
        self.set_aside(now);
    }

    /// An answer came whole, or its head did.
    pub(super) fn answers(&mut self) {
        (self.broken_since, self.broken_for) = (None, Default::default());
    }

    pub(in crate::upstream) fn set_aside(&mut self, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.times_aside.min(16)).min(LONGEST_PAUSE);
        self.times_aside = self.times_aside.saturating_add(1);
        // From now on the trials are counted.
        if self.aside_until.replace(now + pause).is_none() {
            self.answers();
        }
    }
}
