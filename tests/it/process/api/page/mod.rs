//! The page at `/`, in a headless browser: what it shows is what was sent.

mod fleet;
mod motion;

use serde_json::json;

use super::{limited, send};
use crate::support::browser::Browser;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

/// The page of a proxy, in a window of a desk.
fn open(proxy: &Tidegate) -> Browser {
    Browser::open(&format!("http://{}/", proxy.admin()), 1280, 900)
}

/// The page is no wider than its window, and the browser has nothing to complain of.
fn assert_fits(page: &mut Browser) {
    let is_wider = page.js("document.documentElement.scrollWidth > innerWidth");
    assert_eq!(is_wider, false, "it is wider than its window");
    assert_eq!(page.complaints, [""; 0]);
}

/// The lines of what people see of an element, without its gaps.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// The keys of a list with their limits and counts, without their rates.
fn keys(text: &str) -> Vec<&str> {
    lines(text).into_iter().filter(|line| !line.ends_with("/s")).collect()
}

#[test]
fn the_numbers_are_those_of_what_was_sent() {
    let proxy = limited().section("[log]\nkeys = \"plain\"").start();
    assert_eq!(send(&proxy, "ann", 5), [200, 200, 429, 429, 429]);
    assert_eq!(send(&proxy, "bob", 3), [200, 200, 429]);
    let mut page = open(&proxy);
    // The column behind the statuses: all requests of the route.
    let routes = page.wait("#routes tbody", |text| text.contains('8'));
    assert!(lines(&routes)[0].ends_with('8'), "{routes}");
    // Three of ann's requests were rejected and one of bob's. In shadow only the first one was allowed.
    let rejected = page.wait("#rejected", |text| text.contains("ann"));
    let rows = ["all requests", "all", "7", "ann", "user", "3", "bob", "user", "1"];
    assert_eq!(keys(&rejected), rows, "{rejected}");
    assert_eq!(lines(&rejected).len(), 12, "each has a rate: {rejected}");
    assert!(page.text("#rejected-note").contains("exact"));
    let limits = page.text("#limits tbody");
    assert!(limits.contains("header:x-user") && limits.contains("2/h, burst 2"), "{limits}");
    assert!(limits.contains("shadow"), "{limits}");
    page.wait("#state", |text| text == "All is well. No limit rejects.");
    assert_eq!(page.complaints, [""; 0]);
}

#[test]
fn decisions_show_while_they_happen_and_the_plots_say_them() {
    let proxy = limited().start();
    let mut page = open(&proxy);
    page.wait("#state", |text| text.starts_with("All is well"));
    let plot = |page: &mut Browser, id: &str| {
        let label =
            page.js(&format!("document.querySelector('#{id} svg').getAttribute('aria-label')"));
        label.as_str().unwrap().to_owned()
    };
    wait_until("a rejection is seen", || {
        send(&proxy, "ann", 3);
        page.text("#state") == "Rejecting now: user."
    });
    wait_until("the plot says it", || {
        send(&proxy, "ann", 3);
        let told = plot(&mut page, "plot-decisions");
        told.contains("rejected") && !told.contains("rejected 0,")
    });
    let routes = plot(&mut page, "plot-routes");
    assert!(routes.contains("/{*rest}"), "{routes}");
    page.click("#hour");
    wait_until("the last hour is there", || {
        page.js("plots.decisions.to - plots.decisions.from") == 3_600_000
    });
    assert_eq!(page.complaints, [""; 0]);
}

#[test]
fn a_limit_or_a_route_is_chosen_and_requests_count_once() {
    let proxy = Proxy::answering()
        .admin()
        .limit("wide", "rate = \"100/h\"")
        .limit("tight", "rate = \"1/h\"")
        .route("path = \"/both\"\nlimits = [\"wide\", \"tight\"]")
        .route("path = \"/wide\"\nlimits = [\"wide\"]")
        .start();
    let mut page = open(&proxy);
    page.wait("#state", |text| text.starts_with("All is well"));
    (0..4).for_each(|_| drop(get(proxy.address, "/both", &[])));
    (0..2).for_each(|_| drop(get(proxy.address, "/wide", &[])));
    // What all points together have counted: allowed, held, rejected, shadowed.
    let counts = "points.live.reduce((all, point) => all.map((one, at) => one + \
                  counted(point, shown).decisions[at]), [0, 0, 0, 0]).map(Math.round)";
    for (chosen, expected) in [
        ("", json!([3, 0, 3, 0])),
        ("routes//both", json!([1, 0, 3, 0])),
        ("routes//wide", json!([2, 0, 0, 0])),
        ("limits/tight", json!([1, 0, 3, 0])),
        ("limits/wide", json!([6, 0, 0, 0])),
    ] {
        page.wait("#shown", |text| text.contains("/both"));
        page.js(&format!("choose('{chosen}')"));
        wait_until(chosen, || page.js(counts) == expected);
    }
    page.click("#routes tbody button");
    assert_eq!(page.js("shown"), "routes//both");
    assert_eq!(page.complaints, [""; 0]);
}

