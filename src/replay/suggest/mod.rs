//! Finds the smallest limits that would have touched few keys of a log: `tidegate suggest`.
//!
//! `demand` has a list of rates. For each key and rate it keeps the smallest burst with which no request of the key
//! would have been rejected. A limit touches a key if it rejects one of the key's requests. These are exactly the
//! keys that need a larger burst than the limit has, because buckets differ only after the first rejection.
//! Therefore the burst for each rate is a quantile over the keys. `wanted` has the file around the limits.

mod demand;
mod wanted;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use hashbrown::HashMap;

use self::demand::{Choice, Demands};
use self::wanted::RouteLimits;
pub(crate) use self::wanted::WantedLimits;
use super::fact::{Assumption, Fact};
use super::judge::{Judge, Untold};
use super::log::LogRecord;
use super::report::{counted, number, percent, printable, shown};
use crate::limit::time::Timestamp;
use crate::plan::Plan;

/// This many of the keys above a limit are named.
const NAMED: usize = 5;

/// A search for the limits that the keys of a log need.
pub(crate) struct Suggest<'p> {
    pub(crate) judge: Judge<'p>,
    /// The times of the first and the last request.
    span: Option<(Timestamp, Timestamp)>,
    /// By the limit's place in the plan.
    limits: Vec<Demands>,
    /// The places by the limits' names.
    places: HashMap<String, usize>,
    untold: BTreeMap<Untold, u64>,
    requests: u64,
}

impl<'p> Suggest<'p> {
    /// A search with the plan that [`WantedLimits::plan`] made.
    pub(crate) fn new(plan: &'p Plan, assumptions: &[Assumption]) -> Self {
        Self {
            judge: Judge::new(plan, assumptions),
            span: None,
            limits: plan.limits.iter().map(|_| Demands::default()).collect(),
            places: plan.limits.iter().map(|it| it.name.to_string()).zip(0..).collect(),
            untold: BTreeMap::new(),
            requests: 0,
        }
    }

    /// Adds the log's next request.
    pub(crate) fn request(&mut self, record: &LogRecord<'_>) {
        let now = record.time;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        self.requests += 1;
        let Self { judge, limits, untold, places, .. } = self;
        let judged = judge.judge(record, now, |it| *untold.entry(it).or_default() += 1);
        for limit in judged.answer.iter().flat_map(|answer| answer.limits()) {
            let place = places.get(limit.spec.name.as_str()).copied();
            if let Some(demands) = place.and_then(|place: usize| limits.get_mut(place)) {
                demands.add(&limit.key, now);
            }
        }
    }

    /// The suggestion, as a file that can be run, with the reasons in comments.
    pub(crate) fn file(&self, wanted: &WantedLimits) -> String {
        let percents = self.percents(wanted.touch);
        let figures = |limits: RouteLimits, name: &str| {
            let place = self.places.get(name).copied()?;
            if limits == RouteLimits::IfMet && !self.is_met(place) {
                return None;
            }
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = self.write_limit(&mut text, place, percents[place]);
            Some(text)
        };
        let mut head = String::new();
        if let Some((from, to)) = self.span {
            let requests = counted(self.requests, "request");
            let (from, to) = (super::report::time(from), super::report::time(to));
            let _ = writeln!(head, "# From {requests}, {from} to {to} UTC.");
        }
        let share = percent(wanted.touch / 100.0);
        let _ = writeln!(head, "# The smallest limits that touch at most {share} of the keys.\n");
        head + &wanted.file(figures, |route| self.notes(route))
    }

    /// The percentage of its keys that each limit may touch. Limits with the same sources of keys touch at most
    /// `touch` percent of their keys together: a client may use several routes.
    fn percents(&self, touch: f64) -> Vec<f64> {
        let specs = &self.judge.plan.limits;
        let mut percents: Vec<f64> = Vec::new();
        for (place, spec) in specs.iter().enumerate() {
            let before = specs[..place].iter().position(|other| other.key == spec.key);
            percents.push(before.map(|before| percents[before]).unwrap_or_else(|| {
                let limits = specs.iter().zip(&self.limits);
                let same = limits.filter(|(other, _)| other.key == spec.key);
                let same: Vec<_> = same.map(|(_, demands)| demands).collect();
                demand::percent_of_each(&same, touch)
            }));
        }
        percents
    }

