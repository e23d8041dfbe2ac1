//! Meaning of errors of the server and of the connection for records.

use std::error::Error as _;
use std::fmt::Write as _;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use crate::WriteError;

/// Reason why records were not written, and what happens to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error: WriteError,
    /// Code of the server; `None` when the connection failed.
    pub code: Option<SqlState>,
    /// The connection cannot be used again.
    pub is_disconnected: bool,
}

impl Failure {
    /// A failure before the server executed anything.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self { error: WriteError::Unavailable(why.into()), code: None, is_disconnected: true }
    }

    /// The records of a batch cannot be executed in one transaction.
    pub fn to_divide() -> Self {
        let why = "the statement ends its transaction, so each record needs its own";
        Self { error: WriteError::Refused(why.to_owned()), code: None, is_disconnected: false }
    }

    /// Returns whether the statement must not be executed in a transaction.
    pub fn ends_transaction(&self) -> bool {
        self.code == Some(SqlState::INVALID_TRANSACTION_TERMINATION)
    }

    /// Returns whether the statement may be right and only its preparation is too old, for example after a change of
    /// the table.
    pub fn is_perhaps_stale(&self) -> bool {
        self.code.as_ref().is_some_and(|code| ["0A", "22", "26", "42"].contains(&class(code)))
    }

    /// Returns whether two records of a statement have the same key of ON CONFLICT DO UPDATE.
    pub fn is_repeated_key(&self) -> bool {
        self.code == Some(SqlState::CARDINALITY_VIOLATION)
    }

    /// Returns whether the server does not accept the text of the statement.
    pub fn is_of_statement(&self) -> bool {
        self.code.as_ref().is_some_and(|code| ["0A", "42"].contains(&class(code)))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(answer) => Self::from(answer),
            None => Self::unavailable(lost(&error)),
        }
    }
}

impl From<&DbError> for Failure {
    fn from(answer: &DbError) -> Self {
        let class = class(answer.code());
        let is_refused = REFUSED.contains(&class) || is_row_security(answer);
        let may_be_of_record = class == INTERNAL || *answer.code() == SqlState::QUERY_CANCELED;
        let why = sentence(answer);
        Self {
            error: match () {
                () if is_refused => WriteError::Refused(why),
                () if may_be_of_record => WriteError::Failed(why),
                () => WriteError::Unavailable(why),
            },
            code: Some(answer.code().clone()),
            is_disconnected: !(is_refused || CONNECTED.contains(&class)),
        }
    }
}

fn class(code: &SqlState) -> &str {
    code.code().get(..2).unwrap_or_default()
}

/// Returns whether a policy of the table refuses the row. It has the code of a missing privilege.
fn is_row_security(answer: &DbError) -> bool {
    *answer.code() == SqlState::INSUFFICIENT_PRIVILEGE && answer.routine() == Some("ExecWithCheckOptions")
}

/// Describes an answer of the server.
fn sentence(answer: &DbError) -> String {
    let mut text = String::from("the server answers: ");
    push(&mut text, answer.message());
    _ = write!(text, " (SQLSTATE {})", answer.code().code().chars().take(5).collect::<String>());
    if let Some(detail) = answer.detail() {
        text.push_str("; ");
        push(&mut text, detail);
    }
    let advice = match answer.code() {
        code if *code == SqlState::UNDEFINED_TABLE => {
            "create the table, or correct the statement of the action"
        }
        code if *code == SqlState::UNDEFINED_COLUMN => {
            "create the column, or correct the statement of the action"
        }
        code if *code == SqlState::INDETERMINATE_DATATYPE || *code == SqlState::AMBIGUOUS_PARAMETER => {
            "write the type after the placeholder, as in ${x}::text"
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            "grant the privilege to the user of the connector"
        }
        code if *code == SqlState::INVALID_PASSWORD => "check username and password_file of the connector",
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            "create the database, or correct `database` of the connector"
        }
        _ => return text,
    };
    _ = write!(text, "; {advice}");
    text
}

/// Adds a text of the server without line feeds and other control characters, and not all of a long one.
fn push(text: &mut String, from: &str) {
    let plain = from.chars().map(|c| if c.is_control() { ' ' } else { c });
    text.extend(plain.take(SHOWN_MAX));
    if from.chars().nth(SHOWN_MAX).is_some() {
        text.push_str("...");
    }
}

/// Describes an error of the connection with its causes.
fn lost(error: &Error) -> String {
    let mut text = String::new();
    push(&mut text, &error.to_string());
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        // Some errors of the library repeat their cause.
        if !text.ends_with(&more) {
            text.push_str(": ");
            push(&mut text, &more);
        }
        cause = inner.source();
    }
    text
}

/// Classes of errors that depend on the values of a record: triggered action, cardinality, data, constraint, triggered
/// data change, WITH CHECK OPTION, limits such as the size of an entry of an index, and RAISE EXCEPTION.
const REFUSED: [&str; 12] = ["09", "20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0"];

/// Other classes after which the connection is still useful: features, end of a transaction, roll-back, statements,
/// objects in use.
const CONNECTED: [&str; 5] = ["0A", "2D", "40", "42", "55"];

/// Class of internal errors. A value of a record can cause one, and so can the server itself.
const INTERNAL: &str = "XX";

/// Maximum number of characters of a text of the server that are shown.
const SHOWN_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_errors_decide_about_records_and_the_connection() {
        let classes = |codes: &[&str], expected: (bool, bool)| {
            for code in codes {
                let class = class(&SqlState::from_code(code)).to_owned();
                let is_refused = REFUSED.contains(&class.as_str());
                let is_connected = is_refused || CONNECTED.contains(&class.as_str());
                assert_eq!((is_refused, is_connected), expected, "{code}");
            }
        };
        // Data, constraint, repeated key, RAISE EXCEPTION, WITH CHECK OPTION, size of an entry of an index.
        classes(&["22P02", "23505", "21000", "P0001", "44000", "54000"], (true, true));
        // Table, privilege, deadlock, serialization, lock, COMMIT in a transaction.
        classes(&["42P01", "42501", "40P01", "40001", "55P03", "2D000"], (false, true));
        // Connection, login, database, resources, shutdown, standby, input and output, internal, unknown.
        classes(
            &["08006", "28P01", "3D000", "53300", "57P01", "57014", "25006", "58030", "XX000", "", "?"],
            (false, false),
        );
    }

    #[test]
    fn texts_of_the_server_are_shortened_and_have_no_control_characters() {
        let mut text = String::new();
        push(&mut text, &format!("a\n\x1b{}", "é".repeat(SHOWN_MAX)));
        assert_eq!(text, format!("a  {}...", "é".repeat(SHOWN_MAX - 3)));
    }
}
