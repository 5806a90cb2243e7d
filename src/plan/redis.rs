//! Where Redis is, and how a connection logs in: what the URL in `[store]` says.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{Endpoint, write_list};
use crate::tls::client::ClientTlsSpec;

/// The port of a server, and that of a sentinel, where the URL names none.
const SERVER_PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Where Redis is, and how a connection logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisLocation {
    /// The server, or the servers that know it.
    pub(crate) topology: RedisTopology,
    /// The name of the user; `None` is the server's default user.
    pub(crate) user: Option<String>,
    /// The password; `None` where the server asks for none.
    pub(crate) password: Option<String>,
    /// The number of the database.
    pub(crate) database: i64,
    /// How connections are encrypted; `None` is clear text.
    pub(crate) tls: Option<Arc<ClientTlsSpec>>,
}

/// The server, or the servers that know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedisTopology {
    Server(Endpoint),
    /// The master of this name. The sentinels, at least one, know where the master is.
    Sentinel {
        /// The sentinels, each a host and a port.
        sentinels: Vec<Endpoint>,
        /// The name of the master.
        master: String,
    },
    /// A cluster. These servers of it, at least one, are asked for all others.
    Cluster(Vec<Endpoint>),
}

impl RedisTopology {
    /// The server, the sentinels, or the named servers of the cluster.
    pub(crate) fn servers(&self) -> &[Endpoint] {
        match self {
            Self::Server(server) => std::slice::from_ref(server),
            Self::Sentinel { sentinels, .. } => sentinels,
            Self::Cluster(servers) => servers,
        }
    }
}

impl RedisLocation {
    /// One server of this cluster, with the same login.
    pub(crate) fn of_server(&self, server: Endpoint) -> Self {
        Self { topology: RedisTopology::Server(server), ..self.clone() }
    }
}

/// A store's URL that was read. It says whether TLS is wanted, but not whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// What the URL names, without TLS.
    pub location: RedisLocation,
    /// Whether connections must be encrypted.
    pub(crate) secure: bool,
}

/// The error for a text that is no URL of a Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no URL of a Redis server")]
pub struct NoRedisUrl;

/// `redis://`, `redis+unix:`, `redis-sentinel://` or `redis-cluster://`; by TLS `rediss://`,
/// `rediss-sentinel://` and `rediss-cluster://`. Each may begin with `valkey` in place of `redis`.
impl FromStr for RedisUrl {
    type Err = NoRedisUrl;

    fn from_str(text: &str) -> Result<Self, NoRedisUrl> {
        let (scheme, rest) = text.split_once(':').ok_or(NoRedisUrl)?;
        let kind = scheme.strip_prefix("redis").or_else(|| scheme.strip_prefix("valkey"));
        let location = match kind.ok_or(NoRedisUrl)? {
            "" | "s" => server(&format!("redis:{rest}")),
            "+unix" => server(&format!("redis+unix:{rest}")),
            "-sentinel" | "s-sentinel" => sentinel(rest.strip_prefix("//").ok_or(NoRedisUrl)?),
            "-cluster" | "s-cluster" => cluster(rest.strip_prefix("//").ok_or(NoRedisUrl)?),
            _ => None,
        };
        let secure = matches!(kind, Some("s" | "s-sentinel" | "s-cluster"));
        location.map(|location| Self { location, secure }).ok_or(NoRedisUrl)
    }
}

/// The library for Redis reads the URL of one server.
fn server(url: &str) -> Option<RedisLocation> {
    let info = url.into_connection_info().ok()?;
    let endpoint = match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Endpoint::Tcp { host, port: *port }
        }
        ConnectionAddr::Unix(path) => Endpoint::Unix(path.clone()),
        _ => return None,
    };
    let login = info.redis_settings();
    Some(RedisLocation {
        topology: RedisTopology::Server(endpoint),
        user: login.username().map(str::to_owned),
        password: login.password().map(str::to_owned),
        database: login.db(),
        tls: None,
    })
}

/// `[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/MASTER[/DB]`.
fn sentinel(text: &str) -> Option<RedisLocation> {
    let (login, hosts) = login_of(text);
    let (hosts, path) = hosts.split_once('/')?;
    let (master, database) = path.split_once('/').unwrap_or((path, "0"));
    if master.is_empty() || master.contains(['?', '#', '%']) {
        return None;
    }
    let (sentinels, location) = servers(login, hosts, SENTINEL_PORT, database)?;
    let master = master.to_owned();
    Some(RedisLocation { topology: RedisTopology::Sentinel { sentinels, master }, ..location })
}

