//! Reads the file with the plans of customers again when it changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};

use crate::clock::every;
use crate::observe::events;
use crate::tier::TierRule;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Looks at the file of this rule, as long as the returned set is kept. The file may be large, so it is read on a
/// thread of its own: neither requests nor the admin endpoint wait.
pub(super) fn watch(rule: Option<&Arc<TierRule>>) -> JoinSet<()> {
    let mut watching = JoinSet::new();
    let Some(rule) = rule.filter(|rule| rule.file.is_some()).cloned() else { return watching };
    watching.spawn(async move {
        let mut looks = every(LOOK);
        loop {
            looks.tick().await;
            let rule = Arc::clone(&rule);
            // A panic has its own line, and the next look may succeed.
            let _ = spawn_blocking(move || look(&rule)).await;
        }
    });
    watching
}

fn look(rule: &TierRule) {
    let Some(file) = &rule.file else { return };
    let path = file.path().display();
    match file.look() {
        None => {}
        Some(Ok(table)) => {
            events::plans_loaded(&path, table.lines());
            for warning in file.unnamed(|plan| rule.named.contains(plan)) {
                events::config_warning(&warning);
            }
        }
        Some(Err(error)) => {
            events::plans_rejected(&format_args!("{path}: {error}"), error.advice());
        }
    }
}
