//! The layer for HTTP services.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fault in here is a bug")]

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tidegate_limit::{Charge, Limit, LimitLayer, Limits};
use tower::{Layer as _, ServiceExt as _, service_fn};

async fn answer(_: Request<()>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

fn request(user: &str) -> Request<()> {
    Request::builder().header("x-user", user).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_does_not_reach_the_service() {
    let limits = Limits::new([Limit::token_bucket("per-user", "1/h".parse().unwrap())]).unwrap();
    let layer = LimitLayer::new(limits, |request: &Request<()>| {
        let user = request.headers().get("x-user").and_then(|user| user.to_str().ok());
        user.filter(|user| !user.is_empty())
            .map(|user| Charge::new("per-user", &[user]))
            .into_iter()
            .collect()
    });
    let service = layer.layer(service_fn(answer));
    let mut seen = Vec::new();
    for user in ["ann", "ann", "", ""] {
        let response = service.clone().oneshot(request(user)).await.unwrap();
        let field = |name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        seen.push((response.status(), field("ratelimit"), field("retry-after")));
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(field("content-type").as_deref(), Some("application/problem+json"));
            let detail = r#""status":429,"detail":"Limit \"per-user\" counts by key: 1 at once, then 1 an hour. Try again in "#;
            assert!(response.body().contains(detail), "{}", response.body());
            assert!(response.body().ends_with(r#"","violated-policies":["per-user"]}"#));
        }
    }
    let (ok, text) = (StatusCode::OK, |text: &str| Some(text.to_owned()));
    assert_eq!(seen[0], (ok, text("\"per-user\";r=0;t=3600"), None));
    let (refused, retry_after) = (seen[1].0, seen[1].2.as_deref().unwrap());
    assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
    assert!((3_000..=3_600).contains(&retry_after.parse().unwrap()));
    assert_eq!(seen[1].1, Some(format!("\"per-user\";r=0;t={retry_after}")));
    assert_eq!(seen[2..], [(ok, None, None), (ok, None, None)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_held_until_its_turn() {
    let limits = Limits::new([Limit::leaky_bucket("even", "1/h".parse().unwrap(), 1)]).unwrap();
    let layer = LimitLayer::new(limits, |_: &Request<()>| vec![Charge::new("even", &[])]);
    let service = layer.layer(service_fn(answer));
    let begin = tokio::time::Instant::now();
    for hours in [0, 1] {
        let response = service.clone().oneshot(request("")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(begin.elapsed().as_secs().div_ceil(3600), hours);
    }
}

#[tokio::test]
async fn a_charge_to_no_limit_is_seen_at_the_first_request() {
    let limits = Limits::new([]).unwrap();
    let layer = LimitLayer::new(limits, |_: &Request<()>| vec![Charge::new("misspelt", &[])]);
    let response = layer.layer(service_fn(answer)).oneshot(request("")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(response.body(), "there is no limit \"misspelt\"");
}
