//! Replaces `${NAME}` in string values.

/// Why a string's variables cannot be replaced. An error holds text of the string, never the value of a
/// variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EnvironmentError {
    /// The variable is not set and has no default.
    Unset {
        /// The variable's name.
        name: String,
    },
    /// The text between the braces is not a variable's name.
    Name {
        /// The text from `${` to `}`.
        written: String,
    },
    /// There is no closing brace.
    Open,
}

/// A string after its variables were replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) text: String,
    /// Whether any part of the text came from a variable or from a variable's default.
    pub(super) foreign: bool,
}

/// Replaces each `${NAME}` and `${NAME:-default}` in `text`, and writes `$${` as `${`.
///
/// The default also replaces an empty variable. Inserted text is not searched for variables again.
pub(super) fn replace(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Replaced, EnvironmentError> {
    let mut replaced = Replaced { text: String::with_capacity(text.len()), foreign: false };
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        let after = &from[2..];
        if let Some(before) = before.strip_suffix('$') {
            replaced.text.push_str(before);
            replaced.text.push_str("${");
            rest = after;
            continue;
        }
        replaced.text.push_str(before);
        let Some((inner, tail)) = after.split_once('}') else {
            return Err(EnvironmentError::Open);
        };
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if !is_name(name) {
            return Err(EnvironmentError::Name { written: format!("${{{inner}}}") });
        }
        let value = match (env(name), default) {
            (Some(value), Some(default)) if value.is_empty() => default.to_owned(),
            (Some(value), _) => value,
            (None, Some(default)) => default.to_owned(),
            (None, None) => return Err(EnvironmentError::Unset { name: name.to_owned() }),
        };
        replaced.text.push_str(&value);
        replaced.foreign = true;
        rest = tail;
    }
    replaced.text.push_str(rest);
    Ok(replaced)
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${A}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn replaces_variables() {
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
    fn says_what_cannot_be_replaced() {
        let name = |written: &str| EnvironmentError::Name { written: written.to_owned() };
        for (text, expected) in [
            ("${UNSET}", EnvironmentError::Unset { name: "UNSET".to_owned() }),
            ("${A", EnvironmentError::Open),
            ("${}", name("${}")),
            ("${1A}", name("${1A}")),
            ("${A-x}", name("${A-x}")),
            ("${a b:-x}", name("${a b:-x}")),
        ] {
            assert_eq!(replace(text, &env), Err(expected), "{text}");
        }
    }

    #[test]
    fn tells_foreign_text() {
        for (text, foreign) in [("a", false), ("$${A}", false), ("${A}", true), ("${X:-b}", true)] {
            assert_eq!(replace(text, &env).map(|r| r.foreign), Ok(foreign), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[$\\{\\}:aé-]{0,12}") {
            let _ = replace(&text, &env);
        }
    }
}
