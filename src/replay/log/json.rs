//! Reads log lines that are JSON objects, in one pass. No tree is built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::draft::{LineShape, PlaceValue, RecordDraft};
use super::field::{self, LogField, LogPlace};
use super::record::LineFault;

/// Reads a line into the draft.
///
/// # Errors
/// If the line is not one JSON object.
pub(super) fn read<'l>(line: &'l str, draft: &mut RecordDraft<'l>) -> Result<(), LineFault> {
    let mut deserializer = serde_json::Deserializer::from_str(line);
    let read = deserializer.deserialize_map(ObjectVisitor { draft, part: ObjectPart::Line });
    read.and_then(|()| deserializer.end())
        .map_err(|_| LineFault::Broken("it is not one JSON object"))
}

/// Which object is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectPart {
    Line,
    /// Caddy's `request`.
    Request,
}

/// What a key says about its value.
enum KeyMeaning<'l> {
    Place(LogPlace<&'l str>),
    /// All headers of Caddy's `request`.
    Headers,
    Other,
}

struct ObjectVisitor<'d, 'l> {
    draft: &'d mut RecordDraft<'l>,
    part: ObjectPart,
}

impl<'l> Visitor<'l> for ObjectVisitor<'_, 'l> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(meaning) = map.next_key_seed(KeySeed { part: self.part })? {
            match meaning {
                KeyMeaning::Place(LogPlace::Field(LogField::Request)) => {
                    map.next_value_seed(RequestSeed { draft: self.draft })?;
                }
                KeyMeaning::Place(place) => {
                    if let Some(value) = map.next_value_seed(ValueSeed)? {
                        self.draft.set(place, value);
                    }
                }
                KeyMeaning::Headers => map.next_value_seed(HeadersSeed { draft: self.draft })?,
                KeyMeaning::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

struct KeySeed {
    part: ObjectPart,
}

impl<'l> DeserializeSeed<'l> for KeySeed {
    type Value = KeyMeaning<'l>;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'l> Visitor<'l> for KeySeed {
    type Value = KeyMeaning<'l>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'l str) -> Result<Self::Value, E> {
        Ok(match (self.part, key) {
            (ObjectPart::Request, "headers") => KeyMeaning::Headers,
            // Caddy's `uri` has the query, and nginx's does not.
            (ObjectPart::Request, "uri") => KeyMeaning::Place(LogPlace::Field(LogField::Target)),
            _ => field::named(key).map_or(KeyMeaning::Other, KeyMeaning::Place),
        })
    }

    /// A key with escapes. No name of the table has any.
    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(KeyMeaning::Other)
    }
}

/// Caddy's `request`, an object, or the request line of others.
struct RequestSeed<'d, 'l> {
    draft: &'d mut RecordDraft<'l>,
}

impl<'l> DeserializeSeed<'l> for RequestSeed<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for RequestSeed<'_, 'l> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a request line or an object")
    }

    fn visit_borrowed_str<E: Error>(self, line: &'l str) -> Result<(), E> {
        let place = LogPlace::Field(LogField::Request);
        self.draft.set(place, PlaceValue::Text(Cow::Borrowed(line)));
        Ok(())
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<(), E> {
        let place = LogPlace::Field(LogField::Request);
        self.draft.set(place, PlaceValue::Text(Cow::Owned(line.to_owned())));
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'l>>(self, map: A) -> Result<(), A::Error> {
        self.draft.shape = LineShape::Nested;
        ObjectVisitor { draft: self.draft, part: ObjectPart::Request }.visit_map(map)
    }
}

/// Caddy's `headers`: a list of values for each name.
struct HeadersSeed<'d, 'l> {
    draft: &'d mut RecordDraft<'l>,
}

impl<'l> DeserializeSeed<'l> for HeadersSeed<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'l> Visitor<'l> for HeadersSeed<'_, 'l> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("headers")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(ValueSeed)? {
            let values = map.next_value_seed(HeaderValuesSeed)?;
            let Some(PlaceValue::Text(name)) = name else { continue };
            for value in values {
                self.draft.set_header(name.clone(), value);
            }
        }
        self.draft.has_all_headers();
        Ok(())
    }
}

/// The values of a header, one by one. A header that comes twice is not the same as a header with a list.
struct HeaderValuesSeed;

impl<'l> DeserializeSeed<'l> for HeaderValuesSeed {
    type Value = SmallVec<[PlaceValue<'l>; 1]>;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for HeaderValuesSeed {
    type Value = SmallVec<[PlaceValue<'l>; 1]>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of values")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Self::Value, E> {
        Ok(smallvec![PlaceValue::Text(Cow::Borrowed(text))])
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(smallvec![PlaceValue::Text(Cow::Owned(text.to_owned()))])
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(SmallVec::new())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = SmallVec::new();
        while let Some(value) = list.next_element_seed(ValueSeed)? {
            values.extend(value);
        }
        Ok(values)
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(SmallVec::new())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(SmallVec::new())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(SmallVec::new())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(SmallVec::new())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(SmallVec::new())
    }
}

/// One value. `None` for an object.
struct ValueSeed;

impl<'l> DeserializeSeed<'l> for ValueSeed {
    type Value = Option<PlaceValue<'l>>;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for ValueSeed {
    type Value = Option<PlaceValue<'l>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Self::Value, E> {
        Ok(Some(PlaceValue::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(PlaceValue::Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(PlaceValue::Text(Cow::Borrowed(if value { "true" } else { "false" }))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every place")]
        Ok(Some(PlaceValue::Number(number as f64)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every place")]
        Ok(Some(PlaceValue::Number(number as f64)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Some(PlaceValue::Number(number)))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Some(PlaceValue::Nothing))
    }

    /// Several headers of one name mean the same as one with a list (RFC 9110, section 5.3).
    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = list.next_element_seed(Self)?.flatten();
        while let Some(next) = list.next_element_seed(Self)? {
            if let (Some(PlaceValue::Text(all)), Some(PlaceValue::Text(next))) = (&mut all, next) {
                let all = all.to_mut();
                all.push_str(", ");
                all.push_str(&next);
            }
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
