//! Questions between nodes of a cluster about the filters of a link, as bytes.

/// Beginning of the bytes of a question. Requests of operators begin with `{`.
const PREFIX: &[u8] = b"link-filters 1\n";
/// Maximum number of parts and of filters. A node that asks has fewer.
const COUNT_MAX: usize = 10_000;

/// Question about filters of clients: whether the other cluster of a link has answered them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Session of the link in this cluster.
    pub session: String,
    /// Filters of clients. Each part has its own answer.
    pub parts: Vec<Vec<Box<str>>>,
}

impl Question {
    /// Returns whether these are the bytes of a question of this kind.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(PREFIX)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = PREFIX.to_vec();
        put_text(&mut out, &self.session);
        put_length(&mut out, self.parts.len());
        for part in &self.parts {
            put_length(&mut out, part.len());
            part.iter().for_each(|filter| put_text(&mut out, filter));
        }
        out
    }

    /// Reads a question; `None` if it is not valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(PREFIX)?;
        let session = take_text(&mut rest)?.to_owned();
        let (mut parts, mut count) = (Vec::new(), 0);
        for _ in 0..take_length(&mut rest)? {
            let mut part = Vec::new();
            for _ in 0..take_length(&mut rest)? {
                part.push(Box::from(take_text(&mut rest)?));
            }
            count += 1 + part.len();
            if count > COUNT_MAX {
                return None;
            }
            parts.push(part);
        }
        rest.is_empty().then_some(Self { session, parts })
    }
}

/// Returns the bytes of an answer: whether each part is answered.
pub fn encode_answer(parts: &[bool]) -> Vec<u8> {
    parts.iter().map(|part| u8::from(*part)).collect()
}

pub fn decode_answer(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().map(|byte| *byte == 1).collect()
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    // Filters and counts are below.
    out.extend(u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    put_length(out, end);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(usize::from(u16::from_le_bytes(*length)))
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let length = take_length(bytes)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let long: Box<str> = "x".repeat(65_535).into();
        let question = Question {
            session: "$linked/b".to_owned(),
            parts: vec![vec!["a/#".into(), "\u{0}\u{1}".into()], Vec::new(), vec![long]],
        };
        let bytes = question.encode();
        assert!(Question::is_one(&bytes) && !Question::is_one(b"{\"method\":\"GET\"}"));
        assert_eq!(Question::decode(&bytes), Some(question));
        assert_eq!(&bytes[..PREFIX.len() + 4], b"link-filters 1\n\x09\x00$l");
        for end in 0..bytes.len() {
            assert_eq!(Question::decode(&bytes[..end]), None, "{end}");
        }
        assert_eq!(decode_answer(&encode_answer(&[true, false])), [true, false]);
    }

    #[test]
    fn other_bytes_are_no_question() {
        let mut random = Random::new(1);
        for _ in 0..100_000 {
            let mut bytes = PREFIX.to_vec();
            bytes.extend((0..random.below(40)).map(|_| random.below(4) as u8));
            // It only must not panic.
            let _ = Question::decode(&bytes);
        }
        let mut many = PREFIX.to_vec();
        many.extend([0, 0, 0xFF, 0xFF]);
        many.extend(std::iter::repeat_n(0, 2 * 65_535));
        assert_eq!(Question::decode(&many), None, "too many parts");
    }
}
