//! What a request allocates on its way through a worker. Allocations repeat exactly, so a change that
//! makes requests dearer is seen here, whatever the machine.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use allocation_counter::measure;
use tidegate::clock::Clock;
use tidegate::config::{self, Overrides};
use tidegate::downstream::Port;
use tidegate::settings::Settings;
use tidegate::upstream::health::UpstreamState;
use tidegate::worker::{self, Orders, Published};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;
use tokio::task::spawn_local;

use crate::support::limits::names;
use crate::support::worker::process;

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nhost: api.example\r\nx-api-key: k-1\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nserver: api\r\ncontent-type: text/plain\r\n\
    content-length: 5\r\n\r\nhello";

/// A worker, an API and one client that keeps its connection, all on this thread. Nothing but the
/// worker allocates for a request.
struct OneWorker {
    runtime: LocalRuntime,
    client: TcpStream,
    api: SocketAddr,
    told: Told,
}

/// What a worker is told by. Dropped, it would end.
type Told = (watch::Sender<Arc<Published>>, watch::Sender<bool>, watch::Sender<bool>);

impl OneWorker {
    fn new(limits: &str) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .unwrap();
        let listener = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            (listener, address)
        };
        let ((api, api_address), (proxy, proxy_address)) = (listener(), listener());
        let told = runtime.block_on(async {
            tokio::spawn(answer(api));
            start(proxy, settings(api_address, limits))
        });
        let client = runtime.block_on(TcpStream::connect(proxy_address)).unwrap();
        Self { runtime, client, api: api_address, told }
    }

    /// Puts settings with these limits in force.
    fn reload(&self, limits: &str) {
        let upstreams = self.told.0.borrow().upstreams.clone();
        let settings = Arc::new(settings(self.api, limits));
        self.told.0.send_replace(Arc::new(Published {
            settings,
            upstreams,
            keys: Vec::new(),
            certificates: [None, None],
        }));
    }

    /// This many requests, one after the other, each answered with this status.
    fn ask(&mut self, requests: usize, status: &str) {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let mut buffer = [0; 4096];
            for _ in 0..requests {
                client.write_all(REQUEST).await.unwrap();
                let mut read = 0;
                while !is_whole(&buffer[..read]) {
                    read += client.read(&mut buffer[read..]).await.unwrap();
                }
                assert_eq!(std::str::from_utf8(&buffer[9..12]), Ok(status));
            }
        });
    }

    /// Allocations for each request, once everything that lives longer is there.
    fn allocations(&mut self, status: &str) -> u64 {
        const REQUESTS: usize = 400;
        self.ask(20, status);
        let counted = measure(|| self.ask(REQUESTS, status)).count_total;
        // What comes now and then, a timer's page say, is not of one request.
        (counted + REQUESTS as u64 / 2) / REQUESTS as u64
    }
}

/// Settings with one route, which has these limits.
fn settings(api: SocketAddr, limits: &str) -> Settings {
    let names = names(limits);
    let text = format!(
        "[upstreams.api]\nservers = [\"http://{api}\"]\n{limits}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = {names:?}\n"
    );
    config::parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().settings
}

/// Starts a worker in this runtime.
fn start(listener: TcpListener, settings: Settings) -> Told {
    let process = process(&settings, Clock::new());
    let upstreams = vec![Arc::new(UpstreamState::new(&settings.upstreams[0], None))];
    let published = Published {
        settings: Arc::new(settings),
        upstreams,
        keys: Vec::new(),
        certificates: [None, None],
    };
    let (published, orders) = watch::channel(Arc::new(published));
    let (drain, draining) = watch::channel(false);
    let (end, stop) = watch::channel(false);
    let orders = Orders { published: orders, draining, stop };
    spawn_local(worker::run(0, vec![(listener.into(), Port::Plain)], Arc::new(process), orders));
    (published, drain, end)
}

