//! `[log]`.

use crate::config::reader::{
    Item, Kind, SettingList, Shape, Value, Words, Wrong, at, fields, nearest, setting, spellings,
    words,
};
use crate::settings::filter::{LEVELS, LogFilter, LogFilterError};
use crate::settings::{KeyDisplay, LogFormat, LogSpec, ThrottleLog};

type Spec = LogSpec;

pub(crate) static LOG: Shape = Shape::new("[log]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    setting(at!(format), Kind::Word(spellings::<LogFormat>), Words("`\"pretty\"` on a terminal, else `\"json\"`"),
        "how a line looks").restart(),
    setting(at!(level, level), Kind::Text, Value("\"info\""),
        "or a filter as `RUST_LOG` has it; that variable wins"),
    setting(at!(access), Kind::Flag, Value("false"), "a line for each request"),
    setting(at!(throttle), Kind::Word(spellings::<ThrottleLog>), Value("\"summary\""),
        "the first rejection of a limit and key at once, then a line each interval"),
    setting(at!(summary_interval), Kind::TIME_ABOVE_ZERO, Value("\"10s\""), "the time between two summaries"),
    setting(at!(keys), Kind::Word(spellings::<KeyDisplay>), Value("\"hashed\""),
        "whether values of headers, cookies, query, tokens and bodies stand in logs and in Redis").restart(),
];

words!(LogFormat { "pretty" => Pretty, "json" => Json });

words!(ThrottleLog { "summary" => Summary, "each" => Each, "off" => Off });

words!(KeyDisplay { "hashed" => Hashed, "plain" => Plain });

fn level(item: &Item<'_>) -> Option<LogFilter> {
    const EXPECTED: &str = "expected `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter \
                            such as \"info,tidegate=debug\"";
    item.parse(EXPECTED, |text| {
        text.parse().map_err(|error: LogFilterError| match nearest(&error.part, LEVELS) {
            Some(near) => Wrong::Because(format!("{EXPECTED}; did you mean `{near}`?")),
            None => Wrong::Expected,
        })
    })
}
