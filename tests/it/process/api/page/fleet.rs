//! The processes that share a store, on the page of one of them.

use super::*;
use crate::support::redis::RedisServer;

#[test]
fn each_process_is_shown_with_the_sums_until_it_dies() {
    let server = RedisServer::start();
    let proxy = limited().store(&server.fields()).section("[log]\nkeys = \"plain\"");
    let one = proxy.start();
    let mut page = open(&one);
    page.wait("#state", |text| text.starts_with("All is well"));
    let heights = |page: &mut Browser| {
        ["#fleet", "#whose"]
            .map(|it| page.js(&format!("document.querySelector('{it}').offsetHeight")))
    };
    assert_eq!(heights(&mut page), [0, 0], "one process has nothing beside it");
    let mut two = proxy.clone().limit("more", "rate = \"9/s\"").start();
    // The limit holds for both together.
    assert_eq!(send(&one, "ann", 3), [200, 200, 429]);
    assert_eq!(send(&two, "ann", 4), [429; 4]);
    page.wait("#processes tbody tr", |text| text.split_whitespace().last() == Some("7"));
    let table = page.text("#processes tbody");
    assert!(!table.contains("no answer") && lines(&table)[0].starts_with("All"), "{table}");
    assert_eq!(table.matches("this one").count(), 1, "{table}");
    // Of two files none is that of most processes.
    assert_eq!(table.matches("other file").count(), 2, "{table}");
    let rejected = page.wait("#rejected", |text| keys(text).contains(&"5"));
    assert_eq!(keys(&rejected)[3..], ["ann", "user", "5"], "{rejected}");
    page.fill("#whose", "");
    let rejected = page.text("#rejected");
    assert!(keys(&rejected).ends_with(&["ann", "user", "1"]), "{rejected}");
    two.reload(&proxy.text());
    page.wait("#processes tbody", |text| !text.contains("other file"));
    page.resize(390, 844);
    assert_fits(&mut page);
    two.signal("KILL");
    two.wait_for_exit();
    wait_until("it is gone", || page.js("fleet.processes.length") == 1);
    assert_eq!(page.js("document.querySelectorAll('#processes tbody tr').length"), 2);
}

#[test]
fn nothing_jumps_while_the_processes_load_and_count() {
    let server = RedisServer::start();
    let proxy = limited().store(&server.fields());
    let [one, two] = [(); 2].map(|()| proxy.start());
    send(&two, "ann", 3);
    wait_until("both are known", || {
        let status = get(one.admin(), "/api/status", &[("host", "localhost")]).json();
        status["store"]["processes"] == 2
    });
    let mut sent = 3;
    for (width, height) in [(360, 740), (1280, 900)] {
        let mut page = Browser::open(&format!("http://{}/", one.admin()), width, height);
        page.wait("#processes tbody", |text| lines(text).len() >= 3);
        page.list_jumps();
        for count in [2, 300] {
            sent += count;
            send(&two, "bob", count);
            wait_until("the page has shown it", || page.js("fleet.sums.requests") == sent);
        }
        assert_eq!(page.js("window.jumps"), json!([]), "something moved at {width} px");
    }
}
