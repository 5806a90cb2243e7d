//! The check that a method has only one reading, and the name by which it is counted.

use std::collections::HashSet;

use http::Method;

/// Whether a method has lower-case letters. By RFC 9110, 9.1, methods are case-sensitive, and no registered method has
/// lower-case letters. Many frameworks, however, change a method to upper case first. The API would then read `post` as
/// `POST`, while routes and limits for `POST` would not see it.
pub(crate) fn has_lower_case(method: &Method) -> bool {
    method.as_str().bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The methods that everybody knows, without those that are never served.
pub(crate) const USUAL: [Method; 8] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::QUERY,
];

/// The name by which a key counts a method. All methods that are neither usual nor in the file have one name.
/// Otherwise a client could have a bucket for each method that it invents. No method has this name itself, because
/// the name is not in upper case.
pub(super) fn counted<'m>(method: &'m Method, named: &HashSet<Method>) -> &'m str {
    let is_known = USUAL.contains(method) || named.contains(method);
    if is_known { method.as_str() } else { "other" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_methods_are_counted_as_one() {
        let method = |name: &str| name.parse::<Method>().expect(name);
        let named = HashSet::from([method("PURGE")]);
        for (name, expected) in [
            ("GET", "GET"),
            ("QUERY", "QUERY"),
            ("PURGE", "PURGE"),
            ("A1", "other"),
            ("A2", "other"),
        ] {
            assert_eq!(counted(&method(name), &named), expected, "{name}");
        }
    }

    #[test]
    fn a_method_is_in_upper_case() {
        for (method, expected) in [
            ("GET", false),
            ("M-SEARCH", false),
            ("X_1", false),
            ("get", true),
            ("Get", true),
            ("GEt", true),
            ("brew", true),
        ] {
            assert_eq!(has_lower_case(&method.parse().expect(method)), expected, "{method}");
        }
    }
}
