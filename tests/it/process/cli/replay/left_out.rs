//! What a log does not tell: which limits are left out for it, and what may be assumed.

use super::*;

#[test]
fn an_estimate_by_length_needs_the_length_in_the_log() {
    let cost =
        "cost = { response_bytes = true, estimate = { content_length = \"1\", at_least = 10 } }";
    let folder =
        LogFolder::of(&limited(&format!("rate = \"100/h\"\n{cost}")), &lines("192.0.2.1", 0, 5));
    let said = folder.said(&[]);
    let left_out =
        "left out: limit client, for 5 requests. The log does not have the header content-length.";
    assert!(said.contains(&format!("{left_out} See --assume.")), "{said}");
    let rejected = |arguments: &[&str]| {
        let report = json(folder.path(), &[&["replay"], arguments].concat());
        assert_eq!(report["result"]["left_out"], Value::Array(Vec::new()));
        report["result"]["rejected"].as_u64().unwrap()
    };
    // Each takes 10 before, and 10 in the end.
    assert_eq!(rejected(&["access.log", "--assume", "header:content-length=none"]), 0);
    // Each takes 100 before, and after the first only 90 are left.
    let line = |second: u32| {
        format!(
            "{{\"remote_addr\":\"192.0.2.1\",\"time_iso8601\":\"2026-10-10T13:00:0{second}+02:00\",\
             \"request\":\"POST /a HTTP/1.1\",\"status\":\"200\",\"body_bytes_sent\":\"10\",\
             \"content_length\":\"100\"}}\n"
        )
    };
    folder.write("nginx.log", &(0..5).map(line).collect::<String>());
    assert_eq!(rejected(&["nginx.log"]), 4);
}

#[test]
fn what_a_log_does_not_tell_is_named_and_may_be_assumed() {
    let by_key = limited_by("header:x-api-key", "rate = \"2/h\"");
    let folder = LogFolder::of(&by_key, &lines("192.0.2.1", 0, 5));
    let said = folder.said(&[]);
    let left_out =
        "left out: limit client, for 5 requests. The log does not have the header x-api-key.";
    assert!(said.contains(&format!("{left_out} See --assume.")), "{said}");
    // A regression: its candidate was said to have met no request.
    let tried = by_key.replace("\"2/h\"", "\"2/h\"\ncandidate = { rate = \"1/h\" }");
    folder.write("tried.toml", &tried);
    let said = folder.said(&["--config", "tried.toml"]);
    assert!(said.contains("left out: limit client,") && !said.contains("no request met"), "{said}");
    let replay = |assumed: &str| {
        let report = folder.report(&["--assume", assumed]);
        assert_eq!(report["result"]["left_out"], Value::Array(Vec::new()));
        report["result"]["rejected"].as_u64().unwrap()
    };
    assert_eq!(replay("header:x-api-key=ip"), 3);
    assert_eq!(replay("header:x-api-key=none"), 3, "requests without the header share a bucket");
    let errors = folder.fails(2, &["replay", "access.log", "--assume", "header:x-apikey=ip"]);
    assert!(errors.contains("no limit and no route reads the header x-apikey"), "{errors}");
    let errors = folder.fails(2, &["replay", "access.log", "--assume", "path=ip"]);
    assert!(errors.contains("nothing can be assumed of `path`"), "{errors}");
}

/// Of the length of a request nothing can be assumed: advice that cannot be followed helps nobody.
#[test]
fn assume_is_named_only_where_it_helps() {
    let folder = LogFolder::of(
        &limited("algorithm = \"concurrency\"\nlimit = 2"),
        &lines("192.0.2.1", 0, 5),
    );
    let said = folder.said(&[]);
    assert!(said.contains("The log does not have how long the request took.\n"), "{said}");
    assert!(!said.contains("--assume"), "{said}");
}

/// With the limit's own figures a customer of a larger plan would look rejected.
#[test]
fn a_limit_whose_plan_the_log_does_not_tell_is_left_out() {
    let folder = LogFolder::of("", &lines("192.0.2.1", 0, 5));
    folder.write("plans.txt", "key-of-acme pro\n");
    let limit = "rate = \"1/h\"\nplans = { pro = \"3/h\", free = \"2/h\" }";
    for (plans, fact) in [
        ("by = \"header:x-plan\"\ndefault = \"free\"", "x-plan"),
        ("by = \"header:x-key\"\ndefault = \"free\"\nfile = \"plans.txt\"", "x-key"),
    ] {
        let text = format!("{}[plans]\n{plans}\n", limited(limit));
        folder.write("proxy.toml", &text);
        let said = folder.said(&[]);
        let left_out = format!(
            "left out: limit client, for 5 requests. The log does not have the header {fact}. See --assume."
        );
        assert!(said.contains(&left_out), "{said}");
        let rejected = |assumed: &str| {
            let assumption = format!("header:{fact}={assumed}");
            folder.report(&["--assume", &assumption])["result"]["rejected"].clone()
        };
        let of_pro = if fact == "x-plan" { "pro" } else { "key-of-acme" };
        assert_eq!([rejected(of_pro), rejected("none"), rejected("ip")], [2, 3, 3], "{fact}");
    }
}

#[test]
fn a_replay_says_where_bans_would_reject_more() {
    let folder = LogFolder::of("", &lines("192.0.2.1", 0, 5));
    let ban = "ban = { after = 2, within = \"1m\", for = \"1h\" }";
    for (limit, is_said) in [
        (format!("rate = \"1/h\"\n{ban}"), true),
        (format!("rate = \"9/h\"\n{ban}"), false),
        (format!("rate = \"1/h\"\nmode = \"shadow\"\n{ban}"), false),
        ("rate = \"1/h\"".to_owned(), false),
    ] {
        folder.write("proxy.toml", &limited(&limit));
        let said = folder.said(&[]);
        assert_eq!(said.contains("this replay bans no key"), is_said, "{limit}: {said}");
    }
}

