//! The one spelling of a method.

use http::Method;

/// A method with letters in lower case. RFC 9110, 9.1, has them mean another method, and no registered
/// one has any; but many frameworks put a method in upper case first. So `post` would be `POST` to the
/// API, and neither to the routes and limits for `POST` nor to those that refuse `TRACE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the method is not in upper case")]
pub struct MethodCase;

/// Whether everybody reads the method alike.
///
/// # Errors
/// Where it has letters in lower case.
pub fn check(method: &Method) -> Result<(), MethodCase> {
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
