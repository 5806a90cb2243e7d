//! Which asks of a request have taken, as the answer tells.

use std::time::Duration;

use super::*;
use crate::limit::Mode;
use crate::limit::algorithm::token_bucket::Params;
use crate::limit::decision::Outcome;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;

#[test]
fn the_answer_tells_which_tokens_were_taken() {
    use Mode::{Candidate, Enforce, Shadow};
    let (rate, burst) = ("1/s".parse().unwrap(), Burst::new(5).unwrap());
    let algorithm = Algorithm::TokenBucket(Params { rate, burst });
    let (cost, max_wait) = (Cost::ONE, MaxWait::NONE);
    let decided = |outcome| Some(Decision { outcome, remaining: 0 });
    let allow = decided(Outcome::Allow);
    let delay = decided(Outcome::Delay(Duration::from_secs(1)));
    let reject = decided(Outcome::Reject { retry_after: None });
    for (name, modes, said, expected) in [
        ("all pass", &[Enforce, Shadow][..], &[allow, delay][..], &[0, 1][..]),
        ("a shadow refuses", &[Enforce, Shadow], &[delay, reject], &[0]),
        ("one refuses", &[Enforce, Enforce, Shadow], &[allow, reject, allow], &[]),
        ("a candidate allows", &[Enforce, Candidate, Enforce], &[allow, allow, reject], &[1]),
        ("of another type", &[Enforce, Enforce], &[allow, None], &[]),
    ] {
        let ask = |mode: &Mode| Ask { algorithm, cost, max_wait, mode: *mode, takes: true };
        let asks: Vec<_> = modes.iter().map(ask).collect();
        let one = |decision: &Option<Decision>| {
            let (decision, at) = (*decision, Timestamp::MIN);
            AskReply { decision, receipt: None, at }
        };
        let reply: Reply = said.iter().map(one).collect();
        let took = takers(asks.iter().map(|ask| (Verb::Take, ask)), &reply).into_iter().enumerate();
        let indices: Vec<usize> = took.filter_map(|(at, took)| took.then_some(at)).collect();
        assert_eq!(indices, expected, "{name}");
    }
}
