//! What the operator can do where Redis does not decide.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;

use super::StoreError;
use super::words::{CLUSTER, IN_CLUSTER, refusal};

impl StoreError {
    /// What the operator can do about an error. `None` where that is not known, or the error passes by itself.
    pub(in crate::store) fn help(&self) -> Option<&'static str> {
        match self {
            Self::TimedOut => Some(
                "see what keeps Redis or the way to it busy; store.timeout bounds what a request waits",
            ),
            Self::Redis(error) if error.code() == Some("MOVED") => Some(IN_CLUSTER),
            // The library writes before it reads, so the reason that Redis gives at once is lost.
            Self::Redis(error) if is_cut_off(error) => Some(
                "if Redis runs, it closed the connection: in protected mode it takes none from other hosts, and \
                 above maxclients none at all",
            ),
            Self::Redis(error) => refusal(error)?.1,
            Self::ClusterDown(_) => Some(CLUSTER),
            Self::NoAddress(_) => {
                Some("wait until that one has joined, or set its cluster-announce-ip")
            }
            Self::NoServer(_) => Some("see CLUSTER SLOTS: give these slots a server"),
            Self::UnknownMaster(_) => {
                Some("compare the name in store.url with the answer to SENTINEL MASTERS")
            }
            _ => None,
        }
    }
}

type SharedCause = Arc<dyn Error + Send + Sync>;

/// Whether the server closed the connection.
fn is_cut_off(error: &RedisError) -> bool {
    // The error's source is the library's shared pointer to the cause, and not the cause itself.
    let source = error.source().and_then(|source| source.downcast_ref::<SharedCause>());
    let cause = source.and_then(|source| source.downcast_ref::<io::Error>());
    matches!(
        cause.map(io::Error::kind),
        Some(
            io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::UnexpectedEof
        )
    )
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn error(line: &str) -> StoreError {
        let value = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = value else { panic!("{value:?}") };
        StoreError::Redis(RedisError::from(error))
    }

    #[test]
    fn what_redis_says_is_told_in_its_words_and_with_what_to_do() {
        for (line, told, advised) in [
            ("NOAUTH Authentication required.", "NOAUTH Authentication required.", "password"),
            ("WRONGPASS invalid password", "WRONGPASS invalid password", "the user `default`"),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
                "remove it from store.url",
            ),
            (
                "ERR This instance has cluster support disabled",
                "ERR This instance has cluster support disabled",
                "write redis:// in store.url",
            ),
            (
                "ERR SELECT is not allowed in cluster mode",
                "ERR SELECT is not allowed in cluster mode",
                "redis-cluster://",
            ),
            ("ERR DB index is out of range", "ERR DB index is out of range", "`databases`"),
            (
                "ERR unknown command 'SENTINEL', with args beginning with: 'GET-MASTER-ADDR-BY-NAME' 'm' ",
                "ERR unknown command 'SENTINEL'",
                "no sentinel",
            ),
            (
                "ERR unknown command `EVALSHA`, with args beginning with: `72aa`, `1`, ",
                "ERR unknown command `EVALSHA`",
                "redis-sentinel://",
            ),
            // Where AUTH has another name, an argument is the password.
            (
                "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ",
                "ERR unknown command 'AUTH'",
                "",
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 72aa, on \
                 @user_script:958.",
                "OOM command not allowed when used memory > 'maxmemory'.",
                "maxmemory",
            ),
            (
                "READONLY You can't write against a read only replica. script: 72aa, on \
                 @user_script:958.",
                "READONLY You can't write against a read only replica.",
                "primary",
            ),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
                "SCRIPT KILL",
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                "NOREPLICAS Not enough good replicas to write.",
                "min-replicas-to-write",
            ),
            (
                "ERR The user executing the script can't run this command script: 72aa, on @user_script:958.",
                "ERR The user executing the script can't run this command",
                "allow this user the commands",
            ),
            // Redis 7.2 and later, and Valkey. They were cut off at the first "script:".
            (
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command script: 72aa, on \
                 @user_script:958.",
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: 72aa, on @user_script:958.",
                "ERR ACL failure in script: No permissions to access a key",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: User a has no permissions to access the 'a script: b' key script: 72aa, \
                 on @user_script:958.",
                "ERR ACL failure in script: User a has no permissions to access the 'a script: b' key",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
                "allow this user the commands",
            ),
            ("LOADING Redis is loading the dataset", "LOADING Redis is loading the dataset", ""),
            ("ODD something", "ODD something", ""),
        ] {
            let error = error(line);
            assert_eq!(error.to_string(), told);
            assert!(error.help().unwrap_or_default().contains(advised), "{line}");
            assert_eq!(error.help().is_none(), advised.is_empty(), "{line}");
        }
        for (kind, advised) in
            [(io::ErrorKind::ConnectionReset, true), (io::ErrorKind::ConnectionRefused, false)]
        {
            let error = StoreError::Redis(RedisError::from(io::Error::from(kind)));
            assert_eq!(error.help().is_some_and(|help| help.contains("protected mode")), advised);
        }
    }
}
