//! What changes in an answer's fields on their way to the client.

use http::header::{CONTENT_LENGTH, HeaderName};
use smallvec::SmallVec;

use super::{hop, tokens};
use crate::http1::fields::{Field, Fields, Kind};
use crate::http1::tokens::whole_number;
use crate::plan::HeaderChanges;

/// The body is coded in a way that this proxy would pass on wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct UnknownCoding;

/// Takes out what concerns the server's connection alone (RFC 9110, 7.6.1), and says the length once.
///
/// # Errors
/// Where the body is coded in another way than chunked alone.
pub(in crate::proxy) fn take_hop_by_hop(fields: &mut Fields) -> Result<(), UnknownCoding> {
    let mut seen = Seen::default();
    for field in fields.iter() {
        seen.note(field);
    }
    if seen.codings > 0 && !is_chunked_alone(fields) {
        return Err(UnknownCoding);
    }
    if seen.hop && seen.codings == 0 && hop::names_nothing(fields.values_of(Kind::Connection)) {
        fields.remove_kinds(&[Kind::Connection, Kind::Hop]);
    } else if seen.hop || seen.codings > 0 {
        let lines = || fields.values_of(Kind::Connection);
        let named: SmallVec<[HeaderName; 4]> = match hop::names_nothing(lines()) {
            true => SmallVec::new(),
            false => hop::named(lines()).collect(),
        };
        let is_named =
            |field: Field<'_>| named.iter().any(|named| named.as_str().as_bytes() == field.name());
        fields.retain(|field| match field.kind() {
            Kind::Connection | Kind::Coding | Kind::Hop => false,
            // A length beside chunks is not the length of anything.
            Kind::Length if seen.codings > 0 => false,
            Kind::Length | Kind::Trailer | Kind::Date | Kind::Other => !is_named(field),
        });
    }
    if seen.lengths > 1 {
        unite_lengths(fields);
    }
    Ok(())
}

/// Which fields an answer has, found in one look at each.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hop: bool,
    codings: usize,
    /// More than one also where one line is no plain number: a list, or nothing at all, as an answer
    /// without a body may have it.
    lengths: usize,
}

impl Seen {
    fn note(&mut self, field: Field<'_>) {
        match field.kind() {
            Kind::Coding => self.codings += 1,
            Kind::Length => self.lengths += 1 + usize::from(whole_number(field.value()).is_none()),
            Kind::Connection | Kind::Hop => self.hop = true,
            Kind::Trailer | Kind::Date | Kind::Other => {}
        }
    }
}

fn is_chunked_alone(fields: &Fields) -> bool {
    let mut codings = fields.values_of(Kind::Coding);
    let coding = codings.next().unwrap_or_default();
    coding.trim_ascii().eq_ignore_ascii_case(b"chunked") && codings.next().is_none()
}

/// Servers may repeat the length (RFC 9110, 8.6), and not every client reads that: it is said once, as
/// a number. Lengths that differ, or are none, frame no body here, so they go.
fn unite_lengths(fields: &mut Fields) {
    let lengths: SmallVec<[_; 4]> =
        tokens(fields.values_of(Kind::Length)).map(whole_number).collect();
    match lengths.first() {
        Some(Some(length)) if lengths.iter().all(|other| *other == Some(*length)) => {
            fields.insert_number(&CONTENT_LENGTH, *length);
        }
        _ => fields.remove(&CONTENT_LENGTH),
    }
}

/// Makes a route's changes to an answer.
pub(in crate::proxy) fn change(fields: &mut Fields, changes: &HeaderChanges) {
    for name in &changes.remove {
        fields.remove(name);
    }
    for (name, value) in &changes.set {
        fields.insert(name, value);
    }
    for (name, value) in &changes.add {
        fields.append(name, value);
    }
}
