//! One connection of a client through the whole proxy, and what has arrived at both ends. The targets
//! `connection` and `http2` play it.
//!
//! `0xF6` divides an input: the first part is what the client sends, and each other part is what the API
//! answers one request with. Further requests get a sound answer. `0xF5` divides what is sent at once. The API
//! closes the connection behind an answer that does not end with it.

use std::cell::{Cell, LazyCell};
use std::net::{SocketAddr, TcpListener};
use std::panic;
use std::sync::{Arc, Once};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::config::{self, Overrides};
use tidegate::downstream::Port;
use tidegate::settings::Settings;
use tidegate::upstream::health::UpstreamState;
use tidegate::worker::{self, Orders, Process, Published};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::messages::{Framed, Message, answers, requests};

const NEXT_ANSWER: u8 = 0xF6;
const PAUSE: u8 = 0xF5;

/// How long a connection may live. Each of the proxy's own time-outs is shorter.
const LIFETIME: Duration = Duration::from_secs(24 * 3_600);

/// How long the API keeps a connection on which nothing comes.
const PATIENCE: Duration = Duration::from_secs(120);

thread_local! {
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
    static SCENE: LazyCell<Scene> = LazyCell::new(Scene::new);
}

/// What all inputs share: to bind ports and to read settings takes longer than to serve a connection.
struct Scene {
    api: TcpListener,
    proxy: TcpListener,
    address: SocketAddr,
    settings: Arc<Settings>,
}

impl Scene {
    fn new() -> Self {
        let (api, at) = listener();
        let (proxy, address) = listener();
        Self { api, proxy, address, settings: Arc::new(settings(at)) }
    }
}

/// What an input has led to.
pub(super) struct Played {
    /// What the client has sent.
    pub(super) sent: Vec<u8>,
    /// What the client has received.
    pub(super) received: Vec<u8>,
    /// What the API has seen, by connection.
    pub(super) arrived: Vec<Connection>,
    /// Whether the input says what the API answers.
    pub(super) is_scripted: bool,
}

/// Plays an input. `write` makes the bytes that the client sends of a piece of the input.
///
/// # Panics
/// If a task panics, or the connection does not end, or what arrives at the API is no HTTP.
pub(super) fn play(input: &[u8], write: impl FnMut(&[u8]) -> Vec<u8>) -> Played {
    notice_panics();
    let mut parts = input.split(|byte| *byte == NEXT_ANSWER);
    let sent = parts.next().unwrap_or_default();
    let pieces: Vec<_> = sent.split(|byte| *byte == PAUSE).map(write).collect();
    let scripts: Vec<_> = parts.map(<[u8]>::to_vec).collect();
    let is_scripted = !scripts.is_empty();
    let api = Arc::new(Api {
        scripts: Mutex::new(scripts.into_iter().rev().collect()),
        ..Api::default()
    });
    let sent = pieces.concat();

    // A runtime of its own for each input: nothing is left of the one before.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    let received = runtime.block_on(async {
        let (_told, proxy) = SCENE.with(|scene| {
            tokio::spawn(api.clone().listen(scene.api.try_clone().unwrap()));
            (start(scene.proxy.try_clone().unwrap(), scene.settings.clone()), scene.address)
        });
        timeout(LIFETIME, speak(proxy, pieces)).await.expect("the connection ends")
    });
    drop(runtime);
    assert!(!HAS_PANICKED.replace(false), "a task has panicked");
    let arrived = std::mem::take(&mut *api.arrived.lock());
    Played { sent, received, arrived, is_scripted }
}

impl Played {
    /// The requests that have arrived at the API as a whole.
    pub(super) fn requests(&self) -> Vec<Message> {
        self.arrived.iter().flat_map(Connection::requests).collect()
    }

    /// Whether one request alone has reached the API, whose answer ended too early. The client must be able to
    /// notice this.
    pub(super) fn is_half_answered(&self) -> bool {
        let [connection] = &self.arrived[..] else { return false };
        let [request] = &connection.requests()[..] else { return false };
        let method = [request.method().to_owned()];
        matches!(
            answers(&connection.answered, &method),
            Framed::Cut(before, true) if before.iter().all(|answer| answer.status() < 200)
        ) && connection.switched.is_none()
    }
}

/// The API, and what it has seen.
#[derive(Default)]
struct Api {
    /// What requests are answered with, the next one last.
    scripts: Mutex<Vec<Vec<u8>>>,
    arrived: Mutex<Vec<Connection>>,
}

/// What has arrived at the API on one connection, and what was sent on it.
#[derive(Default)]
pub(super) struct Connection {
    received: Vec<u8>,
    answered: Vec<u8>,
    /// The API has changed the protocol: what has arrived from here on is no HTTP.
    switched: Option<usize>,
}

impl Connection {
    /// The requests. Panics where something else has arrived.
    fn requests(&self) -> Vec<Message> {
        let http = &self.received[..self.switched.unwrap_or(self.received.len())];
        match requests(http) {
            Framed::Whole(requests) | Framed::Cut(requests, _) => {
                requests.iter().for_each(has_no_look_alikes);
                requests
            }
            Framed::Faulty(why) => panic!("at the API: {why}: {}", http.escape_ascii()),
        }
    }
}

