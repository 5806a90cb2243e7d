//! `align` and `timezone` of a limit: how it counts, as far as that has no figures.

use super::calendar::Zone;
use crate::config::file::{Item, Section};
use crate::config::problem::{Span, nearest};

/// When fixed windows begin.
pub(super) enum Align {
    /// At a key's first request.
    FirstRequest,
    /// With the clock; those of a day and more with the zone's calendar.
    Clock(Calendar),
}

/// The calendar of a limit.
pub(super) struct Calendar {
    pub(super) zone: Zone,
    /// Where the file names the zone.
    pub(super) named: Option<Span>,
}

/// The zone of the calendar where the file names none.
const UTC: &str = "UTC";

#[derive(Clone, Copy)]
enum Written {
    FirstRequest,
    Clock,
}

/// `align` and `timezone` of a fixed window.
pub(super) fn align(section: &mut Section<'_>) -> Option<Align> {
    let align = section.take("align").map(|item| {
        item.word(&[("first-request", Written::FirstRequest), ("clock", Written::Clock)], &[])
    });
    let zone = section.take("timezone");
    match align.unwrap_or(Some(Written::FirstRequest))? {
        Written::FirstRequest => {
            if let Some(item) = zone {
                item.fault(
                    "`timezone` says nothing about windows that open at a key's first request",
                    "remove it, or add `align = \"clock\"`",
                );
            }
            Some(Align::FirstRequest)
        }
        Written::Clock => Some(Align::Clock(match zone {
            Some(item) => Calendar { zone: find(&item)?, named: Some(item.span) },
            None => Calendar { zone: Zone::find(UTC)?, named: None },
        })),
    }
}

fn find(item: &Item<'_>) -> Option<Zone> {
    const EXPECTED: &str = "expected a zone such as \"UTC\" or \"Europe/Berlin\"";
    let text = item.text_as(EXPECTED)?;
    let zone = Zone::find(&text.text);
    if zone.is_none() {
        let names = Zone::names();
        match nearest(&text.text, names.iter().map(String::as_str)) {
            Some(near) => text.refuse_here(format!("{EXPECTED}; did you mean \"{near}\"?")),
            None => text.refuse_here(EXPECTED),
        }
    }
    zone
}

/// That `align` and `timezone` have nothing to say beside this algorithm, where they are there.
pub(super) fn refuse(section: &mut Section<'_>) {
    for name in ["align", "timezone"] {
        if let Some(item) = section.take(name) {
            item.fault(
                format!("only fixed windows have `{name}`"),
                "remove it, or take `algorithm = \"fixed-window\"`",
            );
        }
    }
}

/// `burst` beside an algorithm that counts in windows, which `what` names.
pub(super) fn refuse_size(section: &mut Section<'_>, what: &str) {
    if let Some(item) = section.take("burst") {
        item.fault(
            format!("{what} has no `burst`"),
            "remove it: all of the rate's count may come at once",
        );
    }
    if let Some(item) = section.take("queue") {
        item.fault(
            format!("{what} has no `queue`"),
            "expected `wait` to hold requests, or `algorithm = \"leaky-bucket\"`",
        );
    }
}
