//! A response's fields on their way through: a list over the bytes in which they came, in their order.
//!
//! Most of them are only passed on, so no table is built and nothing is copied before the client's
//! head is written. A search goes through the list, which is short.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

/// The space for what is put in: most answers have three or four short fields more.
const PUT_IN: usize = 256;
const PLACES: usize = 8;

/// Fields in their order: those that came, then those that were put in.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head in which the fields stand that came.
    head: Bytes,
    /// The lines of those that were put in.
    put_in: Vec<u8>,
    places: Vec<Place>,
}

/// Where a field stands: name and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    kind: Kind,
    source: Source,
    name: Range<usize>,
    value: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Came,
    PutIn,
}

/// What a field is to those who frame a message and keep its connection: told once of each name, so
/// that not everybody has to compare names again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `connection`.
    Connection,
    /// `content-length`.
    Length,
    /// `transfer-encoding`.
    Coding,
    /// `trailer`.
    Trailer,
    /// `date`.
    Date,
    /// Another field that concerns one connection alone (RFC 9110, 7.6.1).
    Hop,
    /// Nothing special.
    Other,
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field<'f> {
    text: &'f [u8],
    place: &'f Place,
}

impl Kind {
    /// That of a name in lower case.
    fn of(name: &[u8]) -> Self {
        // The length says of most names that they are none of these.
        match (name.len(), name) {
            (4, b"date") => Self::Date,
            (7, b"trailer") => Self::Trailer,
            (10, b"connection") => Self::Connection,
            (14, b"content-length") => Self::Length,
            (17, b"transfer-encoding") => Self::Coding,
            (2, b"te")
            | (7, b"upgrade")
            | (10, b"keep-alive")
            | (16, b"proxy-connection")
            | (18, b"proxy-authenticate")
            | (19, b"proxy-authorization") => Self::Hop,
            _ => Self::Other,
        }
    }
}

impl Place {
    /// That of a field that came in this head. Its name is in lower case.
    pub(super) fn of(head: &[u8], name: Range<usize>, value: Range<usize>) -> Self {
        Self { kind: Kind::of(at(head, &name)), source: Source::Came, name, value }
    }
}

impl<'f> Field<'f> {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.place.kind
    }

    /// Its name, in lower case.
    pub fn name(&self) -> &'f [u8] {
        at(self.text, &self.place.name)
    }

    /// Its value.
    pub fn value(&self) -> &'f [u8] {
        at(self.text, &self.place.value)
    }

    /// Where its line stands, if it does so as it is to be written. Most do.
    fn line(&self) -> Option<Range<usize>> {
        let Place { name, value, source, .. } = self.place;
        let (line, from) = (name.start..value.end + 2, name.len());
        let is_plain = || {
            let text = self.text.get(line.clone())?;
            Some(text.get(from..from + 2)? == b": " && text.ends_with(b"\r\n"))
        };
        let stands =
            value.start == name.end + 2 && (*source == Source::PutIn || is_plain() == Some(true));
        stands.then_some(line)
    }
}

/// Lines to be written: those that stand behind each other are written at once.
#[derive(Debug, Default)]
pub(super) struct Lines<'f> {
    text: &'f [u8],
    source: Option<Source>,
    range: Range<usize>,
}

impl<'f> Lines<'f> {
    /// Writes the line of a field, now or with [`Lines::end`].
    pub(super) fn write(&mut self, field: Field<'f>, out: &mut Vec<u8>) {
        let source = Some(field.place.source);
        match field.line() {
            Some(line) if source == self.source && line.start == self.range.end => {
                self.range.end = line.end;
            }
            Some(line) => {
                self.end(out);
                (self.text, self.source, self.range) = (field.text, source, line);
            }
            None => {
                self.end(out);
                write_line(out, field.name(), |out| out.extend_from_slice(field.value()));
            }
        }
    }

    /// Writes what was not written yet.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        if self.source.take().is_some() {
            out.extend_from_slice(at(self.text, &self.range));
        }
    }
}

impl Fields {
    /// The fields at these places of a head. Names are in lower case there, and names and values are
    /// such as HTTP allows.
    pub(super) fn of(head: Bytes, places: Vec<Place>) -> Self {
        Self { head, put_in: Vec::new(), places }
    }

    /// Leaves none, but their memory.
    pub fn clear(&mut self) {
        self.head = Bytes::new();
        self.put_in.clear();
        self.places.clear();
    }

    /// Those of `other`, in the memory of these.
    pub fn copy(&mut self, other: &Self) {
        self.head.clone_from(&other.head);
        self.put_in.clone_from(&other.put_in);
        self.places.clone_from(&other.places);
    }

    /// The same, which puts fields in where `other` has put its own. To be called before any is.
    pub fn with_space_of(mut self, mut other: Self) -> Self {
        if self.put_in.is_empty() {
            other.clear();
            self.put_in = other.put_in;
        }
        self
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.places.iter().map(|place| field(&self.head, &self.put_in, place))
    }

    /// The values of the fields of this name.
    pub fn values(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        let wanted = name.as_str().as_bytes();
        self.iter().filter(move |field| field.name() == wanted).map(|field| field.value())
    }

    /// The values of the fields of this kind.
    pub fn values_of(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |field| field.kind() == kind).map(|field| field.value())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Puts a field in, in place of those of its name.
    pub fn insert(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.insert_with(name, |out| out.extend_from_slice(value.as_bytes()));
    }

    /// The same, with a value that `write` appends. It must be one that HTTP allows.
    pub fn insert_with(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        self.remove(name);
        self.append_with(name, write);
    }

