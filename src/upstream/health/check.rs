//! Active health checks: each server of an upstream with `health` is asked for a path, again and again. The
//! process checks each server once, however many workers it has.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::UpstreamState;
use crate::plan::{HealthSpec, ServerAddress, UpstreamSpec};
use crate::upstream::body::RequestBody;
use crate::upstream::connect::Connector;
use crate::upstream::{ConnectionKind, ServerFailure, UpstreamError};

/// How the servers' logs name the checks.
const CHECKER: HeaderValue = HeaderValue::from_static("tidegate-health");

/// The statuses that pass.
const PASSING: std::ops::Range<u16> = 200..400;

/// The checks that run. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct HealthChecks {
    upstreams: Vec<CheckedUpstream>,
}

/// The checks of one upstream's servers.
#[derive(Debug)]
struct CheckedUpstream {
    spec: UpstreamSpec,
    _checks: JoinSet<()>,
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
            let Some(health) = &spec.health else { continue };
            match before.iter().position(|old| old.spec == *spec) {
                Some(index) => self.upstreams.push(before.swap_remove(index)),
                None => self.upstreams.push(CheckedUpstream::start(spec, health, state)),
            }
        }
    }
}

impl CheckedUpstream {
    fn start(spec: &UpstreamSpec, health: &HealthSpec, state: &Arc<UpstreamState>) -> Self {
        let connector = Connector::new(spec);
        let mut checks = JoinSet::new();
        for (index, server) in spec.servers.iter().enumerate() {
            let (connector, address) = (connector.clone(), server.address.clone());
            let (health, state) = (health.clone(), state.clone());
            checks.spawn_local(async move {
                loop {
                    let result = check(&connector, &address, &health).await;
                    if !matches!(&result, Err(error) if error.is_this_machines()) {
                        state.checked(&state.servers()[index], result, &health);
                    }
                    sleep(spread(health.interval)).await;
                }
            });
        }
        Self { spec: spec.clone(), _checks: checks }
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

/// Asks a server once, on a connection of its own. A server that demands HTTP/1.1 is asked by HTTP/1.1.
async fn check(
    connector: &Connector,
    server: &ServerAddress,
    health: &HealthSpec,
) -> Result<(), CheckError> {
    let failed = |failure| {
        CheckError::Exchange(UpstreamError::Server { server: server.url.as_str().into(), failure })
    };
    let ask = async |wanted| {
        let mut connection =
            connector.open(server, wanted).await.map_err(ServerFailure::Connect)?;
        let answer = connection.send(request(server, health), server, health.timeout).await;
        let answer = answer.map_err(|none| none.failure)?;
        // Many servers would log a reset at each check.
        connection.finish();
        Ok(answer.status())
    };
    let asking = async {
        let status = match ask(ConnectionKind::Any).await {
            Err(ServerFailure::Http1Required) => ask(ConnectionKind::Http1).await,
            answered => answered,
        };
        let status = status.map_err(failed)?;
        let passes = PASSING.contains(&status.as_u16());
        if passes { Ok(()) } else { Err(CheckError::Status(status)) }
    };
    let checked = timeout(health.timeout, asking).await;
    checked.unwrap_or_else(|_| Err(failed(ServerFailure::ResponseTimeout)))
}

fn request(server: &ServerAddress, health: &HealthSpec) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = health.path.clone().into();
    request.headers_mut().insert(HOST, server.host());
    request.headers_mut().insert(USER_AGENT, CHECKER);
    request
}
