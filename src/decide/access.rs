//! Who may ask: the token of `[decide]`.

use http::header::{HeaderName, ORIGIN};
use http::{Method, request};

use super::form::{BadCall, Form};
use crate::percent;
use crate::request::credentials::{bearer, is_secret};
use crate::request::site::{is_local, is_of_another_site};

/// The field with the token.
const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");

/// Lets a call with this head ask. `token` is `decide.token`. The field with the token is removed.
///
/// # Errors
/// If the call shows no token, or asks nothing.
pub(super) fn admit(
    form: Form,
    head: &mut request::Parts,
    token: Option<&str>,
) -> Result<(), BadCall> {
    match form {
        _ if !may_ask(form, head, token) => Err(BadCall::Token),
        Form::Unknown => Err(BadCall::Path),
        _ if form.has_body() && head.method != Method::POST => Err(BadCall::Method),
        _ if token.is_none() && form.tells_end() && is_from_page(head) => Err(BadCall::Page),
        _ => Ok(()),
    }
}

/// Whether a call with this head may ask. Removes the field with the token, which is not the client's.
fn may_ask(form: Form, head: &mut request::Parts, token: Option<&str>) -> bool {
    let given = head.headers.remove(TOKEN);
    let Some(token) = token else { return true };
    let in_query = head.uri.query().into_iter().flat_map(|query| query.split('&'));
    let mut in_query = in_query.filter_map(|pair| pair.strip_prefix("token="));
    // In the other forms the field is the client's.
    let shown = bearer(&head.headers).filter(|_| form.has_body());
    shown.is_some_and(|given| is_secret(given.as_bytes(), token))
        || given.is_some_and(|given| is_secret(given.as_bytes(), token))
        || in_query.any(|given| is_secret(&percent::decode(given), token))
}

/// Whether a page of another site makes this call, in a browser that can reach this address. With DNS rebinding the page
/// has our address under a name of its own, and is no other site for the browser.
fn is_from_page(head: &request::Parts) -> bool {
    let (headers, uri) = (&head.headers, &head.uri);
    is_of_another_site(headers, uri) || headers.contains_key(ORIGIN) && !is_local(headers, uri)
}
