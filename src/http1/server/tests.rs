use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::http1::encode::Size;
use crate::http1::fields::Fields;

const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

/// A client, and the server's end of its connection, between which so many bytes are on their way.
fn pair(room: usize) -> (DuplexStream, Connection<DuplexStream>) {
    let (client, server) = duplex(room);
    (client, Connection::new(server, BytesMut::new(), 8 * 1024))
}

async fn next(server: &mut Connection<DuplexStream>) -> Next {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    poll_fn(|cx| server.poll_request(&mut parts, cx)).await
}

async fn request(server: &mut Connection<DuplexStream>) -> Incoming {
    match next(server).await {
        Next::Request(body) => body,
        other => panic!("no request: {other:?}"),
    }
}

/// Polls something beside the connection, in one task.
async fn beside<T>(
    server: &mut Connection<DuplexStream>,
    part: impl Future<Output = T>,
) -> Result<T, Tended> {
    let mut part = pin!(part);
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = part.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            match ready!(server.poll_tend(cx)) {
                Tended::Fed => {}
                left @ Tended::Left => return Poll::Ready(Err(left)),
            }
        }
    })
    .await
}

async fn answer(server: &mut Connection<DuplexStream>, body: &'static [u8]) {
    let mut body = Some(Full::new(Bytes::from_static(body)));
    let size = Size::Known(body.as_ref().map_or(0, |body| body.size_hint().exact().unwrap()));
    poll_fn(|cx| {
        let fields = &Fields::default();
        let head = ResponseHead { status: StatusCode::OK, reason: None, fields, size, date: DATE };
        server.begin_response(&head, cx);
        Poll::Ready(())
    })
    .await;
    poll_fn(|cx| server.poll_send(&mut body, cx)).await.unwrap();
}

async fn said(client: &mut DuplexStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).await.unwrap(), 1, "it ends with {text:?}");
        text.push(char::from(byte[0]));
    }
    text
}

#[tokio::test]
async fn a_body_is_read_in_the_same_task_and_in_another() {
    let (mut client, mut server) = pair(64);
    let message = "POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\n";
    let data = "0123456789".repeat(10);
    for other in [false, true] {
        let (said, sent) = tokio::join!(
            async {
                let body = request(&mut server).await;
                let all = match other {
                    false => beside(&mut server, body.collect()).await,
                    true => {
                        let reading = tokio::spawn(body.collect());
                        beside(&mut server, reading).await.map(Result::unwrap)
                    }
                };
                all.unwrap().unwrap().to_bytes()
            },
            async {
                client.write_all(message.as_bytes()).await.unwrap();
                client.write_all(data.as_bytes()).await
            }
        );
        sent.unwrap();
        assert_eq!(said, data.as_bytes(), "in another: {other}");
        let (_, text) = tokio::join!(answer(&mut server, b"ok"), said_ok(&mut client));
        assert!(text.starts_with("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"), "{text}");
        assert_eq!(server.persistence(), Persistence::Keep);
    }
}

async fn said_ok(client: &mut DuplexStream) -> String {
    said(client, "\r\n\r\nok").await
}

#[tokio::test]
async fn nothing_is_read_that_nobody_wants() {
    let (mut client, mut server) = pair(1024);
    client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 5000\r\n\r\n").await.unwrap();
    let body = request(&mut server).await;
    client.write_all(&[b'x'; 1024]).await.unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(server.poll_tend(&mut cx).is_pending());
    assert!(!server.has_input());
    assert!(pin!(client.write(b"x")).poll(&mut cx).is_pending(), "there is no room");
    // Left alone, the rest is not waited for.
    drop(body);
    assert!(server.poll_settle(&mut cx).is_ready());
    assert_eq!(server.persistence(), Persistence::Close);
}

#[tokio::test]
async fn a_short_rest_that_is_there_is_skipped() {
    let (mut client, mut server) = pair(1024);
    let chunks = "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for body in [chunks, "content-length: 5\r\n\r\nhello"] {
        client.write_all(format!("POST / HTTP/1.1\r\n{body}").as_bytes()).await.unwrap();
        drop(request(&mut server).await);
        answer(&mut server, b"ok").await;
        assert_eq!(server.persistence(), Persistence::Keep, "{body}");
        said_ok(&mut client).await;
    }
}

#[tokio::test]
async fn the_client_is_asked_for_its_body_by_who_reads_it() {
    let (mut client, mut server) = pair(1024);
    let head = b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    client.write_all(head).await.unwrap();
    let body = request(&mut server).await;
    let (all, _) = tokio::join!(beside(&mut server, body.collect()), async {
        assert_eq!(said(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"hi").await.unwrap();
    });
    assert_eq!(all.unwrap().unwrap().to_bytes(), "hi");
    answer(&mut server, b"ok").await;
    said_ok(&mut client).await;
    client.write_all(head).await.unwrap();
    drop(request(&mut server).await);
    answer(&mut server, b"ok").await;
    assert!(said_ok(&mut client).await.starts_with("HTTP/1.1 200 "), "it is not asked");
    assert_eq!(server.persistence(), Persistence::Close);
}

#[tokio::test]
async fn the_clients_end_is_noticed() {
    let (client, mut server) = pair(1024);
    let mut client = client;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _body = request(&mut server).await;
    drop(client);
    let waiting = beside(&mut server, std::future::pending::<()>());
    assert_eq!(waiting.await, Err(Tended::Left));

    let (mut client, mut server) = pair(1024);
    client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nx").await.unwrap();
    let body = request(&mut server).await;
    drop(client);
    let fault = beside(&mut server, body.collect()).await.unwrap().err();
    assert_eq!(fault, Some(BodyFault::Short));
    assert_eq!(server.persistence(), Persistence::Close);
}

#[tokio::test]
async fn a_body_that_is_shorter_than_announced_is_a_fault() {
    let (mut client, mut server) = pair(1024);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _body = request(&mut server).await;
    let (status, fields) = (StatusCode::OK, Fields::default());
    let mut body = Some(Full::new(Bytes::from_static(b"short")));
    let sent = poll_fn(|cx| {
        let head = ResponseHead {
            status,
            reason: None,
            fields: &fields,
            size: Size::Known(6),
            date: DATE,
        };
        server.begin_response(&head, cx);
        server.poll_send(&mut body, cx)
    });
    assert!(matches!(sent.await, Err(SendFault::Body)));
    // What there was is sent all the same.
    assert!(said(&mut client, "short").await.contains("content-length: 6"));
}

#[tokio::test]
async fn the_last_request_is_said_to_be_the_last() {
    let (mut client, mut server) = pair(1024);
    let get = b"GET / HTTP/1.1\r\n\r\n";
    client.write_all(&get.repeat(2)).await.unwrap();
    let _body = request(&mut server).await;
    server.end_soon();
    answer(&mut server, b"ok").await;
    assert!(said_ok(&mut client).await.contains("connection: close\r\n"));
    assert_eq!(server.persistence(), Persistence::Close);

    let (_client, mut server) = pair(1024);
    server.end_soon();
    assert!(matches!(next(&mut server).await, Next::End));
}
