//! The descriptors of one call are decided together: all of them take, or none.

use std::slice;

use super::*;
use crate::process::decide::{PER_CLIENT, assert_wait, deciding};
use crate::support::http2::Exchange;
use crate::support::metrics::Metrics;
use crate::support::redis::in_both_stores;
use crate::support::wait_until;

/// Runs a test with a caller of a proxy with these limits, in each store.
fn in_each_store(limits: &str, test: impl Fn(&mut Client, &str)) {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{limits}"));
        test(&mut open(&proxy), store);
    });
}

#[test]
fn all_descriptors_take_or_none() {
    in_each_store(USERS, |envoy, store| {
        let refused = [user("a"), with_hits(4, &[("limit", "user"), ("header:x-user", "b")])];
        let answer = ask(envoy, &refused);
        assert_eq!(answer.overall_code, OVER_LIMIT);
        assert_eq!(answer.said(), [(OK, 3), (OVER_LIMIT, 3)], "{store}");
        assert_eq!(answer.statuses[1].duration_until_reset, None, "it will never pass");
        // Nothing was taken. Of the limit in both, the two together take two.
        let answer = ask(envoy, &[user("a"), user("b")]);
        assert_eq!(answer.said(), [(OK, 2), (OK, 2)], "{store}");
        let left = ask(envoy, &[with_hits(0, &[("limit", "all")])]);
        assert_eq!(left.said(), [(OK, 2)], "{store}");
    });
}

/// Two asks of one bucket in one call must not overwrite each other.
#[test]
fn descriptors_of_one_bucket_add_up() {
    for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        let limit = format!(
            "[limits.all]\nkey = []\nrate = \"5/h\"\nalgorithm = \"{algorithm}\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"all\"]\n"
        );
        in_each_store(&limit, |envoy, store| {
            let one = descriptor(&[("path", "/a")]);
            let two = with_hits(2, &[("limit", "all, all")]);
            let first = ask(envoy, &[one.clone(), two.clone()]);
            assert_eq!(first.said(), [(OK, 2), (OK, 2)], "{store} {algorithm}");
            let over = ask(envoy, &[two.clone(), one.clone()]);
            assert_eq!(over.said(), [(OVER_LIMIT, 2), (OVER_LIMIT, 2)], "{store} {algorithm}");
            assert_eq!(ask(envoy, &[two]).said(), [(OK, 0)], "{store} {algorithm}");
        });
    }
}

#[test]
fn hits_are_the_cost_and_a_descriptors_own_zero_only_looks() {
    for algorithm in ["token-bucket", "fixed-window", "sliding-log"] {
        let limits = format!(
            "[limits.one]\nkey = []\nrate = \"9/h\"\nalgorithm = \"{algorithm}\"\n\
             [limits.other]\nkey = []\nrate = \"9/h\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"one\", \"other\"]\n"
        );
        in_each_store(&limits, |envoy, store| {
            let of = |name: &str, hits| Descriptor {
                hits_addend: hits,
                ..descriptor(&[("limit", name)])
            };
            let mut ask = |hits_addend, descriptors: &[Descriptor]| {
                decided(&sent(envoy, &Call { hits_addend, ..call(descriptors) }))
            };
            assert_eq!(ask(0, &[of("one", None)]).said(), [(OK, 8)], "{store} {algorithm}");
            assert_eq!(ask(2, &[of("one", None)]).said(), [(OK, 6)], "{store} {algorithm}");
            assert_eq!(ask(2, &[of("one", Some(3))]).said(), [(OK, 3)], "{store} {algorithm}");
            let look = of("one", Some(0));
            assert_eq!(ask(2, slice::from_ref(&look)).said(), [(OK, 3)], "{store} {algorithm}");
            // One looks, and the other takes: of another bucket, and of the same.
            let mixed = ask(0, &[look.clone(), of("other", Some(9))]);
            assert_eq!(mixed.said(), [(OK, 3), (OK, 0)], "{store} {algorithm}");
            let same = ask(0, &[look.clone(), of("one", Some(3)), look.clone()]);
            assert_eq!(same.said(), [(OK, 0); 3], "{store} {algorithm}");
            // Where nothing is left, a look says so, and stops the call.
            let looked = ask(0, slice::from_ref(&look));
            assert_eq!(looked.said(), [(OVER_LIMIT, 0)], "{store} {algorithm}");
            assert!(looked.reset(0) > 0.0 && looked.header("retry-after").is_some());
            assert_eq!(ask(0, &[of("other", Some(0))]).overall_code, OVER_LIMIT);
        });
    }
}

