//! Makes a connection to Redis: finds the server that decides, encrypts, and logs in. `connection` calls this file
//! for requests, `topology` for questions about hash slots, and the store for an operator's commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, cmd};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::CallError;
use crate::settings::{Endpoint, RedisLocation, RedisTopology};
use crate::tls::client::{self, ClientTlsSpec, handshake_error};
use crate::wire::dialer::Dialer;

/// The most calls that may lie ready to be sent. A further call waits for room until its deadline.
const QUEUE: usize = 4_096;

/// The time that one sentinel has to connect and to answer. After this time the next sentinel is asked.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(500);

/// The most time to connect to one server. Callers mostly have less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes connections to one Redis.
pub(crate) struct RedisConnector {
    location: RedisLocation,
    tls: Option<(TlsConnector, Arc<ClientTlsSpec>)>,
    dialer: Arc<Dialer>,
    /// The sentinel that is asked first next time. Each search begins with another sentinel: a sentinel may be silent,
    /// or cut off from the others.
    sentinel: AtomicUsize,
}

/// A connection that is logged in.
pub(crate) struct OpenConnection {
    pub(crate) connection: MultiplexedConnection,
    /// The task that reads and writes. It ends when the server closes the connection, even if no call is under way.
    pub(crate) driver: JoinHandle<()>,
}

impl RedisConnector {
    /// Makes the configuration for TLS. Further servers of a cluster share it: see [`RedisConnector::to`].
    pub(crate) fn new(location: &RedisLocation) -> Self {
        // The same certificates were tried when proxy.toml was read, so this does not fail.
        let tls = location.tls.as_ref().and_then(|spec| {
            let config = client::config(spec, &[]).ok()?;
            Some((TlsConnector::from(config), Arc::clone(spec)))
        });
        let (location, dialer) = (location.clone(), Arc::default());
        Self { location, tls, dialer, sentinel: AtomicUsize::new(0) }
    }

    /// A connector for another server of the same cluster.
    pub(crate) fn to(&self, location: &RedisLocation) -> Self {
        let (location, tls, dialer) = (location.clone(), self.tls.clone(), self.dialer.clone());
        Self { location, tls, dialer, sentinel: AtomicUsize::new(0) }
    }

    /// The server that decides now.
    pub(crate) async fn find(&self) -> Result<Endpoint, CallError> {
        match &self.location.topology {
            RedisTopology::Server(endpoint) => Ok(endpoint.clone()),
            RedisTopology::Sentinel { sentinels, master } => self.master(sentinels, master).await,
            // Each server of a cluster has its own connector, which does not come here.
            RedisTopology::Cluster(_) => Err(CallError::NotConnected),
        }
    }

    /// Whether the server that decides may become another one.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self.location.topology, RedisTopology::Sentinel { .. })
    }

    /// Connects to the server that was found, and logs in. The caller bounds the time.
    pub(crate) async fn connect(&self, server: &Endpoint) -> Result<OpenConnection, CallError> {
        let OpenConnection { mut connection, driver } = self.open(server).await?;
        self.log_in(&mut connection).await?;
        if self.location.database != 0 {
            cmd("SELECT").arg(self.location.database).exec_async(&mut connection).await?;
        }
        if self.may_move() {
            let role: Vec<redis::Value> = cmd("ROLE").query_async(&mut connection).await?;
            // For some seconds after a failover a sentinel may name a server that is a replica now.
            if !matches!(role.first(), Some(redis::Value::BulkString(role)) if role == b"master") {
                return Err(CallError::NotMaster(server.clone()));
            }
        }
        // Only `CLIENT LIST` shows this name. If the user may not set it, nothing else is lost.
        let mut naming = cmd("CLIENT");
        naming.arg("SETNAME").arg("tidegate");
        let _ = naming.exec_async(&mut connection).await;
        Ok(OpenConnection { connection, driver })
    }

    /// Asks one sentinel after the other.
    async fn master(&self, sentinels: &[Endpoint], name: &str) -> Result<Endpoint, CallError> {
        let first = self.sentinel.fetch_add(1, Ordering::Relaxed) % sentinels.len().max(1);
        let mut failure = CallError::NotConnected;
        for index in (0..sentinels.len()).map(|n| (first + n) % sentinels.len()) {
            match timeout(SENTINEL_PATIENCE, self.ask(&sentinels[index], name)).await {
                Ok(Ok(Some(server))) => return Ok(server),
                // Another sentinel may know the name.
                Ok(Ok(None)) => failure = CallError::UnknownMaster(name.to_owned()),
                Ok(Err(error)) => failure = CallError::Redis(error),
                Err(_) => failure = CallError::TimedOut,
            }
        }
        Err(failure)
    }

    /// Asks a sentinel for the address of the master. Sentinels mostly have no password. One that wants a
    /// password gets the same as the servers.
    async fn ask(&self, sentinel: &Endpoint, master: &str) -> Result<Option<Endpoint>, RedisError> {
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let OpenConnection { mut connection, .. } = self.open(sentinel).await?;
        let mut answer = question.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(|error: &RedisError| error.code() == Some("NOAUTH"))
            && self.location.password.is_some()
        {
            self.log_in(&mut connection).await?;
            answer = question.query_async(&mut connection).await;
        }
        let found: Option<(String, u16)> = answer?;
        let found = found.filter(|(host, port)| !host.is_empty() && *port != 0);
        Ok(found.map(|(host, port)| Endpoint::Tcp { host, port }))
    }

    /// Sends the password, if there is one. The library can do this too, but it drops what the server answers.
    async fn log_in(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let Some(password) = &self.location.password else { return Ok(()) };
        cmd("AUTH").arg(&self.location.user).arg(password).exec_async(connection).await
    }

    async fn open(&self, server: &Endpoint) -> Result<OpenConnection, RedisError> {
        let (host, port) = match server {
            Endpoint::Unix(path) => return speak(UnixStream::connect(path).await?).await,
            Endpoint::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = self.dialer.connect(host, port, CONNECT_TIMEOUT).await?;
        let Some((connector, spec)) = &self.tls else {
            return match self.location.tls {
                Some(_) => Err(io::Error::other("TLS cannot be set up").into()),
                None => speak(stream).await,
            };
        };
        let no_name = || io::Error::other(format!("no certificate can be for {host}"));
        let name = spec.name_of(host).ok_or_else(no_name)?;
        speak(connector.connect(name, stream).await.map_err(handshake_error)?).await
    }
}

/// Drives the connection in a task of the worker's runtime until it is dropped.
async fn speak<S>(stream: S) -> Result<OpenConnection, RedisError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The caller keeps the time.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    let plain = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&plain, stream, config).await?;
    Ok(OpenConnection { connection, driver: tokio::spawn(driver) })
}
