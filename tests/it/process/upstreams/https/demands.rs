//! APIs that demand HTTP/1.1 of a request that came by HTTP/2.

use h2::Reason;

use super::*;
use crate::support::api::echo;

#[test]
fn a_demand_for_http_1_1_is_a_502_that_is_told_and_no_fault_of_the_server() {
    let place = Place::new();
    let config = place.folder.server(&place.files, &[H2, HTTP_1_1], None);
    let api = Api::answering_tls(config, async |request, mut respond| {
        if !request.uri().path().starts_with("/old") {
            return echo(request, respond).await;
        }
        respond.send_reset(Reason::HTTP_1_1_REQUIRED);
    });
    let proxy = place.trusting(&api, "").start();
    for _ in 0..4 {
        assert_eq!(get(proxy.address, "/old", &[]).status, 502);
        assert_eq!(get(proxy.address, "/new", &[]).status, 200);
    }
    let line = proxy.log.wait("upstream failed", |_| true);
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("HTTP/1.1"), "{error}");
    assert_eq!(proxy.log.count("server down"), 0);
}
