//! Tokens of the text of a rule.

use super::fault::{ParseError, ParseFault};

#[derive(Clone, Debug, PartialEq)]
pub enum Token<'a> {
    /// A keyword or a name.
    Word(&'a str),
    /// An integer without a sign.
    Int(u64),
    Float(f64),
    /// A text in single quotation marks.
    Text(String),
    /// A text in double quotation marks.
    Quoted(String),
    Symbol(&'static str),
}

/// A token and its place.
#[derive(Clone, Debug)]
pub struct Spanned<'a> {
    pub token: Token<'a>,
    /// Number of bytes before it.
    pub at: usize,
}

/// Symbols; longer ones are before their beginnings.
const SYMBOLS: &[&str] =
    &["=~", "!=", "<>", "<=", ">=", "(", ")", "[", "]", ",", ".", "=", "<", ">", "+", "-", "*", "/"];

/// Splits a text into tokens. Comments from `--` to the end of the line are left out.
pub fn split(text: &str) -> Result<Vec<Spanned<'_>>, ParseError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (token, len) = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let len = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
                (Token::Word(&rest[..len]), len)
            }
            '0'..='9' => number(rest).map_err(|(offset, fault)| ParseError::at(text, at + offset, fault))?,
            '\'' | '"' => {
                let (content, len) = quoted(rest, first)
                    .ok_or_else(|| ParseError::at(text, at, ParseFault::QuoteOpen { quote: first }))?;
                (if first == '"' { Token::Quoted(content) } else { Token::Text(content) }, len)
            }
            _ => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => (Token::Symbol(symbol), symbol.len()),
                None => return Err(ParseError::at(text, at, ParseFault::Character(first))),
            },
        };
        tokens.push(Spanned { token, at });
        at += len;
    }
    Ok(tokens)
}

/// Returns whether a name without quotation marks may have this character, except at its beginning.
pub fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Reads a number: digits, a fraction, an exponent.
fn number(text: &str) -> Result<(Token<'_>, usize), (usize, ParseFault)> {
    let digits =
        |from: usize| text.as_bytes()[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut len = digits(0);
    let mut is_integer = true;
    if text[len..].starts_with('.') && digits(len + 1) > 0 {
        is_integer = false;
        len += 1 + digits(len + 1);
    }
    if text[len..].starts_with(['e', 'E']) {
        let sign = usize::from(text[len + 1..].starts_with(['+', '-']));
        let exponent = digits(len + 1 + sign);
        if exponent > 0 {
            is_integer = false;
            len += 1 + sign + exponent;
        }
    }
    if text[len..].starts_with(is_of_name) {
        return Err((0, ParseFault::NumberAndName));
    }
    let number = &text[..len];
    if is_integer {
        let integer = number.parse().map_err(|_| (0, ParseFault::IntegerTooLarge))?;
        return Ok((Token::Int(integer), len));
    }
    match number.parse::<f64>() {
        Ok(float) if float.is_finite() => Ok((Token::Float(float), len)),
        _ => Err((0, ParseFault::FloatTooLarge)),
    }
}

/// Reads up to the closing quotation mark. Two of them stand for one. Returns the content and the length of all.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut content = String::new();
    let mut at = 1;
    loop {
        let end = at + text[at..].find(quote)?;
        content.push_str(&text[at..end]);
        at = end + 1;
        if !text[at..].starts_with(quote) {
            return Some((content, at));
        }
        content.push(quote);
        at += 1;
    }
}

/// Words that are no names, unless a dot is before them.
pub const KEYWORDS: &[&str] = &[
    "select", "foreach", "do", "incase", "from", "where", "as", "and", "or", "not", "in", "is", "null",
    "case", "when", "then", "else", "end", "div", "mod", "true", "false",
];

/// Returns whether a word is a keyword, in upper or lower case.
pub fn is_keyword(word: &str) -> bool {
    KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word))
}
