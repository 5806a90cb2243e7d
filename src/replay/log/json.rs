//! Reads log lines that are JSON objects.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::draft::{LineShape, PlaceValue, RecordDraft};
use super::field::{self, LogField, LogPlace};
use super::record::LineFault;

/// Reads a line into the draft.
///
/// # Errors
/// If the line is not one JSON object.
pub(super) fn read<'l>(line: &'l str, draft: &mut RecordDraft<'l>) -> Result<(), LineFault> {
    match serde_json::from_str(line) {
        Ok(JsonValue::Object(fields)) => note(fields, ObjectPart::Line, draft),
        _ => Err(NO_OBJECT),
    }
}

const NO_OBJECT: LineFault = LineFault::Broken("it is not one JSON object");

/// Which object is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectPart {
    Line,
    /// Caddy's `request`.
    Request,
}

/// Notes the fields of an object.
fn note<'l>(
    fields: JsonFields<'l>,
    part: ObjectPart,
    draft: &mut RecordDraft<'l>,
) -> Result<(), LineFault> {
    for (key, value) in fields {
        // A key with escapes is owned. No name of the table has any.
        let Cow::Borrowed(key) = key else { continue };
        let place = match (part, key) {
            (ObjectPart::Request, "headers") => {
                note_headers(value, draft);
                continue;
            }
            // Caddy's `uri` has the query, and nginx's does not.
            (ObjectPart::Request, "uri") => Some(LogPlace::Field(LogField::Target)),
            _ => field::named(key),
        };
        match (place, value) {
            (Some(LogPlace::Field(LogField::Request)), JsonValue::Object(fields)) => {
                draft.shape = LineShape::Nested;
                note(fields, ObjectPart::Request, draft)?;
            }
            (Some(LogPlace::Field(LogField::Request)), JsonValue::List(_)) => {
                return Err(NO_OBJECT);
            }
            (Some(place), value) => {
                if let Some(value) = value.place() {
                    draft.set(place, value);
                }
            }
            (None, _) => {}
        }
    }
    Ok(())
}

/// Caddy's `headers`: a list of values for each name. A header that comes twice is not the same as a header with a
/// list.
fn note_headers<'l>(headers: JsonValue<'l>, draft: &mut RecordDraft<'l>) {
    let JsonValue::Object(headers) = headers else { return };
    for (name, values) in headers {
        let values = match values {
            JsonValue::List(values) => values,
            text @ JsonValue::Place(PlaceValue::Text(_)) => vec![text],
            JsonValue::Place(_) | JsonValue::Object(_) => Vec::new(),
        };
        for value in values.into_iter().filter_map(JsonValue::place) {
            draft.set_header(name.clone(), value);
        }
    }
    draft.has_all_headers();
}

/// The names and values of an object, in their order.
type JsonFields<'l> = Vec<(Cow<'l, str>, JsonValue<'l>)>;

/// A value of a line. Unlike [`serde_json::Value`], it borrows the texts of the line.
enum JsonValue<'l> {
    Place(PlaceValue<'l>),
    List(Vec<Self>),
    Object(JsonFields<'l>),
}

impl<'l> JsonValue<'l> {
    /// The value for one place. Several headers of one name mean the same as one with a list (RFC 9110, section
    /// 5.3). `None` for an object.
    fn place(self) -> Option<PlaceValue<'l>> {
        let values = match self {
            Self::Place(value) => return Some(value),
            Self::Object(_) => return None,
            Self::List(values) => values,
        };
        let mut values = values.into_iter().map(Self::place);
        let mut all = values.next()??;
        for next in values {
            if let (PlaceValue::Text(all), Some(PlaceValue::Text(next))) = (&mut all, next) {
                let all = all.to_mut();
                all.push_str(", ");
                all.push_str(&next);
            }
        }
        Some(all)
    }
}

impl<'l> Deserialize<'l> for JsonValue<'l> {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'l> Visitor<'l> for ValueVisitor {
    type Value = JsonValue<'l>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Self::Value, E> {
        Ok(JsonValue::Place(PlaceValue::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(JsonValue::Place(PlaceValue::Text(Cow::Owned(text.to_owned()))))
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
        Ok(JsonValue::Place(PlaceValue::Number(number)))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(JsonValue::Place(PlaceValue::Nothing))
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(JsonValue::List(values))
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, value)) = map.next_entry()? {
            if let JsonValue::Place(PlaceValue::Text(name)) = name {
                fields.push((name, value));
            }
        }
        Ok(JsonValue::Object(fields))
    }
}
