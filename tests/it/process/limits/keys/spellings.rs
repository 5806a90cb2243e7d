//! One value in all spellings that some API takes for it: one bucket, or 400. Otherwise a client has as many buckets
//! as it can think of spellings.

use super::{Step, check, check_headers, check_targets, proxy};
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;

/// The statuses of requests with these lines in their heads.
fn statuses(proxy: &Tidegate, lines: &[&[u8]]) -> Vec<u16> {
    let status = |line: &&[u8]| {
        let mut connection = Connection::open(proxy.address);
        connection.send([b"GET / HTTP/1.1\r\nhost: a\r\n", *line, b"\r\n\r\n"].concat());
        connection.reply("GET").status
    };
    lines.iter().map(status).collect()
}

/// hyperdxio/hyperdx #2775: whoever wrote a new word in front of one token had a new bucket each time.
#[test]
fn words_around_a_token_are_no_new_buckets() {
    let authorization = |value| [("authorization", value)];
    check_headers(
        "",
        "key = [\"header:authorization\"]\n\
         overrides = [{ key = [\"Bearer none\"], rate = \"0/s\" }]",
        &[
            (&authorization("Bearer KEY"), 200),
            (&authorization("n1 Bearer KEY"), 400),
            (&authorization("n1 a=\"1\", KEY"), 400),
            (&authorization("S1\tKEY"), 429),
            (&authorization("KEY"), 429),
            (&authorization("Bearer OTHER"), 200),
            (&authorization("Token none"), 429),
            (&authorization("Digest username=\"a\", realm=\"b c\", nc=1"), 200),
            (&authorization("Digest username=\"a\",realm=\"b c\",  nc=1"), 429),
            // `a:bc`, and the same behind which a script wrote a line's end.
            (&authorization("Basic YTpiYw=="), 200),
            (&authorization("Basic YTpiYwo="), 429),
        ],
    );
}

#[test]
fn blanks_beyond_ascii_are_no_new_buckets() {
    let lines: [(&str, &[&[u8]], u16); 3] = [
        (
            "header:authorization",
            &[
                b"authorization: Bearer KEY",
                b"authorization: Bearer KEY\xa0",
                b"authorization: \xe3\x80\x80Bearer KEY",
                b"authorization: Bearer\xc2\xa0KEY",
            ],
            400,
        ),
        (
            "header:x-api-key",
            &[b"x-api-key: KEY", b"x-api-key: KEY\x85", b"x-api-key: \xef\xbb\xbfKEY"],
            429,
        ),
        (
            "cookie:session",
            &[
                b"cookie: session=KEY",
                b"cookie: \xa0session=KEY",
                b"cookie: a=1;\xa0session\xa0=\xa0KEY\x85",
                b"cookie: session=\"KEY\xa0\"",
                b"cookie: session=%C2%A0KEY%00",
                b"cookie: session=%1cKEY",
            ],
            429,
        ),
    ];
    for (source, lines, again) in lines {
        for missing in ["shared", "skip"] {
            let limit = format!("key = [\"{source}\"]\nmissing = \"{missing}\"");
            let proxy = proxy("", &limit, "/{*rest}").start();
            let [first, others @ ..] = &*statuses(&proxy, lines) else { panic!("no line") };
            assert_eq!(*first, 200, "{source}");
            assert!(others.iter().all(|status| *status == again), "{source}: {others:?}");
        }
    }
}

#[test]
fn a_query_parameter_has_one_bucket_however_it_is_called() {
    for missing in ["shared", "skip", "reject"] {
        check_targets(
            &format!("key = [\"query:api_key\"]\nmissing = \"{missing}\""),
            "/{*rest}",
            &[
                ("/?api_key=K", 200),
                ("/?API_KEY=K", 400),
                ("/?api%20key=K", 400),
                ("/?%C2%A0api_key=K", 400),
                ("/?api_key%5B0%5D=K", 400),
                ("/?api_key%00=K", 400),
                ("/?a=1;API_KEY=K", 400),
                ("/?api_key=N&API_KEY=K", 400),
                ("/?api_key=K%C2%A0", 429),
                ("/?api_key=K%A0", 429),
                // Other names are others.
                ("/?api_key=L&apikey=K&api_keys=K&_api_key=K&key=K&api=K", 200),
            ],
        );
    }
}

#[test]
fn a_cookie_has_one_bucket_however_it_is_called() {
    let cookie = |value| [("cookie", value)];
    for missing in ["shared", "skip", "reject"] {
        check_headers(
            "",
            &format!("key = [\"cookie:sess_id\"]\nmissing = \"{missing}\""),
            &[
                (&cookie("sess_id=K"), 200),
                (&cookie("SESS_ID=K"), 400),
                (&cookie("sess%5fid=K"), 400),
                (&cookie("sess%20id=K"), 400),
                (&cookie("a=1, SESS_ID=K"), 400),
                (&cookie("sess_id=N; sess.id=K"), 400),
                (&cookie("sess_id=K"), 429),
                (&cookie("sess_id=L; sessid=K; sess_ids=K; _sess_id=K; id=K"), 200),
            ],
        );
    }
}

/// A path's parameter and an override's value have blanks too.
#[test]
fn all_values_are_read_without_blanks() {
    check_targets(
        "key = [\"param:id\"]\noverrides = [{ key = [\" none\\u00a0\"], rate = \"0/s\" }]",
        "/{id}",
        &[
            ("/K", 200),
            ("/K%20", 429),
            ("/%C2%A0K", 429),
            ("/L", 200),
            ("/none", 429),
            ("/none%A0", 429),
        ],
    );
}

