//! `[trace]`.

use super::upstream::host_and_port;
use super::values::url;
use crate::config::reader::{
    Item, Kind, Section, SettingList, Shape, Value, Words, Wrong, at, fields, read, setting,
};
use crate::settings::{CollectorAddress, TraceSpec};

type Spec = TraceSpec;

pub(crate) static TRACE: Shape = Shape::new("[trace]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    setting(at!(otlp, collector), Kind::Form(r"https?://.+"), Words("none"),
        "an OpenTelemetry collector that takes OTLP by gRPC, as in `\"http://127.0.0.1:4317\"`"),
    setting(at!(sample, Item::share), Kind::Share, Value("0.01"),
        "the share of requests that are traced, from 0 to 1; a request that a trusted proxy has sampled (`traceparent`) is always traced"),
];

const URL: &str = "expected a URL without a path, as in \"http://127.0.0.1:4317\"";

/// The port on which collectors take OTLP by gRPC.
const PORT: u16 = 4317;

/// The path to which OTLP goes by HTTP.
const HTTP_PATH: &str = "/v1/traces";

pub(crate) fn build(section: Section<'_>) -> TraceSpec {
    let sample = section.item("sample");
    let has_collector = section.has(|name| name == "otlp");
    if let (Some(item), false) = (sample, has_collector) {
        item.doubt("`sample` means nothing without a collector", "expected `otlp` beside it");
    }
    read(SETTINGS, section, TraceSpec::default())
}

fn collector(item: &Item<'_>) -> Option<CollectorAddress> {
    url(item, URL, collector_address)
}

/// The collector at a URL.
fn collector_address(url: &str) -> Result<CollectorAddress, Wrong> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(match url.starts_with("https://") {
            true => Wrong::other(
                "expected \"http://\": spans are sent in clear text, to a collector beside tidegate",
            ),
            false => Wrong::Expected,
        });
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match host_and_port(authority, PORT) {
        Ok((host, port)) if matches!(path, "" | "/") => Ok(CollectorAddress { host, port }),
        Ok(_) if path == HTTP_PATH => Err(Wrong::other(
            "expected the address for OTLP by gRPC, mostly port 4317 and no path: this one is for OTLP by \
             HTTP",
        )),
        Ok(_) => Err(Wrong::Expected),
        Err(wrong) => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url_without_a_path() {
        for (url, read) in [
            ("http://127.0.0.1:4317", Some(("127.0.0.1", 4317, "http://127.0.0.1:4317"))),
            ("http://Otel.internal/", Some(("otel.internal", 4317, "http://otel.internal:4317"))),
            ("http://[::1]:55680", Some(("::1", 55680, "http://[::1]:55680"))),
            ("https://otel.internal:4317", None),
            ("otel.internal:4317", None),
            ("grpc://otel.internal:4317", None),
            ("http://otel.internal:4317/v1/traces", None),
            ("http://otel.internal:4317/a", None),
            ("http://user:password@otel.internal", None),
            ("http://", None),
            ("http://a:0", None),
            ("", None),
        ] {
            let address = collector_address(url).ok();
            let text = address.as_ref().map(ToString::to_string);
            let found = address.as_ref().zip(text.as_deref());
            let found = found.map(|(it, text)| (it.host.as_str(), it.port, text));
            assert_eq!(found, read, "{url}");
        }
    }
}
