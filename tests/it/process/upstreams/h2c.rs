//! APIs that speak HTTP/2 in clear text.

use std::future::poll_fn;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderName, HeaderValue, Response, Version};
use tokio::sync::Semaphore;

use crate::support::api::{Api, echo};
use crate::support::client::{Connection, get};
use crate::support::http2;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, wait_until};

fn proxy(api: &Api, upstream: &str) -> Tidegate {
    Proxy::of_one_worker(api).upstream(upstream).start()
}

#[test]
fn a_request_is_said_in_http_2() {
    let api = Api::h2c();
    let proxy = proxy(&api, "");
    let headers =
        [("connection", "keep-alive, x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=1")];
    assert_eq!(get(proxy.address, "/hello?a=b", &headers).text(), "/hello");
    let call = api.last();
    assert_eq!(call.version, Version::HTTP_2);
    assert_eq!(
        (call.method.as_str(), call.uri.to_string().as_str()),
        ("GET", "http://api.test/hello?a=b")
    );
    assert_eq!(call.headers["x-forwarded-for"], "127.0.0.1");
    for gone in ["host", "connection", "keep-alive", "x-hop", "transfer-encoding", "upgrade"] {
        assert!(!call.headers.contains_key(gone), "{gone}");
    }
}

#[test]
fn a_client_without_a_host_asks_for_the_servers() {
    let api = Api::h2c();
    let proxy = proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.reply("GET").status, 200);
    let authority = api.last().uri.authority().map(ToString::to_string);
    assert_eq!(authority, api.address.map(|address| address.to_string()));
}

/// h2 takes names with a quotation mark, which HTTP/1.1 cannot say.
#[test]
fn an_invalid_name_of_a_field_is_not_passed_on() {
    let name = || HeaderName::from_lowercase(b"x\"").unwrap();
    let api = Api::answering_h2c(move |request, mut respond| async move {
        let mut answer = Response::new(());
        let value = HeaderValue::from_static("1");
        let ends = request.uri().path() == "/head";
        if ends {
            answer.headers_mut().insert(name(), value.clone());
        }
        let mut body = respond.send_response(answer, ends).unwrap();
        if !ends {
            let fields = [(name(), value.clone()), (HeaderName::from_static("x-sum"), value)];
            body.send_trailers(fields.into_iter().collect()).unwrap();
        }
    });
    let proxy = proxy(&api, "");
    assert_eq!(get(proxy.address, "/head", &[]).status, 502);
    let line = proxy.log.wait("upstream failed", |_| true);
    assert!(
        line["error"].as_str().unwrap().ends_with("an invalid name of a header field"),
        "{line}"
    );
    let reply = http2::Client::open(proxy.address).get("/trailers", &[("te", "trailers")]);
    assert_eq!((reply.status, reply.trailers), (200, vec![("x-sum".to_owned(), "1".to_owned())]));
}

