use super::*;

#[test]
fn a_line_says_place_and_expectation() {
    let text = "[server]\nä = 1\n";
    let problems = Problems::new(
        "proxy.toml",
        text,
        vec![
            Problem::general("`--listen` has nothing to replace"),
            Problem::error(14..15, "found", "expected").help("do this"),
        ],
    );
    assert_eq!(
        problems.lines().collect::<Vec<_>>(),
        ["`--listen` has nothing to replace", "proxy.toml:2:5: found: expected; do this"]
    );
    let shown = problems.render(Colour::Never);
    assert!(shown.contains("--> proxy.toml:2:5"), "{shown}");
}

#[test]
fn the_nearest_name_is_near() {
    let names = ["header_timeout", "body_timeout", "listen"];
    for (found, expected) in [
        ("header-timeout", Some("header_timeout")),
        ("Listen", Some("listen")),
        ("lisetn", Some("listen")),
        ("body_time_out", Some("body_timeout")),
        ("listening_on", Some("listen")),
        ("header", Some("header_timeout")),
        ("li", None),
        ("frobnicate", None),
        ("", None),
    ] {
        assert_eq!(nearest(found, names), expected, "{found}");
    }
}

#[test]
fn colours_are_for_terminals() {
    let problems = Problems::new("f", "x", vec![Problem::error(0..1, "t", "e")]);
    assert!(!problems.render(Colour::Never).contains('\u{1b}'));
    assert!(problems.render(Colour::Always).contains('\u{1b}'));
}

#[test]
fn any_span_can_be_shown() {
    let reversed = Span { start: 1, end: 0 };
    for span in [0..0, 3..3, 2..900, 900..901, reversed, 1..2] {
        let problems = Problems::new("f", "ä\n\nb", vec![Problem::error(span.clone(), "t", "e")]);
        assert!(problems.render(Colour::Never).contains("error: t"), "{span:?}");
        assert_eq!(problems.lines().count(), 1);
    }
}
