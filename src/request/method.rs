//! The check that a method has only one reading.

use http::Method;

/// The error for a method with lower-case letters. By RFC 9110, 9.1, methods are case-sensitive, and no
/// registered method has lower-case letters. Many frameworks, however, change a method to upper case first.
/// The API would then read `post` as `POST`, while routes and limits for `POST` would not see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the method is not in upper case")]
pub(crate) struct MethodCase;

/// Checks that proxy and API read the method alike.
///
/// # Errors
/// Where the method has lower-case letters.
pub(crate) fn check(method: &Method) -> Result<(), MethodCase> {
    match method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Err(MethodCase),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_in_upper_case() {
        for (method, expected) in [
            ("GET", Ok(())),
            ("M-SEARCH", Ok(())),
            ("X_1", Ok(())),
            ("get", Err(MethodCase)),
            ("Get", Err(MethodCase)),
            ("GEt", Err(MethodCase)),
            ("brew", Err(MethodCase)),
        ] {
            assert_eq!(check(&method.parse().expect(method)), expected, "{method}");
        }
    }
}
