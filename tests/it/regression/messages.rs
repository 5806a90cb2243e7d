//! Requests and answers that were read or passed on wrongly.

use std::io::Write as _;

use crate::support::client::{Connection, get};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok, section};

/// A path that a rewrite made too long for a URI went upstream as it came, without the rewrite.
#[test]
fn a_path_that_a_rewrite_makes_too_long_does_not_go_upstream_without_it() {
    let api = Upstream::echoing();
    let proxy = Tidegate::start(&format!(
        "[server]\nlisten = \"LISTEN\"\nmax_header_size = \"1MiB\"\n{}[[routes]]\n\
         path = \"/{{*rest}}\"\nrewrite = \"/public/{{*rest}}\"\nupstream = \"api\"\n",
        section(&[&api])
    ));
    let reply = get(proxy.address, &format!("/{}", "a".repeat(65_530)), &[]);
    assert_eq!(reply.status, 414, "{}", reply.text());
    assert!(api.requests().is_empty());
}

/// A status line without words for its status, or with bytes beyond ASCII in them, took the
/// connection's task down: the client was closed without an answer.
#[test]
fn an_answer_without_words_for_its_status_does_not_break_the_connection() {
    for line in ["HTTP/1.1 200", "HTTP/1.1 200 \u{e9}"] {
        let answer = format!("{line}\r\ncontent-length: 2\r\n\r\nok");
        let api = Upstream::saying(&[&answer]);
        let proxy = Tidegate::before(&[&api], "", "");
        let reply = Connection::open(proxy.address).get("/", &[]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"), "{line}");
    }
}

/// Interim answers, and empty lines before a request, were passed over without end: whoever sent
/// them fast enough was never looked at by a timer.
#[test]
fn nothing_goes_on_for_ever_before_a_head() {
    let api = Upstream::raw(|mut stream| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(interim.as_bytes()).is_ok() {}
    });
    let proxy = Tidegate::before(&[&api], "", "retries = 0\nresponse_timeout = \"1d\"");
    assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 502);
    let mut client = Connection::open(proxy.address);
    client.send("\r\n".repeat(32 * 1024));
    assert_eq!(client.reply("GET").status, 431);
}

/// A connection that ended with requests unread behind the last one was reset, which destroyed what
/// its client had not read yet of the answer.
#[test]
fn requests_behind_the_last_one_do_not_destroy_its_answer() {
    let body = "x".repeat(1_000_000);
    let answer = body.clone();
    let api = Upstream::answering(move |_| ok(&answer));
    let proxy = Tidegate::before(&[&api], "", "[log]\naccess = true");
    let mut client = Connection::open(proxy.address);
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    client.send(format!("{last}{}", "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(3000)));
    // By then all of the answer is in the kernel's hands.
    proxy.log.wait("request", |_| true);
    assert_eq!(client.reply("GET").text().len(), body.len());
}
