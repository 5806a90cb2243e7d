//! A replay says of each request what a running proxy says of it. The proxy here is a real worker, over real
//! sockets, whose time the test's runtime moves.

use std::collections::HashMap;
use std::fmt::Debug;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderName, StatusCode};
use proptest::prelude::*;
use proptest::sample;
use tidegate::clock::Clock;
use tidegate::config::{self, Overrides};
use tidegate::downstream::Port;
use tidegate::limit::decision::Verdict;
use tidegate::limit::time::Timestamp;
use tidegate::replay::judge::Judge;
use tidegate::replay::log::{
    ClientOrigin, Format, LogInput, LogRecord, Logged, LoggedCounts, LoggedHeaders, SortedLogs,
};
use tidegate::settings::{Action, Settings};
use tidegate::upstream::health::UpstreamState;
use tidegate::worker::{self, Orders, Published};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::limits::names;
use crate::support::worker::process;

/// When the first request comes: some time in 2026, on no border of a window.
const BEGIN: u64 = 1_790_000_123_456_000;

/// One request of a random log.
#[derive(Clone, Debug)]
struct Sent {
    /// Since the request before, in milliseconds.
    gap: u64,
    client: Ipv4Addr,
    method: &'static str,
    path: String,
    /// Headers beside `x-plan` and `x-cost`.
    more: &'static [(&'static str, &'static str)],
    /// The value of `x-plan`. `None` without the header.
    plan: Option<u8>,
    cost: u8,
    status: u16,
    bytes: u16,
    /// How long the API takes, in milliseconds.
    lasts: u64,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// It passed, and its answer was there after so many milliseconds.
    Passed { after: u128 },
    /// It was rejected with this `retry-after`.
    Rejected { retry_after: Option<u64> },
    /// It was refused as a bad request.
    Bad,
}

impl Sent {
    fn client(&self) -> IpAddr {
        IpAddr::V4(self.client)
    }

    /// The request's headers, by the names that the limits read.
    fn headers(&self) -> Vec<(HeaderName, Option<String>)> {
        vec![
            (HeaderName::from_static("x-plan"), self.plan.map(|plan| format!("plan-{plan}"))),
            (HeaderName::from_static("x-cost"), Some(self.cost.to_string())),
        ]
    }

