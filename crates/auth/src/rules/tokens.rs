//! A rule's line in words.
//!
//! Blanks and commas end a word. Between quotation marks they do not, and there `\"`, `\\` and `\*` stand for the character alone.

use std::fmt::{self, Write as _};

use super::fault::{RuleError, RuleFault};

/// A word, or the comma between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// Where in `text` a `*` means itself.
    pub stars: Vec<usize>,
    /// Some of it stood in quotation marks: it is no keyword.
    pub quoted: bool,
    /// It is a comma.
    pub comma: bool,
    /// Counts characters from 1.
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

/// The words of a line; none when it is blank or a comment.
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

/// What follows the quotation mark in column `opened`, up to the next.
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

/// Writes a word so that [`split`] reads it: as it is when it can be.
pub fn write(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let plain = !text.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || c == ',' || c == '"')
        && !text.starts_with(COMMENT)
        && !KEYWORDS.contains(&text);
    if plain { f.write_str(text) } else { write_quoted(f, text, &[]) }
}

/// Writes a word between quotation marks, with `*` that means itself at `stars`.
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

/// Behind a blank it begins a comment. No Topic Filter begins so.
const COMMENT: &str = "##";

/// Words that mean something without quotation marks.
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
