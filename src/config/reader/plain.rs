//! Types that read their values by the kind of a setting: numbers, durations, words.

use std::time::Duration;

use http::StatusCode;

use super::item::Item;
use super::problem::{enumerate, nearest};
use super::shape::Kind;
use super::synonyms;

/// A type that reads its value by the kind of the setting.
pub(crate) trait PlainValue: Sized + 'static {
    /// The value of `item`. If `item` is not of this kind, notes the problem and returns `None`.
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self>;
}

impl PlainValue for bool {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        item.flag()
    }
}

impl PlainValue for Duration {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        item.duration(kind)
    }
}

macro_rules! number {
    ($($type:ty),+) => {
        $(impl PlainValue for $type {
            fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
                let number = match *kind {
                    Kind::Whole(min, max) => item.whole(min..=max),
                    Kind::Size(min, max) => item.size(min..=max),
                    _ => None,
                };
                // This conversion does not fail: the bounds of a setting's kind lie within the setting's
                // type.
                number.and_then(|number| Self::try_from(number).ok())
            }
        })+
    };
}
number!(u8, u16, u32, u64, usize);

impl PlainValue for StatusCode {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        u16::read(item, kind).and_then(|number| Self::from_u16(number).ok())
    }
}

impl<T: PlainValue> PlainValue for Option<T> {
    fn read(item: &Item<'_>, kind: &Kind) -> Option<Self> {
        T::read(item, kind).map(Some)
    }
}

/// A value that the file writes as one of a few words. Mostly implemented by [`words!`].
pub(crate) trait Spelled: Copy + PartialEq + Sized + 'static {
    /// Each word with its value.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for this value.
    fn spelling(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// Implements [`Spelled`] for an enum: each word with its variant.
macro_rules! words {
    ($type:ty { $($word:literal => $variant:ident),+ $(,)? }) => {
        impl crate::config::reader::Spelled for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }
    };
}
pub(crate) use words;

/// Reads one of the words of a type.
pub(crate) fn one_word<T: Spelled>(item: &Item<'_>) -> Option<T> {
    let names = || T::WORDS.iter().map(|(word, _)| *word);
    let expected = format!("expected {}", enumerate(names(), "or"));
    let text = item.text_as(&expected)?;
    if let Some((_, meaning)) = T::WORDS.iter().find(|(word, _)| *word == text) {
        return Some(*meaning);
    }
    item.reject(match synonyms::word(&text, names()).or_else(|| nearest(&text, names())) {
        Some(near) if T::WORDS.len() > 1 => format!("{expected}; did you mean `{near}`?"),
        _ => expected,
    });
    None
}

/// All words of a type.
pub(crate) fn spellings<T: Spelled>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

impl<T: Spelled> PlainValue for T {
    fn read(item: &Item<'_>, _kind: &Kind) -> Option<Self> {
        one_word(item)
    }
}
