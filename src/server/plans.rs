//! Reads the file with the plans of customers again when it changes.

use tokio::task::spawn_blocking;

use crate::observe::events;
use crate::plans::PlanRule;
use crate::settings::Settings;

/// Looks at the file of this plan. It may be large, so it is read on a thread of its own: neither requests nor the admin
/// endpoint wait.
pub(super) fn look(settings: &Settings) {
    if let Some(rule) = settings.plans.clone() {
        // A panic has its own line, and the next look may succeed.
        spawn_blocking(move || look_at(&rule));
    }
}

fn look_at(rule: &PlanRule) {
    let Some(file) = &rule.file else { return };
    let path = file.path().display();
    match file.look() {
        None => {}
        Some(Ok(counts)) => {
            events::plans_loaded(&path, counts);
            for warning in file.unnamed(|plan| rule.named.contains(plan)) {
                events::config_warning(&warning);
            }
        }
        Some(Err(error)) => {
            events::plans_rejected(&format_args!("{path}: {error}"), error.advice());
        }
    }
}