    fn head(&self) -> String {
        let mut head =
            format!("{} {}?page=2 HTTP/1.1\r\nhost: api.example\r\n", self.method, self.path);
        for (name, value) in self.headers() {
            if let Some(value) = value {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        for (name, value) in self.more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let Self { status, bytes, lasts, .. } = self;
        head + &format!("x-answer: {status} {bytes} {lasts}\r\nconnection: close\r\n")
    }

    fn record(&self, time: Timestamp) -> LogRecord {
        let mut headers = LoggedHeaders::default();
        for (name, value) in self.headers() {
            let value = value.map_or(Logged::Absent, Logged::Value);
            headers.push(name.to_string(), value);
        }
        for (name, value) in self.more {
            headers.push((*name).into(), Logged::Value((*value).into()));
        }
        headers.are_all();
        LogRecord {
            user: Logged::Unknown,
            time,
            client: Some(self.client()),
            client_is: ClientOrigin::Peer,
            method: self.method.into(),
            path: self.path.clone(),
            query: Logged::Value("page=2".into()),
            host: Logged::Value("api.example".into()),
            headers,
            status: Some(StatusCode::from_u16(self.status).unwrap()),
            bytes: Some(self.bytes.into()),
            duration: Some(Duration::from_millis(self.lasts)),
            ..LogRecord::default()
        }
    }
}

/// The limits are those of every request, with a route or without. 127.0.1.3 is a trusted proxy.
fn settings(api: SocketAddr, limits: &str) -> Settings {
    let names = names(limits);
    let text = format!(
        "[log]\naccess = true\n[server]\nlimits = {names:?}\ntrusted_proxies = [\"127.0.1.3\"]\n\
         [upstreams.api]\nservers = [\"http://{api}\"]\n{limits}\n\
         [[routes]]\npath = \"/things/{{*rest}}\"\nupstream = \"api\"\n\
         [[routes]]\npath = \"/own\"\nrespond = {{ status = 401, body = \"twelve bytes\" }}\n\
         [[routes]]\npath = \"/posted\"\nmethods = [\"POST\"]\nupstream = \"api\"\n\
         [[routes]]\nname = \"vip\"\npath = \"/own\"\nheaders = {{ x-plan = \"plan-1\" }}\nrespond = {{ status = 200 }}\n"
    );
    let loaded = config::parse("proxy.toml", &text, &|_| None, &Overrides::default());
    loaded.unwrap_or_else(|problems| panic!("{text}\n{problems}")).settings
}

/// What a running proxy does, and what its access lines say that was counted.
fn run_and_log(limits: &str, log: &[Sent]) -> (Vec<Came>, Vec<AccessLine>) {
    let lines = AccessLines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let came = tracing::subscriber::with_default(subscriber, || run(limits, log));
    let mut lines = mem::take(&mut *lines.0.lock().unwrap());
    let line =
        |number: usize| lines.remove(&number.to_string()).expect("each request has its line");
    (came, (0..log.len()).map(line).collect())
}

/// The client of an access line, and what was counted.
type AccessLine = (IpAddr, LoggedCounts);

/// The access lines by their `user_agent`.
#[derive(Clone, Default)]
struct AccessLines(Arc<Mutex<HashMap<String, AccessLine>>>);

impl<S: Subscriber> Layer<S> for AccessLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if event.metadata().target() == "tidegate::access" {
            let mut fields = Fields(HashMap::new());
            event.record(&mut fields);
            let object = |name: &str| fields.0.get(name).map_or("{}", |it| it);
            let text = |name: &str| fields.0.get(name).cloned();
            let counts = LoggedCounts {
                keys: serde_json::from_str(object("keys")).unwrap(),
                costs: serde_json::from_str(object("costs")).unwrap(),
                ..LoggedCounts::default()
            };
            let counts = LoggedCounts { plan: text("plan"), reason: text("reason"), ..counts };
            let client = text("client").unwrap().parse().unwrap();
            self.0.lock().unwrap().insert(text("user_agent").unwrap(), (client, counts));
        }
    }
}

struct Fields(HashMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

/// What a running proxy does.
fn run(limits: &str, log: &[Sent]) -> Vec<Came> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let (api, api_address) = listener();
        let (proxy, address) = listener();
        tokio::spawn(answer(api));
        let settings = settings(api_address, limits);
        let clock = Clock::starting_at(Timestamp::from_micros(BEGIN).unwrap());
        let process = process(&settings, clock);
        let upstreams = vec![Arc::new(UpstreamState::new(&settings.upstreams[0], None))];
        let published = Published {
            settings: Arc::new(settings),
            upstreams,
            keys: Vec::new(),
            certificates: [None, None],
        };
        let (_published, orders) = watch::channel(Arc::new(published));
        let (_drain, draining) = watch::channel(false);
        let (_end, stop) = watch::channel(false);
        let orders = Orders { published: orders, draining, stop };
        let begin = Instant::now();
        spawn_local(worker::run(0, vec![(proxy.into(), Port::Plain)], Arc::new(process), orders));
        let (mut at, mut all) = (begin, Vec::new());
        for (number, sent) in log.iter().enumerate() {
            at += Duration::from_millis(sent.gap);
            // The runtime's time moves when nobody has anything to do: all that came before is decided.
            sleep_until(at).await;
            all.push(tokio::spawn(ask(address, sent.clone(), number)));
        }
        let mut came = Vec::new();
        for asked in all {
            came.push(asked.await.unwrap());
        }
        // The proxy ends its records.
        sleep(Duration::from_secs(1)).await;
        came
    })
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn ask(address: SocketAddr, sent: Sent, number: usize) -> Came {
    let began = Instant::now();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(sent.client(), 0)).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let head = format!("{}user-agent: {number}\r\n\r\n", sent.head());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let retry_after = answer.lines().find_map(|line| line.strip_prefix("retry-after: "));
    match &answer[9..12] {
        "429" => Came::Rejected { retry_after: retry_after.map(|it| it.parse().unwrap()) },
        "400" => Came::Bad,
        _ => Came::Passed { after: began.elapsed().as_millis() },
    }
}

