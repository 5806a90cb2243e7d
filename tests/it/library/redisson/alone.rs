//! Processes that decide alone on a limiter, while Redis is away.

use std::sync::Arc;

use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::name::Name;
use tidegate::settings::{LimitSpec, OnStoreError};
use tidegate::store::{ProcessStore, Store};

use super::{ask_with, limiter, now};
use crate::support::bench::{decide, store_spec, stores};
use crate::support::limits::no_key;
use crate::support::redis::{RedisServer, location};
use crate::support::until;

struct Process {
    shared: Arc<ProcessStore>,
    store: Arc<Store>,
}

impl Process {
    fn of(server: &RedisServer) -> Self {
        let (shared, store) = stores(&store_spec(location(&server.url())));
        Self { shared, store }
    }

    /// How many of these requests pass.
    async fn passed(&self, spec: &LimitSpec, params: Params, requests: u64) -> u64 {
        let none = no_key();
        let mut passed = 0;
        for _ in 0..requests {
            let answer = decide(&self.store, &[ask_with(spec, &none, 1, params)], now()).await;
            let answer = answer.unwrap();
            passed += u64::from(answer.verdict.passes());
            answer.keep();
        }
        passed
    }

    async fn until_redis_is_away(&self) {
        until("Redis is away", async || self.shared.counters().redis_up == Some(false)).await;
    }
}

fn local() -> LimitSpec {
    LimitSpec { on_store_error: OnStoreError::Local, ..limiter("orders") }
}

fn params(rate: &str, sharing: Sharing) -> Params {
    Params::new(Some(rate.parse().unwrap()), sharing).unwrap()
}

/// Three processes let pass three times the limit.
#[tokio::test]
async fn each_process_has_its_share_of_a_limiter() {
    let mut server = RedisServer::start();
    let processes = [Process::of(&server), Process::of(&server), Process::of(&server)];
    for process in &processes {
        until("all are known", async || process.shared.counters().processes == 3).await;
    }
    server.kill();
    let spec = local();
    for process in &processes {
        process.until_redis_is_away().await;
        assert_eq!(process.passed(&spec, params("10/h", Sharing::Overall), 15).await, 4);
    }
    let each = LimitSpec { name: Name::new("each").unwrap(), ..local() };
    let whole = params("10/h", Sharing::PerClient);
    assert_eq!(processes[0].passed(&each, whole, 15).await, 10, "the whole limit for each");
}
