//! Settings for the tests of all modules, from the lines of a file.

use std::sync::Arc;

use super::{LimitSpec, Settings};
use crate::config::{Overrides, parse};

/// The settings of a file with this text.
pub(crate) fn settings(text: &str) -> Settings {
    let loaded = parse("proxy.toml", text, &|_| None, &Overrides::default());
    loaded.unwrap_or_else(|problems| panic!("{text}\n{problems}")).settings
}

/// Settings whose only limit, `a`, has these lines, as in `rate = "1/s"`. Its only route has the path `/{id}`.
pub(crate) fn settings_with(limit: &str) -> Settings {
    settings(&format!(
        "[limits.a]\n{limit}\n[[routes]]\npath = \"/{{id}}\"\nrespond = {{}}\nlimits = [\"a\"]\n"
    ))
}

/// The limit of [`settings_with`].
pub(crate) fn limit(lines: &str) -> Arc<LimitSpec> {
    settings_with(lines).limits[0].clone()
}
