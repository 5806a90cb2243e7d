//! One test for each fault that was found after the fact, named for what went wrong.

use std::io::Write as _;

use super::support::client::{Connection, get};
use super::support::tidegate::Tidegate;
use super::support::upstream::{Upstream, ok, section};

/// A proxy with one limit of two requests, which further lines say more about.
fn limited(api: &Upstream, server: &str, limit: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[server]\nlisten = \"LISTEN\"\nworkers = 1\n{server}\n{}\
         [limits.two]\nrate = \"2/h\"\n{limit}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"two\"]\n",
        section(&[api])
    ))
}

/// A client named its key in `connection`: it was counted by a new key each time, and the API got
/// requests without any.
#[test]
fn a_client_is_not_counted_by_a_field_that_its_api_never_sees() {
    let api = Upstream::echoing();
    for (limit, header) in
        [("key = [\"header:x-api-key\"]", "x-api-key"), ("key = [\"cookie:session\"]", "cookie")]
    {
        let proxy = limited(&api, "", limit);
        let statuses: Vec<_> = (0..3)
            .map(|n| {
                let (key, connection) = (format!("session={n}"), format!("keep-alive, {header}"));
                get(proxy.address, "/", &[(header, &key), ("connection", &connection)]).status
            })
            .collect();
        assert_eq!(statuses, [200, 200, 429], "{header}");
        assert_eq!(api.last().header(header), None);
    }
}

/// A limit by `header:x-forwarded-for` or by the header of a trusted proxy counted what strangers
/// wrote there, though the API was sent something else.
#[test]
fn a_stranger_is_not_counted_by_who_it_says_it_is() {
    let api = Upstream::echoing();
    for (server, header) in [
        ("", "x-forwarded-for"),
        ("", "forwarded"),
        ("client_ip_header = \"x-real-ip\"", "x-real-ip"),
    ] {
        let proxy = limited(&api, server, &format!("key = [\"header:{header}\"]"));
        let statuses: Vec<_> = (0..3)
            .map(|n| get(proxy.address, "/", &[(header, &format!("for=203.0.113.{n}"))]).status)
            .collect();
        assert_eq!(statuses, [200, 200, 429], "{header}");
    }
}

/// Servers that read an underscore as a dash believed a stranger's `x_real_ip`.
#[test]
fn a_stranger_does_not_name_its_address_with_an_underscore() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "client_ip_header = \"x-real-ip\"", "");
    get(proxy.address, "/", &[("x_real_ip", "203.0.113.7")]);
    assert_eq!(api.last().header("x_real_ip"), None);
}

/// A limit by `header:host` counted a host beside the target's, which the API never saw.
#[test]
fn a_host_beside_an_absolute_target_counts_for_nothing() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "", "key = [\"header:host\"]");
    let statuses: Vec<_> = (0..3)
        .map(|n| get(proxy.address, "http://api.test/", &[("host", &format!("h{n}.test"))]).status)
        .collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(api.last().header("host").as_deref(), Some("api.test"));
}

/// A client took out what a trusted proxy in front of it had said.
#[test]
fn a_client_does_not_take_out_its_proxys_word() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "trusted_proxies = [\"127.0.0.0/8\"]", "key = [\"ip\"]");
    let headers = [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "https"),
        ("connection", "x-forwarded-for, x-forwarded-proto"),
    ];
    assert_eq!(get(proxy.address, "/", &headers).status, 200);
    let got = api.last();
    assert_eq!(got.header("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(got.header("x-forwarded-for").as_deref(), Some("203.0.113.7, 127.0.0.1"));
}

/// A byte beyond ASCII in the list hid the offer of h2c beside it, and a server that took the offer
/// was no longer limited.
#[test]
fn an_offer_of_h2c_does_not_hide_behind_a_strange_byte() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "", "");
    let mut connection = Connection::open(proxy.address);
    connection
        .send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c, \xe9\r\n\r\n");
    assert_eq!(connection.reply("GET").status, 200);
    assert_eq!(api.last().header("upgrade"), None);
}

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

