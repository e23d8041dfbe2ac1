//! The statement of an action: its placeholders become parameters.
//!
//! The parser knows as much of SQL as it needs to tell code from quoted text and comments. The server checks the rest.

use std::fmt::{self, Write as _};

use tokio_postgres::types::Type;

use super::tokens::{Kind, Token, tokens};
use super::values::is_bytea;

/// A statement with numbered parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Text for the server, with `$1`, `$2`, and so on.
    pub text: String,
    /// Texts between the braces of the placeholders. The first one is `$1`.
    pub placeholders: Vec<String>,
    /// Parts of an INSERT of one row. `None`: records of a batch are executed one by one.
    insert: Option<Insert>,
}

/// Parts of `INSERT INTO t (columns) VALUES (row) tail`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Insert {
    /// Text before VALUES.
    head: String,
    row: Vec<Piece>,
    tail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// Number of a parameter. The first one is 1.
    Parameter(usize),
}

/// Error in the text of a statement, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementError {
    /// Number of bytes before the error.
    pub offset: usize,
    pub fault: StatementFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatementFault {
    Empty,
    TooLong {
        size: usize,
    },
    /// The text has a NUL character, which ends texts in the protocol.
    Nul,
    /// Quoted text, a comment or a placeholder does not end.
    Open(&'static str),
    /// A placeholder is within quoted text or a comment.
    Quoted(&'static str),
    /// `$1` in the text of the user.
    Positional,
    Several,
    /// The first word is not a statement that changes rows.
    Verb(String),
    Placeholders,
}

impl Statement {
    /// Parses a statement.
    ///
    /// # Errors
    /// Quotes, comments or placeholders do not end, or it is not one statement that changes rows.
    pub fn parse(text: &str) -> Result<Self, StatementError> {
        let error = |offset, fault| Err(StatementError { offset, fault });
        if text.len() > TEXT_MAX {
            return error(TEXT_MAX, StatementFault::TooLong { size: text.len() });
        }
        let mut tokens = tokens(text)?;
        if let Some(first) = tokens.iter().position(|token| token.kind == Kind::Semicolon) {
            if let Some(next) = tokens[first..].iter().find(|token| token.kind != Kind::Semicolon) {
                return error(next.begin, StatementFault::Several);
            }
            tokens.truncate(first);
        }
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return error(0, StatementFault::Empty);
        };
        let verb = &text[first.begin..first.end];
        if !VERBS.iter().any(|known| verb.eq_ignore_ascii_case(known)) {
            let verb = verb.chars().take(SHOWN_MAX).collect();
            return error(first.begin, StatementFault::Verb(verb));
        }
        let placeholders: Vec<String> = placeholders(text, &tokens).map(str::to_owned).collect();
        if placeholders.len() > PLACEHOLDERS_MAX {
            return error(0, StatementFault::Placeholders);
        }
        let mut numbered = String::new();
        for piece in pieces(text, &tokens, first.begin, last.end) {
            match piece {
                Piece::Text(text) => numbered.push_str(&text),
                // The spaces keep neighbouring letters and digits apart.
                Piece::Parameter(number) => _ = write!(numbered, " ${number} "),
            }
        }
        let insert = Insert::find(text, &tokens);
        Ok(Self { text: numbered, placeholders, insert })
    }

    /// Returns the statement that inserts many rows with one array for each parameter; `None` when it is not an INSERT
    /// of one row. The values of a row are texts, which the server converts to `types`, or `bytea`.
    pub fn with_arrays(&self, types: &[Type]) -> Option<String> {
        let insert = self.insert.as_ref()?;
        let mut text = format!("{}\nSELECT ", insert.head);
        for piece in &insert.row {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Parameter(number) => {
                    let name = type_name(types.get(number - 1)?);
                    _ = write!(text, "({ROW}.p{number}::{name})");
                }
            }
        }
        text.push_str("\nFROM unnest(");
        for (index, of) in types.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let element = if is_bytea(of) { "bytea" } else { "text" };
            _ = write!(text, "{comma}${}::pg_catalog.{element}[]", index + 1);
        }
        _ = write!(text, ") AS {ROW}(");
        for number in 1..=types.len() {
            let comma = if number == 1 { "" } else { ", " };
            _ = write!(text, "{comma}p{number}");
        }
        _ = write!(text, ")\n{}", insert.tail);
        Some(text)
    }
}