    /// The same, with a number.
    pub fn insert_number(&mut self, name: &HeaderName, number: u64) {
        self.insert_with(name, |out| {
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        });
    }

    /// Puts a field with a number in, beside those of its name.
    pub fn append_number(&mut self, name: &HeaderName, number: u64) {
        self.append_with(name, |out| {
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        });
    }

    /// Puts a field in, beside those of its name.
    pub fn append(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.append_with(name, |out| out.extend_from_slice(value.as_bytes()));
    }

    fn append_with(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let (name, out) = (name.as_str().as_bytes(), &mut self.put_in);
        if out.is_empty() {
            out.reserve(PUT_IN);
            self.places.reserve(PLACES);
        }
        let begin = out.len();
        write_line(out, name, write);
        let name_end = begin + name.len();
        self.places.push(Place {
            kind: Kind::of(name),
            source: Source::PutIn,
            name: begin..name_end,
            value: name_end + 2..out.len() - 2,
        });
    }

    /// Takes out the fields of this name.
    pub fn remove(&mut self, name: &HeaderName) {
        // Mostly there is none.
        let unwanted = name.as_str().as_bytes();
        let length = unwanted.len();
        let mut alike = self.places.iter().filter(|place| place.name.len() == length);
        if alike.any(|place| field(&self.head, &self.put_in, place).name() == unwanted) {
            self.retain(|field| field.name() != unwanted);
        }
    }

    /// Takes out the fields of these kinds.
    pub fn remove_kinds(&mut self, unwanted: &[Kind]) {
        // Mostly it is one of many, so that it is cheaper to look for it than to move the others.
        while let Some(at) = self.places.iter().position(|place| unwanted.contains(&place.kind)) {
            self.places.remove(at);
        }
    }

    /// Keeps the fields that `wanted` says yes to.
    pub fn retain(&mut self, mut wanted: impl FnMut(Field<'_>) -> bool) {
        let (head, put_in) = (&self.head, &self.put_in);
        self.places.retain(|place| wanted(field(head, put_in, place)));
    }
}

fn field<'f>(head: &'f [u8], put_in: &'f [u8], place: &'f Place) -> Field<'f> {
    let text = match place.source {
        Source::Came => head,
        Source::PutIn => put_in,
    };
    Field { text, place }
}

/// Writes a line of a head, with a value that `write` appends.
pub(super) fn write_line(out: &mut Vec<u8>, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    write(out);
    out.extend_from_slice(b"\r\n");
}

fn at<'t>(text: &'t [u8], place: &Range<usize>) -> &'t [u8] {
    // Places are of this text.
    text.get(place.clone()).unwrap_or_default()
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        let parts = |field: Field<'_>| (field.name().to_vec(), field.value().to_vec());
        self.iter().map(parts).eq(other.iter().map(parts))
    }
}

impl Eq for Fields {}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HeaderName = HeaderName::from_static("a");
    const B: HeaderName = HeaderName::from_static("b");

    fn came() -> Fields {
        let head = Bytes::from_static(b"a: 1\r\nb:2\na:\t3\r\n");
        let place = |name, value| Place::of(&head, name, value);
        let places = vec![place(0..1, 3..4), place(6..7, 8..9), place(10..11, 13..14)];
        Fields::of(head, places)
    }

    fn value(text: &'static str) -> HeaderValue {
        HeaderValue::from_static(text)
    }

    fn text(fields: &Fields) -> String {
        let parts = fields.iter().flat_map(|field| [field.name(), b"=", field.value(), b" "]);
        String::from_utf8(parts.flatten().copied().collect()).unwrap()
    }

    #[test]
    fn fields_stand_in_their_order() {
        let mut fields = came();
        assert_eq!(text(&fields), "a=1 b=2 a=3 ");
        assert_eq!(fields.values(&A).collect::<Vec<_>>(), [b"1", b"3"]);
        fields.append(&A, &value("4"));
        assert_eq!(text(&fields), "a=1 b=2 a=3 a=4 ");
        fields.insert(&A, &value("5"));
        assert_eq!(text(&fields), "b=2 a=5 ");
        fields.insert(&A, &value("6"));
        fields.remove(&B);
        assert_eq!((text(&fields).as_str(), fields.len()), ("a=6 ", 1));
    }

    #[test]
    fn a_line_is_written_in_one_way_however_it_came() {
        let mut fields = came();
        fields.append(&B, &value(""));
        let mut out = Vec::new();
        fields.append(&A, &value("4"));
        let mut lines = Lines::default();
        fields.iter().for_each(|field| lines.write(field, &mut out));
        lines.end(&mut out);
        let expected = "a: 1\r\nb: 2\r\na: 3\r\nb: \r\na: 4\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_name_tells_what_a_field_is() {
        for (name, kind) in [
            ("connection", Kind::Connection),
            ("content-length", Kind::Length),
            ("transfer-encoding", Kind::Coding),
            ("trailer", Kind::Trailer),
            ("date", Kind::Date),
            ("keep-alive", Kind::Hop),
            ("proxy-connection", Kind::Hop),
            ("proxy-authenticate", Kind::Hop),
            ("proxy-authorization", Kind::Hop),
            ("upgrade", Kind::Hop),
            ("te", Kind::Hop),
            ("content-type", Kind::Other),
        ] {
            let mut fields = Fields::default();
            fields.append(&HeaderName::from_static(name), &value("1"));
            let kinds: Vec<_> = fields.iter().map(|field| field.kind()).collect();
            assert_eq!(kinds, [kind], "{name}");
            assert_eq!(fields.values_of(kind).collect::<Vec<_>>(), [b"1"], "{name}");
        }
    }
}
