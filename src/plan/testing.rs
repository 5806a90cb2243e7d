//! Plans for the tests of all modules, from the lines of a file.

use std::sync::Arc;

use super::{LimitSpec, Plan};
use crate::config::{Overrides, parse};

/// The plan of a file with this text.
pub(crate) fn plan(text: &str) -> Plan {
    let loaded = parse("proxy.toml", text, &|_| None, &Overrides::default());
    loaded.unwrap_or_else(|problems| panic!("{text}\n{problems}")).plan
}

/// A plan whose only limit, `a`, has these lines, as in `rate = "1/s"`. Its only route has the path `/{id}`.
pub(crate) fn plan_with(limit: &str) -> Plan {
    plan(&format!(
        "[limits.a]\n{limit}\n[[routes]]\npath = \"/{{id}}\"\nrespond = {{}}\nlimits = [\"a\"]\n"
    ))
}

/// The limit of [`plan_with`].
pub(crate) fn limit(lines: &str) -> Arc<LimitSpec> {
    plan_with(lines).limits[0].clone()
}
