//! The settings that a file puts in force, as JSON for the admin endpoint: the file's values, and the
//! defaults of what the file leaves out. Secrets are masked.

use serde_json::{Map, Value as Json, json};
use toml::de::{DeTable, DeValue};

use super::reader::environment;
use super::section::ROOT;
use super::section::limit::LIMIT;
use super::section::limit::algorithm::has_field;
use super::shape::{Fallback, Field, Kind, Mask, Shape};

/// Stands for a secret.
const MASKED: &str = "********";

/// Reads a file that has been loaded before. Returns an empty object where it is no TOML.
pub(super) fn settings(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Json {
    let Ok(file) = DeTable::parse(text) else { return json!({}) };
    Walk { env }.table(&ROOT, Some(file.get_ref()), Mask::Open)
}

/// Copies the setting at this path, such as `server.listen`, from other settings.
pub(super) fn keep(settings: &mut Json, other: &Json, path: &str) {
    let pointer = format!("/{}", path.replace('.', "/"));
    let value = other.pointer(&pointer).cloned().unwrap_or_default();
    if let Some(place) = settings.pointer_mut(&pointer) {
        *place = value;
    }
}

struct Walk<'w> {
    env: &'w dyn Fn(&str) -> Option<String>,
}

impl Walk<'_> {
    /// A table with all its fields. `mask` is the mask of the field that holds the table.
    fn table(&self, shape: &'static Shape, table: Option<&DeTable<'_>>, mask: Mask) -> Json {
        let algorithm = table.and_then(|table| table.get("algorithm")?.get_ref().as_str());
        let applies = |field: &Field| {
            !std::ptr::eq(shape, &LIMIT) || has_field(algorithm.unwrap_or_default(), field.name)
        };
        let fields = (shape.fields)().into_iter().filter(|field| applies(field)).map(|field| {
            let value = match table.and_then(|table| table.get(field.name)) {
                Some(value) => {
                    let mask = if matches!(mask, Mask::Open) { field.mask } else { mask };
                    self.value(&field.kind, value.get_ref(), mask)
                }
                None => self.default(field),
            };
            (field.name.to_owned(), value)
        });
        Json::Object(fields.collect())
    }

    fn default(&self, field: &Field) -> Json {
        match (field.default, &field.kind) {
            // Every default in the list is valid as TOML and as JSON.
            (Fallback::Value(value), _) => serde_json::from_str(value).unwrap_or_default(),
            (Fallback::Words("its defaults"), Kind::Table(shape)) => {
                self.table(shape, None, field.mask)
            }
            (_, Kind::Named(_)) => json!({}),
            (_, Kind::List(Kind::Table(_))) => json!([]),
            _ => Json::Null,
        }
    }

    fn value(&self, kind: &Kind, value: &DeValue<'_>, mask: Mask) -> Json {
        match value {
            DeValue::String(text) => self.text(text, mask).into(),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).unwrap_or_default().into()
            }
            DeValue::Float(number) => number.as_str().parse::<f64>().unwrap_or_default().into(),
            DeValue::Boolean(flag) => (*flag).into(),
            DeValue::Datetime(time) => time.to_string().into(),
            DeValue::Array(items) => {
                let kind = find(kind, &|kind| matches!(kind, Kind::List(_)));
                let kind = if let Some(Kind::List(kind)) = kind { kind } else { &Kind::Text };
                items.iter().map(|item| self.value(kind, item.get_ref(), mask)).collect()
            }
            DeValue::Table(table) => match find(kind, &is_of_tables) {
                Some(Kind::Table(shape)) => self.table(shape, Some(table), mask),
                Some(Kind::Named(shape)) => self.named(table, |value| match value {
                    DeValue::Table(table) => self.table(shape, Some(table), mask),
                    _ => Json::Null,
                }),
                _ => self.named(table, |value| self.value(&Kind::Text, value, mask)),
            },
        }
    }

    fn named(&self, table: &DeTable<'_>, write: impl Fn(&DeValue<'_>) -> Json) -> Json {
        let entries =
            table.iter().map(|(name, value)| (name.get_ref().to_string(), write(value.get_ref())));
        Json::Object(entries.collect::<Map<_, _>>())
    }

    /// A text with its variables replaced. What came from the environment is a secret.
    fn text(&self, text: &str, mask: Mask) -> String {
        match (environment::replace(text, self.env), mask) {
            (Ok(replaced), Mask::Open) if !replaced.foreign => replaced.text,
            (Ok(replaced), Mask::Shown(show)) if !replaced.foreign => show(&replaced.text),
            _ => MASKED.to_owned(),
        }
    }
}

fn is_of_tables(kind: &Kind) -> bool {
    matches!(kind, Kind::Table(_) | Kind::Named(_) | Kind::TextTable)
}