/// An API that answers as `x-answer` says: the status, the bytes, and the milliseconds that it takes.
async fn answer(listener: TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve(stream));
    }
}

async fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        let wanted = text.lines().find_map(|line| line.strip_prefix("x-answer: ")).unwrap();
        let mut numbers = wanted.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        let (status, bytes, lasts) = (next(), next(), next());
        sleep(Duration::from_millis(lasts)).await;
        let body = "x".repeat(usize::try_from(bytes).unwrap());
        let answer = format!("HTTP/1.1 {status} Any\r\ncontent-length: {bytes}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// What a replay says of the same requests, by all that they had.
fn replay(limits: &str, log: &[Sent]) -> Vec<Came> {
    replay_records(limits, log, |sent, now, _| sent.record(now))
}

/// What a replay says of the same requests, by what their access lines say. They have no header.
fn replay_of_own_log(limits: &str, log: &[Sent], lines: &[AccessLine]) -> Vec<Came> {
    replay_records(limits, log, |sent, now, number| {
        let (client, counts) = lines[number].clone();
        LogRecord {
            client: Some(client),
            client_is: ClientOrigin::Client,
            headers: LoggedHeaders::default(),
            query: Logged::Unknown,
            counted: Some(Box::new(counts)),
            ..sent.record(now)
        }
    })
}

fn replay_records(
    limits: &str,
    log: &[Sent],
    record: impl Fn(&Sent, Timestamp, usize) -> LogRecord,
) -> Vec<Came> {
    let settings = settings(SocketAddr::from(([127, 0, 0, 1], 1)), limits);
    let settings = tidegate::replay::with_hashed_overrides(settings);
    let mut judge = Judge::new(&settings, &[]);
    let mut now = Timestamp::from_micros(BEGIN).unwrap();
    let mut came = Vec::new();
    for (number, sent) in log.iter().enumerate() {
        now = now.plus(Duration::from_millis(sent.gap));
        let record = record(sent, now, number);
        let judged = judge.judge(&record);
        // A limit that its log does not tell applied to no request.
        assert!(judged.missing.is_empty() || record.counted.is_some(), "{:?}", judged.missing);
        came.push(match judged.answer {
            Err(_) => Came::Bad,
            Ok(answer) => match answer.verdict {
                Verdict::Pass { wait } => {
                    let route = judged.route.map(|route| &settings.routes[route].action);
                    let of_api = matches!(route, Some(Action::Forward { .. }));
                    let lasts = if of_api { u128::from(sent.lasts) } else { 0 };
                    Came::Passed { after: wait.as_millis() + lasts }
                }
                Verdict::Refuse { retry_after, .. } => Came::Rejected {
                    retry_after: retry_after
                        .map(|it| it.as_micros().div_ceil(1_000_000).max(1).try_into().unwrap()),
                },
            },
        });
    }
    came
}

/// Limits of every algorithm, and of every way to count. Their tokens come after whole milliseconds, since a
/// timer wakes at whole milliseconds.
const LIMITS: [(&str, &str); 16] = [
    ("token bucket", "rate = \"5/s\"\nburst = 3\n"),
    ("token bucket that waits", "rate = \"4/s\"\nburst = 2\nwait = \"700ms\"\nmax_waiting = 2\n"),
    ("leaky bucket", "algorithm = \"leaky-bucket\"\nrate = \"4/s\"\nqueue = 3\n"),
    ("fixed window", "algorithm = \"fixed-window\"\nrate = \"3/2s\"\n"),
    (
        "fixed window on the clock",
        "algorithm = \"fixed-window\"\nrate = \"3/2s\"\nalign = \"clock\"\n",
    ),
    ("calendar", "algorithm = \"fixed-window\"\nrate = \"5/month\"\nalign = \"clock\"\n"),
    ("sliding log", "algorithm = \"sliding-log\"\nrate = \"3/2s\"\n"),
    ("sliding log that waits", "algorithm = \"sliding-log\"\nrate = \"3/2s\"\nwait = \"1s\"\n"),
    ("sliding window", "algorithm = \"sliding-window\"\nrate = \"4/2s\"\n"),
    ("concurrency", "algorithm = \"concurrency\"\nlimit = 2\n"),
    ("failures alone", "rate = \"2/10s\"\ncount_when = { status = [\"401\", \"5xx\"] }\n"),
    (
        "bytes",
        "rate = \"1000/s\"\nburst = 2000\ncost = { response_bytes = true, estimate = 100 }\n",
    ),
    ("cost by header", "rate = \"10/s\"\nburst = 10\ncost = { header = \"x-cost\", max = 9 }\n"),
    (
        "overrides",
        "rate = \"2/s\"\noverrides = [{ key = [\"127.0.1.1\"], rate = \"10/s\" }, \
         { key = [\"127.0.1.2\"], rate = \"0/s\" }]\n",
    ),
    ("exempt", "rate = \"1/s\"\nexempt = { header = { x-plan = \"plan-1\" } }\n"),
    ("candidate", "rate = \"3/s\"\ncandidate = { rate = \"1/s\", burst = 5 }\n"),
];

fn sent() -> impl Strategy<Value = Sent> {
    // Requests at one millisecond would be decided in any order.
    let gap = prop_oneof![8 => 1_u64..60, 4 => 60_u64..900, 1 => 900_u64..20_000];
    let status = prop_oneof![Just(200), Just(401), Just(503)];
    let path = prop_oneof![
        6 => Just("/things/7"),
        1 => Just("/things//7/../%37"),
        1 => Just("/own"),
        1 => Just("/posted"),
        1 => Just("/nothing"),
        1 => Just("/things/a%2Fb"),
    ];
    let more: [&'static [(&str, &str)]; 7] = [
        &[],
        &[],
        &[("x_plan", "plan-2")],
        &[("x-plan", "plan-2")],
        &[("connection", "x-plan")],
        &[("x-forwarded-for", "192.0.2.1")],
        &[("x-forwarded-for", "192.0.2.7, 127.0.1.2")],
    ];
    let head =
        (prop_oneof![3 => Just("GET"), 1 => Just("POST")], path, sample::select(more.to_vec()));
    let plan = proptest::option::of(1_u8..3);
    (gap, 1_u8..4, plan, 0_u8..11, status, 0_u16..3_000, 0_u64..400, head).prop_map(
        |(gap, client, plan, cost, status, bytes, lasts, (method, path, more))| {
            // Nothing ends in the millisecond in which something else begins.
            let (gap, lasts) = (2 * gap, 2 * lasts + 1);
            let (client, path) = (Ipv4Addr::new(127, 0, 1, client), path.to_owned());
            Sent { gap, client, method, path, more, plan, cost, status, bytes, lasts }
        },
    )
}

/// The requests of a real log, each two milliseconds behind the one before at least. Each address stands for one of
/// this machine.
fn real_log() -> Vec<Sent> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/apache-access.log.gz");
    let inputs = [LogInput::File(file.into())];
    let mut logs = SortedLogs::open(&inputs, &"combined".parse::<Format>().unwrap()).unwrap();
    let (mut log, mut clients) = (Vec::new(), Vec::new());
    let mut before: Option<Timestamp> = None;
    while let Some(record) = logs.next_request().unwrap() {
        let record = record.unwrap();
        let address = record.client.unwrap();
        let known = clients.iter().position(|it| *it == address).unwrap_or_else(|| {
            clients.push(address);
            clients.len() - 1
        });
        let [.., high, low] = u32::try_from(known).unwrap().to_be_bytes();
        let gap = before.map_or(0, |before| record.time.micros_since(before) / 1_000);
        before = before.max(Some(record.time));
        log.push(Sent {
            gap: gap + 2,
            client: Ipv4Addr::new(127, 1, high, low),
            method: "GET",
            path: format!("/things{}", record.path),
            more: &[],
            plan: None,
            cost: 1,
            status: record.status.unwrap().as_u16().clamp(200, 299),
            bytes: 10,
            lasts: 1,
        });
    }
    log
}

