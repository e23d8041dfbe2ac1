//! Texts with placeholders that are filled in for each client and message: topics, User Names and payloads.

use crate::plain::Stamp;
use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::io::Write as _;

/// A parsed text, ready to be filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Piece {
    Text(String),
    /// The placeholder `%i`.
    Number,
    /// The placeholder `%c`.
    ClientId,
    /// The placeholder `%u`.
    UserName,
    /// The placeholder `%s`: the message's number, from 1.
    Message,
    /// The placeholder `%rand_9` is 1 to 9, `%rand_5_9` is 5 to 9, ends included.
    Random(u64, u64),
    /// The placeholder `%pick(a|b)`.
    Pick(Vec<String>),
    /// The placeholder `%text_9`: random alphanumeric characters.
    Letters(usize),
    /// The placeholder `%RANDOM%`: random bytes.
    Noise(usize),
    /// The placeholder `%TIMESTAMP%` and its variants: nanoseconds since 1970 divided by this.
    Time(u64),
    /// The placeholder `%UNIQUE%`.
    Unique,
}

/// Set of placeholders that a text can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placeholders {
    /// Placeholders of a topic and a User Name.
    Topic,
    /// Placeholders of emqtt-bench's payload files; `%RANDOM%` is this many bytes.
    Emqtt { size: usize },
    /// All placeholders, for payloads of scenarios.
    All { size: usize },
}

/// Client and message that a text is filled in for.
#[derive(Clone, Copy)]
pub struct TemplateContext<'a> {
    pub number: usize,
    pub client_id: &'a str,
    pub username: &'a str,
    pub message: Stamp,
}

/// Maximum number of bytes of one placeholder.
const FILLER_MAX: usize = 16 << 20;

const TIMES: [(&str, u64); 4] =
    [("%TIMESTAMPMS%", 1_000_000), ("%TIMESTAMPUS%", 1000), ("%TIMESTAMPNS%", 1), ("%TIMESTAMP%", 1_000_000)];

impl Template {
    /// Parses a text. Unknown placeholders stay unchanged.
    ///
    /// # Errors
    /// A placeholder with invalid numbers, as a sentence.
    pub fn parse(text: &str, placeholders: Placeholders) -> Result<Template, String> {
        let mut pieces = vec![];
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            match parse_placeholder(rest, placeholders)? {
                Some((piece, taken)) => {
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(piece);
                    rest = &rest[taken..];
                }
                None => {
                    plain.push('%');
                    rest = &rest[1..];
                }
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Template { pieces })
    }

    /// Returns whether two messages of one client can differ.
    pub fn varies(&self) -> bool {
        let fixed = |piece: &Piece| {
            matches!(piece, Piece::Text(_) | Piece::Number | Piece::ClientId | Piece::UserName)
        };
        !self.pieces.iter().all(fixed)
    }

