//! A response's fields on their way through: a list over the bytes in which they came, in their order.
//!
//! Most of them are only passed on, so no table is built and nothing is copied before the client's
//! head is written. A search goes through the list, which is short.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

/// Fields in their order: those that came, then those that were put in.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head in which the fields stand that came.
    head: Bytes,
    came: Vec<Place>,
    put_in: Vec<(HeaderName, HeaderValue)>,
}

/// Where a field stands in its head: name and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) name: Range<usize>,
    pub(super) value: Range<usize>,
}

impl Fields {
    /// The fields at these places of a head. Names are in lower case there, and names and values are
    /// such as HTTP allows.
    pub(super) fn of(head: Bytes, came: Vec<Place>) -> Self {
        Self { head, came, put_in: Vec::new() }
    }

    /// Names, in lower case, and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let came = self.came.iter().map(|place| (self.at(&place.name), self.at(&place.value)));
        let put_in =
            self.put_in.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        came.chain(put_in)
    }

    /// The values of the fields of this name.
    pub fn values(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]> {
        let wanted = name.as_str().as_bytes();
        self.iter().filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.came.len() + self.put_in.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a field in, in place of those of its name.
    pub fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.append(name, value);
    }

    /// Puts a field in, beside those of its name.
    pub fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.put_in.push((name, value));
    }

    /// Takes out the fields of this name.
    pub fn remove(&mut self, name: &HeaderName) {
        let unwanted = name.as_str().as_bytes();
        self.retain(|name| name != unwanted);
    }

    /// Keeps the fields whose names `wanted` says yes to.
    pub fn retain(&mut self, mut wanted: impl FnMut(&[u8]) -> bool) {
        let head = &self.head;
        self.came.retain(|place| wanted(at(head, &place.name)));
        self.put_in.retain(|(name, _)| wanted(name.as_str().as_bytes()));
    }

    fn at(&self, place: &Range<usize>) -> &[u8] {
        at(&self.head, place)
    }
}

fn at<'h>(head: &'h Bytes, place: &Range<usize>) -> &'h [u8] {
    // Places are of this head.
    head.get(place.clone()).unwrap_or_default()
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Fields {}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HeaderName = HeaderName::from_static("a");
    const B: HeaderName = HeaderName::from_static("b");

    fn came() -> Fields {
        let place = |name, value| Place { name, value };
        Fields::of(
            Bytes::from_static(b"a:1,b:2,a:3"),
            vec![place(0..1, 2..3), place(4..5, 6..7), place(8..9, 10..11)],
        )
    }

    fn text(fields: &Fields) -> String {
        let parts = fields.iter().flat_map(|(name, value)| [name, b"=", value, b" "]);
        String::from_utf8(parts.flatten().copied().collect()).unwrap()
    }

    #[test]
    fn fields_stand_in_their_order() {
        let mut fields = came();
        assert_eq!(text(&fields), "a=1 b=2 a=3 ");
        assert_eq!(fields.values(&A).collect::<Vec<_>>(), [b"1", b"3"]);
        fields.append(A, HeaderValue::from_static("4"));
        assert_eq!(text(&fields), "a=1 b=2 a=3 a=4 ");
        fields.insert(A, HeaderValue::from_static("5"));
        assert_eq!(text(&fields), "b=2 a=5 ");
        fields.insert(A, HeaderValue::from_static("6"));
        fields.remove(&B);
        assert_eq!((text(&fields).as_str(), fields.len()), ("a=6 ", 1));
    }
}
