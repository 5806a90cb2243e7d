//! Where Redis is, and how a connection logs in: what the URL in `[store]` says.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{Endpoint, write_list};
use crate::percent;
use crate::tls::client::ClientTlsSpec;

/// The port of a server, and that of a sentinel, if the URL names none.
const SERVER_PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Where Redis is, and how a connection logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisLocation {
    /// The server, or the servers that know it.
    pub(crate) topology: RedisTopology,
    /// The name of the user; `None` is the server's default user.
    pub(crate) user: Option<String>,
    /// The password; `None` if the server asks for none.
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
    /// A cluster. These servers of it, at least one, know all others.
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
        let kind = kind.ok_or(NoRedisUrl)?;
        let location = match kind {
            "+unix" => socket(rest),
            _ => network(kind.strip_prefix('s').unwrap_or(kind), rest),
        };
        let secure = matches!(kind, "s" | "s-sentinel" | "s-cluster");
        location.map(|location| Self { location, secure }).ok_or(NoRedisUrl)
    }
}

/// `//[USER:PASSWORD@]HOST[:PORT][/DB]`. The hosts of sentinels are followed by `/MASTER[/DB]`. The hosts of a cluster
/// are followed by nothing: a cluster has only database 0.
fn network(kind: &str, rest: &str) -> Option<RedisLocation> {
    let is_odd = |c: char| matches!(c, '?' | '#') || c.is_control() || c.is_whitespace();
    let rest = rest.strip_prefix("//").filter(|rest| !rest.contains(is_odd))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.strip_suffix('/').unwrap_or(path);
    let (port, master, database) = match (kind, path.split_once('/')) {
        ("", _) => (SERVER_PORT, None, path),
        ("-cluster", None) if path.is_empty() => (SERVER_PORT, None, path),
        ("-sentinel", Some((master, database))) => (SENTINEL_PORT, Some(master), database),
        ("-sentinel", None) => (SENTINEL_PORT, Some(path), ""),
        _ => return None,
    };
    let (mut servers, location) = servers(authority, port, database)?;
    let topology = match master {
        Some(master) if master.is_empty() || master.contains(['%', '@']) => return None,
        Some(master) => RedisTopology::Sentinel { sentinels: servers, master: master.to_owned() },
        None if kind == "-cluster" => RedisTopology::Cluster(servers),
        None => RedisTopology::Server(servers.pop().filter(|_| servers.is_empty())?),
    };
    Some(RedisLocation { topology, ..location })
}

/// The hosts of a list, and the login and database that all of them have. The library for Redis reads each host as the
/// URL of a server. The library ignores what it does not know, and may take a part of a password for a host.
/// Therefore such characters are refused before.
fn servers(
    authority: &str,
    default_port: u16,
    database: &str,
) -> Option<(Vec<Endpoint>, RedisLocation)> {
    let database = database_number(database)?;
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    if hosts.contains('%') {
        return None;
    }
    let mut found = None;
    let mut servers = Vec::new();
    for host in hosts.split(',') {
        // An address that has colons stands in brackets.
        let has_port = host.rsplit_once(']').map_or(host, |(_, port)| port).contains(':');
        let port = if has_port { String::new() } else { format!(":{default_port}") };
        let info = format!("redis://{login}{host}{port}").into_connection_info().ok()?;
        let ConnectionAddr::Tcp(host, port @ 1..) = info.addr() else { return None };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        servers.push(Endpoint::Tcp { host, port: *port });
        found = Some(info);
    }
    let login = found?.redis_settings().clone();
    let [user, password] = [login.username(), login.password()].map(|it| it.map(str::to_owned));
    // Without a password the user would not be sent.
    let is_whole = user.is_none() || password.is_some();
    // The caller replaces it: only the caller knows whether these are sentinels.
    let topology = RedisTopology::Cluster(Vec::new());
    let location = RedisLocation { topology, user, password, database, tls: None };
    is_whole.then_some((servers, location))
}

/// `[//]/PATH[?db=DB&user=USER&pass=PASSWORD]`.
fn socket(rest: &str) -> Option<RedisLocation> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    let decoded = |bytes: Cow<'_, [u8]>| String::from_utf8(bytes.into_owned()).ok();
    let path = decoded(percent::decode(path)).filter(|_| !rest.contains('#'))?;
    let is_path = path.starts_with('/') && !path.ends_with('/') && !path.contains(char::is_control);
    let [mut database, mut user, mut password] = [None, None, None];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let field = match name {
            "db" => &mut database,
            "user" => &mut user,
            "pass" => &mut password,
            _ => return None,
        };
        if field.replace(decoded(percent::decode_query(value))?).is_some() {
            return None;
        }
    }
    let is_whole = is_path && (user.is_none() || password.is_some());
    let topology = RedisTopology::Server(Endpoint::Unix(path.into()));
    let database = database_number(&database.unwrap_or_default())?;
    is_whole.then_some(RedisLocation { topology, user, password, database, tls: None })
}

/// The number of a database; 0 if none is named.
fn database_number(text: &str) -> Option<i64> {
    let fits = text.len() <= 4 && text.bytes().all(|digit| digit.is_ascii_digit());
    if text.is_empty() { Some(0) } else { text.parse().ok().filter(|_| fits) }
}