impl Insert {
    fn find(text: &str, tokens: &[Token]) -> Option<Self> {
        let is = |index: usize, word: &str| tokens.get(index).is_some_and(|token| token.is_word(text, word));
        if !is(0, "INSERT") || !is(1, "INTO") {
            return None;
        }
        let values = find_at_depth_0(tokens, 2, |token| token.is_word(text, "VALUES"))?;
        let open = values + 1;
        if tokens.get(open)?.kind != Kind::Open {
            return None;
        }
        let close = find_at_depth_0(tokens, open, |token| token.kind == Kind::Close)?;
        let has_tail = tokens.len() > close + 1;
        if has_tail && !is(close + 1, "ON") && !is(close + 1, "RETURNING") {
            return None;
        }
        let (head, row, tail) = (&tokens[..values], &tokens[open + 1..close], &tokens[close + 1..]);
        let is_constant = |tokens: &[Token]| placeholders(text, tokens).next().is_none();
        if !is_constant(head) || !is_constant(tail) || is_constant(row) {
            return None;
        }
        // A SELECT has no DEFAULT, and a query within the row would be evaluated once for all rows.
        let ends_form = |token: &Token| {
            ["DEFAULT", "SELECT", "TABLE", "VALUES", "WITH"].iter().any(|word| token.is_word(text, word))
        };
        if row.iter().any(ends_form) {
            return None;
        }
        let span = |tokens: &[Token]| match (tokens.first(), tokens.last()) {
            (Some(first), Some(last)) => text[first.begin..last.end].to_owned(),
            _ => String::new(),
        };
        let (begin, end) = (row.first()?.begin, row.last()?.end);
        Some(Self { head: span(head), row: pieces(text, row, begin, end), tail: span(tail) })
    }
}

/// Returns the index of the first token from `from` that fits and is outside parentheses. A closing parenthesis belongs
/// to the depth of its opening one.
fn find_at_depth_0(tokens: &[Token], from: usize, fits: impl Fn(&Token) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(from) {
        if token.kind == Kind::Close {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 && fits(token) {
            return Some(index);
        }
        if token.kind == Kind::Open {
            depth += 1;
        }
    }
    None
}

fn placeholders<'a>(text: &'a str, tokens: &'a [Token]) -> impl Iterator<Item = &'a str> {
    let is_placeholder = |token: &&Token| token.kind == Kind::Placeholder;
    tokens.iter().filter(is_placeholder).map(|token| &text[token.begin + 2..token.end - 1])
}

/// Divides a part of the text at its placeholders. No parameter is before it.
fn pieces(text: &str, tokens: &[Token], begin: usize, end: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = begin;
    let found = tokens.iter().filter(|token| token.kind == Kind::Placeholder);
    for (index, token) in found.enumerate() {
        if at < token.begin {
            pieces.push(Piece::Text(text[at..token.begin].to_owned()));
        }
        pieces.push(Piece::Parameter(index + 1));
        at = token.end;
    }
    if at < end {
        pieces.push(Piece::Text(text[at..end].to_owned()));
    }
    pieces
}

/// Returns the name of a type as SQL. In quotes, `char` and `bit` have no default length of 1.
fn type_name(of: &Type) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    format!("{}.{}", quoted(of.schema()), quoted(of.name()))
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.offset;
        match &self.fault {
            StatementFault::Empty => f.write_str(
                "there is no statement; write one such as INSERT INTO t (time, temp) VALUES (${time}, ${temp})",
            ),
            StatementFault::TooLong { size } => {
                write!(f, "the statement has {size} bytes, and the maximum is {TEXT_MAX}")
            }
            StatementFault::Nul => write!(f, "there is a NUL character after {at} bytes; remove it"),
            StatementFault::Open(what) => write!(f, "the {what} after {at} bytes does not end"),
            StatementFault::Quoted(what) => write!(
                f,
                "there is a placeholder in a {what} after {at} bytes; a placeholder is a parameter, not text: write \
                 it without quotes, and join texts with ||, as in 'a' || ${{x}}::text"
            ),
            StatementFault::Positional => write!(
                f,
                "there is a numbered parameter after {at} bytes; write a placeholder such as ${{payload.temp}}"
            ),
            StatementFault::Several => {
                write!(f, "a second statement begins after {at} bytes; write one statement")
            }
            StatementFault::Verb(verb) => {
                write!(f, "the statement begins with {verb}; write one of {}", VERBS.join(", "))
            }
            StatementFault::Placeholders => {
                write!(f, "the statement has more than {PLACEHOLDERS_MAX} placeholders")
            }
        }
    }
}

impl std::error::Error for StatementError {}

