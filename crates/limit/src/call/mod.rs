//! One script call for any number of requests: how the call is packed, and how its answer is read.
//!
//! `shell.lua` reads a [`Call`]. The head of that file describes the bytes. `pack` writes single numbers and texts.

mod pack;

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Script};

use self::pack::{pack_index, pack_number, pack_terms};
use crate::algorithm::{self, Algorithm, Difference, Receipt};
use crate::bucket::{BucketReceipt, BucketReply, Decider, Holder, ReceiptUse};
use crate::decide::{Ask, PerAsk};
use crate::decision::{Decision, Outcome};
use crate::time::Timestamp;

/// What an ask wants of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take the cost, if every enforcing limit of the request allows it.
    Take,
    /// Learn the decision, and take nothing.
    Look,
    /// Settle: the request used more or fewer tokens than it took.
    Settle(Difference, Receipt),
}

impl Verb {
    /// Renews the lease of a slot.
    pub const HOLD: Self = Self::Settle(Difference::More(1), Receipt::NONE);
    /// Gives a slot back.
    pub const RELEASE: Self = Self::Settle(Difference::Less(1), Receipt::NONE);
}

/// The most asks of one call. Redis does nothing else while it runs a script. A request with more asks has its
/// own call.
const MOST_ASKS: usize = 64;

/// The bytes of one number in the answer.
const NUMBER: usize = 8;

const NEVER: i64 = -1;
const WRONG_TYPE: i64 = -2;
/// If a request is held, the answer has `HELD - remaining` instead of the remaining tokens.
const HELD: i64 = -1;

/// The script's text, for `SCRIPT LOAD`.
pub static TEXT: LazyLock<String> = LazyLock::new(|| {
    let [lists, shell] = [include_str!("lists.lua"), include_str!("shell.lua")];
    [algorithm::LUA, lists, shell].concat()
});

/// The script, by whose hash a [`Call`] names it.
pub static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(&TEXT));

/// What the script says to one request, in the order of its asks.
pub type Reply = PerAsk<AskReply>;

/// What the script says about one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskReply {
    /// The limit's decision, which means nothing for a settlement. `None` if the key holds a value of another type: then
    /// no ask of the request took anything.
    pub decision: Option<Decision>,
    /// The receipt. It is valid only if the ask took. `None` if the request wanted no receipts.
    pub receipt: Option<Receipt>,
    /// When Redis decided, by its own clock. [`Timestamp::MIN`] if no request of the call wanted receipts.
    pub at: Timestamp,
}

impl AskReply {
    /// What the bucket answers under these figures. `took` says whether the request took its cost. `None` if the key
    /// holds a value of another type.
    pub fn of_bucket(self, algorithm: &Algorithm, took: bool) -> Option<BucketReply> {
        // Redis writes a receipt whenever this limit lets the request pass, whatever the other limits say.
        let begin = self.receipt.map(Receipt::time);
        let window_left = begin.and_then(|begin| algorithm.window_left(begin, self.at));
        let receipt = self.receipt.filter(|_| took).map(|it| it.under(algorithm, self.at));
        let (by, receipt) = (Decider::Redis, receipt.map(BucketReceipt::of));
        Some(BucketReply { decision: self.decision?, by, took, receipt, window_left })
    }
}

/// Requests that go to Redis together.
#[derive(Default)]
pub struct Call {
    /// The names of the buckets, each once.
    keys: Vec<Vec<u8>>,
    /// For each ask of each request the indices, from 0, of its bucket and of its terms.
    list: Vec<(usize, usize)>,
    /// The different terms of the asks, each once.
    terms: Vec<(Verb, Ask, Option<Holder>)>,
    /// For each request the number of its asks, and whether it wants receipts.
    requests: Vec<(usize, ReceiptUse)>,
}

impl Call {
    /// Whether a request with this number of asks may still join.
    pub fn has_room(&self, asks: usize) -> bool {
        self.requests.is_empty()
            || self.requests.iter().map(|(asks, _)| asks).sum::<usize>() + asks <= MOST_ASKS
    }

    /// Begins a request, whose asks are to follow: so many, at least one.
    pub fn request(&mut self, asks: usize, receipts: ReceiptUse) {
        self.requests.push((asks, receipts));
    }

    /// Adds an ask about the bucket of this name. An ask about a slot names the slot's holder.
    pub fn ask(&mut self, verb: Verb, ask: &Ask, holder: Option<Holder>, name: Vec<u8>) {
        let bucket = index_of(&mut self.keys, name);
        let terms = index_of(&mut self.terms, (verb, *ask, holder));
        self.list.push((bucket, terms));
    }

    /// A call for each of the requests.
    pub fn split(&self) -> Vec<Self> {
        let mut list = self.list.iter();
        let requests = self.requests.iter().map(|(asks, receipts)| {
            let mut call = Self::default();
            call.request(*asks, *receipts);
            for (bucket, terms) in list.by_ref().take(*asks) {
                let (verb, ask, holder) = &self.terms[*terms];
                call.ask(*verb, ask, *holder, self.keys[*bucket].clone());
            }
            call
        });
        requests.collect()
    }