    /// Appends the text to `out`. The same `random` gives the same text, so that a message can be sent again.
    pub fn fill(&self, of: TemplateContext, random: &mut Random, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            // Writing to a Vec does not fail.
            let _ = match piece {
                Piece::Text(text) => out.write_all(text.as_bytes()),
                Piece::Number => write!(out, "{}", of.number),
                Piece::ClientId => out.write_all(of.client_id.as_bytes()),
                Piece::UserName => out.write_all(of.username.as_bytes()),
                Piece::Message => write!(out, "{}", of.message.seq + 1),
                Piece::Random(least, most) => write!(out, "{}", least + random.below(most - least + 1)),
                Piece::Pick(words) => {
                    out.write_all(words[random.below(words.len() as u64) as usize].as_bytes())
                }
                Piece::Letters(count) => {
                    out.extend((0..*count).map(|_| LETTERS[random.below(LETTERS.len() as u64) as usize]));
                    Ok(())
                }
                Piece::Noise(bytes) => {
                    let at = out.len();
                    out.resize(at + bytes, 0);
                    random.fill(&mut out[at..]);
                    Ok(())
                }
                Piece::Time(unit) => write!(out, "{}", of.message.wall / unit),
                // Publishers of one run have distinct numbers.
                Piece::Unique => write!(out, "{}", (of.number as u64) << 36 | of.message.seq),
            };
        }
    }

    /// Text for one client, independent of a message.
    pub fn text(&self, number: usize, client_id: &str, username: &str, random: &mut Random) -> String {
        let mut out = vec![];
        let message = Stamp { seq: 0, wall: crate::net::wall() };
        self.fill(TemplateContext { number, client_id, username, message }, random, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Placeholder at the start of `text` and its length; `None` when there is none.
fn parse_placeholder(text: &str, placeholders: Placeholders) -> Result<Option<(Piece, usize)>, String> {
    if let Placeholders::Emqtt { size } | Placeholders::All { size } = placeholders {
        if let Some((name, unit)) = TIMES.iter().find(|(name, _)| text.starts_with(name)) {
            return Ok(Some((Piece::Time(*unit), name.len())));
        }
        if text.starts_with("%UNIQUE%") {
            return Ok(Some((Piece::Unique, 8)));
        }
        if text.starts_with("%RANDOM%") {
            return Ok(Some((Piece::Noise(size), 8)));
        }
    }
    if matches!(placeholders, Placeholders::Emqtt { .. }) {
        return Ok(None);
    }
    if let Some(rest) = text.strip_prefix("%rand_") {
        let (numbers, taken) = numbers(rest);
        let (least, most) = match numbers.as_slice() {
            [] => return Ok(None),
            [most] => (1, *most),
            [least, most, ..] => (*least, *most),
        };
        if least > most || most == u64::MAX {
            return Err(format!("`{}` is not a range: use %rand_9 or %rand_5_9", &text[..6 + taken]));
        }
        return Ok(Some((Piece::Random(least, most), 6 + taken)));
    }
    if let Placeholders::All { .. } = placeholders {
        if let Some(rest) = text.strip_prefix("%text_") {
            let digits = digits(rest);
            return match rest[..digits].parse::<usize>() {
                Ok(count) if count <= FILLER_MAX => Ok(Some((Piece::Letters(count), 6 + digits))),
                _ if digits == 0 => Ok(None),
                _ => Err(format!("`{}` is more than {FILLER_MAX}", &text[..6 + digits])),
            };
        }
        if let Some(rest) = text.strip_prefix("%pick(") {
            let Some(end) = rest.find(')') else {
                return Err("`%pick(` has no end: use %pick(a|b|c)".to_owned());
            };
            let words = rest[..end].split('|').map(str::to_owned).collect();
            return Ok(Some((Piece::Pick(words), 7 + end)));
        }
    }
    Ok(match text.as_bytes().get(1) {
        Some(b'i') => Some((Piece::Number, 2)),
        Some(b'c') => Some((Piece::ClientId, 2)),
        Some(b'u') => Some((Piece::UserName, 2)),
        Some(b's') => Some((Piece::Message, 2)),
        _ => None,
    })
}

/// One number, or two with `_` between them, and their length in bytes.
fn numbers(text: &str) -> (Vec<u64>, usize) {
    let number = |text: &str| text.parse().unwrap_or(u64::MAX);
    let first = digits(text);
    if first == 0 {
        return (vec![], 0);
    }
    let second = text[first..].strip_prefix('_').map_or(0, digits);
    match second {
        0 => (vec![number(&text[..first])], first),
        _ => {
            let end = first + 1 + second;
            (vec![number(&text[..first]), number(&text[first + 1..end])], end)
        }
    }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str, placeholders: Placeholders, seq: u64) -> String {
        let template = Template::parse(text, placeholders).unwrap();
        let mut out = vec![];
        let message = Stamp { seq, wall: 1_700_000_000_123_456_789 };
        let of = TemplateContext { number: 7, client_id: "c%i", username: "bob", message };
        template.fill(of, &mut Random::of([1, 7, seq]), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn topics_have_the_placeholders_of_the_other_tools() {
        for (text, topic) in [
            ("bench/%i", "bench/7"),
            ("t/%c/%u/%i/%i", "t/c%i/bob/7/7"),
            ("m/%s", "m/3"),
            ("%", "%"),
            ("100%/%x%i/%rand_/%TIMESTAMP%", "100%/%x7/%rand_/%TIMESTAMP%"),
            ("ä%i", "ä7"),
            ("none", "none"),
        ] {
            assert_eq!(filled(text, Placeholders::Topic, 2), topic, "{text}");
        }
    }

    #[test]
    fn random_numbers_stay_in_their_range_and_repeat_with_the_message() {
        let mut seen = std::collections::BTreeSet::new();
        for seq in 0..200 {
            let text = filled("%rand_3-%rand_5_6", Placeholders::Topic, seq);
            assert_eq!(text, filled("%rand_3-%rand_5_6", Placeholders::Topic, seq), "a message sent again");
            seen.insert(text);
        }
        let all = ["1-5", "1-6", "2-5", "2-6", "3-5", "3-6"].map(str::to_owned);
        assert_eq!(seen, all.into_iter().collect());
    }

    #[test]
    fn payload_files_have_the_placeholders_of_emqtt_bench() {
        let placeholders = Placeholders::Emqtt { size: 4 };
        assert_eq!(filled("%i %TIMESTAMP%", placeholders, 0), "%i 1700000000123");
        assert_eq!(
            filled("%TIMESTAMPMS% %TIMESTAMPUS% %TIMESTAMPNS%", placeholders, 0),
            "1700000000123 1700000000123456 1700000000123456789"
        );
        assert_ne!(filled("%UNIQUE%", placeholders, 0), filled("%UNIQUE%", placeholders, 1));
        let template = Template::parse("<%RANDOM%>", placeholders).unwrap();
        let mut out = vec![];
        let of =
            TemplateContext { number: 1, client_id: "", username: "", message: Stamp { seq: 0, wall: 0 } };
        template.fill(of, &mut Random::new(1), &mut out);
        assert_eq!(out.len(), 6);
    }

    #[test]
    fn payloads_of_scenarios_have_all_placeholders() {
        let placeholders = Placeholders::All { size: 1 };
        let text = filled("{\"id\":%i,\"state\":\"%pick(on|off)\",\"x\":\"%text_5\"}", placeholders, 0);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["id"], 7);
        assert!(value["state"] == "on" || value["state"] == "off", "{text}");
        assert_eq!(value["x"].as_str().unwrap().len(), 5);
        assert!(Template::parse("%pick(a", placeholders).unwrap_err().contains("has no end"));
        assert!(Template::parse("%text_99999999999", placeholders).unwrap_err().contains("more than"));
        assert!(Template::parse("%rand_9_5", placeholders).unwrap_err().contains("not a range"));
        assert!(
            Template::parse("%rand_99999999999999999999", placeholders).unwrap_err().contains("not a range")
        );
    }

    #[test]
    fn a_template_knows_whether_messages_differ() {
        for (text, varies) in [("a/%i/%c/%u", false), ("a/%s", true), ("%rand_4", true), ("x", false)] {
            assert_eq!(Template::parse(text, Placeholders::Topic).unwrap().varies(), varies, "{text}");
        }
    }
}
