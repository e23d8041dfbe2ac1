//! Many commands in one record.
//!
//! A batch is a header of 16 bytes (version, three of 0, number of commands, the proposer's clock) and its commands.

use crate::command::{Command, Decoded, RECORD_MAX, decode, encode};
use crate::error::{ApplyError, Malformed, malformed};
use crate::ids::{MESSAGE_OFFSET_MAX, MessageKey};
use crate::message::MessageView;
use crate::wire::{Reader, Writer};

/// Gathers commands. Reused by [`BatchBuilder::begin`], it allocates no more than the largest batch needed.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
}

/// Where a command lies in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Counts from 0; answers carry it.
    pub ordinal: u32,
    /// Where its message begins, if it has one: with the index of the record its [`MessageKey`].
    pub message: Option<usize>,
}

const VERSION: u8 = 1;
const HEADER: usize = 16;
/// Where in it the proposer's clock stands.
const NOW: usize = 8;
/// Between this and [`MESSAGE_OFFSET_MAX`] there is room for what precedes the message of any command.
const FULL: usize = MESSAGE_OFFSET_MAX - 256;

impl BatchBuilder {
    /// `now_ms` is the proposer's clock.
    pub fn new(now_ms: u64) -> Self {
        Self::in_memory_of(Vec::new(), now_ms)
    }

    /// In memory that is at hand; what is in it goes.
    pub fn in_memory_of(bytes: Vec<u8>, now_ms: u64) -> Self {
        let mut builder = Self { bytes, count: 0 };
        builder.begin(now_ms);
        builder
    }

    /// Begins another batch in the same memory.
    pub fn begin(&mut self, now_ms: u64) {
        self.bytes.clear();
        self.count = 0;
        let mut header = [0; HEADER];
        header[0] = VERSION;
        header[NOW..].copy_from_slice(&now_ms.to_le_bytes());
        self.bytes.raw(&header);
    }

    /// The proposer's clock went on while the batch was open.
    pub fn advance(&mut self, now_ms: u64) {
        self.bytes[NOW..HEADER].copy_from_slice(&now_ms.to_le_bytes());
    }

    /// # Panics
    /// On a batch that [`is_full`](Self::is_full).
    pub fn push(&mut self, command: &Command<'_>) -> Pushed {
        assert!(!self.is_full(), "a full batch is closed");
        let message = encode(command, &mut self.bytes);
        assert!(message.is_none_or(|at| at < MESSAGE_OFFSET_MAX));
        self.count += 1;
        Pushed { ordinal: self.count - 1, message }
    }

    /// Nothing more fits.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Commands so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The batch so far, ready to be logged and applied.
    pub fn bytes(&mut self) -> &[u8] {
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        &self.bytes
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes();
        self.bytes
    }
}

/// A batch that was read to its end, so that all of it can be applied.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub now: u64,
    pub commands: Vec<Decoded<'a>>,
}

impl<'a> Batch<'a> {
    /// `commands` is empty memory to put them in.
    pub fn decode(index: u64, bytes: &'a [u8], mut commands: Vec<Decoded<'a>>) -> Result<Self, ApplyError> {
        let fault = |command| move |Malformed { what }| ApplyError::Malformed { index, command, what };
        if bytes.len() > RECORD_MAX {
            return Err(fault(0)(Malformed { what: "length of a batch" }));
        }
        let (now, count) = decode_header(bytes).map_err(fault(0))?;
        // A command has 8 bytes at least, so a count that lies makes nobody reserve more than the batch.
        commands.reserve((count as usize).min(bytes.len() / 8));
        let mut at = HEADER;
        for command in 0..count {
            let (decoded, end) = decode(bytes, at).map_err(fault(command))?;
            commands.push(decoded);
            at = end;
        }
        if at != bytes.len() {
            return Err(fault(count)(Malformed { what: "bytes after the end" }));
        }
        Ok(Self { now, commands })
    }
}

/// The memory of commands that are done with, for those of another batch.
pub(crate) fn reused<'a>(mut commands: Vec<Decoded<'_>>) -> Vec<Decoded<'a>> {
    /// Larger ones are given back.
    const KEPT: usize = 1024;
    commands.clear();
    commands.shrink_to(KEPT);
    // Collecting what a vector was turned into takes place in its own memory; there is nothing in it.
    commands.into_iter().map(|_| unreachable!("it is empty")).collect()
}

fn decode_header(bytes: &[u8]) -> Result<(u64, u32), Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != VERSION || reader.bytes(3)? != [0; 3] {
        return malformed("version of a batch");
    }
    let count = reader.u32()?;
    Ok((reader.u64()?, count))
}

/// The commands of a batch, for those who look into a log.
///
/// # Errors
/// [`ApplyError::Malformed`], with 0 for the index.
pub fn commands(batch: &[u8]) -> Result<Vec<Command<'_>>, ApplyError> {
    Ok(Batch::decode(0, batch, Vec::new())?.commands.into_iter().map(|decoded| decoded.command).collect())
}

/// The message that stands at a key; `batch` is the payload of the record with the key's index.
///
/// # Errors
/// There is no message at that place.
pub fn message_at(batch: &[u8], key: MessageKey) -> Result<MessageView<'_>, Malformed> {
    MessageView::decode(batch.get(key.offset()..).unwrap_or_default())
}
