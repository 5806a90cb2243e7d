//! What each limit does where Redis never was.

use crate::support::client::statuses;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::wait_until;

/// Nothing listens there.
const NO_REDIS: &str = "url = \"redis://127.0.0.1:1\"";

#[test]
fn each_limit_has_its_own_way_without_redis() {
    for (on_error, expected) in
        [("local", [200, 429]), ("allow", [200, 200]), ("reject", [503, 503])]
    {
        let limit = format!("rate = \"1/h\"\nkey = [\"ip\"]\non_store_error = {on_error:?}");
        let limited = Proxy::answering().admin().limit("client", &limit);
        let mut proxy = limited.store(NO_REDIS).start();
        assert_eq!(statuses(proxy.address, &[&[], &[]]), expected, "{on_error}");
        wait_until("Redis counts as away", || {
            Metrics::of(proxy.admin()).value("tidegate_store_up") == 0.0
        });
        let metrics = Metrics::of(proxy.admin());
        let errors = metrics.value("tidegate_decisions_total{limit=\"client\",decision=\"error\"}");
        assert_eq!(errors, if on_error == "local" { 0.0 } else { 2.0 }, "{on_error}");
        let answered =
            |answer| metrics.value(&format!("tidegate_without_redis_total{{answer=\"{answer}\"}}"));
        let refused = if on_error == "reject" { 2.0 } else { 0.0 };
        assert_eq!((answered("decided"), answered("refused")), (2.0 - refused, refused));
        assert!(metrics.value("tidegate_store_errors_total{kind=\"connection\"}") >= 1.0);
        assert!(proxy.stop().success());
        let lines = proxy.log.with("store unavailable");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["level"], "WARN");
    }
}

#[test]
fn on_error_is_the_default_and_the_strictest_decides() {
    let open = "[limits.open]\nrate = \"1/h\"\n";
    let strict = "[limits.strict]\nrate = \"1/h\"\non_store_error = \"local\"\n";
    let closed = "[limits.closed]\nrate = \"1/h\"\non_store_error = \"reject\"\n";
    for (limits, expected) in [
        (vec![open], [200, 200]),
        (vec![open, strict], [200, 429]),
        (vec![open, strict, closed], [503, 503]),
    ] {
        let store = format!("{NO_REDIS}\non_error = \"allow\"");
        let proxy = Proxy::answering().store(&store).limits(&limits.concat()).start();
        assert_eq!(statuses(proxy.address, &[&[], &[]]), expected, "{limits:?}");
    }
}
