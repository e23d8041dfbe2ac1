//! Batches: many commands in one record.
//!
//! A batch is a header of 16 bytes (version, three bytes of 0, number of commands, the proposer's clock) and its
//! commands.

use crate::command::{Command, Decoded, RECORD_MAX, decode, encode};
use crate::error::{ApplyError, Malformed, malformed};
use crate::ids::{MESSAGE_OFFSET_MAX, MessageKey};
use crate::message::MessageView;
use crate::request_number::RequestNumber;
use crate::wire::{Reader, Writer};

/// Builder of a batch. Reused by [`BatchBuilder::begin`], it allocates no more than the largest batch needed.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
}

/// Location of a command in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Number of the command, from 0; its answer carries the same number.
    pub ordinal: u32,
    /// Offset of the command's message, if it has one. Together with the index of the record it is the
    /// [`MessageKey`].
    pub message: Option<usize>,
}

const VERSION: u8 = 1;
const HEADER: usize = 16;
/// Offset of the proposer's clock in a batch.
const NOW: usize = 8;
/// Size at which a batch is full. Up to [`MESSAGE_OFFSET_MAX`] there is room for the fields before the message of
/// any command.
const FULL: usize = MESSAGE_OFFSET_MAX - 256;

impl BatchBuilder {
    /// Creates an empty batch. `now_ms` is the proposer's clock.
    pub fn new(now_ms: u64) -> Self {
        Self::in_memory_of(Vec::new(), now_ms)
    }

    /// Creates an empty batch in existing memory, and discards the contents of that.
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

    /// Sets a later value of the proposer's clock while the batch is open.
    pub fn advance(&mut self, now_ms: u64) {
        self.bytes[NOW..HEADER].copy_from_slice(&now_ms.to_le_bytes());
    }

    /// Appends a command.
    ///
    /// # Panics
    /// Panics when the batch [`is_full`](Self::is_full).
    pub fn push(&mut self, command: &Command<'_>) -> Pushed {
        self.append(command, None)
    }

    /// Appends a command with the number of its request, so that it may come again after a change of leader.
    ///
    /// # Panics
    /// Panics when the batch [`is_full`](Self::is_full), and when the command cannot have such a number.
    pub fn push_numbered(&mut self, command: &Command<'_>, request: RequestNumber) -> Pushed {
        self.push_requested(command, Some(request))
    }

    /// Appends a command, with the number of its request if it has one.
    ///
    /// # Panics
    /// As [`Self::push_numbered`].
    #[inline]
    pub fn push_requested(&mut self, command: &Command<'_>, request: Option<RequestNumber>) -> Pushed {
        if let Some(request) = &request {
            assert!(request.fits(command), "{request:?} is no number of this command");
        }
        self.append(command, request)
    }

    #[inline]
    fn append(&mut self, command: &Command<'_>, request: Option<RequestNumber>) -> Pushed {
        assert!(!self.is_full(), "a full batch is closed");
        let message = encode(command, request, &mut self.bytes);
        assert!(message.is_none_or(|at| at < MESSAGE_OFFSET_MAX));
        self.count += 1;
        Pushed { ordinal: self.count - 1, message }
    }

    /// Returns whether no further command fits.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// Size of the batch in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of commands in the batch.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the batch, ready to be logged and applied.
    pub fn bytes(&mut self) -> &[u8] {
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        &self.bytes
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes();
        self.bytes
    }
}

/// A batch that was decoded completely, so that all of it can be applied.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub now: u64,
    pub commands: Vec<Decoded<'a>>,
}

impl<'a> Batch<'a> {
    /// Decodes a batch. `commands` is empty memory for its commands.
    pub fn decode(index: u64, bytes: &'a [u8], mut commands: Vec<Decoded<'a>>) -> Result<Self, ApplyError> {
        let fault = |command| move |Malformed { what }| ApplyError::Malformed { index, command, what };
        if bytes.len() > RECORD_MAX {
            return Err(fault(0)(Malformed { what: "length of a batch" }));
        }
        let (now, count) = decode_header(bytes).map_err(fault(0))?;
        // A command has 8 bytes at least. So a false count reserves no more than the size of the batch.
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

/// Clears the commands and keeps their memory for another batch.
pub(crate) fn reused<'a>(mut commands: Vec<Decoded<'_>>) -> Vec<Decoded<'a>> {
    /// Maximum number of commands whose memory is kept.
    const KEPT: usize = 1024;
    commands.clear();
    commands.shrink_to(KEPT);
    // Collecting a vector that was turned into an iterator reuses its memory; it is empty here.
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

/// Returns the commands of a batch, for readers of a log.
///
/// # Errors
/// [`ApplyError::Malformed`], with index 0.
pub fn commands(batch: &[u8]) -> Result<Vec<Command<'_>>, ApplyError> {
    Ok(Batch::decode(0, batch, Vec::new())?.commands.into_iter().map(|decoded| decoded.command).collect())
}

/// Returns the number of each command of a batch that has one.
///
/// # Errors
/// [`ApplyError::Malformed`], with index 0.
pub fn request_numbers(batch: &[u8]) -> Result<Vec<Option<RequestNumber>>, ApplyError> {
    Ok(Batch::decode(0, batch, Vec::new())?.commands.into_iter().map(|decoded| decoded.request).collect())
}

/// Returns the message at a key; `batch` is the payload of the record with the key's index.
///
/// # Errors
/// There is no message at that offset.
pub fn message_at(batch: &[u8], key: MessageKey) -> Result<MessageView<'_>, Malformed> {
    MessageView::decode(batch.get(key.offset()..).unwrap_or_default())
}
