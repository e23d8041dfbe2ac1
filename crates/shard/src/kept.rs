//! Messages that a log keeps of a batch after its segment was freed.
//!
//! Format, little endian: version, 3 zeros, number of messages (`u32`); for each message its offset in the batch and
//! its position in this record (`u32` each), by ascending offset; the messages, each filled up to a multiple of 8.

use std::borrow::Cow;

use crate::error::{Malformed, malformed};
use crate::ids::{MESSAGE_ALIGN, MESSAGE_OFFSET_MAX, MessageKey};
use crate::message::MessageView;
use crate::wire::{Reader, Writer};

const VERSION: u8 = 1;
const HEADER: usize = 8;
const ENTRY: usize = 8;

/// The form in which a log has a batch.
#[derive(Clone, Copy, Debug)]
pub enum StoredBatch<'a> {
    Whole(&'a [u8]),
    /// A part of its messages, as [`Self::keep`] encoded them.
    Kept(&'a [u8]),
}

impl<'a> StoredBatch<'a> {
    /// Returns the message at a key; the batch is that of the record with the key's index.
    ///
    /// # Errors
    /// There is no message at that offset.
    pub fn message(self, key: MessageKey) -> Result<MessageView<'a>, Malformed> {
        MessageView::decode(self.bytes_from(key)?)
    }

    /// Encodes the messages at these keys, in ascending order. Leaves out those that are not there and returns their
    /// keys. No bytes: there is none.
    pub fn keep(self, keys: &[MessageKey]) -> (Vec<u8>, Vec<MessageKey>) {
        self.keep_shifted(keys, 0)
    }

    /// The same as [`Self::keep`], with times of a clock that is `ms` ahead.
    pub fn keep_shifted(self, keys: &[MessageKey], ms: u64) -> (Vec<u8>, Vec<MessageKey>) {
        Self::keep_with(&[self], keys, ms, |view, ms| view.shifted(ms))
    }

    /// The same as [`Self::keep`], with the messages of several forms of the same batch.
    pub fn keep_of(batches: &[Self], keys: &[MessageKey]) -> (Vec<u8>, Vec<MessageKey>) {
        Self::keep_with(batches, keys, 0, |view, ms| view.shifted(ms))
    }

    fn keep_with(
        batches: &[Self],
        keys: &[MessageKey],
        ms: u64,
        shift: fn(MessageView<'_>, u64) -> MessageView<'_>,
    ) -> (Vec<u8>, Vec<MessageKey>) {
        debug_assert!(keys.is_sorted_by(|one, next| one < next), "ascending, each once");
        let mut missing = Vec::new();
        let mut messages = Vec::new();
        for key in keys {
            let encode = |batch: &Self| {
                let bytes = batch.bytes_from(*key)?;
                let view = MessageView::decode(bytes)?;
                let len = view.encoded_len();
                Ok::<_, Malformed>(if ms == 0 {
                    Cow::Borrowed(&bytes[..len])
                } else {
                    Cow::Owned(shift(view, ms).to_bytes())
                })
            };
            match batches.iter().find_map(|batch| encode(batch).ok()) {
                Some(encoded) => messages.push((key.offset() as u32, encoded)),
                None => missing.push(*key),
            }
        }
        if messages.is_empty() {
            return (Vec::new(), missing);
        }
        let mut at = HEADER + messages.len() * ENTRY;
        let bytes: usize =
            messages.iter().map(|(_, message)| message.len().next_multiple_of(MESSAGE_ALIGN)).sum();
        let mut out = Vec::with_capacity(at + bytes);
        out.raw(&[VERSION, 0, 0, 0]);
        out.u32(messages.len() as u32);
        for (offset, message) in &messages {
            out.u32(*offset);
            out.u32(at as u32);
            at += message.len().next_multiple_of(MESSAGE_ALIGN);
        }
        for (_, message) in &messages {
            out.raw(message);
            out.resize(out.len().next_multiple_of(MESSAGE_ALIGN), 0);
        }
        (out, missing)
    }

    /// Returns the bytes of [`Self::Kept`] that [`Self::keep_shifted`] of another log made, as [`Self::keep`] makes
    /// them for a log whose clock is `ms` behind.
    ///
    /// # Errors
    /// The bytes are no kept messages.
    pub fn kept_shifted_back(kept: &'a [u8], index: u64, ms: u64) -> Result<Vec<u8>, Malformed> {
        let offsets = || table(kept).into_iter().flatten().map(|entry| field(entry, 0));
        let is_offset = |offset: usize| offset.is_multiple_of(MESSAGE_ALIGN) && offset < MESSAGE_OFFSET_MAX;
        table(kept)?;
        if !offsets().is_sorted_by(|one, next| one < next) || !offsets().all(is_offset) {
            return malformed("offsets of kept messages");
        }
        let keys: Vec<_> = offsets().map(|offset| MessageKey::new(index, offset)).collect();
        Ok(Self::keep_with(&[Self::Kept(kept)], &keys, ms, |view, ms| view.shifted_back(ms)).0)
    }

    /// Returns the bytes from a message on.
    fn bytes_from(self, key: MessageKey) -> Result<&'a [u8], Malformed> {
        let (bytes, at) = match self {
            Self::Whole(batch) => (batch, key.offset()),
            Self::Kept(kept) => (kept, position(kept, key.offset())?),
        };
        bytes.get(at..).map_or_else(|| malformed("offset of a message"), Ok)
    }
}