/// Statements that can change rows and need no protocol or transaction of their own.
const VERBS: [&str; 7] = ["INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "SELECT", "CALL"];

/// Name of a row of a batch. Statements of users are not expected to have it.
const ROW: &str = "meridian_row";

/// Maximum number of bytes of a statement.
const TEXT_MAX: usize = 64 * 1024;

/// Maximum number of placeholders. A table has at most 1,600 columns.
const PLACEHOLDERS_MAX: usize = 1_600;

/// Maximum number of characters of a wrong text that are shown.
const SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_numbered_parameters() {
        for (text, numbered, placeholders) in [
            ("INSERT INTO t VALUES (${a})", "INSERT INTO t VALUES ( $1 )", &["a"][..]),
            (
                " insert into t values(${a},${b?}::int);; ",
                "insert into t values( $1 , $2 ::int)",
                &["a", "b?"],
            ),
            ("SELECT f(${a.'x}y'[1]})", "SELECT f( $1 )", &["a.'x}y'[1]"]),
            ("SELECT a${x}1", "SELECT a $1 1", &["x"]),
            ("SELECT 'it''s', E'\\'', \"a\"\"b\", ${.}", "SELECT 'it''s', E'\\'', \"a\"\"b\",  $1 ", &["."]),
            ("SELECT $$ a ' $$, $b$ $$ ; $b$, ${x}", "SELECT $$ a ' $$, $b$ $$ ; $b$,  $1 ", &["x"]),
            ("SELECT 1 -- it's; \n, ${x} -- end", "SELECT 1 -- it's; \n,  $1 ", &["x"]),
            ("/* a /* ' */ ; */ SELECT ${x} /* b */ ; -- c", "SELECT  $1 ", &["x"]),
            ("DELETE FROM t", "DELETE FROM t", &[]),
            ("SELECT a$b, ü$ü FROM t$", "SELECT a$b, ü$ü FROM t$", &[]),
            ("SELECT '\\', ${a}", "SELECT '\\',  $1 ", &["a"]),
            ("SELECT noise'\\', ${a}", "SELECT noise'\\',  $1 ", &["a"]),
        ] {
            let statement = Statement::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(statement.text, numbered);
            assert_eq!(statement.placeholders, placeholders, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_one_statement_with_parameters_is_refused() {
        for (text, offset, says) in [
            ("", 0, "there is no statement"),
            (" ; -- a", 0, "there is no statement"),
            ("SELECT 1; DROP TABLE t", 10, "a second statement begins after 10 bytes"),
            ("SELECT '${x}'", 7, "write it without quotes"),
            ("SELECT E'\\'${x}'", 8, "write it without quotes"),
            ("SELECT \"${x}\"", 7, "quoted name"),
            ("SELECT $$${x}$$", 7, "quoted text"),
            ("SELECT 1 -- ${x}", 9, "comment"),
            ("SELECT 1 /* ${x} */", 9, "comment"),
            ("SELECT 'a", 7, "quoted text after 7 bytes does not end"),
            ("SELECT E'a\\'", 8, "quoted text after 8 bytes does not end"),
            ("SELECT \"a", 7, "quoted name after 7 bytes does not end"),
            ("SELECT $a$ $b$", 7, "quoted text after 7 bytes does not end"),
            ("SELECT 1 /* /* */", 9, "comment after 9 bytes does not end"),
            ("SELECT ${x", 7, "placeholder after 7 bytes does not end"),
            ("SELECT $1", 7, "write a placeholder"),
            ("SELECT \0", 7, "NUL"),
            ("COPY t FROM STDIN", 0, "begins with COPY; write one of INSERT"),
            ("COMMIT", 0, "begins with COMMIT"),
            ("${x}", 0, "begins with ${x}"),
        ] {
            let error = Statement::parse(text).expect_err(text);
            assert_eq!(error.offset, offset, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        let long = format!("SELECT '{}'", "a".repeat(TEXT_MAX));
        assert!(Statement::parse(&long).is_err());
        let wide = format!("SELECT {}1", "${x},".repeat(PLACEHOLDERS_MAX + 1));
        assert_eq!(Statement::parse(&wide).unwrap_err().fault, StatementFault::Placeholders);
    }

    #[test]
    fn an_insert_of_one_row_has_a_form_with_arrays() {
        let statement = Statement::parse(
            "INSERT INTO \"t\" (a, b, c) VALUES (${a}, lower(${b}) -- low\n, 'x') -- end\n ON CONFLICT DO NOTHING;",
        );
        assert_eq!(
            statement.expect("a statement").with_arrays(&[Type::INT4, Type::BYTEA]).as_deref(),
            Some(
                "INSERT INTO \"t\" (a, b, c)\nSELECT (meridian_row.p1::\"pg_catalog\".\"int4\"), \
                 lower((meridian_row.p2::\"pg_catalog\".\"bytea\")) -- low\n, 'x'\n\
                 FROM unnest($1::pg_catalog.text[], $2::pg_catalog.bytea[]) AS meridian_row(p1, p2)\n\
                 ON CONFLICT DO NOTHING"
            )
        );
    }

    #[test]
    fn other_statements_have_no_form_with_arrays() {
        for text in [
            "INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (${a}), (${b})",
            "INSERT INTO t VALUES (${a}, DEFAULT)",
            "INSERT INTO t SELECT ${a}",
            "INSERT INTO t DEFAULT VALUES",
            "INSERT INTO t VALUES (${a}",
            "INSERT INTO t VALUES (${a}) ON CONFLICT (k) DO UPDATE SET v = ${b}",
            "WITH x AS (SELECT 1) INSERT INTO t VALUES (${a})",
            "UPDATE t SET a = ${a}",
            "SELECT f(${a})",
        ] {
            let statement = Statement::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(statement.with_arrays(&[Type::TEXT, Type::TEXT]), None, "{text}");
        }
    }

    #[test]
    fn no_text_panics() {
        let parts = [
            "'",
            "\"",
            "$",
            "{",
            "}",
            "${",
            "$$",
            "--",
            "\n",
            "/*",
            "*/",
            ";",
            "(",
            ")",
            "E",
            "é",
            "INSERT INTO ",
            "VALUES",
            "a",
            "\\",
        ];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            if let Ok(statement) = Statement::parse(&text) {
                let types = vec![Type::TEXT; statement.placeholders.len()];
                _ = statement.with_arrays(&types);
            }
        }
    }
}
