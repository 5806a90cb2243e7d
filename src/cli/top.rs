//! `tidegate top`: the status of a running proxy, or of all processes that share its store, as text: once or again
//! each second.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};

use super::admin::{AdminClient, list, table, text, time};
use super::{CommandResult, Failure, print, terminal};
use crate::observe::log::Terminal;
use crate::replay::report::printable;

/// The time between two questions.
const PERIOD: Duration = Duration::from_secs(1);

/// Watch a running proxy: its limits with their decisions a second, the keys that are rejected most, the upstreams'
/// servers, and the store.
///
/// With --fleet, watch all processes that share its store: the sums, each process, and the keys that are rejected most
/// over all of them. A process with another configuration file or another version than most of them is marked.
///
/// In a terminal it shows the present figures each second, until Ctrl-C. Otherwise it prints them once.
#[derive(Args, Clone, Debug)]
pub(super) struct Top {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen. Its token is the
    /// environment's TIDEGATE_ADMIN_TOKEN, or else the file's
    url: Option<String>,
    /// Show all processes that share the store with this proxy
    #[arg(long)]
    fleet: bool,
    /// Print the endpoint's /api/status once, or with --fleet its /api/fleet
    #[arg(long)]
    json: bool,
    /// The configuration file, by default proxy.toml; with a URL, it is read only for its token
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn top(top: &Top) -> CommandResult {
    let client = AdminClient::new(top.url.as_deref(), top.config.as_deref())?;
    let (path, member, page): (_, _, fn(&str, &Value, usize) -> String) = match top.fleet {
        true => ("/api/fleet", "processes", fleet_page),
        false => ("/api/status", "limits", status_page),
    };
    // If the endpoint does not answer the first question, the command fails. Later it asks again.
    let mut answer = client.get(path, member)?;
    if top.json {
        return print(answer);
    }
    let at = &client.authority;
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if terminal(&io::stdout()) == Terminal::None || is_dumb {
        return print(page(at, &answer, usize::MAX));
    }
    let mut away = None;
    loop {
        let failed = |error| Failure::run(format!("cannot use the terminal: {error}"));
        draw(away.as_deref(), |most| page(at, &answer, most)).map_err(failed)?;
        sleep(PERIOD);
        match client.get(path, member) {
            Ok(new) => (answer, away) = (new, None),
            Err(failure) => away = failure.message,
        }
    }
}

/// Draws a page in the place of the last one. `away` says why there is no newer answer. `page` is told how many rows a
/// table may have.
fn draw(away: Option<&str>, page: impl Fn(usize) -> String) -> io::Result<()> {
    let size = tcgetwinsize(io::stdout())?;
    // A terminal with an unknown size has the size 0.
    let (width, height) = match (size.ws_col, size.ws_row) {
        (0, _) | (_, 0 | 1) => (80, 24),
        (width, height) => (usize::from(width), usize::from(height)),
    };
    let away = away.map(|away| format!("{away}; trying again\n")).unwrap_or_default();
    let text = away + &page(height / 4);
    let mut out = io::stdout().lock();
    // The terminal shows at once what is between the first and the last sequence.
    write!(out, "\x1b[?2026h\x1b[H\x1b[J")?;
    // The terminal wraps a long line.
    let mut room = (height - 1) * width;
    for line in text.lines() {
        let shown: String = line.chars().take(room).collect();
        room -= shown.chars().count().max(1).next_multiple_of(width);
        write!(out, "{shown}\r\n")?;
        if room == 0 {
            break;
        }
    }
    write!(out, "\x1b[?2026l")?;
    out.flush()
}

const REQUESTS: &str = "requests/s = /per_second, rejected/s = /rejected_per_second, \
    refused/s = /refused_per_second, failed/s = /failed_per_second, waiting = /waiting";
const LIMITS: &str = "limit = /name, rejected/s = /rejected_per_second, refused/s = /refused_per_second, \
    allowed/s = /allowed_per_second, held/s = /delayed_per_second, shadowed/s = /shadow_per_second, \
    marked/s = /marked_per_second, rate = /rate";
const PLANS: &str = "limit = /name, its plans = /plans";
const ROUTES: &str = "route = /name, requests/s = /per_second, rejected/s = /rejected_per_second, \
    held/s = /delayed_per_second, 4xx/s = /statuses_per_second/4xx, 5xx/s = /statuses_per_second/5xx";
const SERVERS: &str = "upstream = /of, server = /it/url, up = /it/up, since = /it/since, \
    requests = /it/requests_total, 5xx = /it/answers_5xx_total, in flight = /it/in_flight, \
    retries = /it/retries_total, errors = /it/errors, check passed = /it/last_check/passed";
const QUEUES: &str = "upstream = /name, limit = /overload/limit, in flight = /overload/in_flight, \
    waiting = /overload/waiting, refused/s = /overload/refused_per_second, slow % = /overload/slow_percent, \
    goal ms = /overload/goal_ms, times = /overload/goal_times, refused most = /overload/refused/0/key";
const PROCESSES: &str = "process = /name, requests/s = /requests_per_second, rejected/s = /rejected_per_second, \
    requests = /requests, store up = /store, since = /since, version = /version, file = /config_version, \
    mark = /marks";
const REJECTED: &str = "limit = /limit, key rejected most = /key, rejected/s = /per_second, rejected = /count, \
    processes = /processes, name = /name";
const STORES: &str = "store = /name, up = /up, for = /since_ms, p50 ms = /p50_ms, p99 ms = /p99_ms, \
    errors = /errors";

/// The status as text. Each table has at most `most` rows, the busiest first.
fn status_page(at: &str, status: &Value, most: usize) -> String {
    let config = &status["config"];
    let mut page = format!(
        "tidegate {} on {} at {at}, up {}, configuration {} since {}\n",
        text(&status["version"]),
        text(&status["host"]),
        time(&status["uptime_ms"]),
        text(&config["version"]),
        text(&config["since"])
    );
    for alarm in list(status, "alarms") {
        let texts = ["what", "since", "means", "do"].map(|name| text(&alarm[name]));
        let [what, since, means, todo] = texts;
        page += &format!("{what} since {since}. {means} {todo}\n");
    }
    page += &text(&status["summary"]);

    let mut limits = list(status, "limits").to_vec();
    busiest_first(&mut limits, "/rejected_per_second");
    for limit in &mut limits {
        if let Some(rate) = limit["override"]["rate"].as_str() {
            limit["rate"] = format!("{rate} for all keys").into();
        }
    }
    let plans = limits.iter().filter(|limit| limit["plans"].is_object()).cloned().collect();
    let mut rejected = of_each(&limits, "rejected_keys");
    busiest_first(&mut rejected, "/it/per_second");
    let mut routes = list(status, "routes").to_vec();
    routes.retain(|route| route["total"] != 0);
    busiest_first(&mut routes, "/per_second");
    let servers = of_each(list(status, "upstreams"), "servers");
    let mut store = status["store"].clone();
    store["name"] = store["location"].take();
    let stores = [&[store.clone()], list(&store, "servers")].concat();
    let rejected_keys = format!(
        "limit = /of, key rejected most = /it/key, rejected/s = /it/per_second, \
         rejected in {} = /it/count, at most over = /it/at_most_over, name = /it/name",
        time(&status["rejected_keys_window_ms"])
    );
    let mut queues = list(status, "upstreams").to_vec();
    queues.retain(|upstream| upstream["overload"].is_object());
    let tables = [
        (REQUESTS, vec![status["requests"].clone()]),
        (LIMITS, limits),
        (PLANS, plans),
        (&*rejected_keys, rejected),
        (ROUTES, routes),
        (SERVERS, servers),
        (QUEUES, queues),
        (STORES, stores),
    ];
    for (columns, values) in tables {
        page += &busiest(columns, values, most);
    }
    page
}

/// A table with an empty line before it. Nothing if it has no rows.
fn busiest(columns: &str, mut values: Vec<Value>, most: usize) -> String {
    values.truncate(most.max(1));
    if values.is_empty() { String::new() } else { format!("\n\n{}", table(columns, &values)) }
}

/// All processes have a row. The sums are above them, where a small terminal shows them too.
fn fleet_page(at: &str, fleet: &Value, most: usize) -> String {
    let mut sums = fleet["sums"].clone();
    sums["name"] = "all".into();
    let mut rows = vec![sums];
    for process in list(fleet, "processes") {
        let marks = [
            (process["here"] == true, "this one"),
            (process["requests"].is_null(), "no answer"),
            (process["odd_config"] == true, "other file"),
            (process["odd_version"] == true, "other version"),
        ];
        let mut row = process.clone();
        row["marks"] = marks.iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| *mark).collect();
        rows.push(row);
    }
    let mut page = format!("tidegate at {at}, processes that share its store: {}", rows.len() - 1);
    if let Some(note) = fleet["note"].as_str() {
        page += &format!("\n{}", printable(note));
    }
    let mut rejected = list(fleet, "rejected").to_vec();
    busiest_first(&mut rejected, "/per_second");
    page + &busiest(PROCESSES, rows, usize::MAX) + &busiest(REJECTED, rejected, most)
}

