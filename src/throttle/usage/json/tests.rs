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
