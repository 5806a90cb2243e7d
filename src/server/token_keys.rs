//! The keys of the `[jwt.NAME]` tables: read from files and fetched from servers, at the start and again. No request
//! waits for this.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::LocalOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::every;
use crate::file::{FileWatch, LARGEST, read_ordinary};
use crate::jwt::keys::{KeySet, SharedKeys};
use crate::observe::events;
use crate::observe::log_interval::LogInterval;
use crate::plan::{JwksUrl, JwtSpec, KeySetLocation, Plan};
use crate::upstream::fetch::fetch;
use crate::worker::Published;

/// The time between two lines about keys that stay unavailable.
const STILL_UNAVAILABLE: Duration = Duration::from_secs(300);

/// The most time until a JWKS is fetched again that could not be fetched.
const RETRY: Duration = Duration::from_secs(15);

/// In this time tokens with unknown keys cause two fetches at most.
const MISSED: Duration = Duration::from_secs(60);

/// How often a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// After this number of looks, the file is read even if its stamp is unchanged.
const LOOKS_TO_READ: u32 = 10;

/// The keys of each table. A table that stays in the plan keeps what was read.
pub(super) fn token_keys(plan: &Plan, before: Option<&Published>) -> Vec<Arc<SharedKeys>> {
    let known = |spec: &Arc<JwtSpec>| {
        let mut before = before.iter().flat_map(|before| &before.keys);
        before.find(|keys| keys.spec == *spec).cloned()
    };
    plan.jwt.iter().map(|spec| known(spec).unwrap_or_else(|| of_start(spec))).collect()
}

/// The keys of a table, as far as they can be read without waiting.
fn of_start(spec: &Arc<JwtSpec>) -> Arc<SharedKeys> {
    let shared = SharedKeys::new(spec.clone());
    // The file was read when the configuration was: it has keys.
    if let Some(KeySetLocation::File(path)) = &spec.keys
        && let Ok(keys) = read(path)
    {
        shared.replace(keys);
    }
    Arc::new(shared)
}

/// The keys of each table, all read once and now, for a command. The texts say which could not be read.
pub(crate) fn read_token_keys(plan: &Plan) -> (Vec<Arc<SharedKeys>>, Vec<String>) {
    let (keys, mut errors) = (token_keys(plan, None), Vec::new());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(LocalOptions::default());
    for table in &keys {
        let Some(KeySetLocation::Url(url)) = &table.spec.keys else { continue };
        let fetched = match &runtime {
            Ok(runtime) => runtime.block_on(fetch_keys(url)),
            Err(error) => Err(format!("cannot start a runtime: {error}")),
        };
        match fetched {
            Ok(found) => _ = table.replace(found),
            Err(error) => errors.push(format!("no keys of [jwt.{}]: {error}", table.spec.name)),
        }
    }
    (keys, errors)
}

/// What reads the keys of the tables again and again. The reading ends when this is dropped.
#[derive(Default)]
pub(super) struct KeyReaders(Vec<(Arc<SharedKeys>, JoinSet<()>)>);

impl KeyReaders {
    /// Reads the keys of these tables from now on, and no others. What runs for a table that stays goes on.
    pub(super) fn read(&mut self, tables: &[Arc<SharedKeys>]) {
        let mut before = std::mem::take(&mut self.0);
        for table in tables {
            let known = before.iter().position(|(keys, _)| Arc::ptr_eq(keys, table));
            let reader = known.map(|known| before.swap_remove(known));
            self.0.push(reader.unwrap_or_else(|| {
                let mut running = JoinSet::new();
                running.spawn_local(read_again(table.clone()));
                (table.clone(), running)
            }));
        }
    }
}

async fn read_again(keys: Arc<SharedKeys>) {
    let mut reports = KeyReports { keys: &keys, failing: None };
    match &keys.spec.keys {
        Some(KeySetLocation::Url(url)) => fetch_again(url, &mut reports).await,
        Some(KeySetLocation::File(path)) => watch(path, &mut reports).await,
        Some(KeySetLocation::Secret(_)) | None => {}
    }
}

async fn fetch_again(url: &JwksUrl, reports: &mut KeyReports<'_>) {
    let (keys, refresh) = (reports.keys, reports.keys.spec.refresh);
    // When tokens with unknown keys caused the last two fetches.
    let mut missed = [None::<Instant>; 2];
    loop {
        let pause = if reports.take(fetch_keys(url).await) { refresh } else { refresh.min(RETRY) };
        // The tokens before this fetch have had what they asked for.
        let _ = keys.is_missed.notified().now_or_never();
        let is_missed = async {
            if let [Some(last_but_one), _] = missed {
                sleep_until(last_but_one + MISSED).await;
            }
            keys.is_missed.notified().await;
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = is_missed => missed = [missed[1], Some(Instant::now())],
        }
    }
}

async fn fetch_keys(url: &JwksUrl) -> Result<KeySet, String> {
    let text = fetch(url).await.map_err(|error| error.to_string())?;
    KeySet::parse(&text).map_err(|error| format!("{}: {error}", url.server.url))
}

/// Reads a file again when it has changed.
async fn watch(path: &Path, reports: &mut KeyReports<'_>) {
    let mut looks = every(LOOK);
    // The file may have changed since it was first read: what it has now is new, too.
    let mut watch = FileWatch::new(vec![path.to_owned()], LARGEST, LOOKS_TO_READ);
    loop {
        looks.tick().await;
        if watch.look() && !reports.take(read(path)) {
            // As long as it stays wrong, that is to be said again.
            watch.forget();
        }
    }
}

/// The keys in a file.
fn read(path: &Path) -> Result<KeySet, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = read_ordinary(path).map_err(|error| named(&error))?;
    KeySet::parse(&text).map_err(|error| named(&error))
}

/// Puts keys in force that were read, and logs when they cannot be read any more, and when they can be again.
struct KeyReports<'k> {
    keys: &'k SharedKeys,
    /// The time since the last line. `None` while the keys can be read.
    failing: Option<LogInterval>,
}

impl KeyReports<'_> {
    /// Returns whether there are keys. If not, the ones before stay in force.
    fn take(&mut self, read: Result<KeySet, String>) -> bool {
        let name = &self.keys.spec.name;
        match read {
            Ok(found) => {
                let count = found.len();
                let differs = self.keys.replace(found);
                if self.failing.take().is_some() || differs {
                    events::jwt_keys_read(name, count);
                }
                true
            }
            Err(error) => {
                if self.failing.get_or_insert_default().next(STILL_UNAVAILABLE, Instant::now()) {
                    events::jwt_keys_unavailable(name, &error, self.keys.current().len());
                }
                false
            }
        }
    }
}
