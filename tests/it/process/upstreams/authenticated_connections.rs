//! Servers that authenticate a connection instead of a request.

use http::Version;
use tidegate::tls::{H2, HTTP_1_1};

use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::upstream::Upstream;

/// haproxy's issue 581: the next client was the one before. A token of Negotiate authenticates a connection at once.
#[test]
fn a_connection_that_a_client_may_have_authenticated_is_used_no_more() {
    for shown in ["Negotiate a", "negotiate a", "NEGOTIATE a"] {
        let server = Upstream::echoing();
        let proxy = Proxy::of_one_worker(&server).start();
        let mut client = Connection::open(proxy.address);
        for authorization in [&[][..], &[("authorization", shown)], &[], &[]] {
            assert_eq!(client.get("/", authorization).status, 200);
        }
        let earlier: Vec<_> = server.requests().iter().map(|got| got.earlier).collect();
        assert_eq!(earlier, [0, 1, 0, 1], "{shown}");
    }
}

/// Also a successful answer may authenticate its connection.
#[test]
fn a_connection_that_the_server_authenticates_is_used_no_more() {
    for field in [
        "www-authenticate: NTLM",
        "WWW-Authenticate: negotiate oYG=",
        "www-authenticate: Basic realm=\"a\"\r\nwww-authenticate: Digest realm=\"b\", Negotiate",
        "proxy-authenticate: NTLM",
    ] {
        for status in ["200 OK", "401 Unauthorized", "403 Forbidden", "407 Proxy"] {
            let said = format!("HTTP/1.1 {status}\r\n{field}\r\ncontent-length: 0\r\n\r\n");
            let server = Upstream::answering(move |_| said.clone().into_bytes());
            let proxy = Proxy::of_one_worker(&server).start();
            let mut client = Connection::open(proxy.address);
            (0..2).for_each(|_| drop(client.get("/", &[])));
            assert_eq!(server.last().earlier, 0, "{status} {field}");
        }
    }
}

#[test]
fn other_schemes_share_connections() {
    let said = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"NTLM\"\r\n\
                content-length: 0\r\n\r\n";
    let server = Upstream::answering(|_| said.into());
    let proxy = Proxy::of_one_worker(&server).start();
    // A regression: each client that wrote "NTLM" had a connection of its own. Without a challenge it authenticates none.
    for shown in ["Bearer NTLM", "NTLM x", "ntlm TlRMTVNTUAAB"] {
        get(proxy.address, "/", &[("authorization", shown)]);
    }
    assert_eq!(server.last().earlier, 2);
}

#[test]
fn a_server_of_http_2_gets_a_connection_that_is_not_shared() {
    let api = Api::h2c();
    let proxy = Proxy::of_one_worker(&api).start();
    assert_eq!(connections(&api, &proxy), [0, 1, 0, 0, 2, 0]);
}

#[test]
fn a_server_of_both_protocols_is_authenticated_to_by_http_1_1() {
    let folder = Folder::new();
    let files = folder.write_server("api", &["127.0.0.1"]);
    let tls = format!("tls = {{ ca = {:?} }}", folder.ca());
    let api = Api::tls(folder.server(&files, &[H2, HTTP_1_1], None));
    let proxy = Proxy::of_one_worker(&api).upstream(&tls).start();
    assert_eq!(connections(&api, &proxy), [0, 1, 0, 0, 2, 0]);
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    let versions: Vec<_> = api.calls().iter().map(|call| call.version).collect();
    assert_eq!(versions, [new, old, new, new, old, new]);
    // The answer of a server of HTTP/2 alone comes on such a connection too.
    let alone = Api::tls(folder.server(&files, &[H2], None));
    let proxy = Proxy::of_one_worker(&alone).upstream(&tls).start();
    let used = connections(&alone, &proxy);
    assert_eq!([used[0], used[2], used[3], used[5]], [used[0]; 4], "{used:?}");
    assert!(![used[0], used[4]].contains(&used[1]) && used[4] != used[0], "{used:?}");
}

/// The connections on which these requests come: of nobody, of A who authenticates, of nobody, of A, of B
/// who authenticates, of nobody.
fn connections(api: &Api, proxy: &Tidegate) -> Vec<usize> {
    let [mut a, mut b, mut c] = [(); 3].map(|()| Connection::open(proxy.address));
    let shown = [("authorization", "Negotiate YII=")];
    c.get("/", &[]);
    a.get("/", &shown);
    c.get("/", &[]);
    a.get("/", &[]);
    b.get("/", &shown);
    c.get("/", &[]);
    api.calls().iter().map(|call| call.connection).collect()
}
