//! Records, and the systems that they are written to.

use std::fmt;

use rules::{RenderError, Value};

/// An output of a rule in the form of its target: a list of fields, whose meaning only the target knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `None` is a value that is missing.
    pub fields: Vec<Option<Box<[u8]>>>,
    /// Number that is the same when the record is written again after a crash; different for different records. For
    /// idempotency keys.
    pub id: u128,
}

impl Record {
    /// Number of bytes of all fields.
    pub fn bytes(&self) -> usize {
        self.fields.iter().flatten().map(|field| field.len()).sum()
    }
}

/// System that an action writes to: a connector together with the settings of the action.
pub trait Target: Send + Sync {
    /// Renders an output of a rule. The id of the record is 0; the caller sets it.
    ///
    /// # Errors
    /// The output has no form that the target accepts. It is the fault of this output alone.
    fn render(&self, output: &Value) -> Result<Record, RenderError>;

    /// Names of the fields of a record, for people.
    fn field_names(&self) -> Vec<String>;

    /// Creates a sink. It connects when it writes for the first time.
    fn open(&self) -> Box<dyn Sink>;
}

/// A connection to another system.
pub trait Sink: Send {
    /// Writes records in their order. It blocks until the other system has confirmed all of them, or for the time
    /// limit of the connector.
    ///
    /// # Errors
    /// Not all records are written. Some may be.
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError>;

    /// Checks the connection without writing anything: name, address, TLS, login and, where possible, that the table
    /// or topic exists. Returns a sentence about the other system, such as its version.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn test(&mut self) -> Result<String, WriteError>;
}

/// Reason why records were not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The other system cannot be reached, is busy, or refuses for a reason that is not in the records. The same
    /// records are to be written again later.
    Unavailable(String),
    /// The other system has the request and has not confirmed it: it answers with an internal error, or not in time.
    /// The fault may be in one of the records, or the system may be down. The same records are to be written again
    /// later. The caller gives one up if it always fails while others are written.
    Failed(String),
    /// The other system refuses at least one of the records for good. The caller divides them until it knows which
    /// one.
    Refused(String),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) | Self::Failed(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for WriteError {}
