//! A refusal beside other limits of the request.

use super::*;

/// A regression: each refused request was asked of Redis where another limit had room, as with a limit a second
/// and one a day.
#[tokio::test]
async fn beside_a_limit_with_much_room_one_request_in_a_tenth_of_a_second_asks() {
    let bench = Bench::start();
    let (wide, at_once) = (limit("a-day"), limit("slots"));
    for room in [bucket("1/h", 30_000), rolling("30000/d"), log("30000/d"), sliding("30000/d")] {
        let asks = [
            by(room, ask(&wide, &bench.key, 1)),
            bench.drained(),
            by(slots(30_000, 60 * SECOND), ask(&at_once, &bench.key, 1)),
        ];
        let asks = &asks[..if room == bucket("1/h", 30_000) { 3 } else { 2 }];
        bench.decide(asks, Duration::ZERO).await;
        let said = bench.decide(asks, Duration::ZERO).await;
        let before = bench.known();
        for millis in [0, 1, 99] {
            let known = bench.decide(asks, Duration::from_millis(millis)).await;
            assert_eq!(known.remaining(0), said.remaining(0), "{room}");
            assert_eq!(known.decisions[0].unwrap().outcome, Outcome::Allow, "{room}");
            assert!(!known.verdict.passes(), "{room}");
        }
        assert_eq!(bench.known(), before + 3, "{room}");
        let millis = Duration::from_millis;
        assert_eq!(bench.crowd(asks, 32, millis(100)).await, (0, 1), "{room}: one of them asks");
        // After a pause nothing of it is believed.
        assert_eq!(bench.crowd(asks, 3, millis(900)).await, (0, 3), "{room}: each of them asks");
        for ask in asks {
            bench.store.forget(ask).await.unwrap();
        }
    }
}

/// A regression: for a tenth of a second an answer did not name the limit whose last token another worker had given.
#[tokio::test]
async fn a_limit_that_another_process_has_emptied_is_named_at_once() {
    let bench = Bench::start();
    let elsewhere = bench.elsewhere();
    let team = limit("team");
    for room in [bucket("1/h", 20), rolling("20/d"), log("20/d"), sliding("20/d")] {
        let asks = [bench.drained(), by(room, ask(&team, &bench.key, 1))];
        assert!(bench.decide(&asks, Duration::ZERO).await.verdict.passes(), "{room}");
        let before = bench.decide(&asks, Duration::ZERO).await;
        assert!(before.decisions[1].unwrap().outcome.passes(), "{room}");
        elsewhere.settle(&asks[1], Difference::More(19), Receipt::NONE, Timestamp::MIN);
        elsewhere.settled().await;
        let after = bench.decide(&asks, Duration::from_millis(1)).await;
        assert!(!after.decisions[1].unwrap().outcome.passes(), "{room}");
        for ask in &asks {
            bench.store.forget(ask).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_limit_of_the_node_is_asked_without_redis() {
    let bench = Bench::start();
    let node = LimitSpec { scope: Scope::Node, ..limit("node") };
    let asks = [ask(&node, &bench.key, 3), bench.drained()];
    assert!(bench.decide(&asks, Duration::ZERO).await.verdict.passes());
    let said = bench.decide(&asks, Duration::ZERO).await;
    for _ in 0..5 {
        let known = bench.decide(&asks, Duration::ZERO).await;
        assert_eq!(known, said);
        assert_eq!(known.remaining(0), 2, "nothing was taken");
    }
    assert_eq!(bench.known(), 5);
}