/// This kind, or the first of its alternatives, that fits.
fn find<'k>(kind: &'k Kind, fits: &dyn Fn(&Kind) -> bool) -> Option<&'k Kind> {
    match kind {
        Kind::Either(kinds) => kinds.iter().find_map(|kind| find(kind, fits)),
        kind => fits(kind).then_some(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        (name == "SECRET").then(|| "from-the-environment".to_owned())
    }

    const FILE: &str = r#"
[server]
listen = ["127.0.0.1:1", "127.0.0.1:2"]
workers = 2
[server.tls]
listen = "127.0.0.1:3"
certificates = [{ cert = "c.pem", key = "${SECRET}" }]
[upstreams.api]
servers = ["http://10.0.0.1", { url = "http://10.0.0.2" }]
[limits.a]
key = ["ip"]
rate = "9/s"
cost = { header = "x-cost", max = 5 }
exempt = { ip = ["10.0.0.0/8"], header = { x-internal = "hunter2" } }
overrides = [{ key = ["hunter3"], rate = "99/s" }]
[limits.slots]
algorithm = "concurrency"
limit = 4
[[routes]]
path = "/{*rest}"
upstream = "api"
limits = ["a"]
headers = { x-plan = "hunter7" }
request_headers = { set = { authorization = "Bearer hunter4" } }
response_headers = { set = { cache-control = "no-store" } }
[store]
url = "redis://user:hunter5@10.0.0.3:6379/1"
prefix = "$${a}${SECRET:-b}"
[admin]
listen = "127.0.0.1:4"
token = "hunter6"
"#;

    #[test]
    fn what_the_file_says_and_the_defaults_of_the_rest() {
        let settings = settings(FILE, &env);
        for (path, value) in [
            ("/server/listen", json!(["127.0.0.1:1", "127.0.0.1:2"])),
            ("/server/workers", json!(2)),
            ("/server/header_timeout", json!("10s")),
            ("/server/max_body_size", json!(null)),
            ("/server/tls/certificates/0", json!({ "cert": "c.pem", "key": MASKED })),
            ("/upstreams/api/servers/0", json!("http://10.0.0.1")),
            ("/upstreams/api/servers/1/url", json!("http://10.0.0.2")),
            ("/upstreams/api/retries", json!(1)),
            ("/limits/a/rate", json!("9/s")),
            ("/limits/a/cost/max", json!(5)),
            ("/limits/a/algorithm", json!("token-bucket")),
            ("/limits/a/exempt/ip", json!(["10.0.0.0/8"])),
            ("/limits/a/exempt/header/x-internal", json!(MASKED)),
            ("/limits/a/overrides/0/key", json!([MASKED])),
            ("/limits/a/overrides/0/rate", json!("99/s")),
            ("/limits/slots/limit", json!(4)),
            ("/routes/0/path", json!("/{*rest}")),
            ("/routes/0/headers/x-plan", json!(MASKED)),
            ("/routes/0/request_headers/set/authorization", json!(MASKED)),
            ("/routes/0/response_headers/set/cache-control", json!("no-store")),
            ("/store/url", json!("redis://********@10.0.0.3:6379/1")),
            ("/store/prefix", json!(MASKED)),
            ("/reject/status", json!(429)),
            ("/log/keys", json!("hashed")),
            ("/admin/token", json!(MASKED)),
        ] {
            assert_eq!(settings.pointer(path), Some(&value), "{path} in {settings:#}");
        }
        assert_eq!(settings.pointer("/limits/slots/rate"), None, "slots have no rate");
        assert_eq!(settings.pointer("/limits/a/lease"), None, "and only they have a lease");
        let text = settings.to_string();
        assert!(!text.contains("hunter") && !text.contains("from-the-environment"), "{text}");
    }

    /// All fields of a table and of the tables in it.
    fn fields_of_tables(shape: &'static Shape) -> Vec<&'static Field> {
        fn shapes(kind: &'static Kind) -> Vec<&'static Shape> {
            match kind {
                Kind::Table(shape) | Kind::Named(shape) => vec![shape],
                Kind::List(kind) => shapes(kind),
                Kind::Either(kinds) => kinds.iter().flat_map(shapes).collect(),
                _ => Vec::new(),
            }
        }
        let inner =
            |field: &'static Field| shapes(&field.kind).into_iter().flat_map(fields_of_tables);
        let fields = (shape.fields)();
        fields.iter().copied().chain(fields.iter().copied().flat_map(inner)).collect()
    }

    /// A secret in any text of the file is masked, if it came from the environment.
    #[test]
    fn a_variable_is_masked_wherever_it_stands() {
        for field in fields_of_tables(&ROOT) {
            let walk = Walk { env: &env };
            let secret = DeValue::parse("\"x${SECRET}y\"").unwrap();
            let list = DeValue::parse("[{ a = \"${SECRET}\" }, [\"${SECRET}\"]]").unwrap();
            for value in [secret, list] {
                let shown = walk.value(&field.kind, value.get_ref(), field.mask).to_string();
                assert!(!shown.contains("environment"), "{}: {shown}", field.name);
            }
        }
    }

    #[test]
    fn what_only_a_restart_changes_stays_as_it_was() {
        let mut now = settings(&FILE.replace("10.0.0.3", "10.0.0.4"), &env);
        keep(&mut now, &settings(FILE, &env), "store.url");
        assert_eq!(now["store"]["url"], "redis://********@10.0.0.3:6379/1");
        keep(&mut now, &json!({}), "no.such");
        assert_eq!(now.get("no"), None);
    }
}
