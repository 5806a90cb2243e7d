//! `[log]` and `[admin]`.

use std::time::Duration;

use super::server::address;
use crate::config::file::{Item, Section, Zero};
use crate::config::problem::{Problem, nearest};
use crate::plan::filter::{LEVELS, LogFilter};
use crate::plan::{AdminSpec, KeyDisplay, LogFormat, LogSpec, ThrottleLog};

pub(super) fn build(mut section: Section<'_>) -> LogSpec {
    let spec = LogSpec {
        format: section.take("format").and_then(|item| {
            item.word(&[("pretty", LogFormat::Pretty), ("json", LogFormat::Json)], &[])
        }),
        level: section.take("level").and_then(|item| level(&item)).unwrap_or_default(),
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

fn level(item: &Item<'_>) -> Option<LogFilter> {
    const EXPECTED: &str = "expected `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter \
                            such as \"info,tidegate=debug\"";
    let text = item.text_as(EXPECTED)?;
    match text.text.parse::<LogFilter>() {
        Ok(filter) => Some(filter),
        Err(error) => {
            let near = text.shown().and_then(|_| nearest(error.part(), LEVELS));
            text.refuse_here(match near {
                Some(near) => format!("{EXPECTED}; did you mean `{near}`?"),
                None => EXPECTED.to_owned(),
            });
            None
        }
    }
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