    /// For each request its number of asks, below zero if it wants receipts. Then for each ask the
    /// indices, from 1, of its bucket and of its terms.
    fn packed_list(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(9 * self.requests.len() + 2 * self.list.len());
        let mut list = self.list.iter();
        for (asks, receipts) in &self.requests {
            match receipts {
                ReceiptUse::Needed => {
                    pack_number(-i64::try_from(*asks).unwrap_or(i64::MAX), &mut packed);
                }
                ReceiptUse::Unneeded => pack_index(*asks, &mut packed),
            }
            for (bucket, terms) in list.by_ref().take(*asks) {
                pack_index(bucket + 1, &mut packed);
                pack_index(terms + 1, &mut packed);
            }
        }
        packed
    }

    /// The call as it is sent.
    pub fn command(&self) -> Cmd {
        let mut terms = Vec::with_capacity(64);
        let list = self.packed_list();
        let keys = self.keys.iter().map(Vec::len).sum::<usize>();
        let size = keys + list.len() + 80 * (1 + self.terms.len());
        let mut call = Cmd::with_capacity(4 + self.keys.len() + self.terms.len(), size);
        call.arg("EVALSHA").arg(SCRIPT.get_hash()).arg(self.keys.len()).arg(&self.keys).arg(list);
        for (verb, ask, holder) in &self.terms {
            terms.clear();
            pack_terms(*verb, ask, *holder, &mut terms);
            call.arg(&terms);
        }
        call
    }

    /// The reply to each request, in their order. `answer` is the text that Redis answers. `None` if it does not fit this
    /// call.
    pub fn read<'a>(&'a self, answer: &'a [u8]) -> Option<impl Iterator<Item = Reply> + 'a> {
        let (numbers, odd) = answer.as_chunks::<NUMBER>();
        let mut checked = numbers.iter();
        let all = self.requests.iter().map(|(asks, _)| asks).sum::<usize>();
        let understood = (0..all).all(|_| read(&mut checked).is_some());
        let wanting = self.requests.iter().filter(|(_, receipts)| *receipts == ReceiptUse::Needed);
        let receipts = wanting.map(|(asks, _)| asks).sum::<usize>();
        // Receipts come after all decisions, and then Redis's time.
        let (mut noted, at) = match checked.as_slice() {
            [noted @ .., at] if receipts > 0 => (noted.iter(), timestamp(at)),
            noted => (noted.iter(), Timestamp::MIN),
        };
        if !understood || noted.len() != receipts || !odd.is_empty() {
            return None;
        }
        let mut numbers = numbers.iter();
        Some(self.requests.iter().map(move |(asks, receipts)| {
            let mut receipt = || match receipts {
                ReceiptUse::Needed => Some(Receipt::new(timestamp(noted.next()?))),
                ReceiptUse::Unneeded => None,
            };
            let decision = |_| read(&mut numbers).flatten();
            let decisions = (0..*asks).map(decision);
            decisions.map(|decision| AskReply { decision, receipt: receipt(), at }).collect()
        }))
    }
}

/// The index of a value in a list. If the list does not have it, adds it.
fn index_of<T: PartialEq>(list: &mut Vec<T>, value: T) -> usize {
    list.iter().position(|known| *known == value).unwrap_or_else(|| {
        list.push(value);
        list.len() - 1
    })
}

fn timestamp(number: &[u8; NUMBER]) -> Timestamp {
    Timestamp::from_micros(u64::from_be_bytes(*number)).unwrap_or(Timestamp::MIN)
}