/// An API that reads names as CGI does (RFC 3875, 4.1.18) reads the same framing and the same key.
fn has_no_look_alikes(request: &Message) {
    let folded = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    for name in ["content-length", "transfer-encoding", "accept-encoding", "x-api-key"] {
        let alike =
            |(found, _): &&(String, Vec<u8>)| found != name && folded(found) == folded(name);
        assert!(request.fields.iter().find(alike).is_none(), "{name}: {request:?}");
    }
}

impl Api {
    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(self.clone().serve(stream));
        }
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let place = {
            let mut arrived = self.arrived.lock();
            arrived.push(Connection::default());
            arrived.len() - 1
        };
        let mut buffer = vec![0; 16 * 1024];
        let mut answered = 0;
        while let Ok(Ok(read @ 1..)) = timeout(PATIENCE, stream.read(&mut buffer)).await {
            let whole = {
                let connection = &mut self.arrived.lock()[place];
                connection.received.extend_from_slice(&buffer[..read]);
                match connection.switched {
                    Some(_) => continue,
                    None => connection.requests(),
                }
            };
            for request in &whole[answered.min(whole.len())..] {
                answered += 1;
                let script = self.scripts.lock().pop();
                let closes = script.as_ref().is_some_and(|script| !script.ends_with(&[PAUSE]));
                let script = script.unwrap_or_else(|| sound_answer(request));
                {
                    let connection = &mut self.arrived.lock()[place];
                    let text: Vec<u8> = script.iter().copied().filter(|it| *it != PAUSE).collect();
                    if text.windows(4).any(|text| text == b" 101") && request.has("upgrade") {
                        connection.switched = Some(connection.received.len());
                    }
                    connection.answered.extend(text);
                }
                for piece in script.split(|byte| *byte == PAUSE) {
                    if stream.write_all(piece).await.is_err() {
                        return;
                    }
                    breathe().await;
                }
                if closes {
                    return;
                }
            }
        }
    }
}

fn sound_answer(request: &Message) -> Vec<u8> {
    let body = if request.method() == "HEAD" { "" } else { "sound" };
    format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{body}").into_bytes()
}

/// Sends all pieces, then closes this side, and reads to the end.
async fn speak(proxy: SocketAddr, pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let stream = TcpStream::connect(proxy).await.unwrap();
    // Otherwise a second small piece waits for an acknowledgement, which takes real time.
    stream.set_nodelay(true).unwrap();
    let (mut from, mut to) = stream.into_split();
    let sending = async move {
        for piece in pieces {
            if to.write_all(&piece).await.is_err() {
                break;
            }
            breathe().await;
        }
        drop(to);
    };
    let reading = async move {
        let mut received = Vec::new();
        // A connection that is reset has ended too.
        let _ = from.read_to_end(&mut received).await;
        received
    };
    tokio::join!(sending, reading).1
}

/// Lets all other tasks run until each of them waits.
async fn breathe() {
    // A message passes several sockets on its way there and back. tokio looks at sockets once in a turn, and a
    // paused clock moves on although sockets have just become ready.
    for _ in 0..20 {
        yield_now().await;
    }
    sleep(Duration::from_millis(1)).await;
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Settings that use what reads and changes messages: limits, costs, keys, changed header fields.
fn settings(api: SocketAddr) -> Settings {
    let text = format!(
        r#"
        [server]
        max_body_size = "1000B"
        trusted_proxies = ["127.0.0.1"]
        [upstreams.api]
        servers = ["http://{api}"]
        retries = 0
        [limits.a]
        key = ["header:x-api-key", "query:q", "cookie:c"]
        rate = "1000000/s"
        cost = {{ response_json = "usage.total", estimate = 5 }}
        [[routes]]
        path = "/{{*rest}}"
        upstream = "api"
        limits = ["a"]
        [[routes]]
        path = "/old/{{*rest}}"
        upstream = "api"
        rewrite = "/new/{{*rest}}"
        "#
    );
    match config::parse("proxy.toml", &text, &|_| None, &Overrides::default()) {
        Ok(loaded) => loaded.settings,
        Err(problems) => panic!("{problems}"),
    }
}

/// Starts a worker in this runtime. Dropping what this returns would end the worker.
fn start(
    listener: TcpListener,
    settings: Arc<Settings>,
) -> (watch::Sender<Arc<Published>>, watch::Sender<bool>, watch::Sender<bool>) {
    let process = Process::new(&settings, Clock::new(), 1, 10);
    let upstreams = vec![Arc::new(UpstreamState::new(&settings.upstreams[0], None))];
    let published = Published { settings, upstreams, keys: Vec::new(), certificates: [None, None] };
    let (published, orders) = watch::channel(Arc::new(published));
    let (drain, draining) = watch::channel(false);
    let (end, stop) = watch::channel(false);
    let orders = Orders { published: orders, draining, stop };
    spawn_local(worker::run(0, vec![(listener.into(), Port::Plain)], Arc::new(process), orders));
    (published, drain, end)
}

/// tokio catches what panics in a task.
fn notice_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            HAS_PANICKED.set(true);
            before(info);
        }));
    });
    HAS_PANICKED.set(false);
}
