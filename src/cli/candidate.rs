//! What a candidate would have rejected, as a person reads it.

use serde_json::Value;

use super::limits::{text, time};

/// The `candidate` of a limit in `/api/status`, in words. What matters most comes first. `None` where the limit has no candidate.
pub(super) fn sentence(candidate: &Value) -> Option<String> {
    let figures = candidate["figures"].as_str()?;
    let since = time(&candidate["since_ms"]);
    Some(match candidate["requests"].as_u64() {
        Some(1..) => format!(
            "would have rejected {} of requests, {} of {} (the limit {}, {}) with {figures} in {since}",
            percent(candidate, ""),
            grouped(&candidate["keys_rejected"]),
            keys(&candidate["keys"]),
            percent(candidate, "limit_"),
            keys(&candidate["limit_keys_rejected"]),
        ),
        _ if figures == "unlimited" => "would reject nothing: it is unlimited".to_owned(),
        _ => format!("has seen no request with {figures} in {since}"),
    })
}

/// The share of the requests that the candidate would have rejected, or that its limit rejected.
fn percent(candidate: &Value, whose: &str) -> String {
    let of = |name: &str| &candidate[format!("{whose}{name}")];
    match (of("rejected").as_u64(), of("rejected_percent").as_f64()) {
        (Some(1..), Some(0.0)) => "less than 0.001 %".to_owned(),
        (_, Some(percent)) if percent >= 1.0 => format!("{} %", (percent * 10.0).round() / 10.0),
        (_, Some(percent)) => format!("{percent} %"),
        (_, None) => "-".to_owned(),
    }
}

/// For example `1,753 keys`.
fn keys(count: &Value) -> String {
    format!("{} {}", grouped(count), if *count == 1 { "key" } else { "keys" })
}

/// A number with a comma between its thousands.
fn grouped(number: &Value) -> String {
    let digits = text(number);
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
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
        candidate["rejected_percent"] = 57.143.into();
        assert!(sentence(&candidate).unwrap().contains(" rejected 57.1 % of requests"));
        candidate["rejected_percent"] = 0.0.into();
        assert!(sentence(&candidate).unwrap().contains(" rejected less than 0.001 % of requests"));
        candidate["requests"] = 0.into();
        assert_eq!(sentence(&candidate).unwrap(), "has seen no request with 50/s, burst 60 in 2h");
        candidate["figures"] = "unlimited".into();
        assert_eq!(sentence(&candidate).unwrap(), "would reject nothing: it is unlimited");
        assert_eq!(sentence(&Value::Null), None);
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(&json!(number)), text);
        }
    }
}