/// Reads the one or two numbers of the next ask. `Some(None)` if its key holds a value of another type.
fn read<'a>(numbers: &mut impl Iterator<Item = &'a [u8; NUMBER]>) -> Option<Option<Decision>> {
    let mut next = || numbers.next().map(|number| i64::from_be_bytes(*number));
    let first = next()?;
    if let Ok(remaining) = u64::try_from(first) {
        return Some(Some(Decision { outcome: Outcome::Allow, remaining }));
    }
    let second = next()?;
    let wait = Duration::from_micros(WRONG_TYPE.abs_diff(first));
    let Ok(remaining) = u64::try_from(second) else {
        let remaining = u64::try_from(HELD.checked_sub(second)?).ok()?;
        let held = first < WRONG_TYPE;
        return held.then_some(Some(Decision { outcome: Outcome::Delay(wait), remaining }));
    };
    let retry_after = match first {
        WRONG_TYPE => return Some(None),
        NEVER => None,
        _ => Some(wait),
    };
    Some(Some(Decision { outcome: Outcome::Reject { retry_after }, remaining }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::token_bucket::Params;
    use crate::rate::{Burst, Cost};

    fn ask(cost: u64) -> Ask {
        let params = Params { rate: "1/s".parse().unwrap(), burst: Burst::new(5).unwrap() };
        let algorithm = Algorithm::TokenBucket(params);
        Ask { cost: Cost::new(cost).unwrap(), ..Ask::for_one(algorithm) }
    }

    /// A call of requests that each ask about these buckets.
    fn call(requests: &[&[(&str, u64)]]) -> Call {
        let mut call = Call::default();
        for asks in requests {
            call.request(asks.len(), ReceiptUse::Unneeded);
            for (name, cost) in *asks {
                call.ask(Verb::Take, &ask(*cost), None, (*name).into());
            }
        }
        call
    }

    fn decisions(reply: &Reply) -> Vec<Option<Decision>> {
        reply.iter().map(|one| one.decision).collect()
    }

    fn answer(numbers: &[i64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn buckets_and_terms_are_sent_once() {
        let call = call(&[&[("a", 1), ("bb", 1)], &[("bb", 2)], &[("a", 1)]]);
        assert_eq!(call.keys, [&b"a"[..], b"bb"]);
        assert_eq!(call.terms, [(Verb::Take, ask(1), None), (Verb::Take, ask(2), None)]);
        assert_eq!(call.packed_list(), [2, 1, 1, 2, 1, 1, 2, 2, 1, 1, 1]);
        let arguments = call.command().args_iter().count();
        assert_eq!(arguments, 3 + 2 + 1 + 2);
    }

    #[test]
    fn each_request_can_be_sent_by_itself() {
        let call = call(&[&[("a", 1), ("bb", 1)], &[("bb", 2)]]);
        let apart = call.split();
        assert_eq!(apart.len(), 2);
        assert_eq!(apart[0].keys, [&b"a"[..], b"bb"]);
        assert_eq!(apart[1].keys, [b"bb"]);
        assert_eq!(apart[1].terms, [(Verb::Take, ask(2), None)]);
        assert_eq!(apart[1].packed_list(), [1, 1, 1]);
    }

    #[test]
    fn a_call_is_bounded_and_any_request_fits_into_one() {
        let mut full = Call::default();
        assert!(full.has_room(10_000));
        for _ in 0..MOST_ASKS {
            assert!(full.has_room(1));
            full.request(1, ReceiptUse::Unneeded);
        }
        assert!(!full.has_room(1));
        let large = call(&[&[("a", 1); MOST_ASKS - 1]]);
        assert!(large.has_room(1) && !large.has_room(2));
    }

    #[test]
    fn each_request_has_its_own_answers() {
        let call = call(&[&[("a", 1)], &[("a", 1), ("b", 1)]]);
        let answer = answer(&[7, -1, 3, -2, 0]);
        let said: Vec<_> = call.read(&answer).unwrap().map(|reply| decisions(&reply)).collect();
        let decided = |outcome, remaining| Some(Decision { outcome, remaining });
        assert_eq!(
            said,
            [
                vec![decided(Outcome::Allow, 7)],
                vec![decided(Outcome::Reject { retry_after: None }, 3), None],
            ]
        );
    }

    #[test]
    fn a_request_is_held_where_what_remains_is_negative() {
        let call = call(&[&[("a", 1)]]);
        let answer = answer(&[-12, -4]);
        let replies = call.read(&answer).unwrap();
        let said: Vec<_> = replies.map(|reply| decisions(&reply)).collect();
        let outcome = Outcome::Delay(Duration::from_micros(10));
        assert_eq!(said, [vec![Some(Decision { outcome, remaining: 3 })]]);
    }

    #[test]
    fn receipts_come_after_all_decisions() {
        let mut call = call(&[&[("a", 1)]]);
        use ReceiptUse::{Needed, Unneeded};
        for (asks, receipts) in [(2, Needed), (1, Unneeded), (1, Needed)] {
            call.request(asks, receipts);
            for _ in 0..asks {
                call.ask(Verb::Take, &ask(1), None, b"a".to_vec());
            }
        }
        let answer = answer(&[7, 6, -9, 0, 5, 4, 100, 200, 300, 999]);
        let replies: Vec<_> = call.read(&answer).unwrap().collect();
        let noted = |reply: &Reply| -> Vec<u64> {
            reply.iter().filter_map(|one| Some(one.receipt?.time().as_micros())).collect()
        };
        assert_eq!(
            replies.iter().map(noted).collect::<Vec<_>>(),
            [vec![], vec![100, 200], vec![], vec![300]]
        );
        assert_eq!(replies.iter().map(|reply| reply.len()).collect::<Vec<_>>(), [1, 2, 1, 1]);
    }

    #[test]
    fn only_an_answer_to_the_question_is_a_decision() {
        let call = call(&[&[("a", 1)]]);
        assert!(call.read(&answer(&[5])).is_some() && call.read(&answer(&[-7, 0])).is_some());
        for (name, answer) in [
            ("too short", vec![0; NUMBER - 1]),
            ("too long", vec![0; NUMBER + 1]),
            ("of two asks", answer(&[7, 7])),
            ("nothing", answer(&[])),
            ("half a refusal", answer(&[-3])),
            ("tokens of never", answer(&[-1, -1])),
        ] {
            assert!(call.read(&answer).is_none(), "{name}");
        }
    }
}
