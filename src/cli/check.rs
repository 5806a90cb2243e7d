//! `tidegate check`.

use super::{ConfigFile, Ended, Failure, colour, complain, print};
use crate::config;

pub(super) fn check(file: &ConfigFile) -> Ended {
    let loaded =
        config::load(&file.config, &config::process_environment, &config::Overrides::default())
            .map_err(Failure::Config)?;
    if !loaded.warnings.is_empty() {
        complain(loaded.warnings.render(colour()));
    }
    print("ok");
    Ok(())
}