/// `[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]`. A cluster has no other database than 0.
fn cluster(text: &str) -> Option<RedisLocation> {
    let (login, hosts) = login_of(text);
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    let (servers, location) = servers(login, hosts, SERVER_PORT, "0")?;
    Some(RedisLocation { topology: RedisTopology::Cluster(servers), ..location })
}

/// `USER:PASSWORD@`, or nothing, and what follows.
fn login_of(text: &str) -> (&str, &str) {
    text.split_at(text.rfind('@').map_or(0, |at| at + 1))
}

/// The hosts of a list, and what the URL of each says. Each host is read as the URL of a server.
fn servers(
    login: &str,
    hosts: &str,
    default_port: u16,
    database: &str,
) -> Option<(Vec<Endpoint>, RedisLocation)> {
    let mut found = None;
    let mut servers = Vec::new();
    for host in hosts.split(',') {
        // An address with colons of its own stands in brackets.
        let has_port = host.rsplit_once(']').map_or(host, |(_, port)| port).contains(':');
        let port = if has_port { String::new() } else { format!(":{default_port}") };
        if host.contains(['/', '?', '#']) {
            return None;
        }
        let location = server(&format!("redis://{login}{host}{port}/{database}"))?;
        let RedisTopology::Server(endpoint @ Endpoint::Tcp { .. }) = &location.topology else {
            return None;
        };
        servers.push(endpoint.clone());
        found = Some(location);
    }
    Some((servers, found?))
}

/// The places without user and password, as in `cache.internal:6379`.
impl fmt::Display for RedisLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topology {
            RedisTopology::Server(endpoint) => write!(f, "{endpoint}"),
            RedisTopology::Sentinel { sentinels, master } => {
                write!(f, "{master} (by the sentinels ")?;
                write_list(f, sentinels, ", ")?;
                f.write_str(")")
            }
            RedisTopology::Cluster(servers) => {
                f.write_str("the cluster of ")?;
                write_list(f, servers, ", ")
            }
        }
    }
}

/// Without user and password, so that no message can show them.
impl fmt::Debug for RedisLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisLocation({self}/{})", self.database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, shown, login, database, secure) in [
            ("redis://a", "a:6379", None, 0, false),
            ("redis://127.0.0.1:1/2", "127.0.0.1:1", None, 2, false),
            ("redis://[::1]:1", "[::1]:1", None, 0, false),
            ("redis://u:p%40@a", "a:6379", Some(("u", "p@")), 0, false),
            ("valkey://a", "a:6379", None, 0, false),
            ("rediss://u:p@a:1/3", "a:1", Some(("u", "p")), 3, true),
            ("valkeys://a", "a:6379", None, 0, true),
            ("redis+unix:///run/redis.sock", "/run/redis.sock", None, 0, false),
            ("redis-sentinel://a/m", "m (by the sentinels a:26379)", None, 0, false),
            (
                "redis-sentinel://u:p@a,b:1,[::1]:2/m/4",
                "m (by the sentinels a:26379, b:1, [::1]:2)",
                Some(("u", "p")),
                4,
                false,
            ),
            ("valkeys-sentinel://[::1]/m", "m (by the sentinels [::1]:26379)", None, 0, true),
            (
                "redis-cluster://u:p@a,b:1,[::1]:2",
                "the cluster of a:6379, b:1, [::1]:2",
                Some(("u", "p")),
                0,
                false,
            ),
            ("valkeys-cluster://a/", "the cluster of a:6379", None, 0, true),
        ] {
            let found = url.parse::<RedisUrl>().unwrap_or_else(|error| panic!("{url}: {error}"));
            let location = found.location;
            assert_eq!(location.to_string(), shown, "{url}");
            let named = location.user.as_deref().zip(location.password.as_deref());
            assert_eq!(
                (named, location.database, found.secure),
                (login, database, secure),
                "{url}"
            );
            assert!(!format!("{location:?}").contains("p@"), "{location:?}");
        }
    }

    #[test]
    fn other_texts() {
        for text in [
            "",
            "redis",
            "http://a",
            "redis://",
            "redis://a:99999",
            "redis://a/x",
            "redissentinel://a/m",
            "redis-sentinel://a",
            "redis-sentinel://a/",
            "redis-sentinel:a/m",
            "redis-sentinel://a,/m",
            "redis-sentinel://a/m/x",
            "redis-sentinel://a/m?x=1",
            "redis-cluster://",
            "redis-cluster:a",
            "redis-cluster://a,",
            "redis-cluster://a/1",
            "redis-cluster://a?x=1",
            "rediss+unix:///run/redis.sock",
        ] {
            assert_eq!(text.parse::<RedisUrl>(), Err(NoRedisUrl), "{text}");
        }
    }
}
