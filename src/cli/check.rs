//! `tidegate check`.

use super::{ConfigFile, Ended, Failure, colour, complain, print};
use crate::config;

pub(super) fn check(file: &ConfigFile) -> Ended {
    let none = config::Overrides::default();
    let loaded =
        config::load(&file.config, &config::process_environment, &none).map_err(Failure::Config)?;
    if !loaded.warnings.is_empty() {
        complain(loaded.warnings.render(colour()));
    }
    print("ok")
}
