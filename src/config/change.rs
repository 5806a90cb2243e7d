//! The list of what differs between two plans. `changes` fills it, and each `setting` adds itself.

use std::fmt::{self, Display};

/// What differs between two plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changed fields that only a restart applies.
    pub(crate) restart: Vec<NeededRestart>,
    /// Changes that the new plan applies, such as `limits.per-client rate 100/s -> 50/s`.
    pub(crate) changed: Vec<String>,
}

/// A changed field that only a restart applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededRestart {
    /// The field, such as `server.listen`.
    pub(crate) field: String,
    /// The old value and the new one. `None` where they are too long, or secret.
    pub(super) values: Option<[String; 2]>,
}

impl Display for NeededRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.values {
            Some([old, new]) => write!(f, "{} {old} -> {new} with a restart", self.field),
            None => write!(f, "{} changes with a restart", self.field),
        }
    }
}

impl Changes {
    /// Whether the two plans are the same.
    pub fn is_empty(&self) -> bool {
        self.restart.is_empty() && self.changed.is_empty()
    }

    /// Notes the old value and the new value, if they differ.
    pub(super) fn value<T: PartialEq + Display>(&mut self, field: &str, old: &T, new: &T) {
        if old != new {
            self.changed.push(format!("{field} {old} -> {new}"));
        }
    }

    /// Notes a change of values that are too long, or secret.
    pub(super) fn some<T: PartialEq>(&mut self, field: &str, old: &T, new: &T) {
        if old != new {
            self.changed.push(format!("{field} changed"));
        }
    }
}
