//! Reads log lines that are JSON objects. If a line has one value under several names, the first name in the alphabet
//! counts.

use serde_json::{Map, Value};

use super::draft::{LoggedValue, RecordDraft};
use super::field::{self, LogField};
use super::record::LineFault;

/// Reads a line into the draft.
///
/// # Errors
/// If the line is not one JSON object.
pub(super) fn read(line: &str, draft: &mut RecordDraft) -> Result<(), LineFault> {
    let object = serde_json::from_str::<Map<String, Value>>(line);
    let mut object = object.map_err(|_| LineFault::Broken("it is not one JSON object"))?;
    // Caddy's lines have the request in an object, and their `duration` is in seconds.
    if object.get("request").is_some_and(Value::is_object)
        && let Some(seconds) = object.remove("duration").and_then(field_value)
    {
        draft.set_field(&LogField::Duration(1), seconds);
    }
    if object.get("target").is_some_and(|target| target == "tidegate::access") {
        draft.set_counts(&object);
    }
    set_all(object, false, draft);
    Ok(())
}

/// Sets the fields that an object has. The object is the line, or Caddy's `request` if `is_request` is true.
fn set_all(object: Map<String, Value>, is_request: bool, draft: &mut RecordDraft) {
    for (name, value) in object {
        let field = match name.as_str() {
            // Caddy's `uri` has the query, and nginx's does not.
            "uri" if is_request => Some(LogField::Target),
            name => field::named(name),
        };
        match (field, value) {
            (Some(LogField::Request), Value::Object(request)) => set_all(request, true, draft),
            (_, Value::Object(headers)) if is_request && name == "headers" => {
                set_headers(headers, draft);
            }
            (Some(field), value) => {
                if let Some(value) = field_value(value) {
                    draft.set_field(&field, value);
                }
            }
            (None, _) => {}
        }
    }
}

/// Sets all headers of a request. Several values of one name stay several headers: for limits, two headers of one name
/// differ from one header with a list.
fn set_headers(headers: Map<String, Value>, draft: &mut RecordDraft) {
    for (name, value) in headers {
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            if let Value::String(text) = value {
                draft.set_header(&name, LoggedValue::Text(text.into()));
            }
        }
    }
    draft.has_all_headers();
}

/// The value of one field. `None` for an object, for an empty list, and for a list with anything else than texts.
fn field_value(value: Value) -> Option<LoggedValue<'static>> {
    Some(match value {
        Value::Null => LoggedValue::Nothing,
        Value::Bool(value) => LoggedValue::Text(value.to_string().into()),
        Value::Number(number) => LoggedValue::Number(number.as_f64()?),
        Value::String(text) => LoggedValue::Text(text.into()),
        // Several headers of one name mean the same as one with a list (RFC 9110, section 5.3).
        Value::Array(values) => {
            let texts: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
            LoggedValue::Text(texts.filter(|texts| !texts.is_empty())?.join(", ").into())
        }
        Value::Object(_) => return None,
    })
}
