//! The keys of the `[jwt.NAME]` tables: read from files and fetched from servers, at the start and again. No request
//! waits for this.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock::every;
use crate::file::{FileWatch, LARGEST, STILL_WRONG, is_passing};
use crate::jwt::keys::{KeySet, KeySetError, SharedKeys};
use crate::observe::events;
use crate::observe::log_interval::LogInterval;
use crate::settings::{JwksUrl, JwtSpec, KeySetLocation, Settings};
use crate::upstream::fetch::fetch_keys;
use crate::worker::Published;

/// After the first failed fetch, a JWKS is fetched again after this time. After more, it is twice as long each time.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// After a failed fetch, a JWKS is fetched again after this time at most.
const RETRY: Duration = Duration::from_secs(15);

/// In this time tokens with unknown keys cause two fetches at most.
const MISSED: Duration = Duration::from_secs(60);

/// How often a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// After this number of looks, the file is read even if its stamp is unchanged.
const LOOKS_TO_READ: u32 = 10;

/// The most time that a start waits for the first keys.
const FIRST_KEYS: Duration = Duration::from_secs(5);

/// How often a start looks whether they have come.
const LOOK_FOR_FIRST: Duration = Duration::from_millis(10);

/// The keys of each table. A table that stays in the settings goes on to be read again. If only its URL or file stays, or
/// another table has it now, the keys stay until they are read again: their server may be away.
pub(super) fn token_keys(settings: &Settings, before: Option<&Published>) -> Vec<Arc<SharedKeys>> {
    let before = before.map_or(&[][..], |before| &before.keys);
    let keys = settings.jwt.iter().map(|spec| {
        let known = before.iter().find(|keys| keys.spec == *spec).cloned();
        known.unwrap_or_else(|| {
            let keys = Arc::new(SharedKeys::new(spec.clone()));
            let same = before.iter().filter(|it| it.spec.has_keys_of(spec)).map(|it| it.current());
            if let Some(known) = same.max_by_key(|known| known.count(&[]))
                && keys.current().count(&[]) == 0
            {
                keys.replace(known);
            }
            spawn_local(read_again(keys.clone()));
            keys
        })
    });
    keys.collect()
}

/// Waits until all keys that are fetched were fetched once, but for at most 5 s: without keys no token verifies.
pub(super) async fn first_keys(keys: &[Arc<SharedKeys>]) {
    let all = async {
        let mut looks = every(LOOK_FOR_FIRST);
        while keys.iter().any(|keys| keys.are_awaited()) {
            looks.tick().await;
        }
    };
    // Requests are answered without keys too.
    let _ = timeout(FIRST_KEYS, all).await;
}

/// Reads the keys of a table again and again, until nobody else has the table.
async fn read_again(keys: Arc<SharedKeys>) {
    let spec = keys.spec.clone();
    let reports = KeyReports { keys, failing: None };
    match &spec.keys {
        Some(KeySetLocation::Url(url)) => fetch_again(url, reports).await,
        Some(KeySetLocation::File(file)) => watch(file, reports).await,
        Some(KeySetLocation::Secret(_)) | None => {}
    }
}

async fn fetch_again(url: &JwksUrl, mut reports: KeyReports) {
    // When tokens with unknown keys caused the last two fetches.
    let (mut missed, dialer) = ([None::<Instant>; 2], Arc::default());
    let mut retry = FIRST_RETRY;
    while reports.are_for_anybody() {
        let is_read = reports.take(fetch_keys(url, &dialer).await);
        let SharedKeys { spec, is_missed, .. } = &*reports.keys;
        let pause = if is_read { spec.refresh } else { spec.refresh.min(retry) };
        retry = if is_read { FIRST_RETRY } else { RETRY.min(retry * 2) };
        // This fetch also serves the tokens that came before it.
        let _ = is_missed.notified().now_or_never();
        let is_missed = async {
            if let [Some(last_but_one), _] = missed {
                sleep_until(last_but_one + MISSED).await;
            }
            is_missed.notified().await;
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = is_missed => missed = [missed[1], Some(Instant::now())],
        }
    }
}

/// Reads a file again when it has changed.
async fn watch(file: &Path, mut reports: KeyReports) {
    let mut looks = every(LOOK);
    // The file may have changed since it was first read, so its present content counts as new.
    let mut watch = FileWatch::new(vec![file.to_owned()], LARGEST, LOOKS_TO_READ);
    while reports.are_for_anybody() {
        looks.tick().await;
        let is_passing =
            |error: &KeySetError| matches!(error, KeySetError::Read(error) if is_passing(error));
        if let Some(read) = watch.read(|| KeySet::read(file), is_passing) {
            reports.take(read.map_err(|error| format!("{}: {error}", file.display())));
        }
    }
}

/// Puts keys in force that were read. Logs when keys cannot be read any more, and when they can be read again.
struct KeyReports {
    keys: Arc<SharedKeys>,
    /// The time since the last line. `None` while the keys can be read.
    failing: Option<LogInterval>,
}

impl KeyReports {
    fn are_for_anybody(&self) -> bool {
        Arc::strong_count(&self.keys) > 1
    }

    /// Returns whether there are keys. If not, the former keys stay in force.
    fn take(&mut self, read: Result<KeySet, impl Display>) -> bool {
        let JwtSpec { name, algorithms, .. } = &*self.keys.spec;
        let read = read.map_err(|error| error.to_string()).and_then(|found| {
            match found.count(algorithms) {
                0 => Err("none of its keys verifies by one of `algorithms`".to_owned()),
                count => Ok((found, count)),
            }
        });
        self.keys.last_read.note(read.as_ref().err().cloned());
        match read {
            Ok((found, count)) => {
                let differs = self.keys.replace(found);
                if self.failing.take().is_some() || differs {
                    events::jwt_keys_read(name, count);
                }
                true
            }
            Err(error) => {
                if self.failing.get_or_insert_default().next(STILL_WRONG, Instant::now()) {
                    events::jwt_keys_unavailable(name, &error, self.keys.count());
                }
                false
            }
        }
    }
}