#[test]
fn no_request_is_held() {
    let limit = "[limits.held]\nkey = []\nrate = \"2/h\"\nwait = \"1h\"\n\
                 [[routes]]\npath = \"/{*rest}\"\nlimits = [\"held\"]\n";
    in_each_store(limit, |envoy, store| {
        let one = [descriptor(&[("path", "/a")])];
        let said = [0; 3].map(|_| ask(envoy, &one).overall_code);
        assert_eq!(said, [OK, OK, OVER_LIMIT], "{store}");
    });
}

/// A regression: a plan whose window has another length made the limit of another descriptor a shadow.
#[test]
fn a_window_beside_does_not_keep_the_limit_of_another_descriptor_from_enforcing() {
    let limits = "[plans]\nby = \"header:x-plan\"\n\
         [limits.user]\nkey = [\"header:x-user\"]\nalgorithm = \"fixed-window\"\nrate = \"2/d\"\n\
         plans = { pro = \"1000/h\" }\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"user\"]\n";
    in_each_store(limits, |envoy, store| {
        let of = |user: &str, plan: &str| {
            descriptor(&[("path", "/a"), ("x-user", user), ("header:x-plan", plan)])
        };
        for user in ["a", "b"] {
            let (pro, free) = (of(user, "pro"), of(user, "free"));
            let both = if user == "a" { [pro, free] } else { [free, pro] };
            let said = [0; 4].map(|_| ask(envoy, &both).overall_code);
            assert_eq!(said[2..], [OVER_LIMIT; 2], "{store} {user}");
        }
    });
}

/// A regression: what is reported to a limit whose plans have other windows took the other limits out.
#[test]
fn a_report_beside_other_windows_leaves_the_other_limits_in() {
    let limits = "[plans]\nby = \"header:x-plan\"\n\
         [limits.told]\nkey = []\nalgorithm = \"fixed-window\"\nrate = \"100/h\"\nreported = true\n\
         plans = { pro = \"1000/d\" }\n\
         [limits.other]\nkey = []\nrate = \"2/d\"\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"told\", \"other\"]\n";
    in_each_store(limits, |envoy, store| {
        let one = [descriptor(&[("path", "/a")])];
        let said = [0; 4].map(|_| ask(envoy, &one).overall_code);
        assert_eq!(said, [OK, OK, OVER_LIMIT, OVER_LIMIT], "{store}");
    });
}

#[test]
fn a_limit_that_lets_nothing_pass_stops_the_whole_call() {
    let limits = "[limits.closed]\nkey = []\nrate = \"0/s\"\n\
                  [limits.open]\nkey = []\nrate = \"9/h\"\n\
                  [[routes]]\npath = \"/{*rest}\"\nlimits = [\"open\"]\n";
    in_each_store(limits, |envoy, store| {
        let of = |name: &str| descriptor(&[("limit", name)]);
        let answer = ask(envoy, &[of("open"), of("closed")]);
        assert_eq!((answer.overall_code, answer.statuses[0].code), (OVER_LIMIT, OK), "{store}");
        assert_eq!(answer.header("retry-after"), None, "never");
        assert_eq!(ask(envoy, &[of("open")]).said(), [(OK, 8)], "{store}");
    });
}

