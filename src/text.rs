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
