//! Reads log lines that are JSON objects, in one pass. No tree is built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::draft::{PlaceValue, RecordDraft};
use super::field::{self, LogField, LogPlace};
use super::record::LineFault;

/// Reads a line into the draft.
///
/// # Errors
/// If the line is not one JSON object.
pub(super) fn read<'l>(line: &'l str, draft: &mut RecordDraft<'l>) -> Result<(), LineFault> {
    let mut deserializer = serde_json::Deserializer::from_str(line);
    let read = ValueReader { draft, part: ObjectPart::Line }.deserialize(&mut deserializer);
    match read.and_then(|value| deserializer.end().map(|()| value)) {
        Ok(JsonValue::Object) => Ok(()),
        _ => Err(LineFault::Broken("it is not one JSON object")),
    }
}

/// Which object a value is, if it is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectPart {
    Line,
    /// Caddy's `request`.
    Request,
    /// All headers of Caddy's `request`.
    Headers,
    /// An object in which nothing is looked for.
    Other,
}

/// A value of a line.
enum JsonValue<'l> {
    One(PlaceValue<'l>),
    List(SmallVec<[PlaceValue<'l>; 1]>),
    /// An object, which the draft has.
    Object,
}

impl<'l> JsonValue<'l> {
    /// The value for one place. Several headers of one name mean the same as one with a list (RFC 9110, section
    /// 5.3).
    fn place(self) -> Option<PlaceValue<'l>> {
        let values = match self {
            Self::One(value) => return Some(value),
            Self::List(values) => values,
            Self::Object => return None,
        };
        values.into_iter().reduce(|mut all, next| {
            if let (PlaceValue::Text(all), PlaceValue::Text(next)) = (&mut all, next) {
                let all = all.to_mut();
                all.push_str(", ");
                all.push_str(&next);
            }
            all
        })
    }

    /// Each value of a header by itself. A request with two headers of one name differs from a request with one header
    /// that has a list.
    fn of_header(self) -> SmallVec<[PlaceValue<'l>; 1]> {
        match self {
            Self::One(text @ PlaceValue::Text(_)) => smallvec![text],
            Self::List(values) => values,
            Self::One(_) | Self::Object => SmallVec::new(),
        }
    }
}

/// Reads a value. What an object has is set in the draft.
struct ValueReader<'d, 'l> {
    draft: &'d mut RecordDraft<'l>,
    part: ObjectPart,
}

impl<'l> ValueReader<'_, 'l> {
    /// A reader of a value in this object.
    fn inner(&mut self, part: ObjectPart) -> ValueReader<'_, 'l> {
        ValueReader { draft: self.draft, part }
    }
}

impl<'l> DeserializeSeed<'l> for ValueReader<'_, 'l> {
    type Value = JsonValue<'l>;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for ValueReader<'_, 'l> {
    type Value = JsonValue<'l>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Self::Value, E> {
        Ok(JsonValue::One(PlaceValue::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(JsonValue::One(PlaceValue::Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        self.visit_borrowed_str(if value { "true" } else { "false" })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every place")]
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every place")]
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(JsonValue::One(PlaceValue::Number(number)))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(JsonValue::One(PlaceValue::Nothing))
    }

    fn visit_seq<A: SeqAccess<'l>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = SmallVec::new();
        while let Some(value) = list.next_element_seed(self.inner(ObjectPart::Other))? {
            values.extend(value.place());
        }
        Ok(JsonValue::List(values))
    }

    fn visit_map<A: MapAccess<'l>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(key) = map.next_key_seed(self.inner(ObjectPart::Other))? {
            let key = key.place().and_then(PlaceValue::text).unwrap_or_default();
            let place = match (self.part, &key) {
                (ObjectPart::Headers, _) => {
                    let values = map.next_value_seed(self.inner(ObjectPart::Other))?;
                    for value in values.of_header() {
                        self.draft.set_header(key.clone(), value);
                    }
                    continue;
                }
                (ObjectPart::Request, Cow::Borrowed("headers")) => {
                    map.next_value_seed(self.inner(ObjectPart::Headers))?;
                    continue;
                }
                // Caddy's `uri` has the query, and nginx's does not.
                (ObjectPart::Request, Cow::Borrowed("uri")) => {
                    Some(LogPlace::Field(LogField::Target))
                }
                (ObjectPart::Line | ObjectPart::Request, Cow::Borrowed(key)) => field::named(key),
                // A key with escapes is owned. No name of the table has any.
                (ObjectPart::Other, _) | (_, Cow::Owned(_)) => None,
            };
            let Some(place) = place else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let is_request = place == LogPlace::Field(LogField::Request);
            let part = if is_request { ObjectPart::Request } else { ObjectPart::Other };
            let value = map.next_value_seed(self.inner(part))?;
            if is_request && matches!(value, JsonValue::List(_)) {
                return Err(A::Error::custom("a request is a line or an object"));
            }
            if let Some(value) = value.place() {
                self.draft.set(place, value);
            }
        }
        match self.part {
            ObjectPart::Request => self.draft.is_nested = true,
            ObjectPart::Headers => self.draft.has_all_headers(),
            ObjectPart::Line | ObjectPart::Other => {}
        }
        Ok(JsonValue::Object)
    }
}
