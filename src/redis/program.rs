//! What the caller runs on the servers: its scripts, and the probe that tells whether a server can run them.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, Value};

/// The caller's scripts and its probe.
pub(crate) struct Program {
    /// The scripts. Calls name them by their hashes.
    pub(crate) scripts: Vec<&'static LazyLock<Script>>,
    /// The key that a probe writes. In a cluster a number follows, so that the key lies in one of the server's hash
    /// slots.
    pub(crate) probe_key: String,
    /// Makes the probe of this key. Only a server that can decide carries it out.
    pub(crate) probe: fn(&str) -> Option<Cmd>,
    /// Whether this answer to a probe is a decision.
    pub(crate) is_decision: fn(&Value) -> bool,
}

impl Program {
    /// Runs a command. If the server does not have the scripts, loads them and runs the command again. `asking` is
    /// for a hash slot that moves to this server.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        call: &Cmd,
        asking: bool,
    ) -> Result<Value, RedisError> {
        let answer = send(connection, call, asking).await;
        let lost = ErrorKind::Server(ServerErrorKind::NoScript);
        if !answer.as_ref().is_err_and(|error| error.kind() == lost) {
            return answer;
        }
        for script in &self.scripts {
            script.load_async(connection).await?;
        }
        send(connection, call, asking).await
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    call: &Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return connection.send_packed_command(call).await?.extract_error();
    }
    // After `ASKING` the server carries out the next command, although it does not have the hash slot yet.
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(call.clone());
    let answers = connection.send_packed_commands(&both, 1, 1).await?;
    answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
}
