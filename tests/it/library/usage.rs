//! What the answers of language models cost, however they are cut on their way.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use tidegate::settings::weights::WeightedPaths;
use tidegate::throttle::usage::reader;

use crate::support::model_apis::{ANSWERS, ModelAnswer};

/// What is found in these pieces of an answer.
fn found<'p>(answer: &ModelAnswer, pieces: impl IntoIterator<Item = &'p [u8]>) -> Option<u64> {
    let mut paths = WeightedPaths::default();
    for (path, weight) in answer.paths {
        paths.add(path, *weight).unwrap();
    }
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(answer.kind))]);
    let mut reader = reader(&headers, &Arc::new(paths)).expect("a body that is read");
    pieces.into_iter().for_each(|piece| reader.read(piece));
    reader.found()
}

#[test]
fn an_answer_costs_what_it_says_wherever_it_is_cut() {
    for answer in &ANSWERS {
        let text = answer.body.as_bytes();
        for cut in 0..=text.len() {
            let (begin, end) = text.split_at(cut);
            assert_eq!(found(answer, [begin, end]), answer.due, "{}, cut at {cut}", answer.name);
        }
        assert_eq!(found(answer, text.chunks(1)), answer.due, "{}, byte by byte", answer.name);
        let first = answer.first_part().as_bytes();
        assert_eq!(found(answer, [first]), answer.found, "{}, its first part", answer.name);
    }
}

#[test]
fn only_some_answers_say_that_they_are_done() {
    for answer in &ANSWERS {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(answer.kind))]);
        let mut reader = reader(&headers, &Arc::new("usage".parse().unwrap())).unwrap();
        reader.read(answer.body.as_bytes());
        assert_eq!(reader.is_done(), answer.says_its_end(), "{}", answer.name);
    }
}
