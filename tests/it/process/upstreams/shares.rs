//! What one client has of the places that all share.

use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

/// A regression: one client took all of `max_requests` with bodies of a byte a second, and all others got 503.
#[test]
fn slow_uploads_of_one_client_leave_places_for_others() {
    let api = Upstream::echoing();
    let upstream = "max_requests = 4\nqueue_timeout = \"1h\"";
    let proxy = Proxy::of_one_worker(&api).upstream(upstream).start();
    let mut old: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Connection::open(proxy.address);
            client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n1");
            client
        })
        .collect();
    let mut client = Client::open(proxy.address);
    let mut new: Vec<_> = (0..3)
        .map(|_| {
            let mut upload = client.upload("POST", "/", &[]);
            upload.send(b"1");
            upload
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200, "a whole request of the same client");
        assert_eq!(client.get("/", &[]).status, 200);
        let mut other = Connection::open_from([127, 0, 0, 2], proxy.address);
        assert_eq!(other.request("POST", "/", &[], b"whole").status, 200, "another client");
    }
    for upload in &mut old {
        upload.send("2");
    }
    for upload in &mut new {
        upload.send(b"2");
        upload.end();
    }
    for upload in &mut old {
        assert_eq!(upload.reply("POST").text(), "/");
    }
    for upload in &mut new {
        assert_eq!(upload.reply().text(), "/");
    }
}
