//! `align` and `timezone` of a limit: when its fixed windows begin.

use crate::config::reader::{Item, Section, Span, Wrong, nearest};
use crate::config::setting::{one_word, words};
use crate::plan::{WindowStart, Zone};

/// When fixed windows begin.
pub(super) enum Align {
    /// At a key's first request.
    FirstRequest,
    /// With the clock. Windows of a day or more begin with the zone's calendar.
    Clock(Calendar),
}

impl Align {
    /// The same, as the plan keeps it.
    pub(super) fn start(&self) -> WindowStart {
        match self {
            Self::FirstRequest => WindowStart::FirstRequest,
            Self::Clock(calendar) => WindowStart::Clock(calendar.zone.clone()),
        }
    }
}

/// The calendar of a limit.
pub(super) struct Calendar {
    pub(super) zone: Zone,
    /// The place in the file that names the zone. `None` where the file names no zone.
    pub(super) named: Option<Span>,
}

/// The zone of the calendar where the file names none.
const UTC: &str = "UTC";

/// The words of `align`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AlignWord {
    FirstRequest,
    Clock,
}

words!(AlignWord { "first-request" => FirstRequest, "clock" => Clock });

/// `align` and `timezone`.
pub(super) fn align(section: &mut Section<'_>) -> Option<Align> {
    let align = section.exact("align", one_word::<AlignWord>);
    let zone = section.take("timezone");
    if let (None, Some(item)) = (&align, &zone) {
        find(item);
    }
    match align? {
        AlignWord::FirstRequest => {
            if let Some(item) = zone {
                item.fault(
                    "`timezone` says nothing about windows that open at a key's first request",
                    "remove it, or add `align = \"clock\"`",
                );
            }
            Some(Align::FirstRequest)
        }
        AlignWord::Clock => Some(Align::Clock(match zone {
            Some(item) => Calendar { zone: find(&item)?, named: Some(item.span) },
            None => Calendar { zone: Zone::find(UTC)?, named: None },
        })),
    }
}

fn find(item: &Item<'_>) -> Option<Zone> {
    item.parse("expected a zone such as \"UTC\" or \"Europe/Berlin\"", |text| {
        Zone::find(text).ok_or_else(|| {
            let names = Zone::names();
            Wrong::near(nearest(text, names.iter().map(String::as_str)))
        })
    })
}
