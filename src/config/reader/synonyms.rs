//! Words of other programs, and the words of the file for them.

/// Words of the file, each with the words of other programs for it.
#[rustfmt::skip]
const WORDS: [(&str, &[&str]); 12] = [
    ("shadow", &["dryrun", "monitor", "monitoring", "logonly", "log", "report", "reportonly", "observe", "audit", "detect", "test"]),
    ("enforce", &["on", "enabled", "active", "block", "live", "deny"]),
    ("off", &["disabled", "none", "inactive", "false"]),
    ("token-bucket", &["gcra", "bucket"]),
    ("fixed-window", &["window", "quota", "counter"]),
    ("sliding-window", &["sliding", "slidingwindowcounter", "rolling", "rollingwindow"]),
    ("sliding-log", &["slidingwindowlog", "log"]),
    ("concurrency", &["semaphore", "inflight", "connections", "limitconn", "bulkhead"]),
    ("least-requests", &["leastconn", "leastconnections", "p2c", "random"]),
    ("hash", &["iphash", "maglev", "ringhash", "source", "sticky"]),
    ("allow", &["failopen", "open", "pass"]),
    ("reject", &["failclosed", "closed", "deny", "fail", "block"]),
];

/// The word of `known` that another program calls `text`.
pub(super) fn word(text: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let plain = text.to_lowercase().replace(['-', '_', ' '], "");
    let mut known = known.filter_map(|word| WORDS.iter().find(|(ours, _)| *ours == word));
    known.find(|(_, theirs)| theirs.contains(&plain.as_str())).map(|(ours, _)| *ours)
}
