//! Writes the list of fields as JSON Schema, for editors.

use serde_json::{Map, Value as Json, json};

use super::reader::{Fallback, Field, Kind, Shape};
use super::section::ROOT;
use super::section::limit::LIMIT;
use super::section::limit::algorithm::whose;

/// A string with a variable `${NAME}` anywhere in the string.
const VARIABLE: &str = r".*\$\{.*";

/// The JSON Schema (draft 2020-12) of `proxy.toml`, indented.
pub(crate) fn json() -> String {
    let mut schema = shape_schema(&ROOT);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "proxy.toml of tidegate".into();
    let any = |fields: [&str; 2]| fields.map(|field| json!({ "required": [field] }));
    // Without clients of its own the proxy forwards nothing.
    schema["if"] = json!({
        "required": ["decide", "server"],
        "properties": {
            "decide": { "required": ["listen"] },
            "server": {
                "required": ["listen"],
                "properties": { "listen": { "type": "array", "maxItems": 0 } },
                "not": { "required": ["tls"] },
            },
        },
    });
    let action = json!({ "items": { "anyOf": any(["upstream", "respond"]) } });
    schema["else"] = json!({ "properties": { "routes": action } });
    format!("{schema:#}\n")
}

/// For a field of a limit: the algorithms that have the field. `None` if all algorithms have it.
pub(super) fn whose_field(shape: &Shape, field: &Field) -> Option<String> {
    std::ptr::eq(shape, &LIMIT).then(|| whose(field.name))?
}

/// The field's meaning, and its default if the default is no fixed value.
fn description(shape: &Shape, field: &Field) -> String {
    let whose = whose_field(shape, field).map_or(String::new(), |whose| whose + ": ");
    let default = match field.default.words() {
        Some(words) if words.starts_with("required") => format!(" ({words})"),
        Some(words) => format!(" (default: {words})"),
        None => String::new(),
    };
    format!("{whose}{}{default}", field.meaning)
}

fn shape_schema(shape: &Shape) -> Json {
    let mut properties = Map::new();
    for field in (shape.fields)() {
        let mut schema = kind_schema(&field.kind);
        schema["description"] = description(shape, field).into();
        if let Fallback::Value(value) = field.default {
            // Every default in the list is valid as TOML and as JSON; a test checks this.
            schema["default"] = serde_json::from_str(value).unwrap_or_default();
        }
        properties.insert(field.name.into(), schema);
    }
    let required: Vec<&str> = (shape.fields)()
        .into_iter()
        .filter(|field| matches!(field.default, Fallback::Required))
        .map(|field| field.name)
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !shape.one_of.is_empty() {
        let one = |field: &&str| json!({ "required": [field] });
        schema["oneOf"] = shape.one_of.iter().map(one).collect();
    }
    if !shape.not_both.is_empty() {
        schema["not"] = json!({ "required": shape.not_both });
    }
    schema
}

fn kind_schema(kind: &Kind) -> Json {
    match kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Share => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Percent => pattern(r"0*([0-9]{1,2}|100)%"),
        Kind::Duration(..) => pattern(r"[0-9]+(ms|s|m|h|d)"),
        Kind::Size(..) => pattern(r"[0-9]+(B|KB|KiB|MB|MiB|GB|GiB)"),
        Kind::Rate => pattern(r"unlimited|[0-9]+/([0-9]*(s|m|h|d|w)|[0-9]+(ms|us)|month)"),
        Kind::Network => pattern(r"[0-9a-fA-F:.]+(/[0-9]{1,3})?"),
        Kind::Text => json!({ "type": "string" }),
        Kind::Form(form) => pattern(form),
        Kind::Word(words) => {
            json!({ "anyOf": [{ "enum": words() }, { "type": "string", "pattern": VARIABLE }] })
        }
        Kind::WordOrText(words) => json!({ "type": "string", "examples": words }),
        Kind::TableOf(least, kind) => json!({
            "type": "object",
            "minProperties": least,
            "additionalProperties": kind_schema(kind),
        }),
        Kind::Object => json!({ "type": "object" }),
        Kind::Table(shape) => shape_schema(shape),
        Kind::Named(shape) => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,64}$" },
            "additionalProperties": shape_schema(shape),
        }),
        Kind::List(least, item) => {
            json!({ "type": "array", "minItems": least, "items": kind_schema(item) })
        }
        Kind::Either(kinds) => {
            json!({ "anyOf": kinds.iter().map(kind_schema).collect::<Vec<_>>() })
        }
    }
}

