use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn scan(path: &str, pieces: &[&[u8]]) -> Option<u64> {
    scan_all(Arc::new(path.parse().unwrap()), pieces)
}

fn scan_all(paths: Arc<WeightedPaths>, pieces: &[&[u8]]) -> Option<u64> {
    let mut scanner = Scanner::new(paths);
    pieces.iter().for_each(|piece| scanner.read(piece));
    scanner.found()
}

#[test]
fn finds_the_number_at_the_path() {
    const PATH: &str = "usage.total";
    for (name, text, found) in [
        ("plain", r#"{"usage":{"total":57}}"#, Some(57)),
        ("with spaces", " {\r\n\t\"usage\" : { \"total\" : 57 } } ", Some(57)),
        ("after others", r#"{"a":[1,{"b":"]}"}],"usage":{"in":3,"total":57}}"#, Some(57)),
        ("with a byte order mark", "\u{FEFF}{\"usage\":{\"total\":57}}", Some(57)),
        ("zero", r#"{"usage":{"total":0}}"#, Some(0)),
        ("a whole fraction", r#"{"usage":{"total":57.0}}"#, Some(57)),
        ("a fraction", r#"{"usage":{"total":57.5}}"#, Some(58)),
        ("below zero", r#"{"usage":{"total":-57}}"#, None),
        ("an exponent", r#"{"usage":{"total":5e7}}"#, None),
        ("a text", r#"{"usage":{"total":"57"}}"#, None),
        ("nothing", r#"{"usage":{"total":null}}"#, None),
        ("a word", r#"{"usage":{"total":true,"x":1}}"#, None),
        ("an object", r#"{"usage":{"total":{"total":57}}}"#, None),
        ("a list", r#"{"usage":{"total":[57]}}"#, None),
        ("another object's", r#"{"choice":{"usage":{"total":57}},"total":57}"#, None),
        ("of a list", r#"[{"usage":{"total":57}}]"#, Some(57)),
        (
            "the last of a list",
            "[{\"usage\":{\"total\":57}}\n,\r\n{\"usage\":{\"total\":58}}\n]\n",
            Some(58),
        ),
        (
            "the last of a list that has it",
            r#"[{"usage":{"total":57}},{"a":[]},[1],"x",2,null]"#,
            Some(57),
        ),
        ("in a list that is cut", r#"[{"usage":{"total":57}},{"us"#, Some(57)),
        ("in a list in a list", r#"[[{"usage":{"total":57}}]]"#, None),
        ("in an object of a list", r#"[{"a":{"usage":{"total":57}}}]"#, None),
        ("in a list of a list's object", r#"[{"usage":[{"total":57}]}]"#, None),
        ("after an empty list", r#"[]{"usage":{"total":57}}"#, Some(57)),
        ("of a list without commas", r#"[{"a":1}{"usage":{"total":57}}]"#, None),
        ("after a comma without a list", r#"{"a":1},{"usage":{"total":57}}"#, None),
        ("after the end of no list", r#"{"a":1}]{"usage":{"total":57}}"#, None),
        ("in a list of the path", r#"{"usage":[{"total":57}]}"#, None),
        ("in a text", r#"{"a":"{\"usage\":{\"total\":57}}"}"#, None),
        ("an object that is a number", r#"{"usage":57}"#, None),
        ("after a number in its place", r#"{"usage":57,"usage":{"total":58}}"#, Some(58)),
        ("the last one", r#"{"usage":{"total":57,"total":58}}"#, Some(58)),
        ("one that can be read", r#"{"usage":{"total":57,"total":null}}"#, Some(57)),
        (
            "of several documents",
            "{\"usage\":{\"total\":57}}\n{\"usage\":{\"total\":58}}",
            Some(58),
        ),
        ("a key with escapes", r#"{"us\u0061ge":{"\u0074otal":57}}"#, Some(57)),
        ("a longer key", r#"{"usages":{"total":57}}"#, None),
        ("a shorter key", r#"{"usag":{"total":57}}"#, None),
        ("a key of another case", r#"{"Usage":{"total":57}}"#, None),
        ("a broken end", r#"{"usage":{"total":57},"rest":"#, Some(57)),
        ("a number that may go on", r#"{"usage":{"total":57"#, None),
        ("a number with more in it", r#"{"usage":{"total":57x}}"#, None),
        ("words before it", r#"see {"usage":{"total":57}}"#, None),
        ("no colon", r#"{"usage" {"total":57}}"#, None),
        ("no key", r#"{usage:{"total":57}}"#, None),
        ("too many ends", r#"{}}{"usage":{"total":57}}"#, None),
        ("nothing at all", "", None),
        ("one key more", r#"{"usage":{"total":{"x":57}},"total":57}"#, None),
        ("empty objects", r#"{"a":{},"b":[],"usage":{"total":57}}"#, Some(57)),
        ("a text that ends in a backslash", r#"{"a":"\\","usage":{"total":57}}"#, Some(57)),
    ] {
        assert_eq!(scan(PATH, &[text.as_bytes()]), found, "{name}");
    }
    assert_eq!(scan("n", &[br#"{"n":7}"#]), Some(7));
    assert_eq!(scan("\u{1F980}", &[br#"{"\ud83e\udd80":7}"#]), Some(7), "a character of two");
    assert_eq!(scan("\u{1F980}", &["{\"\u{1F980}\":7}".as_bytes()]), Some(7));
    assert_eq!(scan("a", &[br#"{"\ud83ea":7}"#]), None, "half a character");
    assert_eq!(scan("a", &[br#"{"a\ud83e":7}"#]), None, "half a character at the end");
}

#[test]
fn adds_several_numbers() {
    let mut paths = WeightedPaths::default();
    for (text, weight) in [("use.in | more.use.in", 1), ("use.out", 5), ("use", 100)] {
        paths.add(text, weight).unwrap();
    }
    let paths = Arc::new(paths);
    for (name, text, found) in [
        ("both", r#"{"use":{"in":7,"out":3}}"#, Some(7 + 15)),
        ("in any order", r#"{"use":{"out":3,"x":{"in":9},"in":7}}"#, Some(7 + 15)),
        ("one", r#"{"use":{"out":3}}"#, Some(15)),
        ("the other", r#"{"use":{"in":7,"out":null}}"#, Some(7)),
        ("none", r#"{"use":{}}"#, None),
        ("the alternative", r#"{"more":{"use":{"in":7,"out":3}}}"#, Some(7)),
        ("the first alternative", r#"{"use":{"in":7},"more":{"use":{"in":8}}}"#, Some(7)),
        (
            "the first, though it comes later",
            r#"{"more":{"use":{"in":8}},"use":{"in":7}}"#,
            Some(7),
        ),
        (
            "each from the last that has it",
            r#"{"use":{"in":7,"out":1}}{"use":{"out":3}}"#,
            Some(22),
        ),
        ("of a list", r#"[{"use":{"in":7,"out":1}},{},{"use":{"out":3}}]"#, Some(22)),
        ("a number and an object at one path", r#"{"use":2}{"use":{"in":7}}"#, Some(207)),
        ("zero", r#"{"use":{"in":0}}"#, Some(0)),
        ("deeper than any path", r#"{"use":{"in":{"in":7}}}"#, None),
        ("in another object", r#"{"x":{"use":{"in":7}}}"#, None),
        ("too large", r#"{"use":{"in":1,"out":18446744073709551615}}"#, Some(u64::MAX)),
    ] {
        assert_eq!(scan_all(Arc::clone(&paths), &[text.as_bytes()]), found, "{name}");
        let single: Vec<_> = text.as_bytes().chunks(1).collect();
        assert_eq!(scan_all(Arc::clone(&paths), &single), found, "{name}, byte by byte");
    }
}

#[test]
fn long_texts_are_skipped() {
    let long = |length: usize| "7".repeat(length);
    for (name, text, found) in [
        ("a long key", format!(r#"{{"n":1,"{}":2}}"#, long(10_000)), Some(1)),
        ("a long number", format!(r#"{{"n":1,"n":{}}}"#, long(10_000)), Some(1)),
        ("a large number", format!(r#"{{"n":1,"n":{}}}"#, long(4_000)), Some(u64::MAX)),
    ] {
        assert_eq!(scan("n", &[text.as_bytes()]), found, "{name}");
        let single: Vec<_> = text.as_bytes().chunks(1).collect();
        assert_eq!(scan("n", &single), found, "{name}, byte by byte");
    }
    let key = long(4_096);
    assert_eq!(scan(&key, &[format!(r#"{{"{key}":1}}"#).as_bytes()]), None);
}

#[test]
fn depth_costs_nothing() {
    let mut scanner = Scanner::new(Arc::new("usage.total".parse().unwrap()));
    scanner.read(br#"{"deep":"#);
    for bracket in ["[", "]"] {
        for _ in 0..1_000 {
            scanner.read(bracket.repeat(1_000).as_bytes());
        }
    }
    scanner.read(br#","usage":{"total":57}}"#);
    assert_eq!(scanner.found(), Some(57));
}

/// Keys that are often those of the path, or nearly.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "ab", "a\"", "\u{1F980}", "\\", "\n", ""])
            .prop_map(str::to_owned),
        1 => ".{0,4}",
    ]
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..1_000_u32, 0..4_u32).prop_map(|(n, q)| Value::from(f64::from(n) + f64::from(q) / 4.0)),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => prop::collection::vec((key(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// The number that serde_json finds at the path. In a list, the last element that has a number there counts.
fn oracle(document: &Value, path: &str) -> Option<u64> {
    if let Some(list) = document.as_array() {
        let objects = list.iter().rev().filter(|member| member.is_object());
        return objects.filter_map(|member| oracle(member, path)).next();
    }
    let number = path.split('.').try_fold(document, |at, key| at.as_object()?.get(key))?;
    number.as_u64().or_else(|| {
        let text = number.as_f64().filter(|_| number.is_f64())?.ceil().to_string();
        text.parse().ok()
    })
}

/// What serde_json finds at these paths, with their alternatives and weights.
fn sum(document: &Value, terms: &[(Vec<&str>, u64)]) -> Option<u64> {
    let found = terms.iter().filter_map(|(alternatives, weight)| {
        let number = alternatives.iter().find_map(|path| oracle(document, path))?;
        Some(number.saturating_mul(*weight))
    });
    found.reduce(u64::saturating_add)
}

fn cut(text: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #[test]
    fn finds_the_same_as_a_parser_in_pieces_of_any_size(
        document in document(),
        path in prop::sample::select(vec!["a", "b", "a.b", "a.a", "b.a.b", "ab.\u{1F980}", "a\".\\"]),
        pretty: bool,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let text = if pretty {
            serde_json::to_vec_pretty(&document).unwrap()
        } else {
            serde_json::to_vec(&document).unwrap()
        };
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let expected = oracle(&document, path);
        prop_assert_eq!(scan(path, &pieces), expected, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn adds_the_same_numbers_as_a_parser_at_all_paths(
        document in document(),
        terms in prop::collection::vec(
            (
                prop::collection::vec(
                    prop::sample::select(vec!["a", "b", "a.b", "a.a", "b.a", "b.a.b", "a.a.a", "ab"]),
                    1..4,
                ),
                prop_oneof![4 => 1..10_u64, 1 => Just(u64::MAX)],
            ),
            1..5,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut paths = WeightedPaths::default();
        for (alternatives, weight) in &terms {
            paths.add(&alternatives.join(" | "), *weight).unwrap();
        }
        let text = serde_json::to_vec(&document).unwrap();
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let (found, expected) = (scan_all(paths.into(), &pieces), sum(&document, &terms));
        prop_assert_eq!(found, expected, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn garbage_is_read_the_same_however_it_is_cut(
        text in prop::collection::vec(
            prop_oneof![
                4 => prop::sample::select(br#"{}[]":,\u0aA1. "#.to_vec()),
                1 => any::<u8>(),
            ],
            0..80,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let pieces = cut(&text, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let single: Vec<&[u8]> = text.chunks(1).collect();
        let whole = scan("a", &[&text]);
        prop_assert_eq!(scan("a", &pieces), whole);
        prop_assert_eq!(scan("a", &single), whole);
    }
}