#[test]
fn many_requests_share_one_connection() {
    // Nobody is answered before all have come.
    let all = Semaphore::new(0);
    let all: &'static Semaphore = Box::leak(Box::new(all));
    let api = Api::answering_h2c(move |request, respond| async move {
        if request.uri().path() == "/last" {
            all.add_permits(1000);
        }
        let _ = all.acquire().await;
        echo(request, respond).await;
    });
    let proxy = proxy(&api, "");
    let mut clients: Vec<_> = (0..50).map(|_| Connection::open(proxy.address)).collect();
    for client in &mut clients {
        client.send("GET /early HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    wait_until("all are there", || api.calls().len() == 50);
    assert_eq!(get(proxy.address, "/last", &[]).status, 200);
    for client in &mut clients {
        assert_eq!(client.reply("GET").text(), "/early");
    }
    assert_eq!(api.connections(), 1);
}

#[test]
fn over_a_hundred_requests_open_another_connection() {
    let all: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let api = Api::answering_h2c(move |request, respond| async move {
        let _ = all.acquire().await;
        echo(request, respond).await;
    });
    let proxy = proxy(&api, "");
    let mut client = http2::Client::open(proxy.address);
    let mut requests: Vec<_> =
        (0..100).map(|n| client.begin("GET", &format!("/{n}"), &[])).collect();
    wait_until("a hundred are there", || api.calls().len() == 100);
    assert_eq!(api.connections(), 1);
    requests.push(client.begin("GET", "/100", &[]));
    wait_until("one more is there", || api.calls().len() == 101);
    assert_eq!(api.connections(), 2);
    all.add_permits(1000);
    for (request, n) in requests.iter_mut().zip(0..) {
        assert_eq!(request.reply().text(), format!("/{n}"));
    }
    assert_eq!(client.get("/after", &[]).status, 200);
    assert_eq!(api.connections(), 2, "both are kept");
}

#[test]
fn an_api_of_few_streams_gets_another_connection() {
    let held: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let api = Api::with_streams(2, move |request, respond| async move {
        if request.uri().path() == "/held" {
            let _ = held.acquire().await;
        }
        echo(request, respond).await;
    });
    let proxy = proxy(&api, "");
    assert_eq!(get(proxy.address, "/first", &[]).status, 200, "its settings are known now");
    let mut client = http2::Client::open(proxy.address);
    let mut requests: Vec<_> = (0..2).map(|_| client.begin("GET", "/held", &[])).collect();
    wait_until("both are there", || api.calls().len() == 3);
    assert_eq!(api.connections(), 1);
    assert_eq!(get(proxy.address, "/third", &[]).text(), "/third");
    assert_eq!(api.connections(), 2);
    held.add_permits(1000);
    for request in &mut requests {
        assert_eq!(request.reply().text(), "/held");
    }
}

#[test]
fn bodies_pass_both_ways() {
    let api = Api::h2c();
    let proxy = proxy(&api, "");
    let body: Vec<u8> = (0u32..).flat_map(u32::to_be_bytes).take(10 << 20).collect();
    let reply = Connection::open(proxy.address).request("POST", "/", &[], &body);
    assert!(reply.body == body, "{} bytes came", reply.body.len());
    let reply = http2::Client::open(proxy.address).post("/", &[], &body);
    assert!(reply.body == body, "{} bytes came", reply.body.len());
}

#[test]
fn trailers_pass_both_ways() {
    let api = Api::h2c();
    let proxy = proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te\r\ntrailer: x-sum\r\n\
         transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let reply = client.reply("POST");
    assert_eq!(reply.text(), "hello");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "42".to_owned())]);
    assert_eq!(api.last().headers["te"], "trailers");

    let mut client = http2::Client::open(proxy.address);
    let mut request = client.upload("POST", "/", &[("te", "trailers"), ("trailer", "x-sum")]);
    request.send(b"hello");
    request.end_with(&[("x-sum", "42")]);
    let reply = request.reply();
    assert_eq!(reply.text(), "hello");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "42".to_owned())]);
}

#[test]
fn an_offer_to_change_the_protocol_is_served_as_it_is() {
    let api = Api::h2c();
    let proxy = proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    let offer = [("connection", "upgrade"), ("upgrade", "websocket")];
    for _ in 0..5 {
        assert_eq!(client.get("/chat", &offer).text(), "/chat");
        assert_eq!(client.get("/chat", &[]).text(), "/chat");
    }
    assert!(api.calls().iter().all(|call| !call.headers.contains_key("upgrade")));
    assert_eq!(api.connections(), 1, "an offer opens no connection of its own");
}

#[test]
fn a_late_answer_is_a_504_for_its_request_alone() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Api::answering_h2c(move |request, mut respond| {
        let tell = tell.lock().unwrap().clone();
        async move {
            if request.uri().path() == "/slow" {
                let reset = poll_fn(|cx| respond.poll_reset(cx)).await;
                let _ = tell.send(reset.unwrap());
            } else {
                echo(request, respond).await;
            }
        }
    });
    let proxy = Proxy::of_one_worker(&api)
        .route("path = \"/slow\"\nresponse_timeout = \"200ms\"")
        .route("path = \"/{*rest}\"")
        .start();
    let mut slow = Connection::open(proxy.address);
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    wait_until("the API has it", || api.calls().iter().any(|call| call.uri.path() == "/slow"));
    // The API is still there for others.
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
    assert_eq!(slow.reply("GET").status, 504);
    // The API is told that nobody waits any more, and the connection is as good as before.
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Reason::CANCEL);
    wait_until("it answers", || get(proxy.address, "/hello", &[]).text() == "/hello");
    assert_eq!(api.connections(), 1);
}

