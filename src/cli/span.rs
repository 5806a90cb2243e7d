//! Lengths of time, as tables and sentences show them.

use serde_json::Value;

/// Milliseconds as a person reads them: the two largest units, as in `1h59m`.
pub(super) fn time(value: &Value) -> String {
    let Some(millis) = value.as_u64() else { return "-".to_owned() };
    let seconds = millis / 1_000;
    let units = [(seconds / 86_400, 'd'), (seconds / 3_600 % 24, 'h'), (seconds / 60 % 60, 'm')];
    let units = units.into_iter().chain([(seconds % 60, 's')]).skip_while(|(count, _)| *count == 0);
    let text: String = units
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if text.is_empty() { format!("{millis}ms") } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::time;

    #[test]
    fn a_time_has_its_two_largest_units() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_999, "1s"),
            (59_000, "59s"),
            (60_000, "1m"),
            (7_199_000, "1h59m"),
            (7_205_000, "2h"),
            (90_061_000, "1d1h"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(time(&json!(millis)), text);
        }
        assert_eq!(time(&json!(null)), "-");
    }
}
