//! Reads log lines that are JSON objects. Where a line has several names for one value, the first by the alphabet counts.

use serde_json::{Map, Value};

use super::draft::{PlaceValue, RecordDraft};
use super::field::{self, LogField, LogPlace};
use super::record::LineFault;

/// Reads a line into the draft.
///
/// # Errors
/// If the line is not one JSON object.
pub(super) fn read(line: &str, draft: &mut RecordDraft<'_>) -> Result<(), LineFault> {
    let object = serde_json::from_str(line);
    set_all(object.map_err(|_| LineFault::Broken("it is not one JSON object"))?, false, draft);
    Ok(())
}

/// Sets what an object says of the request. `is_request` is true for Caddy's `request`.
fn set_all(object: Map<String, Value>, is_request: bool, draft: &mut RecordDraft<'_>) {
    for (name, value) in object {
        let place = match name.as_str() {
            // Caddy's `uri` has the query, and nginx's does not.
            "uri" if is_request => Some(LogPlace::Field(LogField::Target)),
            name => field::named(name),
        };
        match (place, value) {
            (Some(LogPlace::Field(LogField::Request)), Value::Object(request)) => {
                draft.is_nested = true;
                set_all(request, true, draft);
            }
            (_, Value::Object(headers)) if is_request && name == "headers" => {
                set_headers(headers, draft);
            }
            (Some(place), value) => match (place, place_value(value)) {
                (_, None) => {}
                (LogPlace::Field(field), Some(value)) => draft.set_field(field, value),
                (LogPlace::Header(header), Some(value)) => {
                    draft.set_header(header.into_string().into(), value);
                }
            },
            (None, _) => {}
        }
    }
}

/// Sets all headers of a request, each value by itself. A request with two headers of one name differs from a request
/// with one header that has a list.
fn set_headers(headers: Map<String, Value>, draft: &mut RecordDraft<'_>) {
    for (name, value) in headers {
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            if let Value::String(text) = value {
                draft.set_header(name.clone().into(), PlaceValue::Text(text.into()));
            }
        }
    }
    draft.has_all_headers();
}

/// The value for one place. `None` for an object and a list of other values than texts, in which nothing is looked for.
fn place_value(value: Value) -> Option<PlaceValue<'static>> {
    Some(match value {
        Value::Null => PlaceValue::Nothing,
        Value::Bool(value) => PlaceValue::Text(value.to_string().into()),
        Value::Number(number) => PlaceValue::Number(number.as_f64()?),
        Value::String(text) => PlaceValue::Text(text.into()),
        // Several headers of one name mean the same as one with a list (RFC 9110, section 5.3).
        Value::Array(values) => {
            let texts: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
            PlaceValue::Text(texts.filter(|texts| !texts.is_empty())?.join(", ").into())
        }
        Value::Object(_) => return None,
    })
}