/// Returns the position of the message with this offset.
fn position(kept: &[u8], offset: usize) -> Result<usize, Malformed> {
    debug_assert!(offset < MESSAGE_OFFSET_MAX);
    let table = table(kept)?;
    match table.binary_search_by_key(&offset, |entry| field(entry, 0)) {
        Ok(found) => Ok(field(&table[found], 4)),
        Err(_) => malformed("a message that was not kept"),
    }
}

/// Returns the offset and position of each message.
fn table(kept: &[u8]) -> Result<&[[u8; ENTRY]], Malformed> {
    let mut reader = Reader::new(kept);
    if reader.u8()? != VERSION || reader.bytes(3)? != [0; 3] {
        return malformed("version of kept messages");
    }
    let count = reader.count(ENTRY)?;
    let (table, _) = reader.bytes(count * ENTRY)?.as_chunks::<ENTRY>();
    Ok(table)
}

fn field(entry: &[u8; ENTRY], at: usize) -> usize {
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BatchBuilder;
    use crate::command::Command;
    use crate::message::NEVER;
    use mqtt::QoS;

    fn view(payload: &[u8]) -> MessageView<'_> {
        MessageView {
            topic: "t",
            properties: &[],
            payload,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires: NEVER,
            received: 9,
            publisher_key: 3,
        }
    }

    fn batch(payloads: &[&[u8]]) -> (Vec<u8>, Vec<MessageKey>) {
        let mut builder = BatchBuilder::new(5);
        let mut keys = Vec::new();
        for payload in payloads {
            let pushed =
                builder.push(&Command::Publish { message: view(payload), wait: true, identity: None });
            keys.push(MessageKey::new(7, pushed.message.expect("a message")));
        }
        (builder.finish(), keys)
    }

    fn payload(stored: StoredBatch<'_>, key: MessageKey) -> Option<Vec<u8>> {
        stored.message(key).ok().map(|message| message.payload.to_vec())
    }

    #[test]
    fn kept_messages_are_found_by_their_keys_and_can_be_kept_again() {
        let (bytes, keys) = batch(&[b"one", b"", b"three", b"four and more"]);
        let whole = StoredBatch::Whole(&bytes);
        let (first, missing) = whole.keep(&[keys[0], keys[2], keys[3]]);
        assert!(missing.is_empty() && first.len() < bytes.len());
        let kept = StoredBatch::Kept(&first);
        let found: Vec<_> = keys.iter().map(|key| payload(kept, *key)).collect();
        let text = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(found, [text("one"), None, text("three"), text("four and more")]);
        let (again, missing) = kept.keep(&[keys[1], keys[2]]);
        assert_eq!(missing, [keys[1]]);
        assert_eq!(
            (payload(StoredBatch::Kept(&again), keys[2]), payload(StoredBatch::Kept(&again), keys[0])),
            (text("three"), None)
        );
        assert_eq!(kept.keep(&[keys[1]]), (Vec::new(), vec![keys[1]]));
        let second = whole.keep(&keys[1..2]).0;
        let both = StoredBatch::keep_of(&[kept, StoredBatch::Kept(&second)], &keys);
        assert_eq!(both, whole.keep(&keys), "the parts of two logs");
    }

    /// Version 1 of the format. These bytes do not change; a new version gets bytes of its own.
    #[test]
    fn the_bytes_of_kept_messages_are_these() {
        let (bytes, keys) = batch(&[b"one", b"two"]);
        let hex: String =
            StoredBatch::Whole(&bytes).keep(&keys).0.iter().map(|b| format!("{b:02x}")).collect();
        let header = "0100000002000000";
        let table = "30000000180000008000000048000000";
        let message = "01010100000000000300000000000000ffffffffffffffff09000000000000000300000000000000";
        assert_eq!(hex, format!("{header}{table}{message}746f6e6500000000{message}7474776f00000000"));
    }

    #[test]
    fn messages_are_kept_with_times_of_another_clock() {
        let mut builder = BatchBuilder::new(5);
        let message = MessageView { expires: 70, ..view(b"one") };
        let pushed = builder.push(&Command::Publish { message, wait: true, identity: None });
        let key = MessageKey::new(7, pushed.message.expect("a message"));
        let bytes = builder.finish();
        let (kept, _) = StoredBatch::Whole(&bytes).keep_shifted(&[key], 1_000);
        let found = StoredBatch::Kept(&kept).message(key);
        assert_eq!(found, Ok(MessageView { expires: 1_070, received: 1_009, ..message }));
        let (again, _) = StoredBatch::Kept(&kept).keep(&[key]);
        assert_eq!(again, kept);
        let (own, _) = StoredBatch::Whole(&bytes).keep(&[key]);
        assert_eq!(StoredBatch::kept_shifted_back(&kept, 7, 1_000).as_ref(), Ok(&own));
        assert!(StoredBatch::kept_shifted_back(&bytes, 7, 1_000).is_err());
        assert_eq!(view(b"").shifted(5).expires, NEVER);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let (bytes, keys) = batch(&[b"one", b"two"]);
        let (kept, _) = StoredBatch::Whole(&bytes).keep(&keys);
        for end in 0..kept.len() {
            let _: Option<Vec<u8>> = payload(StoredBatch::Kept(&kept[..end]), keys[1]);
            assert_eq!(payload(StoredBatch::Kept(&kept[..end.min(HEADER + ENTRY)]), keys[0]), None);
        }
        for at in 0..kept.len() {
            for byte in [0, 1, 0x7F, 0xFF] {
                let mut damaged = kept.clone();
                damaged[at] = byte;
                for key in &keys {
                    let _: Option<Vec<u8>> = payload(StoredBatch::Kept(&damaged), *key);
                }
            }
        }
    }
}