#[test]
fn a_list_and_a_key_go_on_after_a_click_and_the_form_begins_empty() {
    let proxy = Proxy::answering()
        .admin()
        .section("[log]\nkeys = \"plain\"")
        .limit("user", "key = [\"header:x-user\"]\nrate = \"2/h\"")
        .limit("even", "key = [\"header:x-user\"]\nrate = \"9/s\"\nalgorithm = \"leaky-bucket\"")
        .start();
    assert_eq!(send(&proxy, "ann", 3), [200, 200, 429]);
    let mut page = open(&proxy);
    page.wait("#rejected", |text| text.contains("ann"));
    page.click("#rejected button");
    page.wait("#bucket", |text| text.contains("0 left of 2"));
    assert_eq!(page.js("document.querySelector('#rejected button').title"), "ann of user");
    page.js("document.querySelector('#rejected button').focus()");
    assert_eq!(send(&proxy, "bob", 5)[2..], [429; 3]);
    page.wait("#rejected", |text| keys(text) == ["bob", "user", "3", "ann", "user", "1"]);
    assert_eq!(page.js("document.activeElement.title"), "ann of user", "the focus stays");
    page.fill("#rate", "5/h");
    page.fill("#size input", "7");
    page.click("#override button[type=submit]");
    page.wait("#overrides", |text| text.contains("5/h, burst 7"));
    // The bucket is looked at again while it is shown.
    send(&proxy, "ann", 1);
    page.wait("#bucket", |text| text.contains("4 left of 7"));
    page.fill("#limit", "even");
    page.fill("#parts input", "ann");
    page.click("#lookup button");
    page.wait("#bucket", |text| text.contains("even"));
    assert_eq!(page.js("['rate', 'reason'].map((id) => byId(id).value).join()"), ",");
    page.fill("#rate", "8/s");
    page.fill("#size input", "3");
    page.click("#override button[type=submit]");
    page.wait("#overrides", |text| text.contains("8/s, queue 3"));
    assert_eq!(page.complaints, [""; 0]);
}

#[test]
fn a_key_is_looked_up_made_new_and_overridden_with_a_reason() {
    let proxy = limited().start();
    assert_eq!(send(&proxy, "a|b", 3), [200, 200, 429]);
    let mut page = open(&proxy);
    page.wait("#limit", |text| text.contains("user"));
    page.fill("#limit", "user");
    page.fill("#parts input", "a|b");
    page.click("#lookup button");
    page.wait("#bucket", |text| text.contains("0 left of 2"));
    page.click("#forget");
    page.wait("#bucket", |text| text.contains("2 left of 2"));
    assert_eq!(send(&proxy, "a|b", 3), [200, 200, 429]);
    page.fill("#rate", "5/h");
    page.fill("#for", "2h");
    page.fill("#reason", "asked <b>nicely</b>");
    page.click("#override button[type=submit]");
    let listed = page.wait("#overrides", |text| text.contains("5/h"));
    assert!(listed.contains("asked <b>nicely</b>"), "{listed}");
    assert!(listed.contains("for 2 h more"), "{listed}");
    page.wait("#bucket", |text| text.contains("left of 5") && text.contains("overridden"));
    assert_eq!(send(&proxy, "a|b", 3), [200, 200, 200]);
    page.fill("#rate", "-1/s");
    page.click("#override button[type=submit]");
    page.wait("#bucket", |text| text.contains("-1/s"));
    page.click("#overrides button");
    page.wait("#overrides", |text| text == "None.");
}