#[test]
fn a_replay_of_a_real_log_agrees_with_a_running_proxy() {
    let log = real_log();
    assert_eq!(log.len(), 10_000);
    for (fields, rejected) in [
        ("rate = \"30/h\"\n", 456),
        ("algorithm = \"fixed-window\"\nrate = \"30/30d\"\n", 2_160),
        ("algorithm = \"sliding-log\"\nrate = \"30/30d\"\n", 2_160),
        ("algorithm = \"sliding-window\"\nrate = \"20/10m\"\n", 931),
        ("algorithm = \"leaky-bucket\"\nrate = \"10/m\"\nqueue = 5\n", 1_302),
    ] {
        let limits = limit("a", fields);
        let (said, came) = (replay(&limits, &log), run(&limits, &log));
        for (number, pair) in said.iter().zip(&came).enumerate() {
            assert_eq!(pair.0, pair.1, "{fields}, request {number}, {:?}", log[number]);
        }
        let of_proxy = came.iter().filter(|it| matches!(it, Came::Rejected { .. })).count();
        assert_eq!(of_proxy, rejected, "{fields}");
    }
}

fn limit(name: &str, fields: &str) -> String {
    format!("[limits.{name}]\nkey = [\"ip\"]\n{fields}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn a_replay_agrees_with_a_running_proxy(log in proptest::collection::vec(sent(), 1..60)) {
        for (name, fields) in LIMITS {
            let limits = limit("a", fields);
            prop_assert_eq!(replay(&limits, &log), run(&limits, &log), "{}", name);
        }
    }

    #[test]
    fn a_replay_of_several_limits_agrees_with_a_running_proxy(
        log in proptest::collection::vec(sent(), 1..60),
        (one, other, mode) in (0..LIMITS.len(), 0..LIMITS.len(), 0_usize..3),
    ) {
        let by_plan = LIMITS[other].1.replace("127.0.1.", "plan-");
        let mode = ["", "mode = \"shadow\"\n", "scope = \"node\"\n"][mode];
        let by_plan = format!("[limits.b]\nkey = [\"header:x-plan | path\", \"method\"]\n{mode}{by_plan}");
        // An override names a value for each part of the key.
        let by_plan = by_plan.replace("key = [\"plan-1\"]", "key = [\"plan-1\", \"*\"]");
        let by_plan = by_plan.replace("key = [\"plan-2\"]", "key = [\"plan-2\", \"GET\"]");
        let limits = format!("{}{by_plan}", limit("a", LIMITS[one].1));
        prop_assert_eq!(replay(&limits, &log), run(&limits, &log), "{}", limits);
        // No line has the header by which the route of this path is chosen.
        let chosen = |sent: Sent| match &*sent.path {
            "/own" => Sent { path: "/nothing".into(), ..sent },
            _ => sent,
        };
        let log: Vec<_> = log.into_iter().map(chosen).collect();
        let (came, lines) = run_and_log(&limits, &log);
        prop_assert_eq!(replay_of_own_log(&limits, &log, &lines), came, "by its lines: {}", limits);
    }
}
