//! What a request costs before it goes upstream, step by step: time and allocations.
//!
//! `cargo bench --bench hot`, or `cargo bench --bench hot -- route` for one group. The times are
//! worth comparing within one run on one machine; the allocations are exact.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fault in here is a bug")]

use std::collections::HashSet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use divan::{AllocProfiler, Bencher};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use smallvec::SmallVec;
use tidegate::config::{self, Overrides};
use tidegate::limit::decide::Ask;
use tidegate::limit::key::Key;
use tidegate::limit::time::Timestamp;
use tidegate::request::key::{Token, View};
use tidegate::request::path::NormalPath;
use tidegate::request::route::PathParams;
use tidegate::settings::{CostSpec, Figures, KeyDisplay, LimitSpec, Settings};
use tidegate::store::{self, Claim, ClockReading, ProcessStore, Store};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn main() {
    divan::main();
}

/// Settings with so many routes, of which each has these limits.
fn settings(routes: usize, limits: &[&str]) -> Settings {
    let mut text = String::from("[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n");
    for limit in limits {
        let (key, rate) = match *limit {
            "ip" => (r#"["ip"]"#, "1000000/s"),
            "header" => (r#"["header:x-api-key"]"#, "1000000/s"),
            "ip and path" => (r#"["ip", "path"]"#, "1000000/s"),
            _ => (r#"["ip"]"#, "1/d"),
        };
        let name = limit.replace(' ', "-");
        text.push_str(&format!("[limits.{name}]\nkey = {key}\nrate = \"{rate}\"\n"));
    }
    let names: Vec<_> = limits.iter().map(|limit| limit.replace(' ', "-")).collect();
    for route in 0..routes {
        let version = route % 7;
        text.push_str(&format!(
            "[[routes]]\npath = \"/api/v{version}/things{route}/{{id}}\"\nupstream = \"api\"\n\
             limits = {names:?}\n",
        ));
    }
    config::parse("bench.toml", &text, &|_| None, &Overrides::default()).unwrap().settings
}

mod path {
    use super::*;

    #[divan::bench(args = [
        "/",
        "/api/v1/things/42",
        "/api/v1/things/42;version=3/a%20b",
        "/api//v1/./x/../things/%7e42",
    ])]
    fn normal_form(path: &str) -> usize {
        NormalPath::parse(black_box(path), true).unwrap().matching().len()
    }
}

mod route {
    use super::*;

    #[divan::bench(args = [10, 10_000])]
    fn find(bencher: Bencher<'_, '_>, routes: usize) {
        let settings = settings(routes, &["ip"]);
        let texts: Vec<_> =
            (0..routes).map(|route| format!("/api/v{}/things{route}/42", route % 7)).collect();
        let headers = HeaderMap::new();
        // Another route each time, in an order that caches do not foresee.
        let mut place = 0;
        bencher.bench_local(|| {
            place = (place + 7919) % routes;
            let path = NormalPath::parse(&texts[place], true).unwrap();
            settings.table.find(&path, &Method::GET, "api.example.com", &headers).unwrap()
        });
    }

    #[divan::bench(args = [10, 10_000])]
    fn none(bencher: Bencher<'_, '_>, routes: usize) {
        let settings = settings(routes, &["ip"]);
        let path = NormalPath::parse("/api/v1/nothing/42", true).unwrap();
        let headers = HeaderMap::new();
        bencher.bench_local(|| {
            settings
                .table
                .find(black_box(&path), &Method::GET, "api.example.com", &headers)
                .is_err()
        });
    }
}

mod key {
    use super::*;

    #[divan::bench(args = ["ip", "header", "ip and path"])]
    fn build(bencher: Bencher<'_, '_>, limit: &str) {
        let settings = settings(1, &[limit]);
        let headers = headers();
        let path = NormalPath::parse("/api/v0/things0/42", true).unwrap();
        let spec = limits_of(&settings)[0];
        bencher.bench_local(|| key(black_box(spec), &path, &headers));
    }
}

mod decide {
    use super::*;

    #[divan::bench]
    fn allowed(bencher: Bencher<'_, '_>) {
        run(bencher, &["ip"], 1);
    }

    #[divan::bench]
    fn allowed_three_limits(bencher: Bencher<'_, '_>) {
        run(bencher, &["ip", "header", "ip and path"], 1);
    }

    #[divan::bench]
    fn allowed_100_000_keys(bencher: Bencher<'_, '_>) {
        run(bencher, &["header"], 100_000);
    }

    #[divan::bench]
    fn rejected(bencher: Bencher<'_, '_>) {
        run(bencher, &["closed"], 1);
    }

    /// One request after the other, a microsecond apart, through these limits' buckets in memory.
    fn run(bencher: Bencher<'_, '_>, limits: &[&str], keys: usize) {
        let settings = settings(1, limits);
        let specs = limits_of(&settings);
        let shared = ProcessStore::new(&settings.store);
        let store = Store::new(shared, &settings.store, KeyDisplay::Hashed);
        let path = NormalPath::parse("/api/v0/things0/42", true).unwrap();
        let keys: Vec<Vec<Key>> = (0..keys)
            .map(|client| {
                let mut headers = headers();
                let value = HeaderValue::from_str(&format!("client-{client:07}")).unwrap();
                headers.insert(API_KEY, value);
                specs.iter().map(|spec| key(spec, &path, &headers)).collect()
            })
            .collect();
        // Every bucket is there before it counts, as in a proxy that has run for a while.
        let began = Instant::now();
        let (mut place, mut now) = (0, Timestamp::from_micros(1_800_000_000_000_000).unwrap());
        let mut next = || {
            place = (place + 7919) % keys.len();
            now = now.plus_micros(1);
            let mut claims: SmallVec<[Claim<'_>; 4]> = specs
                .iter()
                .zip(&keys[place])
                .map(|(spec, key)| Claim::new(&store, spec, key.clone().into(), ask(spec)))
                .collect();
            let mut all: SmallVec<[&mut Claim<'_>; 4]> = claims.iter_mut().collect();
            at_once(store.take(&mut all, ClockReading { time: now, at: began })).unwrap();
            drop(all);
            store::verdict(&claims)
        };
        for _ in 0..keys.len() {
            next();
        }
        bencher.bench_local(next);
    }

    fn ask(spec: &LimitSpec) -> Ask {
        match (&spec.figures, &spec.cost) {
            (Figures::Limited(algorithm), CostSpec::Fixed(cost)) => {
                Ask { cost: *cost, ..Ask::for_one(*algorithm) }
            }
            _ => unreachable!("the plan above has neither"),
        }
    }

    /// The memory store never waits.
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => unreachable!("buckets in memory are there at once"),
        }
    }
}

/// The limits of the settings' routes, of which each has the same.
fn limits_of(settings: &Settings) -> Vec<&Arc<LimitSpec>> {
    settings.limits_of(&settings.routes[0]).collect()
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::HOST, HeaderValue::from_static("api.example.com"));
    headers.insert(http::header::USER_AGENT, HeaderValue::from_static("bench/1.0"));
    headers.insert(API_KEY, HeaderValue::from_static("client-0000042"));
    headers
}

fn key(spec: &LimitSpec, path: &NormalPath<'_>, headers: &HeaderMap) -> Key {
    let view = View {
        methods: &HashSet::new(),
        path,
        query: None,
        method: &Method::GET,
        host: b"api.example.com",
        route: "/api/v0/things0/{id}",
        client: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
        headers,
        params: PathParams::none(),
        cert: None,
        token: Token::NONE,
        body: None,
        id: None,
        has_end: true,
        may_wait: true,
        cost: None,
        counted: None,
    };
    spec.key.key(&view).unwrap().expect("no limit of the plan above skips")
}
