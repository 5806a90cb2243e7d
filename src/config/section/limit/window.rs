//! `align` and `timezone` of a limit: when its fixed windows begin.

use crate::config::reader::{Item, Section, Span, Wrong, nearest, one_word, words};
use crate::settings::{WindowStart, Zone};

/// The zone of the calendar if the file names none.
const UTC: &str = "UTC";

/// The words of `align`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AlignWord {
    FirstRequest,
    Clock,
}

words!(AlignWord { "first-request" => FirstRequest, "clock" => Clock });

/// When windows begin, by `align` and `timezone`, and the position of `timezone` if it is not UTC.
pub(super) fn start(section: &mut Section<'_>) -> Option<(WindowStart, Option<Span>)> {
    match (section.exact("align", one_word), section.take("timezone")) {
        // A wrong zone is reported even if `align` is wrong.
        (None, zone) => {
            zone.as_ref().and_then(find);
            None
        }
        (Some(AlignWord::FirstRequest), zone) => {
            if let Some(item) = zone
                && item.text().is_some_and(|zone| zone != UTC)
            {
                item.fault(
                    "`timezone` has no effect on windows that open at a key's first request",
                    "remove it, or add `align = \"clock\"`",
                );
            }
            Some((WindowStart::FirstRequest, None))
        }
        (Some(AlignWord::Clock), None) => Some((WindowStart::Clock(Zone::find(UTC)?), None)),
        (Some(AlignWord::Clock), Some(item)) => {
            let zone = find(&item)?;
            let span = item.text().filter(|zone| zone != UTC).map(|_| item.span.clone());
            Some((WindowStart::Clock(zone), span))
        }
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