/// Behind a load balancer the log has the balancer's address: then nobody knows the clients.
#[test]
fn the_address_of_a_trusted_proxy_is_no_client() {
    let trusted =
        format!("[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{}", limited("rate = \"3/h\""));
    let folder = LogFolder::of(&trusted, &lines("10.0.0.1", 0, 5));
    let report = folder.report(&[]);
    assert_eq!(report["result"]["rejected"], 0);
    assert_eq!(report["result"]["left_out"][0]["fact"], "the client's address");
    let of_client = |n: u32| {
        format!(
            "1790000000.{n}00 10.0.0.1 \"GET /a HTTP/1.1\" 200 \"6.6.6.{n}, 203.0.113.7, 10.0.0.2\"\n"
        )
    };
    folder.write("access.log", &(0..5).map(of_client).collect::<String>());
    let template = "$msec $remote_addr \"$request\" $status \"$http_x_forwarded_for\"";
    let report = folder.report(&["--format", template]);
    assert_eq!(report["result"]["clients"]["hardest"][0]["name"], "203.0.113.7");
    assert_eq!(report["result"]["rejected"], 2);
}

/// The report said "key 5" where all requests would have been refused, and said nothing of a limit in shadow. A pipeline
/// was green over them.
#[test]
fn requests_without_their_key_are_told_in_a_sentence() {
    for mode in ["enforce", "shadow"] {
        let lines_of_limit = format!("rate = \"2/h\"\nmissing = \"reject\"\nmode = \"{mode}\"");
        let by_key = limited_by("header:x-api-key", &lines_of_limit);
        let folder = LogFolder::of(&by_key, &lines("192.0.2.1", 0, 5));
        let said = folder.said(&["--assume", "header:x-api-key=none"]);
        let sentence = "5 requests would get 400: the header `x-api-key` is missing";
        assert!(said.contains(sentence), "{mode}: {said}");
        assert!(!said.contains("key 5"), "{mode}: {said}");
        let arguments = ["replay", "access.log", "--assume", "header:x-api-key=none"];
        let refused = &json(folder.path(), &arguments)["result"]["refused"];
        assert_eq!(refused["400: the header `x-api-key` is missing"], 5, "{mode}");
        let rejected = if mode == "enforce" { 5 } else { 0 };
        let result = &folder.report(&["--assume", "header:x-api-key=none"])["result"];
        let share = f64::from(rejected) / 5.0;
        assert_eq!(
            (&result["rejected"], &result["rejected_share"]),
            (&rejected.into(), &share.into())
        );
        assert_eq!(result["routes"][0]["rejected"], rejected, "{mode}");
        let arguments = [&arguments[..], &["--fail-above", "1%"]].concat();
        assert_eq!(folder.told(&arguments).0, if rejected > 0 { 3 } else { 0 }, "{mode}");
    }
}

/// Two limits counted one request twice.
#[test]
fn a_request_that_lacks_two_keys_is_told_once_with_the_first() {
    let limit = |name: &str, mode: &str| {
        format!(
            "[limits.{name}]\nkey = [\"header:{name}\"]\nmissing = \"reject\"\nrate = \"9/h\"\nmode = \"{mode}\"\n"
        )
    };
    for mode in ["enforce", "shadow"] {
        let file = format!(
            "[[routes]]\npath = \"/a\"\nrespond = {{ status = 200 }}\nlimits = [\"x-b\", \"x-a\"]\n{}{}",
            limit("x-a", mode),
            limit("x-b", mode)
        );
        let folder = LogFolder::of(&file, &lines("192.0.2.1", 0, 5));
        let assumed = ["--assume", "header:x-a=none", "--assume", "header:x-b=none"];
        let refused = &folder.report(&assumed)["result"]["refused"];
        assert_eq!(
            *refused,
            serde_json::json!({ "400: the header `x-b` is missing": 5 }),
            "{mode}"
        );
    }
}

/// A limit by a key or a claim was left out for the lines that have the key, because no log has claims.
#[test]
fn a_line_with_the_first_alternative_needs_no_other() {
    let line = |second: u32, key: &str| {
        let request = format!(
            "\"time_iso8601\":\"2026-10-10T13:00:0{second}+02:00\",\"request\":\"GET /a HTTP/1.1\""
        );
        format!(
            "{{\"remote_addr\":\"192.0.2.1\",{request},\"status\":\"200\",\"http_x_api_key\":\"{key}\"}}\n"
        )
    };
    let log: String = ["acme", "acme", "acme", "", ""]
        .iter()
        .zip(0..)
        .map(|(key, second)| line(second, key))
        .collect();
    for (alternatives, rejected, left_out) in [
        ("header:x-api-key | jwt:org", 1, Some(2)),
        ("jwt:org | header:x-api-key", 0, Some(5)),
        ("header:x-api-key | ip", 1, None),
    ] {
        let jwt = "[jwt.a]\nkeys = \"https://a.test/keys\"\nissuer = \"a\"\naudience = \"b\"\n";
        let jwt = if alternatives.contains("jwt") { jwt } else { "" };
        let file = format!("{jwt}{}", limited_by(alternatives, "rate = \"2/h\""));
        let report = &LogFolder::of(&file, &log).report(&[])["result"];
        assert_eq!(report["rejected"], rejected, "{alternatives}: {report}");
        assert_eq!(
            report["left_out"][0]["requests"].as_u64(),
            left_out,
            "{alternatives}: {report}"
        );
    }
}
