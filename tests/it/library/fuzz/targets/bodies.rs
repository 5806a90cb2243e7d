//! The fields of a request's body by which limits count. The first line of the input has their names, with tabs between
//! them. The second line is a content type. The rest is the body.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use tidegate::request::key::{BodyFields, BodyKind};

pub(super) fn check(input: &[u8]) {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let (Some(names), Some(kind), Some(body)) = (lines.next(), lines.next(), lines.next()) else {
        return;
    };
    let Ok(kind) = HeaderValue::from_bytes(kind) else { return };
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind)]);
    let (Ok(names), Some(kind)) = (std::str::from_utf8(names), BodyKind::of(&headers)) else {
        return;
    };
    let names: Vec<_> = names.split('\t').map(str::to_owned).collect();
    let fields = BodyFields::read(&names, kind, body);
    let json = serde_json::from_slice::<Value>(body).ok();
    for name in &names {
        let value = fields.value(name);
        let Ok(found) = value else { continue };
        let found = found.map(|it| String::from_utf8(it.into_owned()).expect("it is UTF-8"));
        assert!(kind != BodyKind::Unclear || body.is_empty());
        if kind == BodyKind::Json {
            // Whoever reads JSON at all finds the same text, or none.
            let json = json.as_ref().or(body.is_empty().then_some(&Value::Null));
            let all = at(json.expect("it is JSON"), name);
            assert_eq!(all.len(), usize::from(found.is_some()), "{name}");
            assert_eq!(all.first(), found.as_ref(), "{name}");
        }
        let Some(text) = found.as_deref() else { continue };
        for (kind, body) in
            [(BodyKind::Form, form(name, text)), (BodyKind::Json, object(name, text))]
        {
            let names = [name.clone()];
            let again = BodyFields::read(&names, kind, body.as_bytes());
            assert_eq!(again.value(name), Ok(Some(text.as_bytes().into())), "{body}");
        }
    }
}

fn form(name: &str, text: &str) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    format!("{}={}", encoded(name), encoded(text))
}

fn object(name: &str, text: &str) -> String {
    let nested = |text: Value, key: &str| serde_json::json!({ key: text });
    name.rsplit('.').fold(Value::from(text), nested).to_string()
}

/// The slow and obvious reader.
fn at(json: &Value, name: &str) -> Vec<String> {
    let own = match json.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Bool(flag)) => Some(flag.to_string()),
        Some(Value::Number(number)) => number.as_f64().map(|it| (it + 0.0).to_string()),
        _ => None,
    };
    let nested = name.match_indices('.').flat_map(|(dot, _)| {
        let inner = json.get(&name[..dot]).filter(|it| it.is_object());
        inner.map(|inner| at(inner, &name[dot + 1..])).unwrap_or_default()
    });
    own.into_iter().chain(nested).collect()
}
