//! What a candidate would have rejected, as a person reads it.

use serde_json::Value;

use crate::cli::admin::time;
use crate::replay::report::{counted, number, percent, share};

/// The `candidate` of a limit in `/api/status`, in words. What matters most comes first. `None`
/// if the limit has no candidate.
pub(super) fn sentence(candidate: &Value) -> Option<String> {
    let figures = candidate["figures"].as_str()?;
    let since = time(&candidate["since_ms"]);
    Some(match candidate["requests"].as_u64() {
        Some(1..) => format!(
            "would have rejected {} of requests, {} of {} (the limit {}, {}) with {figures} in {since}",
            rejected(candidate, "rejected"),
            number(count(candidate, "keys_rejected")),
            counted(count(candidate, "keys"), "key"),
            rejected(candidate, "limit_rejected"),
            counted(count(candidate, "limit_keys_rejected"), "key"),
        ),
        _ if figures == "unlimited" => "would reject nothing: it is unlimited".to_owned(),
        _ => format!("has seen no request with {figures} in {since}"),
    })
}

/// The share of the requests that the candidate would have rejected, or that its limit rejected.
fn rejected(candidate: &Value, by: &str) -> String {
    percent(share(count(candidate, by), count(candidate, "requests")))
}

fn count(candidate: &Value, name: &str) -> u64 {
    candidate[name].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_candidate_speaks() {
        let mut candidate = json!({
            "figures": "50/s, burst 60", "since_ms": 7_205_000, "requests": 20_000,
            "rejected": 80, "rejected_percent": 0.4, "keys": 1_753, "keys_rejected": 3,
            "limit_rejected": 0, "limit_rejected_percent": 0.0, "limit_keys_rejected": 1,
        });
        assert_eq!(
            sentence(&candidate).unwrap(),
            "would have rejected 0.4 % of requests, 3 of 1,753 keys (the limit 0 %, 1 key) with \
             50/s, burst 60 in 2h"
        );
        candidate["rejected"] = 11_429.into();
        assert!(sentence(&candidate).unwrap().contains(" rejected 57 % of requests"));
        candidate["rejected"] = 1.into();
        assert!(sentence(&candidate).unwrap().contains(" rejected 0.005 % of requests"));
        candidate["requests"] = 0.into();
        assert_eq!(sentence(&candidate).unwrap(), "has seen no request with 50/s, burst 60 in 2h");
        candidate["figures"] = "unlimited".into();
        assert_eq!(sentence(&candidate).unwrap(), "would reject nothing: it is unlimited");
        assert_eq!(sentence(&Value::Null), None);
    }
}
