//! The process checks servers by itself. If an upstream has `health`, each of its servers is asked for a path, again
//! and again. To every other server one connection is made at the start, so that a process without requests notices a
//! server that is away. After a server has refused a connection, another connection is tried when its pause is over,
//! even if no request comes.
//!
//! The process asks each server once, however many workers it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Event, UpstreamState};
use crate::limit::name::Name;
use crate::settings::{HealthSpec, ServerAddress, UpstreamSpec};
use crate::upstream::body::RequestBody;
use crate::upstream::connect::Connector;
use crate::upstream::error::in_time;
use crate::upstream::{Purpose, ServerFailure, UpstreamError};

/// How the servers' logs name the checks.
const CHECKER: HeaderValue = HeaderValue::from_static("tidegate-health");

/// The statuses that pass.
const PASSING: std::ops::Range<u16> = 200..400;

/// A server that accepts no connection in this time counts as away. A request still waits for `connect_timeout`, even
/// if this is longer.
const CONNECT_LIMIT: Duration = Duration::from_millis(1_800);

/// The most connections that are tried at once: the process may have thousands of upstreams, and clients need sockets
/// too.
const MOST_TRIALS: usize = 64;

/// The checks and the trials that run. They end when this is dropped.
pub(crate) struct HealthChecks {
    upstreams: HashMap<Name, CheckedUpstream>,
    trials: Arc<Semaphore>,
}

/// What runs for one upstream's servers.
struct CheckedUpstream {
    spec: UpstreamSpec,
    state: Arc<UpstreamState>,
    connector: Connector,
    running: JoinSet<()>,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self { upstreams: HashMap::new(), trials: Arc::new(Semaphore::new(MOST_TRIALS)) }
    }
}

impl HealthChecks {
    /// Checks the servers of these upstreams from now on, and no others. The checks of an upstream that
    /// stays the same go on.
    pub(crate) fn check<'u>(
        &mut self,
        upstreams: impl Iterator<Item = (&'u UpstreamSpec, &'u Arc<UpstreamState>)>,
    ) {
        let mut before = std::mem::take(&mut self.upstreams);
        for (spec, state) in upstreams {
            let kept = before.remove(&spec.name).filter(|old| old.spec == *spec);
            let checked = kept.unwrap_or_else(|| CheckedUpstream::start(spec, state, &self.trials));
            self.upstreams.insert(spec.name.clone(), checked);
        }
    }

    /// Connects to the servers that refused connections and whose pause is over. To be called about once a second.
    pub(crate) fn try_again(&mut self) {
        for upstream in self.upstreams.values_mut() {
            while upstream.running.try_join_next().is_some() {}
            let state = upstream.state.clone();
            for index in state.due(CONNECT_LIMIT * 2) {
                upstream.connect(index, &self.trials);
            }
        }
    }
}

impl CheckedUpstream {
    fn start(spec: &UpstreamSpec, state: &Arc<UpstreamState>, trials: &Arc<Semaphore>) -> Self {
        let connector = Connector::new(spec, state.dialer.clone());
        let (spec, state) = (spec.clone(), state.clone());
        let mut checked = Self { spec, state, connector, running: JoinSet::new() };
        for index in 0..checked.spec.servers.len() {
            match checked.spec.health.clone() {
                Some(health) => checked.check(index, health),
                None => checked.connect(index, trials),
            }
        }
        checked
    }

    /// Asks the server of this index again and again.
    fn check(&mut self, index: usize, health: HealthSpec) {
        let (connector, state) = (self.connector.clone(), self.state.clone());
        let address = self.spec.servers[index].address.clone();
        let host = health.host.clone().unwrap_or_else(|| self.spec.host_of(&address));
        self.running.spawn_local(async move {
            loop {
                let result = check(&connector, &address, &health, &host).await;
                if !matches!(&result, Err(error) if error.is_this_machines()) {
                    state.checked(&state.servers()[index], result, &health);
                }
                sleep(spread(health.interval)).await;
            }
        });
    }

    /// Connects once to the server of this index. The connection is closed at once: a server that serves one connection
    /// after the other would wait for a request on it.
    fn connect(&mut self, index: usize, trials: &Arc<Semaphore>) {
        let (connector, state) = (self.connector.clone(), self.state.clone());
        let address = self.spec.servers[index].address.clone();
        let (trials, limit) = (trials.clone(), self.spec.connect_timeout.min(CONNECT_LIMIT));
        self.running.spawn_local(async move {
            let Ok(_permit) = trials.acquire().await else { return };
            let tried = in_time(limit, connector.open(&address, Purpose::Any)).await;
            let server = &state.servers()[index];
            match tried {
                Ok(connection) => {
                    state.note(server, Event::Connected, &"");
                    connection.finish();
                }
                // Another trial follows when this one should have ended.
                Err(failure) if failure.is_this_machines() => {}
                Err(failure) => state.note(server, Event::RefusedTrial, &server.error(failure)),
            }
        });
    }
}

/// The time to the next check: a tenth more or less than `interval`. The checks of many proxies then do not
/// come at the same moment.
fn spread(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Why a server did not pass a health check.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error("health check: {0}")]
    Exchange(UpstreamError),
    #[error("health check: it answered {0}")]
    Status(StatusCode),
}

impl CheckError {
    fn is_this_machines(&self) -> bool {
        matches!(self, Self::Exchange(UpstreamError::Server { failure, .. }) if failure.is_this_machines())
    }
}

/// Asks a server once, on a new connection.
async fn check(
    connector: &Connector,
    server: &ServerAddress,
    health: &HealthSpec,
    host: &HeaderValue,
) -> Result<(), CheckError> {
    let failed = |failure| CheckError::Exchange(UpstreamError::of(&server.url, failure));
    let asking = async {
        let opened = connector.open(server, Purpose::Any).await;
        let mut connection = opened.map_err(|error| failed(ServerFailure::Connect(error)))?;
        let answer = connection.send(request(health, host), false, server, health.timeout).await;
        let status = answer.map_err(|none| failed(none.failure))?.status();
        // Many servers would log a reset at each check.
        connection.finish();
        let passes = PASSING.contains(&status.as_u16());
        if passes { Ok(()) } else { Err(CheckError::Status(status)) }
    };
    let checked = timeout(health.timeout, asking).await;
    checked.unwrap_or_else(|_| Err(failed(ServerFailure::ResponseTimeout(health.timeout))))
}

fn request(health: &HealthSpec, host: &HeaderValue) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = health.path.clone().into();
    request.headers_mut().insert(HOST, host.clone());
    request.headers_mut().insert(USER_AGENT, CHECKER);
    request
}
