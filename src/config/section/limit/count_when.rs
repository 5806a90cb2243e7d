//! `count_when` of a limit: the responses that count.

use super::super::values::once_each;
use crate::config::reader::{Item, Kind, Required, SettingList, Shape, Wrong, field, fields};
use crate::settings::response::{StatusPattern, Statuses};

const STATUS: &str =
    "expected a status as in \"401\", or a class as in \"5xx\", that a client can get";

/// A limit's `count_when`.
pub(crate) static COUNT_WHEN: Shape = Shape::new("count_when", || fields(OF_COUNT_WHEN));

static OF_COUNT_WHEN: SettingList<()> = &[field(
    "status",
    Kind::List(&Kind::Form(r"[1-9](\d\d|xx)")),
    Required,
    "statuses as the client gets them: `\"401\"`, `\"5xx\"`",
)];

/// `count_when`. `None` if a part is wrong.
pub(super) fn count_when(item: &Item<'_>) -> Option<Box<Statuses>> {
    let mut inner = item.section(&COUNT_WHEN, "count_when")?;
    let list = inner.require("status", "[\"401\"]");
    inner.finish();
    let list = list?;
    let items = list.list()?;
    if items.is_empty() {
        list.reject("expected one status at least: without any, nothing would ever count");
        return None;
    }
    let status = |item: &Item<'_>| {
        item.parse(STATUS, |text| StatusPattern::new(text).ok_or(Wrong::Expected))
    };
    let statuses: Vec<_> = once_each(&items, status);
    (!statuses.is_empty()).then(|| Box::new(Statuses(statuses)))
}
