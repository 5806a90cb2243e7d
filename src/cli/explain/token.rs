//! Describes the token of a request, and the claims that limits count by.

use std::rc::Rc;

use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::ExplainedRequest;
use super::explanation::Explanation;
use crate::jwt::Tokens;
use crate::plan::{KeyDisplay, Plan, RouteSpec};
use crate::request::key::{Claims, TokenReading, hash};
use crate::server::read_token_keys;

/// What is known of a request's token.
pub(super) struct ExplainedToken {
    pub(super) reading: TokenReading,
    /// The claims that limits of the route read, each once. Without any nobody looks at the token.
    read: Vec<String>,
    /// Why keys could not be read.
    errors: Vec<String>,
}

impl ExplainedToken {
    /// Verifies the request's token by keys that are read now, if a limit of the route reads claims. `headers` are
    /// those that count.
    pub(super) fn of(
        plan: &Plan,
        route: &RouteSpec,
        request: &ExplainedRequest,
        headers: &HeaderMap,
    ) -> Self {
        let of_plans = plan.tiers_of(route).map(|rule| &rule.by);
        let keys = plan.limits_of(route).map(|limit| &limit.key).chain(of_plans);
        let mut read = Vec::new();
        for claim in keys.flat_map(|key| key.claims()) {
            if !read.contains(claim) {
                read.push(claim.clone());
            }
        }
        let (reading, errors) = match (read.is_empty(), &request.claims) {
            (true, _) => (TokenReading::Absent, Vec::new()),
            (false, Some(values)) => {
                let claims = Claims { table: 0, values: values.clone() };
                (TokenReading::Verified(Rc::new(claims)), Vec::new())
            }
            (false, None) => {
                let (keys, errors) = read_token_keys(plan);
                (Tokens::new(&keys).read(headers, request.now), errors)
            }
        };
        Self { reading, read, errors }
    }

    /// Says what the token is worth, and which claims count. Values are shown as the log shows them, or `plain`.
    pub(super) fn describe(&self, plan: &Plan, plain: bool, text: &mut Explanation) {
        if self.read.is_empty() {
            return;
        }
        let (fate, sentence) = match &self.reading {
            TokenReading::Absent => ("absent", "none: `missing` decides".to_owned()),
            TokenReading::Repeated => ("repeated", "it is there twice".to_owned()),
            TokenReading::Ambiguous => ("ambiguous", "it can be read in two ways".to_owned()),
            TokenReading::Invalid { fault, refuses: false } => {
                ("invalid", format!("counts as none, because it does not verify: {fault}"))
            }
            TokenReading::Invalid { fault, refuses: true } => {
                ("invalid", format!("does not verify: {fault}"))
            }
            TokenReading::Verified(claims) => {
                let table = plan.jwt.get(claims.table).map_or("", |table| table.name.as_str());
                ("verified", format!("verified by [jwt.{table}]"))
            }
        };
        text.line("token", sentence);
        self.errors.iter().for_each(|error| text.more(error));
        let mut values = Map::new();
        if let TokenReading::Verified(claims) = &self.reading {
            let is_hashed = plan.log.keys == KeyDisplay::Hashed && !plain;
            for name in &self.read {
                let value = claims.value(name);
                let value = value.map(|value| match is_hashed {
                    true => hash(value.as_bytes()),
                    false => value.into_owned(),
                });
                text.more(match &value {
                    Some(value) => {
                        format!("{name}: {value}{}", if is_hashed { " (hashed)" } else { "" })
                    }
                    None => format!("{name}: it has no such claim, or one that is no value"),
                });
                values.insert(name.clone(), value.map_or(Value::Null, Value::from));
            }
        }
        text.fact("token", json!({ "fate": fate, "claims": values, "errors": self.errors }));
    }
}
