//! Characters of texts that strangers write.

/// Whether a terminal shows a text with this character as something else: it moves the cursor, breaks the line,
/// turns the direction of the text (Unicode Annex 9), or has no width.
pub(crate) fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A value without the blanks at its edges, as the laxest frameworks read it. They cut off whatever Unicode calls a
/// space (Python, JavaScript, Go), control characters (Java, Ruby), and characters without width (older .NET,
/// Laravel). A value that is not UTF-8 is read as Latin-1, as many servers read header fields.
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    let is_plain = |edge: Option<&u8>| edge.is_none_or(u8::is_ascii_graphic);
    if is_plain(value.first()) && is_plain(value.last()) {
        return value;
    }
    if let Ok(text) = std::str::from_utf8(value) {
        return text.trim_matches(is_blank).as_bytes();
    }
    let is_inner = |byte: &u8| !is_blank(char::from(*byte));
    let start = value.iter().position(is_inner).unwrap_or(value.len());
    let end = value.iter().rposition(is_inner).map_or(start, |last| last + 1);
    value.get(start..end).unwrap_or_default()
}

fn is_blank(character: char) -> bool {
    character.is_whitespace()
        || misleads(character)
        || matches!(
            character,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
                | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
                | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0020}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_every_framework_are_cut_off() {
        let blanks = [
            " ", "\t", "\0", "\x0b", "\x0c", "\x1c", "\x1f", "\u{85}", "\u{a0}", "\u{180e}",
            "\u{2003}", "\u{200b}", "\u{2028}", "\u{3000}", "\u{feff}",
        ];
        for blank in blanks {
            let value = format!("{blank}{blank}K{blank}k{blank}");
            assert_eq!(trim(value.as_bytes()), format!("K{blank}k").as_bytes(), "{blank:?}");
            assert_eq!(trim(blank.as_bytes()), b"", "{blank:?}");
        }
        for (value, trimmed) in [
            (&b"K\xa0"[..], &b"K"[..]),
            (b"\x85\xa0K\xa0 \x85", b"K"),
            (b"\xa0", b""),
            (b"K\xe9\xa0", b"K\xe9"),
            ("voil\u{e0}".as_bytes(), "voil\u{e0}".as_bytes()),
            ("\u{e9} ".as_bytes(), "\u{e9}".as_bytes()),
            (b"", b""),
        ] {
            assert_eq!(trim(value), trimmed, "{value:?}");
        }
    }
}
