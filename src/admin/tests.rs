//! Streams and connections, on a clock that the test moves.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::connections::serve;
use super::*;

const FILE: &str = "[limits.a]\nrate = \"1/s\"\nkey = [\"ip\"]\n[[routes]]\npath = \"/\"\n\
                    respond = { status = 200 }\nlimits = [\"a\"]\n";

const PATIENCE: Duration = Duration::from_secs(3_600);

/// A connection that asks for the stream. `room` is how many bytes it holds that were not read.
async fn listener(admin: &Arc<Admin>, room: usize) -> (DuplexStream, JoinHandle<()>) {
    let (mut client, server) = duplex(room);
    let place = admin.connections.take().await;
    let serving = tokio::spawn(serve(server, admin.clone(), place));
    let request = b"GET /api/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(request).await.unwrap();
    (client, serving)
}

/// Reads until the text has `count` events.
async fn events(client: &mut DuplexStream, count: usize) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let so_far = String::from_utf8_lossy(&text).into_owned();
        if so_far.matches("data: {").count() >= count {
            return so_far;
        }
        let read = timeout(PATIENCE, client.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "the stream ended: {so_far}");
        text.extend_from_slice(&piece[..read]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_comes_at_once_and_then_each_second() {
    let admin = testing::admin(FILE);
    tokio::spawn(admin.clone().keep_pulse());
    sleep(Duration::from_millis(4_500)).await;
    let event = admin.pulse.event.borrow().clone();
    assert_eq!(event.as_deref(), Some(&b""[..]), "nobody listens, and no status is made");
    let began = Instant::now();
    let (mut client, _serving) = listener(&admin, 1 << 20).await;
    let text = events(&mut client, 1).await;
    assert!(text.contains("content-type: text/event-stream") && text.contains("retry: 2000\ndata"));
    assert_eq!(began.elapsed(), Duration::ZERO, "the first one is there at once");
    events(&mut client, 5).await;
    assert_eq!(began.elapsed(), Duration::from_millis(4_500), "the others come each second");
    let (mut second, _serving) = listener(&admin, 1 << 20).await;
    events(&mut second, 1).await;
    drop((client, second));
    let last = admin.pulse.event.borrow().clone();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(admin.pulse.streams.available_permits(), stream::MOST);
    assert_eq!(*admin.pulse.event.borrow(), last, "nobody listens any more");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_is_cut() {
    let admin = testing::admin(FILE);
    tokio::spawn(admin.clone().keep_pulse());
    let (client, serving) = listener(&admin, 64).await;
    timeout(PATIENCE, serving).await.unwrap().unwrap();
    assert_eq!(admin.pulse.streams.available_permits(), stream::MOST);
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn streams_end_in_order_at_the_end_of_the_process() {
    let admin = testing::admin(FILE);
    tokio::spawn(admin.clone().keep_pulse());
    let (mut client, _serving) = listener(&admin, 1 << 20).await;
    events(&mut client, 1).await;
    admin.end_streams().await;
    let mut rest = Vec::new();
    let mut piece = [0; 4096];
    while !rest.ends_with(b"0\r\n\r\n") {
        let read = timeout(PATIENCE, client.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "cut: {}", String::from_utf8_lossy(&rest));
        rest.extend_from_slice(&piece[..read]);
    }
}

/// A connection that has had an answer, and is idle.
async fn idle(admin: &Arc<Admin>) -> DuplexStream {
    let (mut client, server) = duplex(1 << 20);
    let place = admin.connections.take().await;
    tokio::spawn(serve(server, admin.clone(), place));
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while !text.ends_with(b"ok\n") {
        let read = timeout(PATIENCE, client.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "the connection ended: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..read]);
    }
    client
}

/// Otherwise connections that wait for a permit would wait for ever.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_gives_its_permit_back() {
    let admin = testing::admin(FILE);
    let mut client = idle(&admin).await;
    let began = Instant::now();
    assert_eq!(timeout(PATIENCE, client.read(&mut [0; 10])).await.unwrap().unwrap(), 0);
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_when_the_endpoint_ends() {
    let admin = testing::admin(FILE);
    let mut client = idle(&admin).await;
    let began = Instant::now();
    admin.end_soon();
    assert_eq!(timeout(PATIENCE, client.read(&mut [0; 10])).await.unwrap().unwrap(), 0);
    assert_eq!(began.elapsed(), Duration::ZERO);
}
