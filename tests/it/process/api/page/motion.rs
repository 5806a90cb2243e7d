//! Nothing on the page jumps, and it fits a phone.

use std::io::{BufReader, Write as _};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::*;
use crate::support::client::Connection;
use crate::support::upstream::{Upstream, read_head};

#[test]
fn long_names_are_no_wider_than_a_phone() {
    let (name, path) = ("n".repeat(64), format!("/{}", "r".repeat(90)));
    let proxy = Proxy::answering()
        .admin()
        .limit(&name, "rate = \"3/h\"")
        .route(&format!("path = \"{path}\"\nlimits = [\"{name}\"]"))
        .start();
    get(proxy.address, &path, &[]);
    let mut page = open(&proxy);
    page.resize(360, 800);
    page.wait("#shown", |text| text.contains(&name));
    page.wait("#limit", |text| text.contains(&name));
    page.wait("#plot-routes .legend", |text| text.contains(&path));
    assert_fits(&mut page);
}

#[test]
fn nothing_jumps_while_the_page_loads() {
    let proxy = limited().start();
    send(&proxy, "ann", 3);
    // Until they are in a rate, the first numbers of a page still need room.
    wait_until("they are in the history", || {
        let answer = get(proxy.admin(), "/api/history", &[("host", "localhost")]);
        answer.json()["points"].to_string().contains(r#""user":"#)
    });
    for (width, height) in [(360, 740), (1280, 900)] {
        let mut page = Browser::open(&format!("http://{}/", proxy.admin()), width, height);
        page.wait("#rejected", |text| text.contains("user"));
        page.list_jumps();
        let shown = page.js("status.time");
        wait_until("the next status is shown", || page.js("status.time") != shown);
        assert_eq!(page.js("window.jumps"), json!([]), "something moved at {width} px");
    }
}

/// A regression: half of the page's head was shown, and moved when the rest came.
#[test]
fn nothing_jumps_where_the_document_comes_in_parts() {
    let document = get(limited().start().admin(), "/", &[("host", "localhost")]).text();
    let (first, rest) = document.split_once("tidegate</h1>").unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\n\r\n",
        document.len()
    );
    let parts = [format!("{head}{first}"), format!("tidegate</h1>{rest}")];
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let server = Upstream::raw(move |mut stream| {
        let got = read_head(&mut BufReader::new(&stream));
        if got.is_some_and(|got| got.path() == "/") {
            let _ = stream.write_all(parts[0].as_bytes());
            let _ = wait.lock().unwrap().recv();
            let _ = stream.write_all(parts[1].as_bytes());
        }
    });
    let mut page = Browser::open(&format!("{}/", server.url()), 360, 740);
    let drawn =
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
    wait_until("the first part is there", || {
        page.js("document.querySelector('h1 svg') !== null") == true
    });
    page.list_jumps();
    page.js(drawn);
    go.send(()).unwrap();
    wait_until("all is there", || page.js("document.readyState !== 'loading'") == true);
    page.js(drawn);
    assert_eq!(page.js("window.jumps"), json!([]), "something moved");
}

#[test]
fn it_fits_a_phone_and_both_colours_and_does_not_jump() {
    let proxy = limited().start();
    send(&proxy, "ann", 3);
    let mut page = open(&proxy);
    page.wait("#rejected", |text| text.contains("user"));
    let ground = |page: &mut Browser| page.js("getComputedStyle(document.body).backgroundColor");
    page.prefer("light");
    let light = ground(&mut page);
    page.prefer("dark");
    let dark = ground(&mut page);
    assert_ne!(light, dark);
    page.watch_jumps();
    let mut client = Connection::open(proxy.address);
    // The counts of the seven users grow from one digit to three. What was sent is known here: a status that
    // already names a rejected key may not count its request yet.
    let mut sent = 3;
    for count in [30, 170, 600] {
        sent += count;
        for user in 0..count {
            client.get("/", &[("x-user", &(user % 7).to_string())]);
        }
        wait_until("the page has shown it", || page.js("status.requests.total") == sent);
    }
    wait_until("and the next second", || page.js("status.requests.per_second") == 0);
    assert_eq!(page.js("window.jumps"), json!([]), "something moved");
    page.resize(390, 844);
    assert_fits(&mut page);
}

/// On a phone the page was 6,700 px of zeros.
#[test]
fn what_is_nothing_takes_no_room_on_a_phone() {
    let mut proxy = Proxy::answering().admin();
    for number in 0..8 {
        proxy = proxy.limit(&format!("limit-{number}"), "key = [\"ip\"]\nrate = \"9/s\"");
        let route = format!("path = \"/{number}\"\nlimits = [\"limit-{number}\"]");
        proxy = proxy.route(&route);
    }
    let proxy = proxy.start();
    let mut page = open(&proxy);
    page.resize(390, 844);
    page.wait("#limits", |text| text.contains("limit-7"));
    let zeros = "[...document.querySelectorAll('td.n, .tile')].filter((it) => it.offsetHeight \
                 && /(^|\\D)0( |$)/.test(it.innerText)).length";
    // The tile of all requests stays.
    assert_eq!(page.js(zeros), 1);
    assert_eq!(page.text("#routes tbody"), "");
    let shown = page.js("document.documentElement.scrollHeight").as_u64().unwrap();
    assert!(shown < 3_000, "{shown} px");
    get(proxy.address, "/3", &[]);
    let routes = page.wait("#routes tbody", |text| text.contains("/3"));
    assert!(!routes.contains("/4"), "{routes}");
    assert_fits(&mut page);
    page.resize(1280, 900);
    assert!(page.text("#routes tbody").contains("/4"), "there is room for all on a desk");
}