    /// Whether the log has a request for this limit, or may have one.
    fn is_met(&self, limit: usize) -> bool {
        let is_it = |untold: &Untold| matches!(untold, Untold::Limit(place, _) if *place == limit);
        !self.limits[limit].keys.is_empty() || self.untold.keys().any(is_it)
    }

    /// Comments for the route at this place.
    fn notes(&self, route: usize) -> String {
        let is_it = |it: &Untold| matches!(it, Untold::Route(place, _) if *place == route);
        let notes = self.untold(is_it).map(|(requests, fact)| {
            format!("# {requests} may be for this route: the log does not tell {fact}.\n")
        });
        notes.collect()
    }

    /// The requests of which the log does not tell a fact, and the fact.
    fn untold(&self, of: impl Fn(&Untold) -> bool) -> impl Iterator<Item = (String, &Fact)> {
        let untold = self.untold.iter().filter(move |(untold, _)| of(untold));
        untold.map(|(untold, requests)| {
            (counted(*requests, "request"), self.judge.described(*untold).2)
        })
    }

    fn write_limit(&self, text: &mut String, place: usize, percent_touched: f64) -> fmt::Result {
        let demands = &self.limits[place];
        let mut is_told = true;
        let is_it = |it: &Untold| matches!(it, Untold::Limit(limit, _) if *limit == place);
        for (requests, fact) in self.untold(is_it) {
            writeln!(text, "# Left out: {requests}. The log does not tell {fact}.")?;
            is_told = false;
        }
        let keys = demands.keys.len();
        if keys == 0 {
            if is_told {
                writeln!(text, "# No request of the log came here.")?;
            }
            writeln!(text, "# So nothing can be suggested, and the limit rejects nothing.")?;
            return writeln!(text, "rate = \"unlimited\"");
        }
        let choices = demands.choices(percent_touched);
        let Some(choice) = choices.iter().copied().min_by_key(Choice::within_period) else {
            return Ok(());
        };
        let requests = counted(demands.requests, "request");
        let sampled = match demands.sampling {
            0 => String::new(),
            bits => {
                format!(", which are one of {}: the share of all is an estimate", number(1 << bits))
            }
        };
        writeln!(text, "# {requests} of {}{sampled}.", counted(keys as u64, "key"))?;
        let minutes = demands.largest_first(|demand| demand.within_minute.1);
        let of_minute = Quantiles(&minutes);
        writeln!(text, "# Requests of a key in its busiest minute: {of_minute}.")?;
        let bursts = demands.bursts(choice.rate);
        writeln!(text, "# At {} a key needs this burst: {}.", choice.rate(), Quantiles(&bursts))?;
        let mut above: Vec<_> = demands
            .keys
            .iter()
            .map(|(key, demand)| (demand.burst(choice.rate), key, demand.requests))
            .filter(|(burst, ..)| *burst > choice.burst)
            .collect();
        match above.len() as u64 {
            0 => writeln!(text, "# No key is above it.")?,
            touched => {
                let share = percent(super::report::share(touched, keys as u64));
                writeln!(text, "# Above it: {} ({share}).", number(touched))?;
            }
        }
        above.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        for (burst, key, requests) in above.into_iter().take(NAMED) {
            let key = shown(key);
            let key = printable(&key);
            writeln!(
                text,
                "#   {key}: a burst of {}, {}",
                number(burst),
                counted(requests, "request")
            )?;
        }
        let others = choices.iter().filter(|other| other.rate != choice.rate);
        let others: Vec<_> =
            others.map(|other| format!("{} with {}", other.rate(), number(other.burst))).collect();
        if !others.is_empty() {
            writeln!(text, "# Other rates that touch as few keys, each with its burst:")?;
            for line in others.chunks(6) {
                writeln!(text, "#   {}", line.join(", "))?;
            }
        }
        writeln!(text, "rate = \"{}\"\nburst = {}", choice.rate(), choice.burst)
    }
}

/// The needs of the keys, the largest first.
struct Quantiles<'b>(&'b [u64]);

impl Display for Quantiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bursts) = self;
        let at = |thousandths: usize| {
            let above = bursts.len() * (1_000 - thousandths) / 1_000;
            number(bursts.get(above).or(bursts.last()).copied().unwrap_or_default())
        };
        let (half, most) = (at(500), at(1_000));
        write!(
            f,
            "half of them {half}, 90 % {}, 99 % {}, 99.9 % {}, all {most}",
            at(900),
            at(990),
            at(999)
        )
    }
}

#[cfg(test)]
mod tests;
