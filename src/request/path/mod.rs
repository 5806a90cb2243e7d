//! The one normal form of a path.
//!
//! Only this module reads paths. The path for the upstream is built from the parsed path: it has no
//! dot segments and no spelling that another parser could read as another path. The path for routes and
//! keys is made from the upstream's path alone, so both always mean the same resource.
//!
//! - `..` removes the segment before it, and the empty segments between the two, as if slashes had been
//!   merged first. `/a//../b` is `/b`, even if doubled slashes are kept upstream. A segment with only
//!   `;parameters` counts as empty here, as for routes.
//! - `..` at the root stays at the root (RFC 3986, 5.2.4). This is not ambiguous, since the upstream
//!   receives the resolved path.
//! - A trailing `.` or `..` leaves a trailing slash.
//! - `..%3Bx` is refused like `..;x`, since a server that decodes first would read it as `..;x`.

use std::borrow::Cow;

use percent_encoding::{percent_decode_str, percent_encode_byte};

use crate::percent::{byte_after_sign, decode};
use crate::text::trim;

/// A path in its two normal forms: the form for the upstream, and the matching form for routes and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalPath<'p> {
    upstream: Cow<'p, str>,
    matching: Cow<'p, str>,
}

/// The error for a text that two parsers could read as different paths, or that is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguousPath {
    /// The path does not begin with a slash.
    #[error("the path does not begin with a slash")]
    Relative,
    /// An encoded slash: `%2F`.
    #[error("the path has an encoded slash")]
    EncodedSlash,
    /// A backslash: `\` or `%5C`.
    #[error("the path has a backslash")]
    Backslash,
    /// A NUL, plain or as `%00`.
    #[error("the path has a NUL character")]
    Nul,
    /// A percent sign without two hex digits after it.
    #[error("the path has a percent sign without two hex digits after it")]
    BrokenPercent,
    /// A dot segment with parameters: `..;x`.
    #[error("the path has a dot segment with parameters")]
    DotParameters,
    /// A dot segment, plain or encoded, in a path that goes to the API as it came.
    #[error("the path has a dot segment, which nobody resolves before the API")]
    DotSegment,
    /// Two slashes at the start of a path that goes to the API as it came, and more segments. Some servers take the
    /// first segment for a host.
    #[error("the path begins with two slashes, as if a host followed")]
    HostInPath,
    /// A control character, a space, `?` or `#` without percent-encoding.
    #[error("the path has a character that must be percent-encoded")]
    Forbidden,
}

impl<'p> NormalPath<'p> {
    /// The normal forms of `path`, which has no query. A form that is equal to `path` borrows it.
    ///
    /// # Errors
    /// If the path stays ambiguous. `*`, the target of `OPTIONS *`, is an error too.
    pub fn parse(path: &'p str, merge_slashes: bool) -> Result<Self, AmbiguousPath> {
        if is_plain(path) {
            return Ok(Self { upstream: Cow::Borrowed(path), matching: Cow::Borrowed(path) });
        }
        let upstream = upstream_form(path, merge_slashes)?;
        let matching = matching_form(&upstream);
        let borrow = |form: String| if form == path { Cow::Borrowed(path) } else { form.into() };
        Ok(Self { upstream: borrow(upstream), matching: borrow(matching) })
    }

    /// Checks that the API runs this path if it gets `came`, the text that this path was parsed from. Doubled slashes
    /// and `;parameters` in it are as in a path for the upstream.
    ///
    /// # Errors
    /// If servers may read another path in the text.
    pub(crate) fn check_as_it_came(came: &str) -> Result<(), AmbiguousPath> {
        if came.split('/').any(|segment| matches!(&*decode(segment), b"." | b"..")) {
            return Err(AmbiguousPath::DotSegment);
        }
        match came.strip_prefix("//").is_some_and(|rest| rest.contains('/')) {
            true => Err(AmbiguousPath::HostInPath),
            false => Ok(()),
        }
    }