/// As a URL without user and password, as in `redis://cache.internal:6379`.
impl fmt::Display for RedisLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secure = if self.tls.is_some() { "s" } else { "" };
        let mut database = "/";
        match &self.topology {
            RedisTopology::Server(Endpoint::Unix(path)) => {
                write!(f, "redis+unix://{}", path.display())?;
                database = "?db=";
            }
            RedisTopology::Server(server) => write!(f, "redis{secure}://{server}")?,
            RedisTopology::Sentinel { sentinels, master } => {
                write!(f, "redis{secure}-sentinel://")?;
                write_list(f, sentinels, ",")?;
                write!(f, "/{master}")?;
            }
            RedisTopology::Cluster(servers) => {
                write!(f, "redis{secure}-cluster://")?;
                write_list(f, servers, ",")?;
            }
        }
        if self.database == 0 { Ok(()) } else { write!(f, "{database}{}", self.database) }
    }
}

/// Without user and password, so that no message can show them.
impl fmt::Debug for RedisLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisLocation({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_urls_are_read() {
        for (url, shown, login, database, secure) in [
            ("redis://a", "redis://a:6379", None, 0, false),
            ("redis://a/", "redis://a:6379", None, 0, false),
            ("redis://127.0.0.1:1/2", "redis://127.0.0.1:1/2", None, 2, false),
            ("redis://[::1]:1", "redis://[::1]:1", None, 0, false),
            ("redis://u:p%40@a", "redis://a:6379", Some(("u", "p@")), 0, false),
            (
                "redis://u:p@:%2F%3F%23%25@a/9999",
                "redis://a:6379/9999",
                Some(("u", "p@:/?#%")),
                9_999,
                false,
            ),
            ("valkey://a", "redis://a:6379", None, 0, false),
            ("rediss://u:p@a:1/3", "redis://a:1/3", Some(("u", "p")), 3, true),
            ("valkeys://a", "redis://a:6379", None, 0, true),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock", None, 0, false),
            ("redis+unix:/run/a%20b", "redis+unix:///run/a b", None, 0, false),
            (
                "valkey+unix:///run/a@b?db=2&user=u&pass=p%40%23%26%2B",
                "redis+unix:///run/a@b?db=2",
                Some(("u", "p@#&+")),
                2,
                false,
            ),
            ("redis-sentinel://a/m", "redis-sentinel://a:26379/m", None, 0, false),
            (
                "redis-sentinel://u:p%2F@a,b:1,[::1]:2/m/4",
                "redis-sentinel://a:26379,b:1,[::1]:2/m/4",
                Some(("u", "p/")),
                4,
                false,
            ),
            ("valkeys-sentinel://[::1]/m", "redis-sentinel://[::1]:26379/m", None, 0, true),
            (
                "redis-cluster://u:p%3F%40@a,b:1,[::1]:2",
                "redis-cluster://a:6379,b:1,[::1]:2",
                Some(("u", "p?@")),
                0,
                false,
            ),
            ("valkeys-cluster://a/", "redis-cluster://a:6379", None, 0, true),
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
            let again = shown.parse::<RedisUrl>().map(|again| again.location.to_string());
            assert_eq!(again.as_deref(), Ok(shown), "{url}");
        }
    }

    /// A regression: the text after `?` or `#` was dropped, and the rest of a password was taken for a host.
    #[test]
    fn other_texts_are_refused() {
        let texts = "
            redis http://a redis:// redis:///1 redis:a redis://a:0 redis://a:99999 redis://a,b redis://u%3Ap%40a
            redis://default:1234#rest@host redis://default:1234?rest@host redis://default:1234/5@host redis://u:p@a#
            redis://password@a redis://user:@a redis://a/x redis://a/-1 redis://a/+1 redis://a/10000 redis://a/99999
            redis://a/9223372036854775808 redis://a/1/2 redis://a/1?x redis://a?db=2 redis://a?password=p redis://a?
            rediss://a#insecure redisss://a redissentinel://a/m redis-sentinel://a redis-sentinel://a/
            redis-sentinel:a/m redis-sentinel://a,/m redis-sentinel://a/m/x redis-sentinel://a/m/-1
            redis-sentinel://a/m/99999 redis-sentinel://a/m?x=1 redis-sentinel://a/m#x
            redis-sentinel://a/m/1?password=p redis-sentinel://u:1234#p@a/m redis-sentinel://u:1234/p@a/m
            redis-sentinel://u@a/m redis-cluster:// redis-cluster:a redis-cluster://a, redis-cluster://a/0
            redis-cluster://a/1 redis-cluster://a?x=1 redis-cluster://a,b#x redis-cluster://u:1234#p@a
            redis-cluster://u:1234?p@a,b redis-cluster://u:1234/p@a redis-cluster://a:0,b
            rediss+unix:///run/redis.sock redis+unix:run/redis.sock redis+unix://host/run/redis.sock
            redis+unix://u:p@/run/redis.sock redis+unix:///run/ redis+unix:///run/redis.sock#x
            redis+unix:///run/redis.sock?pass=1#2 redis+unix:///run/redis.sock?password=p
            redis+unix:///run/redis.sock?username=u&pass=p redis+unix:///run/redis.sock?user=u
            redis+unix:///run/redis.sock?pass=a&b redis+unix:///run/redis.sock?db=1&db=2
            redis+unix:///run/redis.sock?db=-1 redis+unix:///run/redis.sock?db=99999
            redis+unix:///run/redis.sock?db=x redis+unix:///run/redis.sock?db
        ";
        for text in texts.split_whitespace().chain(["", "redis://a b", "redis://a\n"]) {
            assert_eq!(text.parse::<RedisUrl>(), Err(NoRedisUrl), "{text}");
        }
    }
}
