//! Describes the token of a request, and the claims that limits count by.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryFutureExt as _;
use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::ExplainedRequest;
use super::explanation::Explanation;
use crate::cli::admin::wait_for;
use crate::jwt::Tokens;
use crate::jwt::keys::SharedKeys;
use crate::request::key::{PartFault, TokenReading, hash};
use crate::settings::{KeyDisplay, KeySetLocation, RouteSpec, Settings};
use crate::upstream::fetch::fetch_keys;

/// Says whether the request's token verifies, and which claims count. Values are shown as the log shows them, or plain.
/// The token is verified by keys that are read now. If no limit of the route reads claims, the token is not looked at.
/// `headers` are the headers that limits read.
pub(super) fn describe_token(
    settings: &Settings,
    route: &RouteSpec,
    request: &ExplainedRequest<'_>,
    headers: &HeaderMap,
    text: &mut Explanation,
) -> TokenReading {
    let of_plans = settings.plans_of(route).map(|rule| &rule.by);
    let keys = settings.limits_of(route).map(|limit| &limit.key).chain(of_plans);
    let read: BTreeSet<_> = keys.flat_map(|key| key.claims()).collect();
    if read.is_empty() {
        return TokenReading::Absent;
    }
    let (reading, errors) = match &request.told.claims {
        Some(claims) => {
            (TokenReading::of_claims(claims.clone(), settings.first_issuer()), Vec::new())
        }
        None => {
            let (keys, errors) = read_keys(settings);
            (Tokens::new(&keys).read(None, headers, request.now), errors)
        }
    };
    let (fate, sentence) = match &reading {
        TokenReading::Absent => ("absent", "none: `missing` decides".to_owned()),
        TokenReading::Refused(PartFault::Repeated) => ("repeated", "it is there twice".to_owned()),
        TokenReading::Refused(
            PartFault::Ambiguous | PartFault::Undecodable | PartFault::Unreadable,
        ) => ("ambiguous", "it can be read in two ways".to_owned()),
        TokenReading::Refused(PartFault::Invalid(fault)) => {
            ("invalid", format!("does not verify: {fault}"))
        }
        TokenReading::Ignored(fault) => {
            ("invalid", format!("counts as none, because it does not verify: {fault}"))
        }
        TokenReading::Verified(claims) => {
            let table = settings.jwt.get(claims.table).map_or("", |table| table.name.as_str());
            ("verified", format!("verified by [jwt.{table}]"))
        }
    };
    text.line("token", sentence);
    errors.iter().for_each(|error| text.more(error));
    let mut values = Map::new();
    if let TokenReading::Verified(claims) = &reading {
        let is_hashed = settings.log.keys == KeyDisplay::Hashed && !request.told.plain;
        let (shown, how): (fn(&str) -> String, _) = match is_hashed {
            true => (|value| hash(value.as_bytes()), " (hashed)"),
            false => (str::to_owned, ""),
        };
        for name in read {
            let value = claims.value(name).map(|value| shown(&value));
            text.more(match &value {
                Some(value) => format!("{name}: {value}{how}"),
                None => {
                    format!("{name}: the token has no such claim, or it is a list or an object")
                }
            });
            values.insert(name.clone(), value.map_or(Value::Null, Value::from));
        }
    }
    text.token = Some(json!({ "fate": fate, "claims": values, "errors": errors }));
    reading
}

/// The keys of each table, and why some could not be read.
fn read_keys(settings: &Settings) -> (Vec<Arc<SharedKeys>>, Vec<String>) {
    let keys: Vec<_> =
        settings.jwt.iter().map(|spec| Arc::new(SharedKeys::new(spec.clone()))).collect();
    let mut errors = Vec::new();
    for table in &keys {
        let Some(KeySetLocation::Url(url)) = &table.spec.keys else { continue };
        match wait_for(fetch_keys(url, &Arc::default()).map_err(|error| error.to_string())) {
            Ok(found) => _ = table.replace(found),
            Err(error) => errors.push(format!("no keys of [jwt.{}]: {error}", table.spec.name)),
        }
    }
    (keys, errors)
}
