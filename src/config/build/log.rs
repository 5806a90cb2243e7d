//! `[log]` and `[admin]`.

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::server::address;
use crate::config::file::{Item, Section, Zero};
use crate::config::problem::{Problem, nearest};
use crate::plan::{AdminSpec, KeyDisplay, LogFormat, LogSpec, ThrottleLog};

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

pub(super) fn build(mut section: Section<'_>) -> LogSpec {
    let spec = LogSpec {
        format: section.take("format").and_then(|item| {
            item.word(&[("pretty", LogFormat::Pretty), ("json", LogFormat::Json)], &[])
        }),
        level: section
            .take("level")
            .and_then(|item| level(&item))
            .unwrap_or_else(|| "info".to_owned()),
        access: section.flag("access", false),
        throttle: section.word(
            "throttle",
            &[
                ("summary", ThrottleLog::Summary),
                ("each", ThrottleLog::Each),
                ("off", ThrottleLog::Off),
            ],
            ThrottleLog::Summary,
        ),
        summary_interval: section.duration(
            "summary_interval",
            Zero::Refused,
            Duration::from_secs(10),
        ),
        keys: section.word(
            "keys",
            &[("hashed", KeyDisplay::Hashed), ("plain", KeyDisplay::Plain)],
            KeyDisplay::Hashed,
        ),
    };
    section.finish();
    spec
}

fn level(item: &Item<'_>) -> Option<String> {
    const EXPECTED: &str = "expected `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter \
                            such as \"info,tidegate=debug\"";
    let text = item.text_as(EXPECTED)?;
    if !text.text.contains(['=', ',']) {
        // A filter takes any lone word for the name of a module, and would then log nothing else.
        if LEVELS.contains(&text.text.to_ascii_lowercase().as_str()) {
            return Some(text.text);
        }
        text.refuse_here(match text.shown().and_then(|shown| nearest(shown, LEVELS)) {
            Some(near) => format!("{EXPECTED}; did you mean `{near}`?"),
            None => EXPECTED.to_owned(),
        });
        return None;
    }
    let fits = EnvFilter::builder().parse(&text.text).is_ok();
    text.parsed(fits.then(|| text.text.clone()), EXPECTED)
}

pub(super) fn admin(mut section: Section<'_>) -> AdminSpec {
    let listen = section.take("listen");
    let token = section.take("token").and_then(|item| {
        let item = item.secret();
        const EXPECTED: &str = "expected a text of visible ASCII without spaces";
        let text = item.text_as(EXPECTED)?;
        let fits = !text.text.is_empty() && text.text.bytes().all(|b| b.is_ascii_graphic());
        text.parsed(fits.then(|| text.text.clone()), EXPECTED)
    });
    let address = listen.as_ref().and_then(address);
    if let (Some(item), Some(address)) = (&listen, address)
        && !address.ip().to_canonical().is_loopback()
        && token.is_none()
    {
        item.cx.note(
            Problem::error(
                item.span.clone(),
                format!("`[admin]` listens on {address} without a `token`"),
                "expected a token where the address is not loopback",
            )
            .help("add `token = \"${ADMIN_TOKEN}\"` below, or listen on \"127.0.0.1:9090\""),
        );
    }
    section.finish();
    AdminSpec { listen: address, token }
}