    /// The same path, matched and counted without blanks at its end. Many frameworks cut them off, and a pattern that
    /// ends in `$` matches before a line feed.
    #[must_use]
    pub(crate) fn trimmed(mut self) -> Self {
        // A blank is always encoded here.
        let [.., b'%', _, _] = self.matching.as_bytes() else { return self };
        let Some((before, last)) = self.matching.rsplit_once('/') else { return self };
        let decoded = decode(last);
        let name = trim(&decoded);
        if !name.is_empty() && name.len() < decoded.len() {
            let mut form = format!("{before}/");
            name.iter().for_each(|byte| push_canonical(&mut form, *byte));
            self.matching = form.into();
        }
        self
    }

    /// The same path, matched and counted without regard to case and to a slash at the end.
    #[must_use]
    pub fn loosened(mut self) -> Self {
        self.matching = match self.matching {
            Cow::Borrowed(form) => loose(form),
            Cow::Owned(form) => loose(&form).into_owned().into(),
        };
        self
    }

    /// The form that the upstream receives.
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// The form for routes and keys: slashes merged, no `;parameters`, one spelling for each byte.
    pub fn matching(&self) -> &str {
        &self.matching
    }

    /// The segment with this index in the matching form, as it goes upstream. Must not be used for the empty
    /// segment after a trailing slash.
    pub(super) fn upstream_segment(&self, index: usize) -> Option<&str> {
        self.upstream.split('/').filter(|segment| is_named(segment)).nth(index)
    }

    /// The end of the path for the upstream: it begins with the segment that has this index in the matching form, and
    /// with the doubled slashes right before this segment.
    pub(super) fn upstream_rest(&self, index: usize) -> Option<&str> {
        let mut rest = self.upstream.strip_prefix('/')?;
        let mut segments = 0;
        while segments < index {
            let (segment, after) = rest.split_once('/')?;
            segments += usize::from(is_named(segment));
            rest = after;
        }
        Some(rest)
    }
}

/// Whether the path is surely equal to both of its forms. This is a quick check: it is also false for some normal
/// paths, such as `/.well-known`.
fn is_plain(path: &str) -> bool {
    let mut previous = None;
    for byte in path.bytes() {
        let plain = match (previous, byte) {
            (None, first) => first == b'/',
            (Some(b'/'), b'/' | b'.') => false,
            (Some(_), b'/') => true,
            (Some(_), byte) => is_unreserved(byte) || is_delimiter(byte),
        };
        if !plain {
            return false;
        }
        previous = Some(byte);
    }
    previous.is_some()
}

fn upstream_form(path: &str, merge_slashes: bool) -> Result<String, AmbiguousPath> {
    let mut segments = path.strip_prefix('/').ok_or(AmbiguousPath::Relative)?.split('/').peekable();
    let mut form = String::with_capacity(path.len());
    while let Some(raw) = segments.next() {
        let start = form.len();
        form.push('/');
        push_segment(&mut form, raw)?;
        let last = segments.peek().is_none();
        match form.get(start + 1..).unwrap_or_default() {
            "" if merge_slashes && !last => form.truncate(start),
            "." => form.truncate(start + usize::from(last)),
            ".." => {
                form.truncate(start);
                leave_segment(&mut form);
                if last {
                    form.push('/');
                }
            }
            segment if is_dots_with_parameters(segment) => {
                return Err(AmbiguousPath::DotParameters);
            }
            _ => {}
        }
    }
    Ok(form)
}

fn push_segment(form: &mut String, raw: &str) -> Result<(), AmbiguousPath> {
    let mut parts = raw.split('%');
    push_text(form, parts.next().unwrap_or_default())?;
    for part in parts {
        let (byte, text) = byte_after_sign(part).ok_or(AmbiguousPath::BrokenPercent)?;
        match byte {
            b'/' => return Err(AmbiguousPath::EncodedSlash),
            b'\\' => return Err(AmbiguousPath::Backslash),
            0 => return Err(AmbiguousPath::Nul),
            byte if is_unreserved(byte) => form.push(char::from(byte)),
            byte => form.push_str(percent_encode_byte(byte)),
        }
        push_text(form, text)?;
    }
    Ok(())
}