/// A route or an exemption that reads another value than the limit and the API is a way around them.
#[test]
fn routes_and_exemptions_read_the_same_values() {
    let proxy = Proxy::answering()
        .limit(
            "all",
            "key = []\nrate = \"1/h\"\nexempt = { header = { authorization = \"Bearer free\" } }",
        )
        .limit("closed", "key = []\nrate = \"0/s\"")
        .route("path = \"/{*rest}\"\nlimits = [\"all\"]")
        .route("path = \"/{*rest}\"\nheaders = { x-plan = \"none\" }\nlimits = [\"closed\"]")
        .start();
    let lines: [&[u8]; 9] = [
        b"x-plan: none",
        b"x-plan: none\xa0",
        b"x-plan: \xe3\x80\x80none\xc2\xa0",
        b"authorization: Bearer free",
        b"authorization: bearer\tfree",
        b"authorization: n1 Bearer free",
        b"x-plan: other",
        b"authorization: Bearer  free",
        b"authorization: Bearer paid",
    ];
    assert_eq!(statuses(&proxy, &lines), [429, 429, 429, 200, 200, 200, 429, 200, 429]);
}

#[test]
fn what_clients_usually_send_is_not_refused() {
    let steps: &[Step<'_>] = &[
        (
            "GET",
            "/?q=caf%C3%A9+au+lait&page[size]=10&sort=-id&_=17",
            &[("cookie", "_ga=GA1.2; theme=a b")],
            200,
        ),
        (
            "GET",
            "/?q=x&filter.q=1&Query=x&ids[]=1&ids[]=2",
            &[("cookie", "a.b=1; a_b=2; SID=x; sid2=y")],
            200,
        ),
        ("GET", "/?q=y", &[("cookie", "__Host-sid=1; session-id=2; sid=3")], 200),
    ];
    check("", "key = [\"query:q\", \"cookie:sid2\"]", "/{*rest}", steps);
}

/// Express and others take `/Login` and `/login/` for `/login`.
#[test]
fn loose_paths_are_one_path() {
    let limits = "[limits.login]\nkey = [\"path\"]\nrate = \"1/h\"\n\
                  exempt = { path = [\"/Login/Free/\"] }\n\
                  [limits.user]\nkey = [\"param:name\"]\nrate = \"1/h\"\n\
                  overrides = [{ key = [\"Ann\"], rate = \"2/h\" }]\n\
                  [limits.closed]\nkey = [\"path\"]\nrate = \"100/s\"\n\
                  overrides = [{ key = [\"/Login/Closed\"], rate = \"0/s\" }]\n";
    let route = |path: &str, limit: &str| format!("path = \"{path}\"\nlimits = [{limit}]");
    let steps = [
        ("/login", 200, 200),
        ("/LOGIN", 429, 200),
        ("/%4cogin;x=1/", 429, 200),
        ("/login/FREE", 200, 200),
        ("/login/Closed/", 429, 200),
        ("/users/Bob", 200, 200),
        ("/Users/BOB/", 429, 200),
        ("/users/ann", 200, 200),
        ("/users/ANN", 200, 200),
        ("/USERS/Ann/", 429, 200),
        ("/files/%C3%89", 200, 200),
        ("/files/%C3%A9/", 429, 200),
        // Java and Python take these for an `i` and an `s`.
        ("/log%C4%B1n", 429, 200),
        ("/login%20/", 429, 200),
        ("/u%C5%BFers/bob", 429, 200),
    ];
    for loose in [true, false] {
        let proxy = Proxy::answering()
            .server(&format!("loose_paths = {loose}"))
            .limits(limits)
            .route(&route("/Login", "\"login\""))
            .route(&route("/login/free", "\"login\""))
            .route(&route("/login/closed", "\"closed\""))
            .route(&route("/users/{name}", "\"user\""))
            .route(&route("/files/{*rest}", "\"login\""))
            .route(&route("/{*rest}", ""))
            .start();
        for (path, with, without) in steps {
            let expected = if loose { with } else { without };
            assert_eq!(get(proxy.address, path, &[]).status, expected, "{loose} {path}");
        }
    }
}

/// Patterns that end in `$` match before a line feed, and many frameworks cut blanks off: `/login%0A` ran `/login`, and
/// the limit of another path counted.
#[test]
fn blanks_at_the_end_make_no_other_path() {
    let proxy = Proxy::answering()
        .limit("login", "key = [\"path\"]\nrate = \"1/h\"")
        .route("path = \"/login\"\nlimits = [\"login\"]")
        .route("path = \"/{*rest}\"")
        .start();
    assert_eq!(get(proxy.address, "/login", &[]).status, 200);
    for end in
        ["%0A", "%0a", "%0D", "%0D%0A", "%09", "%20", "%20%0A", "%C2%85", "%E2%80%A8", "%0A;x"]
    {
        assert_eq!(get(proxy.address, &format!("/login{end}"), &[]).status, 429, "{end}");
    }
    assert_eq!(get(proxy.address, "/login%00", &[]).status, 400);
    for other in ["/login%20x", "/lo%20gin", "/login/%20"] {
        assert_eq!(get(proxy.address, other, &[]).status, 200, "{other}");
    }
}