#[test]
fn an_override_of_all_keys_is_shown_and_ended() {
    let proxy = limited().start();
    let headers = [("host", "localhost"), ("content-type", "application/json")];
    let body = br#"{"rate":"5/h","for":"2h","reason":"incident 4711"}"#;
    let put =
        Connection::open(proxy.admin()).request("PUT", "/api/limits/user/override", &headers, body);
    assert_eq!(put.status, 200);
    let mut page = open(&proxy);
    let listed = page.wait("#overrides", |text| text.contains("5/h"));
    assert!(listed.contains("all keys") && listed.contains("incident 4711"), "{listed}");
    page.wait("#limit", |text| text.contains("user"));
    page.fill("#limit", "user");
    page.fill("#parts input", "b");
    page.click("#lookup button");
    page.wait("#bucket", |text| {
        text.contains("5 left of 5") && text.contains("overridden for all keys")
    });
    page.click("#overrides button");
    page.wait("#overrides", |text| text == "None.");
    page.wait("#bucket", |text| text.contains("2 left of 2"));
}

#[test]
fn a_key_with_alternatives_is_looked_up_by_the_one_that_counted() {
    let proxy = Proxy::answering()
        .admin()
        .limit("any", "key = [\"header:x-user | ip\"]\nrate = \"2/h\"")
        .start();
    (0..3).for_each(|_| drop(get(proxy.address, "/", &[])));
    let mut page = open(&proxy);
    page.wait("#limit", |text| text.contains("any"));
    page.fill("#parts select", "2");
    page.fill("#parts input", "127.0.0.1");
    page.click("#lookup button");
    page.wait("#bucket", |text| text.contains("%2=127.0.0.1") && text.contains("0 left of 2"));
    page.fill("#parts select", "1");
    page.click("#lookup button");
    page.wait("#bucket", |text| text.contains("2 left of 2"));
}

#[test]
fn the_token_is_typed_into_the_page() {
    let proxy = Proxy::answering().section("[admin]\nlisten = \"LISTEN\"\ntoken = \"s3cret\"");
    let proxy = proxy.start();
    let reply = get(proxy.admin(), "/", &[("host", "localhost")]);
    assert_eq!(reply.status, 401);
    assert!(!reply.text().contains("s3cret"));
    let mut page = open(&proxy);
    page.wait("#state", |text| text == "This page needs a token.");
    assert_eq!(page.js("document.querySelector('#main').hidden"), true);
    for wrong in ["wrong", "t€st"] {
        page.fill("#token", wrong);
        page.click("#login button");
        page.wait("#state", |text| text == "This token is not the right one.");
    }
    page.fill("#token", "s3cret");
    page.click("#login button");
    page.wait("#state", |text| text.starts_with("All is well"));
    assert_eq!(page.js("document.querySelector('#main').hidden"), false);
}

#[test]
fn the_page_says_what_is_away_and_comes_back_by_itself() {
    let proxy = limited();
    let mut running = proxy.start();
    let mut page = open(&running);
    page.wait("#state", |text| text.starts_with("All is well"));
    std::fs::write(running.config_file(), "nonsense").unwrap();
    page.wait("#state", |text| text.contains("proxy.toml is wrong"));
    page.wait("#changes", |text| text.contains("proxy.toml:1:"));
    let title = page.js("document.title");
    assert!(title.as_str().unwrap().starts_with("proxy.toml is wrong – "), "{title}");
    running.reload(&proxy.clone().limit("more", "key = [\"ip\"]\nrate = \"1/s\"").text());
    page.wait("#changes", |text| text.contains("limits.more"));
    page.wait("#limits tbody", |text| text.contains("more"));
    let marks =
        "[...document.querySelectorAll('#plot-decisions text')].map((it) => it.textContent).join()";
    wait_until("the reload is marked", || {
        page.js(marks).as_str().is_some_and(|it| it.contains("reload: version 2"))
    });
    running.stop();
    page.wait("#state", |text| text.starts_with("No connection to tidegate"));
}

/// Every answer was a 502, and the page said "Allowed" in calm blue.
#[test]
fn that_the_api_is_down_is_seen() {
    let proxy = Proxy::to("http://127.0.0.1:1").admin().start();
    let mut page = open(&proxy);
    page.wait("#state", |text| text.starts_with("API down: requests to it get 502 since"));
    let answers = "points.live.map((point) => point.all.decisions)";
    wait_until("the answers count as failed", || {
        assert_eq!(get(proxy.address, "/", &[]).status, 502);
        let points = page.js(answers);
        points.as_array().unwrap().iter().any(|it| it[5].as_f64() > Some(0.0))
    });
    let points = page.js(answers);
    let allowed = |point: &serde_json::Value| point[0].as_f64().unwrap() > 0.0;
    assert!(!points.as_array().unwrap().iter().any(allowed), "{points}");
    let alarm =
        page.wait("#state", |text| text.starts_with("API down: requests to it get 502 since"));
    assert!(alarm.contains("Clients get errors") && alarm.contains("127.0.0.1:1"), "{alarm}");
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(status["summary"], "No limit rejects.", "beside an alarm nothing is well");
    let title = page.js("document.title");
    assert!(title.as_str().unwrap().starts_with("API down: requests to it get 502 – "), "{title}");
    let servers = page.text("#upstreams tbody");
    assert!(servers.contains("set aside since") && servers.contains(" connect"), "{servers}");
    assert_eq!(page.complaints, [""; 0]);
}