/// Answers that nobody read used up the connection's window, and all other requests hung.
#[test]
fn answers_that_nobody_reads_hold_back_no_other() {
    const UNREAD: usize = 99;
    let api = Api::answering_h2c(|request, mut respond| async move {
        let unread = request.uri().path() == "/unread";
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        let length = if unread { 8 << 20 } else { 600_000 };
        body.send_data(Bytes::from(vec![b'x'; length]), true).unwrap();
        // Sent as far as the windows reach.
        let _ = poll_fn(|cx| body.poll_reset(cx)).await;
    });
    // Otherwise those that do not read would be cut off, and the others would go on then.
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"1h\"").start();
    let mut client = http2::Client::open(proxy.address);
    let mut unread: Vec<_> = (0..UNREAD).map(|_| client.begin("GET", "/unread", &[])).collect();
    for request in &mut unread {
        assert_eq!(request.head().unwrap().status(), 200);
    }
    let mut other = Connection::open(proxy.address);
    for _ in 0..20 {
        assert_eq!(other.get("/", &[]).body.len(), 600_000);
    }
    assert_eq!(api.connections(), 1, "they share it");
}

/// An API that says half an answer to `/half`, none to all else, and tells how each was called off.
fn abandoned() -> (Api, std::sync::mpsc::Receiver<Reason>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Api::answering_h2c(move |request, mut respond| {
        let tell = tell.lock().unwrap().clone();
        async move {
            if request.uri().path() == "/half" {
                let mut body = respond.send_response(Response::new(()), false).unwrap();
                body.send_data(Bytes::from_static(b"half"), false).unwrap();
                let reset = poll_fn(|cx| body.poll_reset(cx)).await;
                let _ = tell.send(reset.unwrap());
            } else {
                let reset = poll_fn(|cx| respond.poll_reset(cx)).await;
                let _ = tell.send(reset.unwrap());
            }
        }
    });
    (api, told)
}

#[test]
fn a_client_that_leaves_resets_its_request_at_the_api() {
    let (api, told) = abandoned();
    let proxy = proxy(&api, "response_timeout = \"1h\"\nidle_timeout = \"1h\"");
    for (name, request, until) in [
        ("waiting for a head", "GET / HTTP/1.1\r\nhost: a\r\n\r\n", None),
        ("in a download", "GET /half HTTP/1.1\r\nhost: a\r\n\r\n", Some(b"half")),
        ("in an upload", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf", None),
    ] {
        let before = api.calls().len();
        let mut client = Connection::open(proxy.address);
        client.send(request);
        wait_until("the API has it", || api.calls().len() > before);
        if let Some(said) = until {
            client.until(said);
        }
        drop(client);
        told.recv_timeout(PATIENCE).expect(name);
    }
    assert_eq!(api.connections(), 1);
}

#[test]
fn a_request_called_off_is_reset_at_the_api() {
    let (api, told) = abandoned();
    let proxy = proxy(&api, "response_timeout = \"1h\"\nidle_timeout = \"1h\"");
    let mut client = http2::Client::open(proxy.address);
    for path in ["/", "/half"] {
        let before = api.calls().len();
        let mut request = client.begin("GET", path, &[]);
        wait_until("the API has it", || api.calls().len() > before);
        if path == "/half" {
            request.head().unwrap();
        }
        request.reset();
        assert_eq!(told.recv_timeout(PATIENCE).expect(path), Reason::CANCEL);
    }
}

#[test]
fn an_api_of_http_1_1_alone_is_a_502_that_is_told() {
    let api = Upstream::raw(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut proxy = Proxy::of_one_worker(api.url().replace("http:", "h2c:")).start();
    assert_eq!(get(proxy.address, "/", &[]).status, 502);
    proxy.stop();
    let line = proxy.log.find("upstream failed").unwrap();
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("the server sent no HTTP/2 settings"), "{error}");
}
