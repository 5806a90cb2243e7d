//! The days, weeks and months of a time zone: when each begins, from 2000 to 2100.
//!
//! The list of beginnings is made once for each zone and unit, when the file is read. Decisions then need no time
//! zones. The rules of the zones are built into the program. The machine's rules are not used, because all processes
//! that share a limit must agree on its windows.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use jiff::ToSpan;
use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use parking_lot::Mutex;

use crate::limit::algorithm::fixed_window::windows::{Schedule, Unit};
use crate::limit::time::Timestamp;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

const FIRST: Date = date(2000, 1, 1);
/// The first week begins on this Monday.
const MONDAY: Date = date(1999, 12, 27);
const BEYOND: Date = date(2101, 1, 1);

/// A time zone of the IANA database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// As spelt in the database.
    name: String,
    rules: TimeZone,
}

impl Zone {
    /// `None` if there is no zone of this name. Upper and lower case are the same.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let rules = DATABASE.get(name).ok()?;
        let name = rules.iana_name().unwrap_or(name).to_owned();
        Some(Self { name, rules })
    }

    /// All zones.
    pub(crate) fn names() -> Vec<String> {
        DATABASE.available().map(|name| name.as_str().to_owned()).collect()
    }

    /// When the windows of a unit begin. All users of the same zone and unit share one list.
    pub(super) fn schedule(&self, unit: Unit) -> Option<Arc<Schedule>> {
        type Schedules = HashMap<(Unit, String), Weak<Schedule>>;
        static KNOWN: LazyLock<Mutex<Schedules>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock();
        known.retain(|_, schedule| schedule.strong_count() > 0);
        let name = (unit, self.name.clone());
        if let Some(schedule) = known.get(&name).and_then(Weak::upgrade) {
            return Some(schedule);
        }
        let schedule = Schedule::new(unit, self.name.clone(), self.starts(unit))?;
        let schedule = Arc::new(schedule);
        known.insert(name, Arc::downgrade(&schedule));
        Some(schedule)
    }

    fn starts(&self, unit: Unit) -> Vec<Timestamp> {
        let (first, step) = match unit {
            Unit::Day => (FIRST, 1.day()),
            Unit::Week => (MONDAY, 1.week()),
            Unit::Month => (FIRST, 1.month()),
        };
        let days = std::iter::successors(Some(first), |day| day.checked_add(step).ok());
        let mut starts: Vec<_> =
            days.take_while(|day| *day < BEYOND).filter_map(|day| self.begin(day)).collect();
        // A day that a zone left out has the same beginning as the day after.
        starts.dedup();
        starts
    }

    /// The day's first moment. If the day has two midnights, this is the first one. If it has none, it is the moment
    /// after the gap.
    fn begin(&self, day: Date) -> Option<Timestamp> {
        let midnight = day.to_zoned(self.rules.clone()).ok()?;
        Timestamp::from_micros(u64::try_from(midnight.timestamp().as_microsecond()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(zone: &str, unit: Unit) -> Vec<Timestamp> {
        Zone::find(zone).unwrap().starts(unit)
    }

    /// The length in hours of the window that holds this moment in UTC.
    fn hours(zone: &str, unit: Unit, moment: &str) -> u64 {
        let starts = starts(zone, unit);
        let moment: jiff::Timestamp = moment.parse().unwrap();
        let moment = u64::try_from(moment.as_microsecond()).unwrap();
        let next = starts.partition_point(|start| start.as_micros() <= moment);
        starts[next].micros_since(starts[next - 1]) / 3_600_000_000
    }

    #[test]
    fn windows_are_as_long_as_people_there_live_them() {
        use Unit::{Day, Month, Week};
        for (zone, unit, moment, expected) in [
            ("UTC", Day, "2026-03-29T12:00:00Z", 24),
            ("Europe/Berlin", Day, "2026-03-29T12:00:00Z", 23),
            ("Europe/Berlin", Day, "2026-10-25T12:00:00Z", 25),
            ("Europe/Berlin", Week, "2026-10-25T12:00:00Z", 7 * 24 + 1),
            ("Europe/Berlin", Month, "2026-10-25T12:00:00Z", 31 * 24 + 1),
            ("Europe/Berlin", Month, "2026-01-31T22:59:59Z", 31 * 24),
            ("Europe/Berlin", Month, "2026-01-31T23:00:00Z", 28 * 24),
            ("Europe/Berlin", Month, "2028-02-10T00:00:00Z", 29 * 24),
            ("America/New_York", Day, "2026-03-08T12:00:00Z", 23),
            ("Asia/Kolkata", Day, "2026-03-08T18:29:59Z", 24),
            // The clocks of this zone change by half an hour.
            ("Australia/Lord_Howe", Month, "2026-04-10T00:00:00Z", 30 * 24),
            // The clocks of these zones go from midnight to 1:00, and in autumn from midnight back to
            // 23:00.
            ("America/Santiago", Day, "2026-09-06T12:00:00Z", 23),
            ("Africa/Cairo", Day, "2026-10-29T12:00:00Z", 25),
        ] {
            assert_eq!(hours(zone, unit, moment), expected, "{unit:?} {zone} {moment}");
        }
    }

    #[test]
    fn a_day_begins_at_its_first_midnight() {
        let first = |zone: &str, moment: &str| {
            let moment: jiff::Timestamp = moment.parse().unwrap();
            let moment = u64::try_from(moment.as_microsecond()).unwrap();
            starts(zone, Unit::Day).contains(&Timestamp::from_micros(moment).unwrap())
        };
        // In Havana, the hour before 1:00 comes twice on this day.
        assert!(first("America/Havana", "2026-11-01T04:00:00Z"));
        assert!(!first("America/Havana", "2026-11-01T05:00:00Z"));
        // In Santiago, there is no midnight on this day.
        assert!(first("America/Santiago", "2026-09-06T04:00:00Z"));
    }

    #[test]
    fn every_zone_has_windows_that_follow_one_another() {
        for name in Zone::names() {
            let zone = Zone::find(&name).unwrap();
            let starts = zone.starts(Unit::Month);
            assert!(starts.len() >= 101 * 12 - 1, "{name}");
            assert!(starts.is_sorted_by(|a, b| a < b), "{name}");
        }
    }

    #[test]
    fn a_list_is_made_once() {
        let list = || Zone::find("europe/berlin").unwrap().schedule(Unit::Month).unwrap();
        let first = list();
        assert!(Arc::ptr_eq(&first, &list()));
        assert_eq!(first.zone(), "Europe/Berlin");
    }
}