/// What the client gets is said by the descriptor that waits longest, wherever it stands.
#[test]
fn the_longest_wait_is_what_the_client_is_told() {
    let limits = "[limits.long]\nkey = []\nrate = \"1/h\"\n[limits.short]\nkey = []\nrate = \"1/m\"\n\
         [limits.free]\nkey = []\nrate = \"9/h\"\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"free\"]\n";
    let proxy = deciding("", limits);
    let mut envoy = open(&proxy);
    let of = |name: &str| descriptor(&[("limit", name)]);
    let first = ask(&mut envoy, &[of("long"), of("short"), of("free")]);
    assert_eq!(first.said(), [(OK, 0), (OK, 0), (OK, 8)]);
    for order in [["short", "long", "free"], ["long", "free", "short"], ["free", "short", "long"]] {
        let answer = ask(&mut envoy, &order.map(of));
        assert_wait(answer.header("retry-after"), 3_600);
        assert!(answer.header("ratelimit").unwrap().starts_with("\"long\";r=0"), "{order:?}");
        let codes = order.map(|name| if name == "free" { OK } else { OVER_LIMIT });
        let said: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
        assert_eq!(said, codes, "{order:?}");
    }
    assert_eq!(ask(&mut envoy, &[of("free")]).said(), [(OK, 7)]);
    assert_eq!(ask(&mut envoy, &vec![of("free"); 100]).said(), [(OVER_LIMIT, 7); 100]);
    assert_eq!(
        ask(&mut envoy, &vec![with_hits(0, &[("limit", "free")]); 100]).said(),
        [(OK, 7); 100]
    );
    assert_eq!(ask(&mut envoy, &[of("free"), of("long")]).overall_code, OVER_LIMIT);
}

/// A regression: the figures of the first descriptor decided.
#[test]
fn descriptors_have_the_figures_of_their_plans_and_those_of_one_key_the_strictest() {
    let limits = "[plans]\nby = \"header:x-plan\"\n\
         [limits.user]\nkey = [\"header:x-user\"]\nrate = \"3/h\"\nplans = { pro = \"9/h\" }\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"user\"]\n";
    in_each_store(limits, |envoy, store| {
        let of = |user: &str, plan: &str| {
            with_hits(2, &[("path", "/a"), ("x-user", user), ("header:x-plan", plan)])
        };
        let two = ask(envoy, &[of("a", "pro"), of("b", "none")]);
        assert_eq!(two.said(), [(OK, 7), (OK, 1)], "{store}");
        for call in [["pro", "free"], ["free", "pro"]] {
            let call = call.map(|plan| of("u", plan));
            assert_eq!(ask(envoy, &call).overall_code, OVER_LIMIT, "{store}");
        }
        assert_eq!(ask(envoy, &["pro"; 2].map(|plan| of("u", plan))).said(), [(OK, 5); 2]);
    });
}

/// Regressions: the sum was cut to what a bucket can hold, and passed; or the second descriptor said OK.
#[test]
fn a_sum_that_no_bucket_holds_is_refused() {
    let limit = "[limits.large]\nkey = []\nrate = \"1000000000/d\"\n\
                 [[routes]]\npath = \"/{*rest}\"\nlimits = [\"large\"]\n";
    in_each_store(limit, |envoy, store| {
        for hits in [600_000_000, 1_000_000_000] {
            let one = with_hits(hits, &[("limit", "large")]);
            let answer = ask(envoy, &[one.clone(), one]);
            assert_eq!(answer.header("retry-after"), None, "{store} {hits}");
            let codes: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
            assert_eq!(codes, [OVER_LIMIT; 2], "{store} {hits}");
        }
        let half = with_hits(600_000_000, &[("limit", "large")]);
        assert_eq!(ask(envoy, &[half]).overall_code, OK, "{store}");
    });
}

/// A regression: the bound for costs in the file held for hits too.
#[test]
fn a_sliding_log_takes_more_hits_than_a_cost_may_be() {
    let limit = "[limits.log]\nkey = []\nrate = \"1000/h\"\nalgorithm = \"sliding-log\"\n\
                 [[routes]]\npath = \"/{*rest}\"\nlimits = [\"log\"]\n";
    in_each_store(limit, |envoy, store| {
        let hits = |hits| [with_hits(hits, &[("limit", "log")])];
        assert_eq!(ask(envoy, &hits(33)).said(), [(OK, 967)], "{store}");
        assert_eq!(ask(envoy, &hits(967)).said(), [(OK, 0)], "{store}");
    });
}