/// Appends a text without percent signs.
fn push_text(form: &mut String, text: &str) -> Result<(), AmbiguousPath> {
    text.bytes().try_for_each(check)?;
    form.push_str(text);
    Ok(())
}

fn check(byte: u8) -> Result<(), AmbiguousPath> {
    match byte {
        b'\\' => Err(AmbiguousPath::Backslash),
        0 => Err(AmbiguousPath::Nul),
        b'?' | b'#' | b' ' => Err(AmbiguousPath::Forbidden),
        byte if byte.is_ascii_control() => Err(AmbiguousPath::Forbidden),
        _ => Ok(()),
    }
}

fn leave_segment(form: &mut String) {
    while let Some(start) = form.rfind('/') {
        let named = is_named(form.get(start + 1..).unwrap_or_default());
        form.truncate(start);
        if named {
            break;
        }
    }
}

fn is_dots_with_parameters(segment: &str) -> bool {
    let after = segment.strip_prefix("..").or_else(|| segment.strip_prefix('.'));
    after.is_some_and(|after| after.starts_with(';') || after.starts_with("%3B"))
}

fn matching_form(upstream: &str) -> String {
    let mut form = String::with_capacity(upstream.len());
    let mut segments = upstream.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if is_named(segment) || segments.peek().is_none() {
            form.push('/');
            let name = segment.split(';').next().unwrap_or_default();
            percent_decode_str(name).for_each(|byte| push_canonical(&mut form, byte));
        }
    }
    form
}

fn push_canonical(form: &mut String, byte: u8) {
    if is_unreserved(byte) || is_delimiter(byte) {
        form.push(char::from(byte));
    } else {
        form.push_str(percent_encode_byte(byte));
    }
}

/// The loose form of a matching form or of a segment of one.
pub(super) fn loose(form: &str) -> Cow<'_, str> {
    let form = form.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(form);
    if !form.bytes().any(|byte| byte.is_ascii_uppercase() || byte == b'%') {
        return Cow::Borrowed(form);
    }
    let mut loose = String::with_capacity(form.len());
    for (index, segment) in form.split('/').enumerate() {
        if index > 0 {
            loose.push('/');
        }
        for chunk in decode(segment).utf8_chunks() {
            let valid = lower_case(chunk.valid());
            let bytes = valid.bytes().chain(chunk.invalid().iter().copied());
            bytes.for_each(|byte| push_canonical(&mut loose, byte));
        }
    }
    loose.into()
}

/// The text without regard to case, letter by letter. `str::to_lowercase` would also look at the letters beside it.
pub(super) fn lower_case(text: &str) -> String {
    text.chars().map(folded).collect()
}

/// One letter for all that some framework takes for the same letter. Java and Python compare by upper case too: for
/// them `\u{131}` and `\u{130}` are an `i`, and `\u{17f}` is an `s`.
fn folded(letter: char) -> char {
    let mut upper = letter.to_uppercase();
    let upper = upper.next().filter(|_| upper.next().is_none()).unwrap_or(letter);
    upper.to_lowercase().next().unwrap_or(upper)
}

/// Whether a segment of the upstream form has more than `;parameters`.
fn is_named(segment: &str) -> bool {
    !segment.is_empty() && !segment.starts_with(';')
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether this delimiter means the same in a segment, plain or encoded. The semicolon does not: a plain semicolon
/// begins parameters.
fn is_delimiter(byte: u8) -> bool {
    matches!(
        byte,
        b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@'
    )
}

#[cfg(test)]
mod tests;
