//! Why a text of the file is wrong, for the message about it.

/// Why a text cannot be the value of a field.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// What the field expects says enough.
    Expected,
    /// This was perhaps meant. It repeats the text, so it is shown only if the text may be shown.
    Near(String),
    /// This reason, in place of what the field expects. It repeats the text too.
    Because(String),
    /// This reason, in place of what the field expects. It does not repeat the text.
    Other(String),
}

impl Wrong {
    pub(crate) fn other(reason: impl Into<String>) -> Self {
        Self::Other(reason.into())
    }

    pub(crate) fn near(near: Option<impl Into<String>>) -> Self {
        near.map_or(Self::Expected, |near| Self::Near(near.into()))
    }

    /// What a message says was expected. `is_shown` says whether the message may repeat the text.
    pub(crate) fn instead(self, expected: &str, is_shown: bool) -> String {
        match self {
            Self::Near(near) if is_shown => format!("{expected}; did you mean \"{near}\"?"),
            Self::Because(reason) if is_shown => reason,
            Self::Other(reason) => reason,
            Self::Expected | Self::Near(_) | Self::Because(_) => expected.to_owned(),
        }
    }
}
