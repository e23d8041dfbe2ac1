//! Tokens of a statement, as far as quotes, comments and placeholders need them.

use super::statement::{StatementError, StatementFault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or a name without quotes.
    Word,
    Open,
    Close,
    Semicolon,
    /// `${...}`
    Placeholder,
    /// Quoted text, a quoted name, a digit or another character.
    Other,
}

/// Bytes `begin..end` of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub begin: usize,
    pub end: usize,
}

impl Token {
    pub fn is_word(&self, text: &str, word: &str) -> bool {
        self.kind == Kind::Word && text[self.begin..self.end].eq_ignore_ascii_case(word)
    }
}

/// Divides a text into tokens, without space and comments.
///
/// # Errors
/// A quote, a comment or a placeholder does not end, or a placeholder is in a quote or a comment.
pub fn tokens(text: &str) -> Result<Vec<Token>, StatementError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let (kind, end) = next(text, at, first)?;
        if let Some(kind) = kind {
            tokens.push(Token { kind, begin: at, end });
        }
        at = end;
    }
    Ok(tokens)
}

/// Returns the kind of the token at `at` and its end. `None` is space or a comment.
fn next(text: &str, at: usize, first: char) -> Result<(Option<Kind>, usize), StatementError> {
    let rest = &text[at..];
    let single = |kind| Ok((Some(kind), at + first.len_utf8()));
    match first {
        '\0' => Err(StatementError { offset: at, fault: StatementFault::Nul }),
        _ if first.is_ascii_whitespace() => Ok((None, at + 1)),
        '-' if rest.starts_with("--") => {
            let len = rest.find(['\n', '\r']).unwrap_or(rest.len());
            check(rest, len, at, "comment").map(|()| (None, at + len))
        }
        '/' if rest.starts_with("/*") => closed(rest, comment(rest), at, "comment").map(|end| (None, end)),
        '\'' => closed(rest, quoted(rest, '\'', false), at, "quoted text").map(other),
        '"' => closed(rest, quoted(rest, '"', false), at, "quoted name").map(other),
        '$' if rest.starts_with("${") => match placeholder(rest) {
            Some(len) => Ok((Some(Kind::Placeholder), at + len)),
            None => Err(StatementError { offset: at, fault: StatementFault::Open("placeholder") }),
        },
        '$' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            Err(StatementError { offset: at, fault: StatementFault::Positional })
        }
        '$' => match dollar_tag(rest) {
            Some(tag) => {
                let len = rest[tag.len()..].find(tag).map(|found| found + 2 * tag.len());
                closed(rest, len, at, "quoted text").map(other)
            }
            None => single(Kind::Other),
        },
        '(' => single(Kind::Open),
        ')' => single(Kind::Close),
        ';' => single(Kind::Semicolon),
        _ if is_name_start(first) => {
            let len = word(rest);
            let has_escapes = rest[..len].eq_ignore_ascii_case("e") && rest[len..].starts_with('\'');
            if has_escapes {
                let text = &rest[len..];
                return closed(text, quoted(text, '\'', true), at + len, "quoted text").map(other);
            }
            Ok((Some(Kind::Word), at + len))
        }
        _ => single(Kind::Other),
    }
}

fn other(end: usize) -> (Option<Kind>, usize) {
    (Some(Kind::Other), end)
}

/// Returns the end of a quote or comment that has this length, unless it has no end or has a placeholder.
fn closed(rest: &str, len: Option<usize>, at: usize, what: &'static str) -> Result<usize, StatementError> {
    let len = len.ok_or(StatementError { offset: at, fault: StatementFault::Open(what) })?;
    check(rest, len, at, what).map(|()| at + len)
}

fn check(rest: &str, len: usize, at: usize, what: &'static str) -> Result<(), StatementError> {
    let fault = match &rest[..len] {
        inner if inner.contains('\0') => StatementFault::Nul,
        inner if inner.contains("${") => StatementFault::Quoted(what),
        _ => return Ok(()),
    };
    Err(StatementError { offset: at, fault })
}

/// Length of a quote with both quotation marks. A doubled mark stands for itself.
fn quoted(rest: &str, mark: char, has_escapes: bool) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((index, c)) = chars.next() {
        if c == '\\' && has_escapes {
            chars.next();
        } else if c == mark && chars.next_if(|(_, next)| *next == mark).is_none() {
            return Some(index + 1);
        }
    }
    None
}

/// Length of a comment, which can have comments in it.
fn comment(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Length of a placeholder. Braces in single quotes do not end it, as in `rules::Template`.
fn placeholder(rest: &str) -> Option<usize> {
    let mut is_quoted = false;
    let end = rest.find(|c| {
        is_quoted ^= c == '\'';
        c == '}' && !is_quoted
    });
    end.map(|end| end + 1)
}

/// Returns `$tag$` at the beginning of the text.
fn dollar_tag(rest: &str) -> Option<&str> {
    let len = rest[1..].find('$')?;
    let tag = &rest[1..=len];
    let is_tag = tag.chars().all(is_name) && !tag.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &rest[..len + 2])
}

/// Length of a name, which can contain `$` but no placeholder.
fn word(rest: &str) -> usize {
    let ends = |(index, c): &(usize, char)| match c {
        '$' => rest[index + 1..].starts_with('{'),
        _ => !is_name(*c),
    };
    rest.char_indices().find(ends).map_or(rest.len(), |(index, _)| index)
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_name(c: char) -> bool {
    is_name_start(c) || c.is_ascii_digit()
}