/// The members of a list of each value, each with the value's name.
fn of_each(values: &[Value], name: &str) -> Vec<Value> {
    let of = |value: &Value| -> Vec<Value> {
        list(value, name).iter().map(|it| json!({ "of": value["name"], "it": it })).collect()
    };
    values.iter().flat_map(of).collect()
}

/// Sorts by this member. Values that are equal stay in their order.
fn busiest_first(values: &mut [Value], member: &str) {
    let number = |value: &Value| value.pointer(member).and_then(Value::as_f64).unwrap_or_default();
    values.sort_by(|a, b| number(b).total_cmp(&number(a)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, rejected: f64) -> Value {
        json!({
            "name": name, "rate": "100/s", "allowed_per_second": 95.0, "delayed_per_second": 0.0,
            "rejected_per_second": rejected, "shadow_per_second": 0.0, "marked_per_second": 0.0,
            "refused_per_second": 0.5,
            "rejected_keys": [
                { "key": "203.0.113.7", "count": 1_234, "at_most_over": 5, "per_second": 0.0 },
                { "key": "198.51.100.9", "count": 40, "at_most_over": 0, "per_second": 8.5 },
            ],
        })
    }

    fn route(name: &str, requests: u32) -> Value {
        let per_second = f64::from(requests);
        json!({
            "name": name, "total": requests, "per_second": per_second, "delayed_per_second": 0.0,
            "rejected_per_second": per_second / 10.0,
            "statuses_per_second": { "2xx": per_second, "4xx": per_second / 10.0, "5xx": 0.0 },
        })
    }

    fn status() -> Value {
        json!({
            "version": "1.2.3", "host": "edge-1", "uptime_ms": 7_200_000, "alarms": [],
            "summary": "Rejecting now: per-client.",
            "config": { "version": 2, "since": "2026-01-02T03:04:05Z" },
            "requests": {
                "per_second": 123.4, "rejected_per_second": 12.3, "refused_per_second": 0.0,
                "failed_per_second": 0.0, "waiting": 2,
            },
            "store": {
                "location": "redis://10.0.0.1:6379", "up": true, "since_ms": 60_000, "p50_ms": 0.4,
                "p99_ms": null, "errors": { "timeout": 1, "other": 2 }, "servers": [],
            },
            "routes": [route("/quiet", 0), route("/slow", 3), route("/users/{id}", 120)],
            "rejected_keys_window_ms": 300_000,
            "limits": [limit("everyone", 0.0), limit("per-client", 12.0)],
            "upstreams": [{ "name": "api", "servers": [
                { "url": "http://10.0.0.2:3000", "up": true, "in_flight": 4, "retries_total": 1,
                  "requests_total": 900, "answers_5xx_total": 0, "since": "2026-01-02T03:04:05Z",
                  "errors": {}, "last_check": null },
                { "url": "http://10.0.0.3:3000", "up": false, "in_flight": 0, "retries_total": 9,
                  "requests_total": 80, "answers_5xx_total": 7, "since": "2026-01-02T04:04:05Z",
                  "errors": { "connect": 9, "timeout": 1 },
                  "last_check": { "passed": false, "time": "2026-01-02T05:04:05Z" } },
            ] }],
        })
    }

    #[test]
    fn what_is_busiest_comes_first() {
        let shown = status_page("127.0.0.1:9090", &status(), usize::MAX);
        let expected = "\
tidegate 1.2.3 on edge-1 at 127.0.0.1:9090, up 2h, configuration 2 since 2026-01-02T03:04:05Z
Rejecting now: per-client.

requests/s  rejected/s  refused/s  failed/s  waiting
123         12.3        0.0        0.0       2

limit       rejected/s  refused/s  allowed/s  held/s  shadowed/s  marked/s  rate
per-client  12.0        0.5        95.0       0.0     0.0         0.0       100/s
everyone    0.0         0.5        95.0       0.0     0.0         0.0       100/s

limit       key rejected most  rejected/s  rejected in 5m  at most over  name
per-client  198.51.100.9       8.5         40              0             -
everyone    198.51.100.9       8.5         40              0             -
per-client  203.0.113.7        0.0         1234            5             -
everyone    203.0.113.7        0.0         1234            5             -

route        requests/s  rejected/s  held/s  4xx/s  5xx/s
/users/{id}  120         12.0        0.0     12.0   0.0
/slow        3.0         0.3         0.0     0.3    0.0

upstream  server                up   since                 requests  5xx  in flight  retries  errors                check passed
api       http://10.0.0.2:3000  yes  2026-01-02T03:04:05Z  900       0    4          1        -                     -
api       http://10.0.0.3:3000  no   2026-01-02T04:04:05Z  80        7    0          9        connect 9, timeout 1  no

store                  up   for  p50 ms  p99 ms  errors
redis://10.0.0.1:6379  yes  1m   0.4     -       other 2, timeout 1";
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn each_process_stands_below_the_sums() {
        let process = |name: &str, requests: Value| {
            let rate = requests.as_f64().map(|it| it / 10.0);
            let is_here = requests == 10;
            json!({
                "name": name, "version": "1.2.3", "config_version": "0a1b2c", "here": is_here,
                "since": is_here.then_some("2026-01-02T03:04:05Z"), "store": is_here.then_some(true),
                "requests": requests, "requests_per_second": rate, "rejected_per_second": rate,
                "odd_config": false, "odd_version": !is_here,
            })
        };
        let key = |key: &str, per_second: f64| {
            json!({
                "limit": "per-client", "key": key, "name": null, "count": 40, "per_second": per_second, "processes": 2,
            })
        };
        let fleet = json!({
            "processes": [process("edge-1:7", 10.into()), process("edge-2:7", Value::Null)],
            "sums": { "requests": 10, "requests_per_second": 1.0, "rejected_per_second": 1.0 },
            "rejected": [key("a", 0.5), key(&"b".repeat(100_000), 0.1), key("c\u{1b}[2J", 2.5)],
            "note": "no answer within a second from edge-2:7",
        });
        let shown = fleet_page("127.0.0.1:9090", &fleet, 2);
        let expected = "\
tidegate at 127.0.0.1:9090, processes that share its store: 2
no answer within a second from edge-2:7

process   requests/s  rejected/s  requests  store up  since                 version  file    mark
all       1.0         1.0         10        -         -                     -        -       -
edge-1:7  1.0         1.0         10        yes       2026-01-02T03:04:05Z  1.2.3    0a1b2c  this one
edge-2:7  -           -           -         -         -                     1.2.3    0a1b2c  no answer, other version

limit       key rejected most  rejected/s  rejected  processes  name
per-client  c·[2J              2.5         40        2          -
per-client  a                  0.5         40        2          -";
        assert_eq!(shown, expected, "\n{shown}");
        let all = fleet_page("", &fleet, usize::MAX);
        assert!(
            all.ends_with(&format!("{}…  0.1         40        2          -", "b".repeat(1_000)))
        );
    }

    #[test]
    fn plans_stand_beside_their_limit() {
        let mut status = status();
        status["limits"][0]["plans"] = json!({ "pro": "5/h", "team": "9/h" });
        let shown = status_page("", &status, usize::MAX);
        let table = "\nlimit     its plans\neveryone  pro 5/h, team 9/h\n";
        assert!(shown.contains(table), "{shown}");
    }

    #[test]
    fn alarms_say_what_to_do_and_keys_move_no_cursor() {
        let mut status = status();
        let alarm = |what: &str, since: &str| json!({ "what": what, "since": since, "means": "It is bad.", "do": "Mend it." });
        status["alarms"] = json!([
            alarm("API down: requests to it get 502", "2026-01-02T03:05:00Z"),
            alarm("This process is ending", "2026-01-02T04:05:00Z"),
        ]);
        status["limits"][0]["rejected_keys"][1]["key"] = "a\u{1b}[2J\u{202e}".into();
        let shown = status_page("", &status, 1);
        let expected = "
API down: requests to it get 502 since 2026-01-02T03:05:00Z. It is bad. Mend it.
This process is ending since 2026-01-02T04:05:00Z. It is bad. Mend it.
Rejecting now: per-client.\n";
        assert!(shown.contains(expected), "{shown}");
        assert!(!shown.contains("everyone    0.0"), "one row of each table: {shown}");
        let shown = status_page("", &status, 2);
        assert!(shown.contains("everyone    a·[2J·"), "{shown}");
    }
}
