//! Finds the smallest limits that would have touched few keys of a log: `tidegate suggest`.
//!
//! `demand` has a list of rates. For each key and rate it keeps the smallest burst with which no request of the key
//! would have been rejected. A limit touches a key if it rejects one of the key's requests. These are exactly the keys
//! that need a larger burst than the limit has, because buckets differ only after the first rejection. Therefore the
//! burst for each rate is a quantile over the keys. `wanted` writes the file around the limits. `goal` finds goals for
//! `max_requests` instead.

mod demand;
mod goal;
mod wanted;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use hashbrown::HashMap;

use self::demand::{Choice, Demands};
pub(crate) use self::goal::SuggestedGoals;
pub(crate) use self::wanted::WantedLimits;
use super::fact::{Assumption, Fact};
use super::judge::{Judge, MissingFact};
use super::log::LogRecord;
use super::report::{counted, length, number, percent, printable, time};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::request::key::shown;
use crate::settings::Settings;

/// The most keys above a limit that are named.
const NAMED: usize = 5;

/// With fewer requests, or in a shorter time, a log says little about what keys need.
const ENOUGH_REQUESTS: u64 = 1_000;
const ENOUGH_MILLIS: u64 = 3_600_000;

/// A search for the limits that the keys of a log need.
pub(crate) struct Suggest<'p> {
    pub(crate) judge: Judge<'p>,
    /// The times of the first and the last request.
    span: Option<(Timestamp, Timestamp)>,
    /// The demands on each limit, by the limit's index in the settings.
    limits: Vec<Demands>,
    /// The indices by the limits' names.
    indices: HashMap<Name, usize>,
    missing: BTreeMap<MissingFact, u64>,
    requests: u64,
}

impl<'p> Suggest<'p> {
    /// A search with the settings that [`WantedLimits::settings`] made.
    pub(crate) fn new(settings: &'p Settings, assumptions: &[Assumption]) -> Self {
        Self {
            judge: Judge::new(settings, assumptions),
            span: None,
            limits: settings.limits.iter().map(|_| Demands::default()).collect(),
            indices: settings.limits.iter().map(|it| it.name.clone()).zip(0..).collect(),
            missing: BTreeMap::new(),
            requests: 0,
        }
    }

    /// Adds the log's next request.
    pub(crate) fn request(&mut self, record: &LogRecord) {
        let now = record.time;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        self.requests += 1;
        let Self { judge, limits, missing, indices, .. } = self;
        let judged = judge.judge(record);
        for it in &judged.missing {
            *missing.entry(*it).or_default() += 1;
        }
        for limit in judged.answer.iter().flat_map(|answer| answer.limits()) {
            if let Some(index) = indices.get(&limit.spec.name) {
                limits[*index].add(&limit.key, now);
            }
        }
    }

    /// The suggestion, as a file that can be run, with the reasons in comments.
    pub(crate) fn file(&self, wanted: &WantedLimits) -> String {
        let percents = self.percents(wanted.touch);
        let figures = |is_named: bool, name: &str| {
            let index = self.indices.get(name).copied()?;
            if !is_named && !self.is_met(index) {
                return None;
            }
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = self.write_limit(&mut text, index, percents[index]);
            Some(text)
        };
        let mut head = String::new();
        if let Some((from, to)) = self.span {
            let (requests, millis) =
                (counted(self.requests, "request"), to.micros_since(from) / 1_000);
            let (from, to, span) = (time(from), time(to), length(millis));
            let _ = writeln!(head, "# From {requests}, {from} to {to} ({span}).");
            if self.requests < ENOUGH_REQUESTS || millis < ENOUGH_MILLIS {
                let _ = writeln!(
                    head,
                    "# This is too little data for good limits: give logs of a day or more, with its busiest hours."
                );
            }
        }
        let share = percent(wanted.touch / 100.0);
        let _ = writeln!(head, "# The smallest limits that touch at most {share} of the keys.\n");
        head + &wanted.file(figures, |route| self.notes(route))
    }

    /// The percentage of its keys that each limit may touch. Limits with the same sources of keys touch at most
    /// `touch` percent of their keys together: a client may use several routes.
    fn percents(&self, touch: f64) -> Vec<f64> {
        let specs = &self.judge.settings.limits;
        let mut percents: Vec<f64> = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let before = specs[..index].iter().position(|other| other.key == spec.key);
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
        let name = self.judge.settings.limits[limit].name.as_str();
        !self.limits[limit].keys.is_empty() || self.missing("limit", name).next().is_some()
    }

    /// Comments for the route with this index.
    fn notes(&self, route: usize) -> String {
        let missing = self.missing("route", &self.judge.settings.routes[route].name);
        let notes = missing.map(|(requests, fact)| {
            format!("# {requests} may be for this route: the log does not have {fact}.\n")
        });
        notes.collect()
    }

    /// The facts that the log does not have for this limit or route, each with the number of requests.
    fn missing(&self, kind: &str, name: &str) -> impl Iterator<Item = (String, &Fact)> {
        self.missing.iter().filter_map(move |(missing, requests)| {
            let (its_kind, its_name, fact) = self.judge.described(*missing);
            let is_it = its_kind == kind && its_name == name;
            is_it.then(|| (counted(*requests, "request"), fact))
        })
    }

    fn write_limit(&self, text: &mut String, index: usize, percent_touched: f64) -> fmt::Result {
        let demands = &self.limits[index];
        let mut is_complete = true;
        for (requests, fact) in
            self.missing("limit", self.judge.settings.limits[index].name.as_str())
        {
            writeln!(text, "# Left out: {requests}. The log does not have {fact}.")?;
            is_complete = false;
        }
        let keys = demands.keys.len();
        if keys == 0 {
            if is_complete {
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
        let bursts = demands.bursts(choice.rate);
        writeln!(text, "# At {} a key needs this burst: {}.", choice.rate(), quantiles(&bursts))?;
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
            let key = shown(key.as_str());
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

/// The quantiles of the keys' needs. `needs` begins with the largest need.
fn quantiles(needs: &[u64]) -> String {
    let at = |thousandths: usize| {
        let above = needs.len() * (1_000 - thousandths) / 1_000;
        number(needs.get(above).or(needs.last()).copied().unwrap_or_default())
    };
    let [half, ninety, ninety_nine, nearly_all, all] = [500, 900, 990, 999, 1_000].map(at);
    format!(
        "half of them {half}, 90 % {ninety}, 99 % {ninety_nine}, 99.9 % {nearly_all}, all {all}"
    )
}

#[cfg(test)]
mod tests;
