//! Heads and trailers that are large: they arrive whole, or the message breaks.

use std::any::Any;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, wait_until};

/// The length that a path asks for.
fn length(path: &str) -> usize {
    path.trim_start_matches('/').parse().unwrap()
}

/// Trailers with one field of this length, before and after small ones.
fn trailers(length: usize) -> Vec<(&'static str, String)> {
    vec![
        ("grpc-status", "13".to_owned()),
        ("x-first", "1".to_owned()),
        ("grpc-status-details-bin", "x".repeat(length)),
        ("x-last", "1".to_owned()),
        ("x-last", "2".to_owned()),
    ]
}

/// An API of HTTP/1.1, and one of HTTP/2. Each answers with a head of the length that the path says, or, with a body,
/// with trailers of this length.
fn apis() -> [(String, Box<dyn Any>); 2] {
    let http1 = Upstream::answering(|got| {
        let long = "x".repeat(length(got.path()));
        if got.header("te").is_none() {
            return format!("HTTP/1.1 200 OK\r\nx-long: {long}\r\ncontent-length: 2\r\n\r\nhi")
                .into();
        }
        let fields = trailers(long.len());
        let lines: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{lines}\r\n")
            .into()
    });
    let http2 = Api::answering_h2c(|request, mut respond| async move {
        let (length, mut answer) = (length(request.uri().path()), Response::new(()));
        let with_trailers = request.headers().contains_key("te");
        if !with_trailers {
            answer.headers_mut().insert("x-long", "x".repeat(length).parse().unwrap());
        }
        let mut body = respond.send_response(answer, false).unwrap();
        body.send_data(Bytes::from_static(b"hi"), !with_trailers).unwrap();
        if with_trailers {
            let fields = trailers(length);
            let fields =
                fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            body.send_trailers(fields.collect::<HeaderMap>()).unwrap();
        }
    });
    [(http1.url(), Box::new(http1)), (http2.url.clone(), Box::new(http2))]
}

/// HTTP/2 had room for 16 KiB.
#[test]
fn a_head_of_an_answer_may_have_256_kib_over_both_protocols() {
    for (api, _running) in apis() {
        let proxy = Proxy::of_one_worker(&api).upstream("retries = 0").start();
        for length in [20_000, 100_000, 260_000] {
            let reply = get(proxy.address, &format!("/{length}"), &[]);
            let long = reply.header("x-long").unwrap_or_default();
            assert_eq!((reply.status, long.len()), (200, length), "{api}");
        }
        for length in [263_000, 400_000, 1_000_000, 2_500_000] {
            assert_eq!(
                get(proxy.address, &format!("/{length}"), &[]).status,
                502,
                "{api}: {length}"
            );
        }
        assert_eq!(get(proxy.address, "/1", &[]).status, 200, "{api}");
    }
}

#[test]
fn an_answer_over_http_2_with_a_larger_head_breaks_no_other() {
    let [_, (api, running)] = apis();
    let proxy = Proxy::of_one_worker(&api).upstream("retries = 0").start();
    for path in ["/1", "/263000", "/2", "/900000", "/3"] {
        get(proxy.address, path, &[]);
    }
    let line = proxy.log.wait("upstream failed", |_| true);
    assert!(line["error"].as_str().unwrap().ends_with("a head of more than 256 KiB"), "{line}");
    assert_eq!(running.downcast::<Api>().unwrap().connections(), 1);
}

/// Over HTTP/2 the fields beyond 16 KiB were missing, and the answer looked whole.
#[test]
fn trailers_of_an_answer_arrive_whole_or_break_it() {
    for (api, _running) in apis() {
        let proxy = Proxy::of_one_worker(&api).start();
        for (length, is_whole) in [
            (20_000, true),
            (260_000, true),
            (263_000, false),
            (700_000, false),
            (2_500_000, false),
        ] {
            let mut expected: Vec<_> = trailers(length)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            expected.sort();
            let path = format!("/{length}");
            let outcome =
                Client::open(proxy.address).begin("GET", &path, &[("te", "trailers")]).outcome();
            assert_eq!(outcome.is_ok(), is_whole, "{api}: {length}");
            if let Ok(mut reply) = outcome {
                reply.trailers.sort();
                assert!(reply.trailers == expected, "{api}: {length}");
            }
        }
    }
}

#[test]
fn a_client_of_http_1_1_gets_large_trailers_too() {
    let api = Upstream::answering(|_| {
        let long = "x".repeat(200_000);
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-long\r\n\r\n2\r\nhi\r\n0\r\n\
             x-long: {long}\r\n\r\n"
        )
        .into()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let reply =
        Connection::open(proxy.address).get("/", &[("te", "trailers"), ("connection", "te")]);
    assert_eq!(reply.trailers.len(), 1);
    assert_eq!(reply.trailers[0].1.len(), 200_000);
}

#[test]
fn trailers_of_a_request_arrive_whole_or_break_it() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Api::answering_h2c(move |request, mut respond| {
        let tell = tell.lock().unwrap().clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.data().await {}
            let _ = tell.send(body.trailers().await.map(Option::unwrap_or_default));
            let _ = respond.send_response(Response::new(()), true);
        }
    });
    let proxy = Proxy::of_one_worker(&api).start();
    for length in [1_000, 30_000, 40_000, 100_000, 140_000, 200_000, 300_000, 600_000] {
        let (before, mut client) = (api.calls().len(), Client::open(proxy.address));
        let mut request = client.upload("POST", "/", &[("trailer", "x-long, x-last")]);
        request.send(b"hi");
        wait_until("the API has the head", || api.calls().len() > before);
        let long = "x".repeat(length);
        request.end_with(&[
            ("x-long", &long),
            ("x-last", "1"),
            ("x-last", "2"),
            ("x-unnamed", "3"),
        ]);
        let came = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{length}"));
        assert!(came.is_ok() || length > 32 * 1024, "max_header_size is 32 KiB");
        let Ok(came) = came else { continue };
        assert_eq!(request.reply().status, 200);
        assert_eq!(came["x-long"].len(), length);
        let last: Vec<_> = came.get_all("x-last").iter().collect();
        assert_eq!(last, ["1", "2"], "{length}");
        assert_eq!(came.len(), 3);
    }
    proxy.log.wait("malformed requests", |line| line.to_string().contains("trailers"));
}

/// Details of an error in a gRPC call: nothing but trailers, so they are a head.
#[test]
fn a_grpc_status_may_have_large_details() {
    let api = Api::answering_h2c(|_, mut respond| async move {
        let mut answer = Response::new(());
        for (name, value) in
            [("content-type", "application/grpc".to_owned())].into_iter().chain(trailers(17_500))
        {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
        let _ = respond.send_response(answer, true);
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    let reply = Client::open(proxy.address).post("/t.T/M", &call, b"x");
    assert_eq!(reply.header("grpc-status").as_deref(), Some("13"));
    assert_eq!(reply.header("grpc-status-details-bin").unwrap().len(), 17_500);
}
