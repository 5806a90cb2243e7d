//! Every metric in one table: kind, name, help, and samples. [`Metrics::render`](super::Metrics::render)
//! writes the metrics in the order of the table. Then `process` writes the metrics of the process.
//!
//! To add a metric, add a line to the table. If the workers count it, the number comes from `Counts` and
//! `Total`. Otherwise it comes from the [`Snapshot`], which `admin` fills.

use super::snapshot::{LimitFigures, Snapshot};
use super::text::Page;
use super::{DECISIONS, Total, process};

/// The numbers that a scrape shows.
pub(super) struct Scrape<'s> {
    /// The sum of what the workers counted.
    pub(super) total: Total,
    /// What other parts of the process know.
    pub(super) now: &'s Snapshot<'s>,
}

type Samples = fn(&Scrape<'_>, &mut Page);

#[rustfmt::skip]
const FAMILIES: &[(&str, &str, &str, Samples)] = &[
    ("counter", "tidegate_requests_total", "Requests by route and status.", |scrape, page| {
        for ((route, status), count) in &scrape.total.requests {
            page.sample(&[("route", route), ("status", &status.to_string())], count);
        }
    }),
    ("counter", "tidegate_decisions_total", "What limits said to requests.", |scrape, page| {
        for (limit, counts) in &scrape.total.decisions {
            for (decision, count) in DECISIONS.iter().zip(counts) {
                page.sample(&[("limit", limit.as_str()), ("decision", decision)], count);
            }
        }
    }),
    ("histogram", "tidegate_request_duration_seconds", "Time from a request's head to the end of its response.", |scrape, page| {
        for (route, seconds) in &scrape.total.request_seconds {
            page.histogram(&[("route", route)], seconds);
        }
    }),
    ("histogram", "tidegate_upstream_duration_seconds", "Time from a request's way upstream to the head of the answer.", |scrape, page| {
        for (upstream, counts) in &scrape.total.upstreams {
            page.histogram(&[("upstream", upstream.as_str())], &counts.seconds);
        }
    }),
    ("counter", "tidegate_upstream_errors_total", "Exchanges that failed.", |scrape, page| {
        for (upstream, counts) in &scrape.total.upstreams {
            for (failure, count) in &counts.failures {
                page.sample(&[("upstream", upstream.as_str()), ("reason", failure.reason())], count);
            }
        }
    }),
    ("histogram", "tidegate_store_duration_seconds", "Time of a question to the store.", |scrape, page| {
        page.histogram(&[], &scrape.total.store_seconds);
    }),
    ("gauge", "tidegate_connections", "Client connections.", |scrape, page| {
        let http2 = scrape.total.http2;
        page.sample(&[("protocol", "http1")], &scrape.now.connections.saturating_sub(http2));
        page.sample(&[("protocol", "http2")], &http2);
    }),
    ("counter", "tidegate_received_bytes_total", "Bytes that clients sent.", |scrape, page| page.number(&scrape.total.received)),
    ("counter", "tidegate_sent_bytes_total", "Bytes that clients were sent.", |scrape, page| page.number(&scrape.total.sent)),
    ("gauge", "tidegate_limit_rate", "Tokens a second, as the file has it.", |scrape, page| {
        for LimitFigures { limit, rate, .. } in &scrape.now.limits {
            if let Some(rate) = rate {
                page.sample(&[("limit", limit)], &number(*rate));
            }
        }
    }),
    ("gauge", "tidegate_limit_burst", "The most that passes at once.", |scrape, page| {
        for LimitFigures { limit, burst, .. } in &scrape.now.limits {
            let burst = burst.map_or(f64::INFINITY, |burst| burst as f64);
            page.sample(&[("limit", limit)], &number(burst));
        }
    }),
    ("gauge", "tidegate_throttled_keys", "Keys that were rejected in the last summary interval.", |scrape, page| {
        for LimitFigures { limit, throttled_keys, .. } in &scrape.now.limits {
            page.sample(&[("limit", limit)], throttled_keys);
        }
    }),
    ("counter", "tidegate_upstream_retries_total", "Further tries of requests.", |scrape, page| {
        for (upstream, retries) in &scrape.now.retries {
            page.sample(&[("upstream", upstream)], retries);
        }
    }),
    ("counter", "tidegate_store_errors_total", "Errors of Redis by their kind.", |scrape, page| {
        for (kind, count) in &scrape.now.store_errors {
            page.sample(&[("kind", kind)], count);
        }
    }),
    ("gauge", "tidegate_store_up", "Whether the store answers.", |scrape, page| page.number(&u8::from(scrape.now.store_up))),
    ("gauge", "tidegate_waiting", "Requests that are held by a limit.", |scrape, page| page.number(&scrape.now.waiting)),
    ("gauge", "tidegate_upstream_up", "Whether requests are sent to a server.", |scrape, page| {
        for gauge in &scrape.now.servers {
            page.sample(&[("upstream", gauge.upstream), ("server", gauge.server)], &u8::from(gauge.up));
        }
    }),
    ("counter", "tidegate_malformed_requests_total", "Connections that said what is no request.", |scrape, page| page.number(&scrape.now.malformed)),
    ("gauge", "tidegate_memory_keys", "Buckets in this process's memory.", |scrape, page| page.number(&scrape.now.memory_keys)),
    ("counter", "tidegate_shared_decisions_total", "Decisions by a bucket that new keys share, the memory being full.", |scrape, page| page.number(&scrape.now.shared_decisions)),
    ("counter", "tidegate_forgotten_total", "Buckets that were forgotten before they were full, the memory being full.", |scrape, page| page.number(&scrape.now.forgotten)),
    ("counter", "tidegate_without_redis_total", "Requests that Redis did not decide on.", |scrape, page| {
        page.sample(&[("answer", "decided")], &scrape.now.decided_without);
        page.sample(&[("answer", "refused")], &scrape.now.refused_without);
    }),
    ("counter", "tidegate_unsettled_total", "Settlements of costs that did not reach Redis.", |scrape, page| page.number(&scrape.now.unsettled)),
    ("counter", "tidegate_log_dropped_total", "Log lines that were dropped.", |scrape, page| page.number(&scrape.now.log_dropped)),
    ("gauge", "tidegate_config_last_reload_successful", "Whether the configuration file was right when it was last read.", |scrape, page| page.number(&u8::from(scrape.now.reload_successful))),
    ("gauge", "tidegate_config_last_reload_success_timestamp_seconds", "When a configuration last came in force, in seconds since 1970.", |scrape, page| page.number(&scrape.now.reload_success_time)),
    ("gauge", "tidegate_build_info", "The version that runs.", |scrape, page| page.sample(&[("version", scrape.now.version)], &1)),
];

/// The page of a scrape.
pub(super) fn page(scrape: &Scrape<'_>) -> String {
    let mut page = Page::default();
    for (kind, name, help, samples) in FAMILIES {
        page.family(kind, name, help);
        samples(scrape, &mut page);
    }
    process::write(&mut page);
    page.finish()
}

/// A number as Prometheus writes it.
fn number(number: f64) -> String {
    match number.is_infinite() {
        true => "+Inf".to_owned(),
        false => number.to_string(),
    }
}
