//! Words of a rule's line.
//!
//! Blanks and commas end a word, except between quotation marks. There `\"`, `\\` and `\*` stand for the character
//! alone.

use std::fmt::{self, Write as _};

use super::fault::{RuleError, RuleFault};

/// Word, or the comma between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// Positions in `text` of literal `*` characters.
    pub stars: Vec<usize>,
    /// A part of it was in quotation marks, so it is not a keyword.
    pub quoted: bool,
    /// True for a comma.
    pub comma: bool,
    /// Column; counts characters from 1.
    pub column: u32,
}

impl Token {
    pub fn is(&self, keyword: &str) -> bool {
        !self.quoted && !self.comma && self.text == keyword
    }

    pub fn is_keyword(&self) -> bool {
        KEYWORDS.iter().any(|keyword| self.is(keyword))
    }
}

/// Returns the words of a line; none for a blank line or a comment.
pub fn split(line: &str) -> Result<Vec<Token>, RuleError> {
    let mut tokens = Vec::new();
    let mut characters = (1..).zip(line.chars()).peekable();
    if line.trim_start().starts_with('#') {
        return Ok(tokens);
    }
    while let Some(&(column, character)) = characters.peek() {
        if character.is_whitespace() {
            characters.next();
            continue;
        }
        let mut token =
            Token { text: String::new(), stars: Vec::new(), quoted: false, comma: character == ',', column };
        if token.comma {
            characters.next();
            tokens.push(token);
            continue;
        }
        while let Some(&(at, character)) = characters.peek() {
            if character.is_whitespace() || character == ',' {
                break;
            }
            characters.next();
            if character == '"' {
                token.quoted = true;
                quoted(&mut token, at, &mut characters)?;
            } else {
                token.text.push(character);
            }
        }
        if !token.quoted && token.text.starts_with(COMMENT) {
            break;
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// Parses from the quotation mark in column `opened` up to the next.
fn quoted(
    token: &mut Token,
    opened: u32,
    characters: &mut impl Iterator<Item = (u32, char)>,
) -> Result<(), RuleError> {
    let open = || RuleError::new(opened, RuleFault::QuoteOpen);
    loop {
        match characters.next().ok_or_else(open)? {
            (_, '"') => return Ok(()),
            (_, '\\') => match characters.next().ok_or_else(open)? {
                (_, '*') => {
                    token.stars.push(token.text.len());
                    token.text.push('*');
                }
                (_, character @ ('"' | '\\')) => token.text.push(character),
                (at, character) => return Err(RuleError::new(at, RuleFault::Escape(character))),
            },
            (_, character) => token.text.push(character),
        }
    }
}

/// Writes a word so that [`split`] reads it: without quotation marks if possible.
pub fn write(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let plain = !text.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || c == ',' || c == '"')
        && !text.starts_with(COMMENT)
        && !KEYWORDS.contains(&text);
    if plain { f.write_str(text) } else { write_quoted(f, text, &[]) }
}

/// Writes a word in quotation marks, with literal `*` at `stars`.
pub fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str, stars: &[usize]) -> fmt::Result {
    f.write_char('"')?;
    for (at, character) in text.char_indices() {
        if matches!(character, '"' | '\\') || stars.contains(&at) {
            f.write_char('\\')?;
        }
        f.write_char(character)?;
    }
    f.write_char('"')
}

/// Begins a comment after a blank. No Topic Filter begins like this.
const COMMENT: &str = "##";

/// Words with a meaning, unless they are in quotation marks.
const KEYWORDS: [&str; 22] = [
    "allow",
    "deny",
    "everyone",
    "anonymous",
    "user",
    "users",
    "client",
    "clients",
    "cert",
    "address",
    "addresses",
    "attribute",
    "listener",
    "listeners",
    "and",
    "not",
    "publish",
    "subscribe",
    "all",
    "eq",
    "qos",
    "retain",
];
