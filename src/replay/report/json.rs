//! A replay's report as JSON, for programs.

use serde_json::{Value, json};

use super::words::time;
use super::{Comparison, FileReport, Hit, HitEntry, LeftOut, LimitReport, Report, share};
use crate::limit::Mode;
use crate::replay::tally::LimitTally;
use crate::replay::timeline::{Slice, Timeline};

/// The report as one object.
pub(crate) fn json(report: &Report<'_>) -> Value {
    let Report { lines, span, now, against } = report;
    let examples: Vec<_> = lines
        .examples
        .iter()
        .map(|(file, line, why)| json!({ "file": file, "line": line, "reason": why }))
        .collect();
    let mut object = json!({
        "lines": {
            "read": lines.read,
            "no_request": lines.no_request,
            "broken": lines.broken,
            "broken_examples": examples,
            "steps_back": lines.order.steps_back,
            "late": lines.order.late,
            "furthest_back_ms": lines.order.furthest_back / 1_000,
        },
        "from": span.map(|(from, _)| iso(from)),
        "to": span.map(|(_, to)| iso(to)),
        "result": file(now),
    });
    if let Some((old, Comparison { newly, newly_hardest, no_longer })) = against {
        object["against"] = file(old);
        object["comparison"] = json!({
            "newly_hit_clients": newly,
            "newly_hit_hardest": newly_hardest.iter().map(entry).collect::<Vec<_>>(),
            "no_longer_hit_clients": no_longer,
        });
    }
    object
}

fn file(report: &FileReport<'_>) -> Value {
    let tally = report.tally;
    let bad = tally.bad.iter().map(|(bad, count)| (bad.as_str().to_owned(), json!(count)));
    let routes = report.routes.iter().map(|(name, counts)| {
        let mut route = slice(counts);
        route["name"] = json!(name);
        route
    });
    let mut object = slice(&tally.all);
    object["file"] = json!(report.file);
    object["rejected_share"] = json!(share(tally.all.rejected, tally.all.requests));
    object["undecided"] = json!(tally.undecided);
    object["bad_requests"] = Value::Object(bad.collect());
    object["clients"] = hit(&report.clients);
    object["limits"] = report.limits.iter().map(limit).collect();
    object["routes"] = routes.collect();
    object["left_out"] = report.left_out.iter().map(left_out).collect();
    object["timeline"] = timeline(&tally.timeline);
    object
}

fn limit(report: &LimitReport<'_>) -> Value {
    let LimitTally { spec, counts, longest_wait, .. } = report.tally;
    let mode = match spec.mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Candidate => "candidate",
    };
    let mut object = slice(counts);
    object["name"] = json!(spec.name.as_str());
    object["figures"] = json!(spec.figures.to_string());
    object["key"] = json!(report.key);
    object["mode"] = json!(mode);
    object["longest_wait_ms"] = json!(longest_wait.as_secs_f64() * 1_000.0);
    object["keys"] = hit(&report.keys);
    object["timeline"] = timeline(&report.timeline);
    object
}

fn hit(hit: &Hit) -> Value {
    json!({
        "seen": hit.seen,
        "untracked_requests": hit.untracked,
        "hit": hit.hit,
        "rejected": hit.rejected,
        "delayed": hit.delayed,
        "requests_of_rejected": hit.requests_of_rejected,
        "median_rejected_share": hit.median_share,
        "hardest": hit.hardest.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn entry(entry: &HitEntry) -> Value {
    let counts = entry.count.counts;
    let mut object = slice(&counts);
    object["name"] = json!(entry.name);
    object["rejected_share"] = json!(share(counts.rejected, counts.requests));
    object["first"] = json!(entry.count.hit.map(|(first, _)| iso(first)));
    object["last"] = json!(entry.count.hit.map(|(_, last)| iso(last)));
    object
}

fn left_out(left_out: &LeftOut<'_>) -> Value {
    let LeftOut { what, name, fact, requests } = left_out;
    json!({ "what": what, "name": name, "fact": fact.to_string(), "requests": requests })
}

fn timeline(timeline: &Timeline) -> Value {
    let column = |of: fn(&Slice) -> u64| timeline.slices.iter().map(of).collect::<Vec<_>>();
    json!({
        "from": timeline.start.map(iso),
        "slice_ms": timeline.width / 1_000,
        "requests": column(|slice| slice.requests),
        "delayed": column(|slice| slice.delayed),
        "rejected": column(|slice| slice.rejected),
    })
}

fn slice(slice: &Slice) -> Value {
    json!({ "requests": slice.requests, "delayed": slice.delayed, "rejected": slice.rejected })
}

fn iso(at: crate::limit::time::Timestamp) -> String {
    format!("{}Z", time(at).replace(' ', "T"))
}
