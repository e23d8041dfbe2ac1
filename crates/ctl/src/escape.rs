//! Text of a server, made harmless for a terminal. Any client can choose Client Identifiers, topics and payloads. A
//! terminal obeys control characters in them, and some characters reorder the text around them.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a terminal might obey this character, hide it, or let it move its neighbours.
fn dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'                        // soft hyphen
            | '\u{61c}'                     // Arabic mark (ALM)
            | '\u{180e}'                    // Mongolian vowel separator
            | '\u{200b}'..='\u{200f}'       // zero width, directional marks
            | '\u{2028}'..='\u{202e}'       // line and paragraph separators, directional embeddings
            | '\u{2060}'..='\u{206f}'       // invisible operators, directional isolates
            | '\u{fe00}'..='\u{fe0f}'       // variation selectors
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'       // interlinear annotations
            | '\u{e0000}'..='\u{e0fff}'     // tags, more variation selectors
        )
}

/// Returns one line of printable text: dangerous characters are written as in Rust, `\n`, `\t`, `\u{1b}`. A backslash
/// stays one, as the text is for reading; `--json` is exact.
pub fn text(raw: &str) -> Cow<'_, str> {
    if !raw.chars().any(dangerous) {
        return Cow::Borrowed(raw);
    }
    let mut safe = String::with_capacity(raw.len() + 16);
    for c in raw.chars() {
        if dangerous(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Returns JSON with the same meaning and no dangerous character but the newlines of its layout. Dangerous characters
/// can be in strings only, where `\u` escapes them.
pub fn json(document: &str) -> Cow<'_, str> {
    let harmful = |c: char| c != '\n' && dangerous(c);
    if !document.chars().any(harmful) {
        return Cow::Borrowed(document);
    }
    let mut safe = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        if harmful(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Escapes text of many lines, line by line.
pub fn lines(raw: &str) -> Cow<'_, str> {
    let harmful = |c: char| c != '\n' && dangerous(c);
    if !raw.chars().any(harmful) {
        return Cow::Borrowed(raw);
    }
    Cow::Owned(raw.split('\n').map(text).collect::<Vec<_>>().join("\n"))
}

/// Returns bytes as text where they are valid text, and as `\x..` elsewhere.
pub fn bytes(raw: &[u8]) -> String {
    let mut safe = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        safe.push_str(&text(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    safe
}

/// Returns a payload or topic for a terminal: as [`bytes`], with newlines and tabs unchanged.
pub fn payload(raw: &[u8]) -> String {
    let parts = raw.split_inclusive(|byte| matches!(byte, b'\n' | b'\t'));
    parts.fold(String::with_capacity(raw.len()), |mut safe, part| {
        let (text, end) = match part {
            [text @ .., b'\n'] => (text, "\n"),
            [text @ .., b'\t'] => (text, "\t"),
            text => (text, ""),
        };
        safe.push_str(&bytes(text));
        safe.push_str(end);
        safe
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(text("plain é 温"), "plain é 温");
        assert_eq!(text("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(text("a\r\n\tb"), "a\\r\\n\\tb");
        assert_eq!(text("c1 \u{9b}2J"), "c1 \\u{9b}2J");
        assert_eq!(text("rtl \u{202e}txt"), "rtl \\u{202e}txt");
        assert_eq!(bytes(b"ok\xff\x1b"), "ok\\xff\\u{1b}");
        assert_eq!(lines("a\nb\x07\n"), "a\nb\\u{7}\n");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({"k\u{9b}": "v\u{202e}\u{e0001}\u{7f}\n"});
        let written = serde_json::to_string_pretty(&value).unwrap();
        let safe = json(&written);
        assert!(!safe.chars().any(|c| c != '\n' && dangerous(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }

    proptest! {
        #[test]
        fn dangerous_characters_are_escaped(raw in any::<Vec<u8>>(), chars in any::<String>()) {
            prop_assert!(!bytes(&raw).chars().any(dangerous));
            prop_assert!(!payload(&raw).chars().any(|c| c != '\n' && c != '\t' && dangerous(c)));
            prop_assert!(!text(&chars).chars().any(dangerous));
            prop_assert!(!lines(&chars).chars().any(|c| c != '\n' && dangerous(c)));
        }

        #[test]
        fn any_string_in_json_stays_itself(chars in any::<String>()) {
            let written = serde_json::to_string(&chars).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json(&written)).unwrap(), chars);
        }
    }
}
