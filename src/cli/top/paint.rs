//! Lines of text with styles, and the bytes that show them on a terminal.

use std::fmt::{Display, Write as _};

use crossterm::style::{Attribute, Color, Stylize as _};
use unicode_width::UnicodeWidthChar as _;

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScreenLine(Vec<(Style, String)>);

/// The style of a piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Usual text.
    Text,
    /// The heading of a column, or a unit.
    Faint,
    /// The name of a part.
    Title,
    /// A good state.
    Good,
    /// A state that somebody should look at.
    Bad,
}

impl ScreenLine {
    pub(super) fn of(style: Style, text: impl Display) -> Self {
        Self::default().and(style, text)
    }

    /// The same line with one more piece. A key may have any characters, so characters that move the cursor or change
    /// the direction of the text are replaced.
    pub(super) fn and(mut self, style: Style, text: impl Display) -> Self {
        let text = text.to_string();
        let safe = text.chars().map(|c| if c.width().is_none_or(|it| it == 0) { '·' } else { c });
        self.0.push((style, safe.collect()));
        self
    }

    /// The same line with a value and its name.
    pub(super) fn value(self, name: &str, value: impl Display) -> Self {
        self.and(Style::Faint, format_args!("  {name} ")).and(Style::Text, value)
    }

    /// The same line with another one after it.
    pub(super) fn then(mut self, line: Self) -> Self {
        self.0.extend(line.0);
        self
    }

    /// The same line with exactly `width` columns: it is cut, or has spaces at its end.
    pub(super) fn filled(self, width: usize) -> Self {
        let line = self.cut(width);
        let missing = width - line.width();
        line.and(Style::Text, " ".repeat(missing))
    }

    /// The same line with at most `width` columns.
    pub(super) fn cut(mut self, width: usize) -> Self {
        if self.width() <= width {
            return self;
        }
        // The last column is for the dots.
        let mut left = width.saturating_sub(1);
        for (_, text) in &mut self.0 {
            let cut = text.char_indices().find(|(_, c)| {
                let rest = left.checked_sub(c.width().unwrap_or_default());
                left = rest.unwrap_or_default();
                rest.is_none()
            });
            if let Some((end, _)) = cut {
                text.truncate(end);
            }
        }
        if width > 0 {
            self.0.push((Style::Faint, "…".to_owned()));
        }
        self
    }

    /// The columns that the line takes.
    pub(super) fn width(&self) -> usize {
        let of = |text: &str| text.chars().filter_map(|c| c.width()).sum::<usize>();
        self.0.iter().map(|(_, text)| of(text)).sum()
    }
}

/// The text without its styles.
pub(super) fn plain(line: &ScreenLine) -> String {
    let text: String = line.0.iter().map(|(_, text)| text.as_str()).collect();
    text.trim_end().to_owned()
}

/// The text with its styles. Without colours, they are bold and faint.
pub(super) fn styled(line: &ScreenLine, colour: bool) -> String {
    let mut out = String::new();
    for (style, text) in &line.0 {
        let text = text.as_str();
        let painted = match (style, colour) {
            (Style::Text, _) | (Style::Good, false) => {
                out.push_str(text);
                continue;
            }
            (Style::Faint, _) => text.attribute(Attribute::Dim),
            (Style::Title, _) | (Style::Bad, false) => text.bold(),
            (Style::Good, true) => text.with(Color::Green),
            (Style::Bad, true) => text.with(Color::Red),
        };
        // Writing into a string never fails.
        let _ = write!(out, "{painted}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_its_width() {
        for (text, width, shown) in [
            ("abcdef", 6, "abcdef"),
            ("abcdef", 5, "abcd…"),
            ("abcdef", 1, "…"),
            ("abcdef", 0, ""),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("a\u{202e}b\nc", 9, "a·b·c"),
        ] {
            let line = ScreenLine::of(Style::Bad, text);
            assert_eq!(plain(&line.clone().cut(width)), shown, "{text} {width}");
            assert_eq!(line.filled(width).width(), width, "{text}");
        }
        let two = ScreenLine::of(Style::Title, "ab").and(Style::Good, "cd");
        assert_eq!(plain(&two.clone().cut(3)), "ab…");
        assert_eq!(plain(&two.filled(9)), "abcd");
    }

    #[test]
    fn without_colours_there_are_none() {
        let line = ScreenLine::of(Style::Bad, "bad").and(Style::Good, "good");
        assert!(styled(&line, true).contains("\u{1b}[38;5;9m"), "{:?}", styled(&line, true));
        assert!(!styled(&line, false).contains("[38;"), "{:?}", styled(&line, false));
    }
}
