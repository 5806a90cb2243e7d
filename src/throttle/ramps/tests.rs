use http::{HeaderMap, Method};

use super::*;
use crate::config::{Overrides, parse};
use crate::observe::metrics::Metrics;
use crate::observe::throttled::Throttled;
use crate::plan::{KeyDisplay, Plan, ThrottleLog};
use crate::request::key::View;
use crate::request::path::NormalPath;
use crate::request::route::PathParams;
use crate::store::{ProcessStore, Store};
use crate::throttle::{Quotas, Refused};

/// A plan with these limits on one route.
fn plan(limits: &[&str]) -> Plan {
    let named =
        |(number, lines): (usize, &&str)| format!("[limits.a{number}]\nkey = []\n{lines}\n");
    let sections: String = limits.iter().enumerate().map(named).collect();
    let names: Vec<_> = (0..limits.len()).map(|number| format!("a{number}")).collect();
    let text = format!(
        "{sections}[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = {names:?}\n"
    );
    parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan
}

/// This many seconds after the reload.
fn after(seconds: u64) -> Timestamp {
    Timestamp::from_micros((1_800_000_000 + seconds) * 1_000_000).unwrap()
}

fn throttle(plan: &Plan) -> Throttle {
    let shared = ProcessStore::new(&plan.store);
    Throttle {
        store: Store::new(shared, &plan.store, KeyDisplay::Plain),
        waiting: std::sync::Arc::default(),
        log: std::sync::Arc::new(Throttled::new(ThrottleLog::Off, LATE)),
        metrics: Metrics::new(1).worker(0),
    }
}

/// `None` if the request passes. Otherwise the whole seconds that the client is told, `Some(None)` for none.
async fn refusal(throttle: &Throttle, plan: &Plan, now: Timestamp) -> Option<Option<u64>> {
    let (path, headers) = (NormalPath::parse("/", true).unwrap(), HeaderMap::new());
    let request = View {
        methods: &[],
        path: &path,
        query: None,
        method: &Method::GET,
        host: "",
        route: "",
        client: "203.0.113.7".parse().unwrap(),
        headers: &headers,
        params: &PathParams::none(),
        cert: None,
        id: None,
    };
    let mut quotas = Quotas::new();
    match throttle.admit(plan, &plan.routes[0], &request, now, &mut quotas, None).await {
        Ok(_) => None,
        Err(Refused::Throttled { retry_after, .. }) => {
            let told = retry_after.map(|wait| wait.as_micros().div_ceil(1_000_000));
            Some(told.map(|seconds| u64::try_from(seconds).unwrap()))
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Sends `used` requests at once under the `old` limits. After the reload a client comes in the second `at`. Returns
/// the seconds that the client is told to wait. It comes again `late` seconds after that time, and must pass.
async fn told(old: &Plan, new: &Plan, used: usize, at: u64, late: u64) -> Option<u64> {
    let throttle = throttle(old);
    for _ in 0..used {
        assert_eq!(refusal(&throttle, old, after(0)).await, None);
    }
    let seconds = refusal(&throttle, new, after(at)).await?.expect("it passes one day");
    let again = refusal(&throttle, new, after(at + seconds + late)).await;
    assert_eq!(again, None, "told {seconds} s in second {at}");
    Some(seconds)
}

fn reloaded(old: &Plan, limits: &[&str]) -> Plan {
    let mut new = plan(limits);
    new.ramp_down(old, after(0).into());
    new
}

/// A regression: the wait was calculated by the figures of the moment. When it was over, the figures were lower.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_as_told_passes_while_figures_come_down() {
    for lines in [
        "algorithm = \"token-bucket\"",
        "algorithm = \"leaky-bucket\"",
        "algorithm = \"fixed-window\"",
        "algorithm = \"fixed-window\"\nalign = \"clock\"",
        "algorithm = \"sliding-window\"",
        "algorithm = \"sliding-log\"",
    ] {
        let old = plan(&[&format!("{lines}\nrate = \"30/30s\"")]);
        let new = reloaded(&old, &[&format!("{lines}\nrate = \"1/30s\"\nramp = \"30s\"")]);
        let mut refused = 0;
        for at in 0..40 {
            for late in [0, 1] {
                refused += u64::from(told(&old, &new, 30, at, late).await.is_some());
            }
        }
        assert!(refused > 20, "{lines}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_told_the_limit_that_will_refuse_it_too() {
    let other = "rate = \"1/3s\"\nburst = 10";
    let old = plan(&[other, "rate = \"30/30s\""]);
    let new = reloaded(&old, &[other, "rate = \"1/30s\"\nramp = \"5s\""]);
    // Ten are used, and the other limit has a token in three seconds. This limit then has ten used of one.
    assert_eq!(told(&old, &new, 10, 0, 0).await, Some(300));
}

#[tokio::test(start_paused = true)]
async fn a_wait_within_a_step_of_the_ramp_is_the_one_of_the_moment() {
    let old = plan(&["rate = \"30/30s\""]);
    let new = reloaded(&old, &["rate = \"1/30s\"\nramp = \"1h\""]);
    assert_eq!(told(&old, &new, 30, 0, 0).await, Some(1));
}