#[test]
fn a_call_with_too_many_limits_is_refused_and_not_decided_otherwise() {
    let names: Vec<_> = (0..11).map(|n| format!("l{n}")).collect();
    let limits: String =
        names.iter().map(|name| format!("[limits.{name}]\nkey = []\nrate = \"9/h\"\n")).collect();
    let limits = format!("{limits}[[routes]]\npath = \"/{{*rest}}\"\nlimits = {names:?}\n");
    in_each_store(&limits, |envoy, store| {
        let all = names.join(",");
        let (named, routed) = (descriptor(&[("limit", &all)]), descriptor(&[("path", "/a")]));
        for one in [named, routed] {
            let (status, message) = failed(&sent(envoy, &call(&vec![one; 91])));
            assert_eq!(
                (&*status, message.contains("1000 limits")),
                (INVALID_ARGUMENT, true),
                "{store}"
            );
        }
        assert_eq!(ask(envoy, &[descriptor(&[("limit", "l0")])]).said(), [(OK, 8)], "{store}");
    });
}

/// A regression: beside a request that was refused before its limits, the others said that nothing was left.
#[test]
fn descriptors_beside_an_unreadable_one_say_what_remains() {
    in_each_store(USERS, |envoy, store| {
        let unreadable = descriptor(&[("path", "")]);
        for call in [[user("a"), unreadable.clone()], [unreadable, user("a")]] {
            let answer = ask(envoy, &call);
            assert_eq!(answer.overall_code, OVER_LIMIT, "{store}");
            assert!(answer.said().contains(&(OK, 3)), "{store}: {answer:?}");
        }
        let one = ask(envoy, &[user("a")]);
        assert_eq!(one.said(), [(OK, 2)], "{store}");
        let limit = one.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (3, 3, "user"), "{store}");
    });
}

/// What one request of a call may do to the others: a key that cannot be read, a ban, and a bucket of this process
/// beside one in Redis.
#[test]
fn one_refused_descriptor_of_any_kind_keeps_the_others_from_taking() {
    let limits = "[limits.free]\nkey = []\nrate = \"9/h\"\n\
                  [limits.here]\nkey = []\nrate = \"9/h\"\nscope = \"node\"\n\
                  [limits.demands]\nkey = [\"header:x-key\"]\nrate = \"9/h\"\nmissing = \"reject\"\n\
                  [limits.bans]\nkey = [\"header:x-key\"]\nrate = \"1/h\"\n\
                  ban = { after = 2, within = \"1h\", for = \"1h\" }\n\
                  [[routes]]\npath = \"/{*rest}\"\nlimits = [\"free\"]\n";
    in_each_store(limits, |envoy, store| {
        let of = |name: &str| descriptor(&[("limit", name), ("x-key", "a")]);
        assert_eq!(ask(envoy, &[of("bans")]).overall_code, OK);
        for _ in 0..2 {
            assert_eq!(ask(envoy, &[of("bans")]).overall_code, OVER_LIMIT);
        }
        wait_until("the key is banned", || {
            let answer = ask(envoy, &[of("bans"), of("free, here")]);
            assert_eq!(answer.overall_code, OVER_LIMIT, "{store}");
            answer.raw_body.windows(14).any(|text| text == b"abnormal-usage")
        });
        let keyless = descriptor(&[("limit", "demands")]);
        for call in [[of("free, here"), keyless.clone()], [keyless, of("here, free")]] {
            let answer = ask(envoy, &call);
            assert_eq!(answer.overall_code, OVER_LIMIT, "{store}");
            assert_eq!(answer.problem()["status"], 400, "{store}");
        }
        let limit = ask(envoy, &[of("here"), of("free")]);
        assert_eq!(limit.said(), [(OK, 8), (OK, 8)], "{store}");
    });
}

