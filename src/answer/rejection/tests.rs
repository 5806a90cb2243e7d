use std::time::Duration;

use http::Version;
use http::header::CONNECTION;

use super::super::protocol::{GrpcKind, ProblemType};
use super::super::response::close;
use super::*;
use crate::limit::decision::Outcome;
use crate::limit::time::Timestamp;
use crate::settings::testing::settings;
use crate::settings::{AnswerHeaders, LimitSpec};

/// Two limits, and the file's answer.
fn limits() -> (Vec<Arc<LimitSpec>>, Arc<AnswerSpec>) {
    let settings = settings(
        "[limits.a]\nrate = \"10/h\"\n[limits.b]\nrate = \"20/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"a\", \"b\"]\n",
    );
    (settings.limits.clone(), settings.reject.clone())
}

fn text(answer: &OwnResponse) -> String {
    format!("{} {:?} {:?}", answer.status(), answer.headers(), answer.body())
}

#[test]
fn each_cause_has_its_own_answer() {
    let (limits, default) = limits();
    let quota = Quota {
        limit: &limits[0],
        burst: 10,
        window: Some(3600),
        reset: Some(3600),
        unit: None,
        remaining: 0,
        outcome: Outcome::Reject { retry_after: Some(Duration::from_micros(1)) },
    };
    let other = Quota { limit: &limits[1], ..quota };
    let plain = Arc::new(AnswerSpec { body: AnswerBody::Text, ..AnswerSpec::clone(&default) });
    let teapot =
        Arc::new(AnswerSpec { status: StatusCode::IM_A_TEAPOT, ..AnswerSpec::clone(&default) });
    let exact = Arc::new(AnswerSpec {
        headers: AnswerHeaders { retry_after_ms: true, ..default.headers },
        ..AnswerSpec::clone(&default)
    });
    let first = RejectionContent {
        protocol: Protocol::Http(ProblemType::Problem),
        spec: &default,
        default: &default,
        retry_after: Some(1),
        milliseconds: 0,
        quotas: &[quota],
        figures: Algorithm::Closed,
    };
    let quotas = [
        vec![Quota { burst: 11, ..quota }],
        vec![Quota { window: Some(3601), ..quota }],
        vec![Quota { window: None, ..quota }],
        vec![Quota { unit: Some("concurrent-requests"), ..quota }],
        vec![Quota { remaining: 1, ..quota }],
        vec![Quota { outcome: Outcome::Allow, ..quota }],
        vec![quota, other],
        vec![quota, Quota { outcome: Outcome::Allow, ..other }],
        vec![quota, Quota { outcome: Outcome::Allow, reset: Some(1), ..other }],
    ];
    // All of these have the same entry in the cache.
    let others = [
        first,
        RejectionContent { retry_after: Some(1 + KEPT as u64), ..first },
        RejectionContent { spec: &exact, milliseconds: 999, ..first },
        RejectionContent { spec: &exact, milliseconds: 1_000, ..first },
        RejectionContent { protocol: Protocol::Http(ProblemType::Json), ..first },
        RejectionContent { protocol: Protocol::Grpc(GrpcKind::Native), ..first },
        RejectionContent { protocol: Protocol::Grpc(GrpcKind::Web), ..first },
        RejectionContent { spec: &plain, ..first },
        RejectionContent { spec: &plain, retry_after: Some(1 + KEPT as u64), ..first },
        RejectionContent { spec: &teapot, ..first },
        RejectionContent { figures: limits[0].figures.at(Timestamp::MIN).unwrap(), ..first },
    ];
    let contents = quotas.iter().map(|quotas| RejectionContent { quotas, ..first }).chain(others);
    let contents: Vec<_> = contents.collect();
    let rejections = Rejections::new();
    let mut all = Vec::new();
    for content in contents.iter().chain(&contents) {
        let alone = text(&Rejections::new().answer(content, Uuid::nil()));
        // Until the answer is cached, and one more time.
        for round in 0..=OTHERS {
            assert_eq!(text(&rejections.answer(content, Uuid::nil())), alone, "{round}");
        }
        all.push(alone);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), contents.len(), "{all:#?}");
}

#[test]
fn a_changed_answer_stays_the_same_for_others() {
    let (_, default) = limits();
    let (spec, default) = (&default, &default);
    let protocol = Protocol::Http(ProblemType::Problem);
    let (retry_after, milliseconds, quotas, figures) = (None, 0, &[][..], Algorithm::Closed);
    let content =
        RejectionContent { protocol, spec, default, retry_after, milliseconds, quotas, figures };
    let rejections = Rejections::new();
    let mut first = rejections.answer(&content, Uuid::nil());
    close(&mut first, Version::HTTP_11);
    let second = rejections.answer(&content, Uuid::nil());
    assert!(first.headers().contains_key(CONNECTION));
    assert!(!second.headers().contains_key(CONNECTION));
}