/// All requests were refused because they lacked their key, and the page was green: "Allowed 50/s".
#[test]
fn refused_requests_are_never_under_green() {
    let limit = "key = [\"header:x-api-key\"]\nmissing = \"reject\"\nrate = \"9/s\"";
    let proxy = Proxy::answering().admin().limit("keys", limit).start();
    let mut page = open(&proxy);
    page.wait("#state", |text| text.starts_with("All is well"));
    wait_until("the requests count as refused", || {
        assert_eq!(get(proxy.address, "/", &[]).status, 400);
        let points = page.js("points.live.map((point) => point.all.decisions)");
        points.as_array().unwrap().iter().any(|it| it[6].as_f64() > Some(0.0))
    });
    let points = page.js("points.live.map((point) => point.all.decisions[0])");
    assert!(points.as_array().unwrap().iter().all(|allowed| *allowed == 0.0), "{points}");
    for _ in 0..4 {
        get(proxy.address, "/", &[]);
    }
    let state = page.wait("#state", |text| text.starts_with("Requests are refused"));
    assert!(state.contains("100 % of all, missing_key"), "{state}");
    assert_eq!(page.js("document.querySelectorAll('#state .good').length"), 0);
    assert_fits(&mut page);
}

/// A series of zeros drew its line over the one below.
#[test]
fn what_is_zero_paints_over_nothing() {
    let proxy = Proxy::answering().admin().start();
    let mut page = open(&proxy);
    page.wait("#state", |text| text.starts_with("All is well"));
    let strokes = "(() => { const time = Date.now(); plots.decisions.show(OUTCOMES, [0, 1, 2, 3].map((at) => \
         ({ time: time - 3000 + 1000 * at, values: [5, 0, at === 3 ? 2 : 0, 0, 0, 0, 0] })), time - 4000, time, []); \
         return [...plots.decisions.svg.querySelectorAll('path[fill=none]')].map((it) => \
         it.getAttribute('d').split(/[ML]/).length - 1); })()";
    // Of what is rejected: the last point, and the one before, from which its line rises.
    assert_eq!(page.js(strokes), json!([4, 0, 2, 0, 0, 0, 0]));
}

/// Two processes of one machine had one title.
#[test]
fn two_processes_of_a_machine_have_two_titles() {
    let titles = [(); 2].map(|()| {
        let proxy = limited().start();
        let mut page = open(&proxy);
        page.wait("#state", |text| text.starts_with("All is well"));
        let port = format!(":{}", proxy.admin().port());
        assert!(page.text("#about").contains(&port), "{port}");
        let title = page.js("document.title").as_str().unwrap().to_owned();
        assert!(title.contains(&port), "{title}");
        title
    });
    assert_ne!(titles[0], titles[1]);
}

/// A key was cut after a long first part, and nobody knew what its two numbers were.
#[test]
fn each_part_of_a_rejected_key_is_seen_under_column_heads() {
    let limit = "key = [\"header:x-user\", \"path\"]\nrate = \"1/h\"";
    let proxy = Proxy::answering().admin().section("[log]\nkeys = \"plain\"").limit("user", limit);
    let proxy = proxy.start();
    let user = "u".repeat(64);
    for _ in 0..2 {
        get(proxy.address, "/api/v1/customers", &[("x-user", &user)]);
    }
    let mut page = open(&proxy);
    let rejected = page.wait("#rejected", |text| text.contains("customers"));
    assert!(lines(&rejected)[0].ends_with("|/api/v1/customers"), "{rejected}");
    assert_eq!(lines(&page.text(".heads"))[..2], ["Key and limit", "now"]);
    assert!(page.text("#rejected-in").ends_with(" min"));
    let is_cut = "(() => { const it = document.querySelector('#rejected code'); \
                  return it.scrollWidth > it.clientWidth || it.scrollHeight > it.clientHeight; })()";
    for width in [1280, 390] {
        page.resize(width, 844);
        assert_eq!(page.js(is_cut), false, "at {width} px");
    }
}
