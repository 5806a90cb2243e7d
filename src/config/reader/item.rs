//! One value of the file. Reads the value as the kind that its field expects, or notes a problem.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::context::{Context, NotedProblem};
use super::environment;
use super::problem::Span;
use super::shape::Kind;
use super::value::{self, DurationError};
use super::wrong::Wrong;
use crate::settings::SampleShare;

/// A value in the file.
#[derive(Clone)]
pub(crate) struct Item<'c> {
    pub(crate) cx: &'c Context<'c>,
    /// The name of the field that holds the value.
    pub(crate) field: &'c str,
    pub(super) value: &'c DeValue<'c>,
    pub(crate) span: Span,
    /// Whether the value is an item of a list in the field.
    is_in_list: bool,
    /// Whether the value must not stand in a message.
    is_secret: bool,
}

impl<'c> Item<'c> {
    /// The value of `field`.
    pub(crate) fn new(
        cx: &'c Context<'c>,
        field: &'c str,
        value: &'c Spanned<DeValue<'c>>,
    ) -> Self {
        let (value, span) = (value.get_ref(), value.span());
        Self { cx, field, value, span, is_in_list: false, is_secret: false }
    }

    /// The same value, never shown in a message.
    pub(crate) fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    /// Notes that the field cannot have this value. `expected` says which values the field can have.
    pub(crate) fn reject(&self, expected: impl Into<String>) -> NotedProblem<'c> {
        let found = match self.value {
            DeValue::String(text) if self.is_secret && !text.is_empty() => "this text".to_owned(),
            _ => self.found(),
        };
        let verb = if self.is_in_list { "hold" } else { "be" };
        let problem = self.fault(format!("`{}` cannot {verb} {found}", self.field), expected);
        match self.is_foreign() {
            true => problem.help("look at the value of the environment variable"),
            false => problem,
        }
    }

    /// Notes another problem: the field can have such a value, but not here.
    pub(crate) fn fault(
        &self,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> NotedProblem<'c> {
        self.cx.error(&self.span, title, expected).secret(self.is_secret)
    }

    /// Notes a warning: the field can have this value, but it probably does not do what was meant.
    pub(crate) fn doubt(
        &self,
        title: impl Into<String>,
        expected: impl Into<String>,
    ) -> NotedProblem<'c> {
        self.cx.warning(&self.span, title, expected).secret(self.is_secret)
    }

    fn found(&self) -> String {
        const LONGEST: usize = 48;
        let written = self.cx.source.get(self.span.clone()).unwrap_or_default();
        match self.value {
            DeValue::Array(items) if items.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
            _ if written.len() > LONGEST || written.contains('\n') => "this text".to_owned(),
            _ => written.to_owned(),
        }
    }

    /// A string with its variables replaced.
    pub(crate) fn text(&self) -> Option<String> {
        self.text_as("expected a text in quotes")
    }

    /// A string with its variables replaced. If the value is not a string, the problem says `expected`.
    pub(crate) fn text_as(&self, expected: &str) -> Option<String> {
        let DeValue::String(written) = self.value else {
            self.reject(expected);
            return None;
        };
        match environment::replace(written, self.cx.env) {
            Ok(replaced) => Some(replaced.text),
            Err(errors) => {
                let source = self.cx.source.get(self.span.clone()).unwrap_or_default();
                for error in errors {
                    let part = source.find(&error.part).map(|start| {
                        let start = self.span.start + start;
                        start..start + error.part.len()
                    });
                    self.cx.error(part.as_ref().unwrap_or(&self.span), error.title, error.expected);
                }
                None
            }
        }
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        let DeValue::Boolean(flag) = self.value else {
            self.reject("expected `true` or `false`");
            return None;
        };
        Some(*flag)
    }

    pub(crate) fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match self.value {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let fits = number.filter(|number| range.contains(number));
        if fits.is_none() {
            let quotes = match self.value {
                DeValue::String(_) => " without quotes",
                _ => "",
            };
            let (min, max) = (range.start(), range.end());
            self.reject(format!("expected a whole number{quotes}, {min} to {max}"));
        }
        fits
    }

    /// A number from 0 to 1.
    pub(crate) fn share(&self) -> Option<SampleShare> {
        let number = match self.value {
            DeValue::Integer(number) => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        let share = number.and_then(SampleShare::new);
        if share.is_none() {
            self.reject("expected a number from 0 to 1, as in 0.01");
        }
        share
    }

    /// Whether the value is written as a number.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self.value, DeValue::Integer(_) | DeValue::Float(_))
    }

    /// Whether the value is written as a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// Whether the value is written as a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// Reads a string with `parse`. `expected` says which texts the field can have.
    pub(crate) fn parse<T>(
        &self,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        let text = self.text_as(expected)?;
        let reject = |wrong: Wrong| self.reject(wrong.instead(expected, self.is_shown()));
        parse(&text).map_err(reject).ok()
    }

    /// Like [`Self::parse`], if `expected` says enough about a text that is not read.
    pub(crate) fn form<T>(
        &self,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.parse(expected, |text| read(text).ok_or(Wrong::Expected))
    }

    /// Whether a message may show the text. It may not if the text may be a secret: the text came from
    /// the environment, or [`Item::secret`] marks the value.
    pub(crate) fn is_shown(&self) -> bool {
        !self.is_secret && !self.is_foreign()
    }

    /// The text for a message, if a message may show it.
    pub(crate) fn shown<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.is_shown().then_some(text)
    }

    /// Whether any part of a text came from a variable or from a variable's default.
    fn is_foreign(&self) -> bool {
        let DeValue::String(written) = self.value else { return false };
        environment::replace(written, self.cx.env).is_ok_and(|replaced| replaced.foreign)
    }

    /// A duration of this kind.
    pub(crate) fn duration(&self, kind: &Kind) -> Option<Duration> {
        let (least, shorter) = match *kind {
            Kind::Duration(least, shorter) => (Duration::from_millis(least), shorter),
            _ => (Duration::ZERO, ""),
        };
        self.parse(&format!("expected {}", value::DURATION), |text| match value::duration(text) {
            Ok(duration) if duration < least => Err(Wrong::other(shorter)),
            Ok(duration) => Ok(duration),
            Err(DurationError::Syntax) => Err(Wrong::Expected),
            Err(DurationError::TooLong) => {
                Err(Wrong::other(format!("expected {}", DurationError::AT_MOST)))
            }
        })
    }

    /// A size in bytes, within `range`.
    pub(crate) fn size(&self, range: RangeInclusive<u64>) -> Option<u64> {
        self.parse(&format!("expected {}", value::SIZE), |text| match value::size(text) {
            Some(size) if !range.contains(&size) => Err(Wrong::Other(match *range.end() {
                u64::MAX => "expected more than zero".to_owned(),
                most => {
                    let (least, most) = (value::size_text(*range.start()), value::size_text(most));
                    format!("expected from \"{least}\" to \"{most}\"")
                }
            })),
            size => size.ok_or(Wrong::Expected),
        })
    }

    /// The items of a list.
    pub(crate) fn list(&self) -> Option<Vec<Self>> {
        let DeValue::Array(items) = self.value else {
            self.reject(match self.value {
                DeValue::Table(_) if matches!(self.field, "routes" | "tests") => {
                    format!("expected a list: `[[{}]]` for each one", self.field)
                }
                DeValue::Table(_) => "expected a list of tables: `[{ … }]`".to_owned(),
                DeValue::String(_) if self.found().starts_with('"') => {
                    format!("expected a list in brackets: `[{}]`", self.found())
                }
                _ => "expected a list in brackets: `[…]`".to_owned(),
            });
            return None;
        };
        Some(items.iter().map(|item| self.part(item)).collect())
    }

    /// The items of a list, or the value itself if the value is not a list.
    pub(crate) fn list_or_one(&self) -> Vec<Self> {
        match self.value {
            DeValue::Array(_) => self.list().unwrap_or_default(),
            _ => vec![self.clone()],
        }
    }

    fn part(&self, value: &'c Spanned<DeValue<'c>>) -> Self {
        Self { value: value.get_ref(), span: value.span(), is_in_list: true, ..self.clone() }
    }
}