/// A regression: one refused call with several descriptors banned by itself.
#[test]
fn a_refused_call_is_one_rejection_of_each_key() {
    let limits = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\n\
                  ban = { after = 3, within = \"1h\", for = \"1h\" }\n\
                  [limits.closed]\nkey = [\"header:x-user\"]\nrate = \"0/s\"\n\
                  ban = { after = 3, within = \"1h\", for = \"1h\" }\n\
                  [[routes]]\npath = \"/{*rest}\"\nlimits = [\"user\"]\n";
    for limit in ["user", "closed", "user, user"] {
        in_each_store(limits, |envoy, store| {
            let of = |user: &str| descriptor(&[("limit", limit), ("x-user", user)]);
            let is_ban =
                |answer: &Answer| answer.raw_body.windows(14).any(|text| text == b"abnormal-usage");
            let call: Vec<_> = (0..14).map(|n| of(if n % 2 == 0 { "a" } else { "b" })).collect();
            for _ in 0..3 {
                let answer = ask(envoy, &call);
                assert_eq!(answer.overall_code, OVER_LIMIT, "{store} {limit}");
                assert!(!is_ban(&answer), "{store} {limit}");
            }
            for user in ["a", "b"] {
                assert!(is_ban(&ask(envoy, &[of(user)])), "{store} {limit} {user}");
            }
        });
    }
}

/// A regression: each descriptor noted the time of the one question.
#[test]
fn a_question_about_several_descriptors_is_one_question_to_the_store() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{USERS}"));
        let mut envoy = open(&proxy);
        ask(&mut envoy, &[user("a")]);
        let asked = || Metrics::of(proxy.admin()).value("tidegate_store_duration_seconds_count");
        let before = asked();
        let free = descriptor(&[("path", "/no/limit")]);
        ask(&mut envoy, &[user("a"), user("b"), user("c"), free]);
        assert_eq!(asked(), before + 1.0, "{store}");
        // Where a request is refused before its limits, nobody asks.
        ask(&mut envoy, &[descriptor(&[("path", "")]), user("a")]);
        ask(&mut envoy, &[user("a"), descriptor(&[("path", "")])]);
        assert_eq!(asked(), before + 1.0, "{store}");
    });
}

#[test]
fn a_hundred_calls_at_once_on_one_connection_share_one_bucket() {
    in_each_store(&PER_CLIENT.replace("2/h", "60/h"), |envoy, store| {
        let one = descriptor(&[("path", "/a/b"), ("remote_address", "203.0.113.7")]);
        let message = framed(&call(&[one]).encode_to_vec());
        let mut calls: Vec<_> = (0..100).map(|_| envoy.upload("POST", METHOD, &GRPC)).collect();
        calls.iter_mut().for_each(|call| call.send(&message));
        calls.iter_mut().for_each(Exchange::end);
        let codes = calls.iter_mut().map(|call| decided(&call.reply()).overall_code);
        assert_eq!(codes.filter(|code| *code == OK).count(), 60, "{store}");
    });
}

/// Each limit counts what it has said by itself, although nothing was taken: for the descriptors of a call, and for a
/// request with two limits.
#[test]
fn a_limit_counts_its_own_decision_where_another_one_refuses() {
    let limits = "[limits.one]\nkey = []\nrate = \"1/h\"\n[limits.two]\nkey = []\nrate = \"9/h\"\n\
                  [[routes]]\npath = \"/{*rest}\"\nlimits = [\"one\", \"two\"]\n";
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{limits}"));
        let mut envoy = open(&proxy);
        let of = |name: &str| descriptor(&[("limit", name)]);
        let counted = || {
            let metrics = Metrics::of(proxy.admin());
            [("one", "allowed"), ("one", "rejected"), ("two", "allowed"), ("two", "rejected")].map(
                |(limit, decision)| {
                    let labels = format!("{{limit=\"{limit}\",decision=\"{decision}\"}}");
                    metrics.value(&format!("tidegate_decisions_total{labels}"))
                },
            )
        };
        assert_eq!(ask(&mut envoy, &[of("one"), of("two")]).overall_code, OK);
        assert_eq!(counted(), [1.0, 0.0, 1.0, 0.0], "{store}");
        assert_eq!(ask(&mut envoy, &[of("one"), of("two")]).overall_code, OVER_LIMIT);
        assert_eq!(counted(), [1.0, 1.0, 2.0, 0.0], "{store}");
        assert_eq!(ask(&mut envoy, &[descriptor(&[("path", "/a")])]).overall_code, OVER_LIMIT);
        assert_eq!(counted(), [1.0, 2.0, 3.0, 0.0], "{store}");
        assert_eq!(ask(&mut envoy, &[of("two")]).said(), [(OK, 7)], "{store}: nothing was taken");
    });
}
