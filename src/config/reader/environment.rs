//! Replaces `${NAME}` in string values.

/// Why a string's variables cannot be replaced. It holds text of the string, never the value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvironmentError {
    /// The part of the string that is wrong.
    pub(crate) part: String,
    /// What is wrong with the part.
    pub(crate) title: String,
    pub(crate) expected: String,
}

/// A string after its variables were replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) text: String,
    /// Whether any part of the text came from a variable or from a variable's default.
    pub(crate) foreign: bool,
}

/// Replaces each `${NAME}` and `${NAME:-default}` in `text`, and writes `$${` as `${`.
///
/// The default also replaces an empty variable. Inserted text is not searched for variables again.
///
/// # Errors
/// All parts that cannot be replaced.
pub(crate) fn replace(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Replaced, Vec<EnvironmentError>> {
    let mut errors: Vec<EnvironmentError> = Vec::new();
    let mut replaced = Replaced { text: String::with_capacity(text.len()), foreign: false };
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        rest = after;
        if let Some(before) = before.strip_suffix('$') {
            replaced.text.push_str(before);
            replaced.text.push_str("${");
            continue;
        }
        replaced.text.push_str(before);
        let Some((inner, tail)) = after.split_once('}') else {
            errors.push(EnvironmentError {
                part: "${".to_owned(),
                title: "`${` has no closing brace".to_owned(),
                expected: "expected `${NAME}`; a plain `${` is written `$${`".to_owned(),
            });
            break;
        };
        rest = tail;
        match value(inner, env) {
            Ok(value) => replaced.text.push_str(&value),
            // A variable that stands in the text twice is one problem.
            Err(error) if errors.contains(&error) => {}
            Err(error) => errors.push(error),
        }
        replaced.foreign = true;
    }
    replaced.text.push_str(rest);
    if errors.is_empty() { Ok(replaced) } else { Err(errors) }
}

/// The value of `NAME` or `NAME:-default`.
fn value(inner: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, EnvironmentError> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let part = format!("${{{inner}}}");
    if !is_name(name) {
        let title = format!("`{part}` is no environment variable");
        let expected = "expected a name of letters, digits and `_`; a plain `${` is written `$${`";
        return Err(EnvironmentError { part, title, expected: expected.to_owned() });
    }
    let value = env(name).filter(|value| default.is_none() || !value.is_empty());
    value.or_else(|| default.map(str::to_owned)).ok_or_else(|| EnvironmentError {
        part,
        title: format!("the environment variable {name} is not set"),
        expected: format!("expected it to be set, or a default: `${{{name}:-default}}`"),
    })
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${A}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced() {
        for (text, expected) in [
            ("plain $ {x}", "plain $ {x}"),
            ("${A}", "alpha"),
            ("x${A}y${A}z", "xalphayalphaz"),
            ("${A:-no}", "alpha"),
            ("${UNSET:-yes}", "yes"),
            ("${UNSET:-}", ""),
            ("${EMPTY:-yes}", "yes"),
            ("${EMPTY}", ""),
            ("$${A}", "${A}"),
            ("${NESTED}", "${A}"),
            ("/{id}/${A}/{*rest}", "/{id}/alpha/{*rest}"),
            ("é${A}é", "éalphaé"),
        ] {
            assert_eq!(replace(text, &env).map(|r| r.text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_error_says_which_variable_cannot_be_replaced() {
        for (text, part, title) in [
            ("a${UNSET}", "${UNSET}", "variable UNSET is not set"),
            ("a${A", "${", "no closing brace"),
            ("${}", "${}", "is no environment variable"),
            ("${1A}", "${1A}", "is no environment variable"),
            ("${A-x}", "${A-x}", "is no environment variable"),
            ("${a b:-x}", "${a b:-x}", "is no environment variable"),
        ] {
            let errors = replace(text, &env).unwrap_err();
            let [error] = errors.as_slice() else { panic!("{text}: {errors:?}") };
            assert_eq!(error.part, part, "{text}");
            assert!(error.title.contains(title), "{text}: {error:?}");
        }
    }

    #[test]
    fn says_everything_that_cannot_be_replaced() {
        let errors = replace("${UNSET}/${A}/${1A}${OTHER}${UNSET}${A", &env).unwrap_err();
        let parts: Vec<_> = errors.iter().map(|error| error.part.as_str()).collect();
        assert_eq!(parts, ["${UNSET}", "${1A}", "${OTHER}", "${"]);
    }

    #[test]
    fn tells_foreign_text() {
        for (text, foreign) in [("a", false), ("$${A}", false), ("${A}", true), ("${X:-b}", true)] {
            assert_eq!(replace(text, &env).map(|r| r.foreign), Ok(foreign), "{text}");
        }
    }
}