/// An API that gives each request the same answer.
async fn answer(listener: TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            let mut read = 0;
            while let Ok(more @ 1..) = stream.read(&mut buffer[read..]).await {
                read += more;
                if buffer[..read].ends_with(b"\r\n\r\n") {
                    read = 0;
                    stream.write_all(ANSWER).await.unwrap();
                }
            }
        });
    }
}

/// Whether an answer has come to its end.
fn is_whole(answer: &[u8]) -> bool {
    let text = std::str::from_utf8(answer).unwrap();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    body.len() == length.parse::<usize>().unwrap()
}

const BY_ADDRESS: &str = "[limits.a]\nkey = [\"ip\"]\nrate = \"1000000/s\"\n";
const BY_HEADER: &str = "[limits.b]\nkey = [\"header:x-api-key\"]\nrate = \"1000000/s\"\n";
/// Its candidate counts the same requests.
const TRIED: &str =
    "[limits.a]\nkey = [\"ip\"]\nrate = \"1000000/s\"\ncandidate = { rate = \"900000/s\" }\n";

/// Its candidate would reject them, which the log and the lists of keys note.
const TRIED_CLOSED: &str =
    "[limits.a]\nkey = [\"ip\"]\nrate = \"1000000/s\"\ncandidate = { rate = \"1/d\" }\n";

const CLOSED: &str = "[limits.c]\nkey = [\"ip\"]\nrate = \"1/d\"\n";

/// Of which enough is left.
const SLOTS: &str = "[limits.e]\nkey = [\"ip\"]\nalgorithm = \"concurrency\"\nlimit = 9\n";

/// Of which nothing is left while a request is under way: each one is near its limit, and allocates no more.
const FULL: &str = "[limits.e]\nkey = [\"ip\"]\nalgorithm = \"concurrency\"\nlimit = 1\n";

/// Of which more is left in each microsecond.
const FILLING: &str = "[limits.d]\nrate = \"1000000/s\"\nburst = 1000000000\ncost = 500000000\n";

#[test]
fn a_request_allocates_no_more_than_it_did() {
    let both = format!("{BY_ADDRESS}{BY_HEADER}");
    let changing = format!("{CLOSED}{FILLING}");
    let grown: Vec<_> = [
        ("forwarded without limits", "", "200", 8),
        ("forwarded, one limit", BY_ADDRESS, "200", 9),
        // One more for the hash of the header.
        ("forwarded, two limits", &both, "200", 11),
        ("forwarded, one limit with a candidate", TRIED, "200", 9),
        ("forwarded, its candidate would reject", TRIED_CLOSED, "200", 9),
        ("forwarded, slots are left", SLOTS, "200", 12),
        ("forwarded, near its limit", FULL, "200", 12),
        ("rejected", CLOSED, "429", 8),
        // How often the answer that is kept serves again depends on the machine.
        ("rejected, each told something else", &changing, "429", 42),
    ]
    .into_iter()
    .filter_map(|(name, limits, status, most)| {
        let mut worker = OneWorker::new(limits);
        worker.ask(1, "200");
        let allocations = worker.allocations(status);
        (allocations > most).then(|| format!("{name}: {allocations}, and {most} before"))
    })
    .collect();
    assert!(grown.is_empty(), "a request allocates more often: {grown:#?}");
}

/// The answers that are kept for throttled clients kept the limits of former settings, with all overrides.
#[test]
fn what_throttled_clients_are_told_ends_with_its_plan() {
    // The first settings stay, so that a reload can tell what needs a restart.
    let mut worker = OneWorker::new("");
    worker.ask(1, "200");
    worker.reload(CLOSED);
    worker.ask(1, "200");
    worker.ask(1, "429");
    let limit = Arc::downgrade(&worker.told.0.borrow().settings.limits[0]);
    worker.reload("");
    worker.ask(1, "200");
    assert!(limit.upgrade().is_none());
}
