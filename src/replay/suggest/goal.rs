//! Finds goals for the routes of an upstream: `tidegate suggest --upstream`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::duration_text;
use crate::replay::judge::Judge;
use crate::replay::log::LogRecord;
use crate::replay::report::{counted, percent, printable, share};
use crate::settings::Settings;

/// Durations in milliseconds. A suggested goal is twice one of them.
const STEPS: [u64; 21] = [
    1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000,
    30_000, 50_000, 100_000,
];

/// A route with fewer durations than this gets no goal.
const ENOUGH: u64 = 1_000;

/// The sources of a duration in a log. If a route has both, the first one counts.
const SOURCES: [&str; 2] = ["from sending to the answer's head", "of the whole requests"];

/// A search for the goals of an upstream's routes.
pub(crate) struct SuggestedGoals<'p> {
    judge: Judge<'p>,
    upstream: (usize, &'p str),
    /// The durations by the route's index, for each of [`SOURCES`].
    routes: BTreeMap<usize, [LoggedDurations; 2]>,
}

#[derive(Clone, Copy, Default)]
struct LoggedDurations {
    count: u64,
    /// How many durations were longer than each of [`STEPS`].
    longer: [u64; STEPS.len()],
}

impl<'p> SuggestedGoals<'p> {
    /// A search in which nothing is counted yet. `None` if the file has no such upstream.
    pub(crate) fn new(settings: &'p Settings, upstream: &str) -> Option<Self> {
        let (index, spec) =
            (0..).zip(&settings.upstreams).find(|(_, it)| it.name.as_str() == upstream)?;
        let upstream = (index, spec.name.as_str());
        Some(Self { judge: Judge::new(settings, &[]), upstream, routes: BTreeMap::new() })
    }

    /// Adds the log's next request. Answers that the proxy or the server made are left out: they say nothing about the
    /// API.
    pub(crate) fn request(&mut self, record: &LogRecord) {
        let status = record.status.map_or(0, |status| status.as_u16());
        let is_own = record.is_refused || matches!(status, 429 | 499 | 502..=504);
        let Some(route) = self.judge.judge(record).route.filter(|_| !is_own) else { return };
        if self.judge.settings.routes[route].action.upstream() != Some(self.upstream.0) {
            return;
        }
        let all = self.routes.entry(route).or_default();
        for (all, duration) in all.iter_mut().zip([record.to_head, record.duration]) {
            let Some(duration) = duration else { continue };
            all.count += 1;
            for (longer, step) in all.longer.iter_mut().zip(STEPS) {
                *longer += u64::from(duration > Duration::from_millis(step));
            }
        }
    }

    /// The goals, as a part of a file, with the reasons in comments.
    ///
    /// # Errors
    /// If there is no goal. The text says why.
    pub(crate) fn file(&self) -> Result<String, String> {
        let (mut routes, mut longest) = (String::new(), None);
        for (route, sources) in &self.routes {
            let of = usize::from(sources[0].count == 0);
            let LoggedDurations { count, longer } = sources[of];
            let name = printable(&self.judge.settings.routes[*route].name);
            let durations = format!("{} {}", counted(count, "duration"), SOURCES[of]);
            let step = longer.iter().position(|longer| longer * 100 <= count);
            let Some(at) = step.filter(|_| count >= ENOUGH) else {
                let why =
                    if count < ENOUGH { "too few" } else { "more than 1 % are longer than 100s" };
                routes += &format!("\n# {name}: {durations}: {why}.\n");
                continue;
            };
            let step = Duration::from_millis(STEPS[at]);
            longest = longest.max(Some(step * 2));
            let (over, goal) = (percent(share(longer[at], count)), duration_text(step * 2));
            let step = duration_text(step);
            routes += &format!("\n# {name}: of {durations} {over} are longer than {step}.\n");
            routes += &format!("# [[routes]]\n# slower_than = \"{goal}\"\n");
        }
        let name = self.upstream.1;
        if self.routes.values().flatten().all(|all| all.count == 0) {
            return Err(format!(
                "the log has no duration of a request for the upstream \"{name}\""
            ));
        }
        let goal = longest.map(duration_text).ok_or_else(|| {
            format!(
                "no goal for the upstream \"{name}\": a route needs 1,000 durations{}",
                routes.trim_end()
            )
        })?;
        Ok(format!("[upstreams.{name}]\nmax_requests = {{ slower_than = \"{goal}\" }}\n{routes}"))
    }
}
