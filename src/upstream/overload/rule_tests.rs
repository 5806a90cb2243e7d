//! The rule by itself: properties of any order of events, and single steps.

use proptest::collection::vec;
use proptest::prelude::*;

use super::rule::*;
use super::window::{Micros, SECOND};
use crate::settings::{AnswerGoal, GoalMode, MaxRequests};

/// Something that happens: what, and how many milliseconds later.
type Step = (u8, u16);

fn of(at_least: usize, mode: GoalMode) -> LimitRule {
    let goal = AnswerGoal { at_least, mode, ..AnswerGoal::default() };
    LimitRule::new(MaxRequests::Goal(goal), 0)
}

/// A rule that has seen so much.
fn after(steps: &[Step], at_least: usize, mode: GoalMode) -> (LimitRule, Vec<SentRequest>, Micros) {
    let (mut rule, mut sent, mut now) = (of(at_least, mode), Vec::new(), 0);
    for (step, later) in steps {
        now += Micros::from(*later) * 1_000;
        let goal = if step & 1 == 0 { 300_000 } else { 20_000 };
        let index = usize::from(*step) % sent.len().max(1);
        let ends = match step % 7 {
            5 => SentEnd::Failed,
            6 => SentEnd::Left,
            _ => SentEnd::Answered,
        };
        match step / 64 {
            0 | 1 => {
                (0..=*later % 40).for_each(|_| sent.push(rule.sent(goal, sent.len() + 1, now)))
            }
            2 => rule.tick(sent.len(), now),
            _ if !sent.is_empty() => {
                let request = sent.swap_remove(index);
                rule.ended(request, ends, sent.len(), now);
            }
            _ => {}
        }
        assert!(rule.limit.is_none_or(|limit| limit >= at_least as f64 && limit.is_finite()));
        assert!(rule.due() <= sent.len());
    }
    (rule, sent, now)
}

proptest! {
    #[test]
    fn whatever_happens_no_limit_is_below_at_least_and_no_deadline_is_left(
        steps in vec((any::<u8>(), 0_u16..2_000), 0..400),
        at_least in 1_usize..20,
    ) {
        let (mut rule, mut sent, now) = after(&steps, at_least, GoalMode::Enforce);
        while let Some(request) = sent.pop() {
            rule.ended(request, SentEnd::Left, sent.len(), now);
        }
        prop_assert_eq!(rule.due(), 0);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_limit_always_recovers(steps in vec((any::<u8>(), 0_u16..2_000), 0..400)) {
        let (mut rule, sent, mut now) = after(&steps, 2, GoalMode::Enforce);
        for (left, request) in sent.into_iter().rev().enumerate().rev() {
            rule.ended(request, SentEnd::Left, left, now);
        }
        // As many requests as the limit lets in are answered in a third of their goal: 50 are wanted.
        for _ in 0..5_000 {
            let count = (1..=50).take_while(|count| rule.has_room(count - 1)).count();
            let sent: Vec<_> = (1..=count).map(|count| rule.sent(300_000, count, now)).collect();
            now += 100_000;
            for (left, request) in sent.into_iter().enumerate().rev() {
                rule.ended(request, SentEnd::Answered, left, now);
            }
        }
        prop_assert!(rule.has_room(49), "{:?}", rule.limit);
        prop_assert_eq!(rule.goal_times(), 1);
    }

    #[test]
    fn shadow_tells_and_holds_nothing(steps in vec((any::<u8>(), 0_u16..2_000), 0..400)) {
        let (rule, ..) = after(&steps, 2, GoalMode::Shadow);
        prop_assert!(rule.has_room(usize::MAX));
    }
}

/// A regression: seconds without any request counted as seconds in which the API answered nothing.
#[test]
fn a_long_pause_of_the_clients_is_not_slowness() {
    let mut rule = of(2, GoalMode::Enforce);
    let mut now = 0;
    let burst = |rule: &mut LimitRule, now: &mut Micros, count: usize| {
        let sent: Vec<_> = (1..=count).map(|count| rule.sent(300_000, count, *now)).collect();
        *now += SECOND;
        for (left, request) in sent.into_iter().enumerate().rev() {
            rule.ended(request, SentEnd::Answered, left, *now);
        }
    };
    burst(&mut rule, &mut now, 100);
    burst(&mut rule, &mut now, 30);
    now += 600 * SECOND;
    burst(&mut rule, &mut now, 1);
    assert_eq!(rule.limit, None);
}
