//! A client's connection over HTTP/1.1, byte by byte.
//!
//! What arrives at the API must be whole requests, in one spelling, and those that the client sent. What
//! arrives at the client must be framed, and may be whole only if the API's answer was.

use super::messages::{Framed, Message, answers, requests};
use super::scene::{self, Played};

pub(super) fn check(input: &[u8]) {
    let played = scene::play(input, <[u8]>::to_vec);
    came_from_the_client(&played.sent, &played.requests());
    if !played.sent.starts_with(b"PRI * HTTP/2") {
        is_framed(&played);
    }
}

/// Where the client's bytes have one reading, the API has seen some of these requests, in their order, and
/// nothing else.
fn came_from_the_client(sent: &[u8], arrived: &[Message]) {
    let sent = match requests(sent) {
        Framed::Whole(requests) | Framed::Cut(requests, _) => requests,
        Framed::Faulty(_) => return,
    };
    let mut sent_in_order = sent.iter();
    for request in arrived {
        let mut same = |one: &Message| one.method() == request.method() && one.body == request.body;
        assert!(sent_in_order.any(&mut same), "no client sent this: {request:?}");
    }
}

/// The client can tell where each answer ends. An answer is whole only if the API's was.
fn is_framed(played: &Played) {
    let Played { sent, received, .. } = played;
    // Where an answer belongs to no sound request, its request's method is not known.
    let methods = match requests(sent) {
        Framed::Whole(requests) | Framed::Cut(requests, _) => {
            Some(requests.iter().map(|request| request.method().to_owned()).collect::<Vec<_>>())
        }
        Framed::Faulty(_) => None,
    };
    let may_be_head = sent.windows(4).any(|text| text == b"HEAD");
    if methods.is_none() && may_be_head {
        return;
    }
    let whole = match answers(received, &methods.unwrap_or_default()) {
        Framed::Whole(whole) => whole,
        Framed::Cut(whole, _) => {
            let may_be_cut = played.is_scripted || is_cut_request(sent);
            assert!(may_be_cut, "cut: {}", received.escape_ascii());
            whole
        }
        Framed::Faulty(why) => panic!("at the client: {why}: {}", received.escape_ascii()),
    };
    if played.is_half_answered() {
        let passed_on = |answer: &&Message| (200..400).contains(&answer.status());
        let found = whole.iter().find(passed_on);
        assert!(
            found.is_none_or(|it| it.ends_with_connection),
            "half an answer as whole: {found:?}"
        );
    }
}

fn is_cut_request(sent: &[u8]) -> bool {
    !matches!(requests(sent), Framed::Whole(_))
}