/// The whole process waited for somebody to write into the pipe, and could not even be told to end.
#[test]
fn a_file_that_becomes_a_pipe_or_has_no_end_does_not_stop_the_process() {
    let api = Upstream::echoing();
    type Replace = fn(&std::path::Path);
    let cases: [(&str, Replace); 3] = [
        ("a pipe", |file| {
            assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
        }),
        ("a device", |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
        ("a giant", |file| std::fs::File::create(file).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (name, replace) in cases {
        let mut proxy = Tidegate::before(&[&api], "", "");
        let before = proxy.memory();
        std::fs::remove_file(proxy.config_file()).unwrap();
        replace(&proxy.config_file());
        proxy.log.wait("config rejected", |_| true);
        proxy.signal("HUP");
        assert_eq!(get(proxy.address, "/", &[]).status, 200, "{name}");
        assert!(proxy.memory() < before + 64 * 1024, "{name}");
        assert!(proxy.stop().success(), "{name}");
    }
}

/// Clients that only held connections took the descriptors that requests needed to go upstream: all
/// were answered 502, the server counted as down, and the log filled with failed accepts.
#[test]
fn idle_clients_do_not_take_the_descriptors_of_those_who_ask() {
    let api = Upstream::echoing();
    let proxy = Tidegate::start_with(
        &format!(
            "[server]\nlisten = \"LISTEN\"\nworkers = 1\n{}\
             [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
            section(&[&api])
        ),
        |command| {
            // The proxy's own command, with fewer descriptors.
            let (program, arguments) = (command.get_program().to_owned(), command.get_args());
            let arguments: Vec<_> = arguments.map(ToOwned::to_owned).collect();
            let mut limited = std::process::Command::new("sh");
            limited
                .env_remove("RUST_LOG")
                .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
                .arg(program)
                .args(arguments);
            limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            *command = limited;
        },
    );
    // The first ones are taken, and the others wait to be.
    let mut first: Vec<_> = (0..8).map(|_| Connection::open(proxy.address)).collect();
    let _others: Vec<_> = (0..100).map(|_| Connection::open(proxy.address)).collect();
    for connection in &mut first {
        assert_eq!(connection.get("/", &[]).status, 200);
    }
    assert_eq!(proxy.log.count("accept failed"), 0);
    assert_eq!(proxy.log.count("server down"), 0);
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

/// A stranger announced `x-forwarded-for` as a trailer: it went to the API behind the body.
#[test]
fn a_stranger_does_not_say_who_it_is_behind_its_body() {
    let api = Upstream::echoing();
    let proxy = Tidegate::before(&[&api], "client_ip_header = \"x-real-ip\"", "");
    let trailers = ["x-forwarded-for", "forwarded", "x_real_ip", "connection", "upgrade", "x-sum"];
    let lines: String = trailers.iter().map(|name| format!("{name}: 203.0.113.7\r\n")).collect();
    let mut client = Connection::open(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntrailer: {}\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\n{lines}\r\n",
        trailers.join(", ")
    ));
    assert_eq!(client.reply("POST").status, 200);
    let got = api.last();
    assert_eq!(got.trailers, [("x-sum".to_owned(), "203.0.113.7".to_owned())]);
    assert_eq!(got.header("trailer").as_deref(), Some("x-sum"));
}

/// What is compressed cannot be read, so a client that offered to take it paid the estimate alone.
#[test]
fn a_client_does_not_pay_less_by_taking_json_compressed() {
    let api = Upstream::answering(|got| {
        let (coding, body) = match got.header("accept-encoding") {
            Some(coding) => (format!("content-encoding: {coding}\r\n"), "compressed"),
            None => (String::new(), "{\"usage\":2}"),
        };
        let length = body.len();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{coding}content-length: {length}\r\n\r\n\
             {body}"
        )
        .into_bytes()
    });
    let cost = "cost = { response_json = \"usage\", estimate = 1 }";
    for (route, statuses) in [
        ("", [200, 429]),
        ("request_headers = { set = { accept-encoding = \"gzip\" } }", [200, 200]),
    ] {
        let proxy = limited(
            &api,
            "",
            &format!(
                "{cost}\n[[routes]]\npath = \"/p\"\nupstream = \"api\"\nlimits = [\"two\"]\n{route}\n"
            ),
        );
        let mut client = Connection::open(proxy.address);
        let said = statuses.map(|_| client.get("/p", &[("accept-encoding", "gzip")]).status);
        assert_eq!(said, statuses, "{route}");
    }
}