fn pattern(text: &str) -> Json {
    json!({ "type": "string", "pattern": format!("^({text}|{VARIABLE})$") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_json_with_every_section() {
        let schema: Json = serde_json::from_str(&json()).unwrap();
        let header_timeout = &schema["properties"]["server"]["properties"]["header_timeout"];
        assert_eq!(header_timeout["default"], "10s");
        let limit = &schema["properties"]["limits"]["additionalProperties"];
        let upstream = &schema["properties"]["upstreams"]["additionalProperties"];
        assert_eq!(upstream["required"], json!(["servers"]));
        assert!(limit.get("required").is_none(), "a Redisson limiter needs no rate");
        let route = &schema["properties"]["routes"]["items"];
        let both = json!({ "required": ["upstream", "respond"] });
        assert_eq!((&route["required"], &route["not"]), (&json!(["path"]), &both));
        assert_eq!(limit["additionalProperties"], false);
    }

    /// Whether the schema takes a value, as far as these keywords say.
    fn takes(schema: &Json, value: &Json) -> bool {
        let all = |key: &str, holds: &dyn Fn(&Json) -> bool| {
            schema[key].as_array().is_none_or(|list| list.iter().all(holds))
        };
        let any_of = schema["anyOf"].as_array();
        let then = |is_if: bool| if is_if { &schema["then"] } else { &schema["else"] };
        let [least, most] = ["minItems", "maxItems"].map(|key| schema[key].as_u64());
        let length = value.as_array().map(|items| items.len() as u64);
        let has_type = match schema["type"].as_str() {
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            _ => true,
        };
        has_type
            && all("required", &|name| value.get(name.as_str().unwrap()).is_some())
            && any_of.is_none_or(|any| any.iter().any(|schema| takes(schema, value)))
            && (schema["not"].is_null() || !takes(&schema["not"], value))
            && (schema["if"].is_null() || takes(then(takes(&schema["if"], value)), value))
            && length
                .is_none_or(|is| least.is_none_or(|it| is >= it) && most.is_none_or(|it| is <= it))
            && schema["properties"].as_object().is_none_or(|fields| {
                fields
                    .iter()
                    .all(|(name, schema)| value.get(name).is_none_or(|it| takes(schema, it)))
            })
            && value.as_array().is_none_or(|items| {
                schema["items"].is_null() || items.iter().all(|it| takes(&schema["items"], it))
            })
    }

    /// A regression: since files for `[decide]` alone exist, the schema took every route without `upstream` and
    /// `respond`.
    #[test]
    fn the_schema_says_when_a_route_needs_an_upstream() {
        const DECIDE: &str = "[decide]\nlisten = \"127.0.0.1:9091\"";
        const CERTIFICATE: &str = "{ cert = \"c\", key = \"k\" }";
        let tls = format!("tls = {{ listen = \"127.0.0.1:2\", certificates = [{CERTIFICATE}] }}");
        let schema: Json = serde_json::from_str(&json()).unwrap();
        for (server, decide, needs) in [
            ("", "", true),
            ("", DECIDE, true),
            ("listen = []", "", true),
            ("listen = []", "[decide]\ntoken = \"t\"", true),
            ("listen = \"127.0.0.1:1\"", DECIDE, true),
            ("listen = [\"127.0.0.1:1\"]", DECIDE, true),
            ("header_timeout = \"1s\"", DECIDE, true),
            (&format!("listen = []\n{tls}"), DECIDE, true),
            ("listen = []", DECIDE, false),
        ] {
            for (action, takes_it) in [
                ("", !needs),
                ("respond = { status = 404 }", true),
                ("upstream = \"api\"", true),
                ("upstream = \"api\"\nrespond = { status = 404 }", false),
            ] {
                let route = "[[routes]]\npath = \"/\"\n";
                let text = format!("[server]\n{server}\n{decide}\n{route}{action}");
                let file: Json = toml::from_str(&text).unwrap();
                assert_eq!(takes(&schema, &file), takes_it, "{text}");
            }
        }
    }

    /// An editor underlines what the file would be refused for.
    #[test]
    fn a_setting_with_a_form_has_a_pattern() {
        const LIMIT: &str = "/properties/limits/additionalProperties/properties";
        const UPSTREAM: &str = "/properties/upstreams/additionalProperties/properties";
        const ROUTE: &str = "/properties/routes/items/properties";
        let schema: Json = serde_json::from_str(&json()).unwrap();
        for (pointer, right, wrong) in [
            (
                format!("{LIMIT}/key/items"),
                &["ip", "header:x-api-key", "header:a | ip", "query:a b", "${KEY}"][..],
                &["headers:x-api-key", "header", "header:", "$http_a", "ip | adress", "", "IP"][..],
            ),
            (
                format!("{UPSTREAM}/servers/items/anyOf/0"),
                &["http://a", "https://[::1]:1/", "h2c://a:1", "unix:/run/a", "http://${HOST}"],
                &["a:1", "127.0.0.1:3000", "http://a/v1", "ftp://a", "http://"],
            ),
            (
                format!("{ROUTE}/path"),
                &["/", "/login", "/a/", "/users/{id}", "/{a}/b/{*rest}", "/{*rest}", "/a:b", "/é"],
                &["login", "", "/a/*", "/users/:id", "/<id>", "~ ^/x", "/{*a}/b", "//", "/{id:a}"],
            ),
            (format!("{LIMIT}/exempt/properties/path/items"), &["/healthz"], &["healthz", "/*"]),
            (format!("{LIMIT}/rate"), &["1/s", "9/10m", "unlimited"], &["1", "1/sec", "1 / s"]),
            (format!("{LIMIT}/wait"), &["5s", "0s", "250ms"], &["5", "5 s", "1.5s"]),
            (format!("{ROUTE}/rewrite"), &["/v1/{*rest}"], &["v1"]),
            (
                format!(
                    "{LIMIT}/cost/anyOf/1/properties/estimate/anyOf/1/properties/content_length"
                ),
                &["0.3", "1", "10.25"],
                &[".5", "1.", "1e3", "-1", "0,3", "0.0000001", ""],
            ),
            ("/properties/store/properties/url".into(), &["memory:", "redis://a"], &["a:6379"]),
            (
                "/properties/server/properties/listen/anyOf/0".into(),
                &["0.0.0.0:80", "[::]:80", "unix:/a"],
                &["8080", ":8080", "localhost"],
            ),
        ] {
            let pattern = schema.pointer(&pointer).unwrap()["pattern"].as_str().unwrap();
            let pattern = regex_lite::Regex::new(pattern).unwrap();
            for (texts, fits) in [(right, true), (wrong, false)] {
                for text in texts {
                    assert_eq!(pattern.is_match(text), fits, "{pointer} {text:?}");
                }
            }
        }
    }
}
