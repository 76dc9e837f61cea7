//! Escapes foreign text before it is shown.
//!
//! Names, tags, messages, tracebacks and printed output come from users, workers and other sites. A terminal obeys
//! control characters in them, a line break forges a log entry, and a bidirectional override reverses the visible text.
//! Every program passes foreign text through this module before it shows it. Stored text and JSON stay exact.

use std::fmt::Write;

/// Longest table cell, in bytes. `--json` shows the whole text.
pub const MAX_CELL_BYTES: usize = 512;
/// Longest field of a log entry, in bytes.
pub const MAX_FIELD_BYTES: usize = 8 << 10;
/// Longest message or traceback that a command prints, in bytes.
pub const MAX_LINES_BYTES: usize = 64 << 10;

/// Replaces the omitted part of a line.
const CUT: &str = "...";
/// Replaces the omitted part of several lines.
const CUT_LINES: &str = "\n[...]\n";

/// Whether a terminal, a log or a page would interpret this character instead of showing it.
pub fn is_unsafe(c: char) -> bool {
    // Line and paragraph separators, and the bidirectional controls of Unicode's annex 9.
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Percent-encodes a tag or a name for a path of the manager's API.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Returns the text as one line of at most `max_bytes` bytes. Escapes unsafe characters and omits the middle of a
/// longer text.
pub fn line(text: &str, max_bytes: usize) -> String {
    let escaped = escape(&cut(text, max_bytes, CUT), is_unsafe);
    cut(&escaped, max_bytes, CUT)
}

/// Returns the text as lines of at most `max_bytes` bytes in total. Like [`line()`], but keeps line feeds and tabs.
pub fn lines(text: &str, max_bytes: usize) -> String {
    let text = cut(text, max_bytes, CUT_LINES).replace("\r\n", "\n");
    let escaped = escape(&text, |c| is_unsafe(c) && c != '\n' && c != '\t');
    cut(&escaped, max_bytes, CUT_LINES)
}

/// Returns the text, or its beginning and end if it has more than `max_bytes` bytes. Escapes nothing.
pub fn bounded(text: &str, max_bytes: usize) -> String {
    cut(text, max_bytes, CUT_LINES)
}

fn escape(text: &str, is_unsafe: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "{}", c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn cut(text: &str, max_bytes: usize, mark: &str) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let room = max_bytes.saturating_sub(mark.len());
    let mut head = room / 2;
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    let mut tail = text.len() - (room - room / 2);
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    let mark = if max_bytes < mark.len() { "" } else { mark };
    format!("{}{mark}{}", &text[..head], &text[tail..])
}

/// Escapes printed output for a terminal piece by piece. Characters and line ends may be split between pieces.
#[derive(Debug, Default)]
pub struct OutputEscaper {
    /// The first bytes of a character that the next piece completes.
    begun: Vec<u8>,
    after_return: bool,
}

impl OutputEscaper {
    /// Returns the next piece, escaped. Invalid UTF-8 becomes U+FFFD. A carriage return becomes a line feed, so that
    /// output cannot overwrite a line.
    pub fn piece(&mut self, bytes: &[u8]) -> String {
        let bytes = [std::mem::take(&mut self.begun), bytes.to_vec()].concat();
        let mut shown = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for c in chunk.valid().chars() {
                self.add(c, &mut shown);
            }
            let invalid = chunk.invalid();
            let is_begun =
                chunks.peek().is_none() && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            match invalid {
                [] => {}
                invalid if is_begun => self.begun = invalid.to_vec(),
                _ => self.add(char::REPLACEMENT_CHARACTER, &mut shown),
            }
        }
        shown
    }

    fn add(&mut self, c: char, shown: &mut String) {
        match c {
            '\n' if self.after_return => {}
            '\n' | '\r' => shown.push('\n'),
            c if c == '\t' || !is_unsafe(c) => shown.push(c),
            c => {
                let _ = write!(shown, "{}", c.escape_default());
            }
        }
        self.after_return = c == '\r';
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts that contain the characters that attackers use.
    fn hostile() -> impl Strategy<Value = String> {
        let unsafe_ones = prop::sample::select(vec![
            '\0', '\x07', '\n', '\r', '\t', '\x1b', '\x7f', '\u{85}', '\u{9b}', '\u{61c}', '\u{2028}', '\u{202e}',
            '\u{2066}',
        ]);
        let letters = prop_oneof![any::<char>(), unsafe_ones];
        prop::collection::vec(letters, 0..200).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn line_is_safe_and_bounded(text in hostile(), max in 0usize..300) {
            let shown = line(&text, max);
            prop_assert!(!shown.chars().any(is_unsafe), "{shown:?}");
            prop_assert!(shown.len() <= max);
            prop_assert_eq!(line(&shown, max), shown);
        }

        #[test]
        fn lines_keep_only_line_feeds_and_tabs(text in hostile(), max in 0usize..300) {
            let shown = lines(&text, max);
            prop_assert!(!shown.chars().any(|c| is_unsafe(c) && c != '\n' && c != '\t'), "{shown:?}");
            prop_assert!(shown.len() <= max);
        }

        #[test]
        fn output_is_escaped_independent_of_its_pieces(text in hostile(), at in any::<prop::sample::Index>()) {
            let bytes = text.as_bytes();
            let at = at.index(bytes.len() + 1);
            let (mut whole, mut split) = (OutputEscaper::default(), OutputEscaper::default());
            let whole = whole.piece(bytes);
            let split = split.piece(&bytes[..at]) + &split.piece(&bytes[at..]);
            prop_assert!(!whole.chars().any(|c| is_unsafe(c) && c != '\n' && c != '\t'), "{whole:?}");
            prop_assert_eq!(whole, split);
        }

        #[test]
        fn safe_text_that_fits_is_unchanged(text in "[a-zA-Zäöü漢字 .]{0,100}") {
            prop_assert_eq!(line(&text, 1000), text.clone());
            prop_assert_eq!(lines(&text, 1000), text.clone());
            prop_assert_eq!(OutputEscaper::default().piece(text.as_bytes()), text);
        }
    }

    #[test]
    fn unsafe_characters_become_visible_escapes() {
        assert_eq!(
            line("a\x1b[2Jb\nc\u{9b}\u{202e}", 100),
            "a\\u{1b}[2Jb\\nc\\u{9b}\\u{202e}"
        );
        assert_eq!(lines("a\r\n\tb\rc\x07", 100), "a\n\tb\\rc\\u{7}");
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(line(&format!("begin{}end", "x".repeat(100)), 11), "begi...xend");
        assert_eq!(bounded("äöü", 5), "");
        assert_eq!(bounded(&"ab\n".repeat(10), 15), "ab\na\n[...]\n\nab\n");
    }

    #[test]
    fn carriage_returns_become_line_feeds() {
        let mut shown = OutputEscaper::default();
        assert_eq!(shown.piece(b"10%\r20%\r"), "10%\n20%\n");
        assert_eq!(shown.piece(b"\ndone\xff\x1b[0m"), "done\u{fffd}\\u{1b}[0m");
    }
}
