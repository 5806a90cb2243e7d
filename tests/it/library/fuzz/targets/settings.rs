//! The text of `proxy.toml`. The input is the text.

use tidegate::config::{self, Colour, Overrides, Problems};

/// The value of every environment variable. No message may say it.
const SECRET: &str = "Zq7-nobody-may-see";

pub(super) fn check(input: &[u8]) {
    let parse = |text: &[u8]| {
        let file = std::path::Path::new("folder/proxy.toml");
        config::load_from(file, Ok(text.to_vec()), &|_| Some(SECRET.into()), &Overrides::default())
    };
    // Broken UTF-8 is shown with the character for it.
    let text = String::from_utf8_lossy(input);
    let (first, second) = match (parse(input), parse(input)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(problems), Err(again)) => {
            assert!(!problems.is_empty());
            assert_eq!(problems.to_string(), again.to_string());
            return are_sound(&problems, &text);
        }
        (first, second) => panic!("one text, two results: {first:?} {second:?}"),
    };
    are_sound(&first.warnings, &text);
    assert_eq!(first.warnings.to_string(), second.warnings.to_string());
    let env = |_: &str| Some(SECRET.to_owned());
    let changes = first.changes_to(&second, &env);
    assert!(changes.is_empty(), "{changes:?}");
    for route in &first.settings.routes {
        assert!(first.settings.limits_of(route).count() <= first.settings.limits.len());
    }
    // A comment changes no setting, wherever the text ends.
    let mut longer = input.to_vec();
    longer.extend_from_slice(b"\n# the end\n");
    let longer = parse(&longer).expect("a comment was added");
    assert!(first.changes_to(&longer, &env).is_empty());
}

/// Each problem is one line, at a place inside the text, and tells no secret.
fn are_sound(problems: &Problems, text: &str) {
    let rows: Vec<&str> = text.split('\n').collect();
    let mut before = (0, 0);
    for line in problems.lines() {
        assert!(!line.contains(['\n', '\r']), "{line:?}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(!line.contains(SECRET), "{line:?}");
        let Some(place) = line.strip_prefix("folder/proxy.toml:") else { continue };
        let mut numbers = place.splitn(3, ':').map(str::parse);
        let (Some(Ok(row)), Some(Ok(column))) = (numbers.next(), numbers.next()) else {
            panic!("no place: {line:?}")
        };
        let (row, column): (usize, usize) = (row, column);
        let length = rows.get(row - 1).unwrap_or_else(|| panic!("no such line: {line:?}"));
        assert!(column >= 1 && column <= length.chars().count() + 1, "{line:?} {length:?}");
        assert!(before <= (row, column), "out of order: {line:?}");
        before = (row, column);
    }
    for colour in [Colour::Never, Colour::Always] {
        let shown = problems.render(colour);
        let is_safe = |c: char| c == '\n' || colour == Colour::Always || !c.is_control();
        assert!(shown.chars().all(is_safe), "{shown:?}");
        assert_eq!(shown.is_empty(), problems.is_empty());
        assert!(!shown.contains(SECRET), "{shown}");
    }
}
