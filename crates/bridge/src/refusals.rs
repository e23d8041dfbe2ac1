//! Refusals of messages that may pass.

use std::collections::BTreeMap;

use mqtt::{PacketId, ReasonCode};

/// Number of connections that may end with the refusal of one message. The next one finds out whether the broker
/// accepts other messages.
const ATTEMPTS_MAX: u8 = 10;

/// Messages of one direction that their receiver refused for a reason that may pass.
///
/// Such a message gets no acknowledgement. Both connections end, and its sender's session sends it again. The next
/// connection begins with one message at a time, which keeps the order while the receiver refuses all.
///
/// A receiver may refuse one message for good with such a reason. So the message is given up after some attempts, but
/// only on a connection on which the receiver accepts another message. An outage gives none up.
///
/// **Invariant:** a message that is refused with 0x97 (Quota exceeded) is never given up. A full queue may last long,
/// while other topics go on.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Message that was refused last, and the number of connections in a row that ended with its refusal.
    last: Option<(PacketId, u8)>,
    mode: Mode,
    /// Messages that were refused on a connection of [`Mode::Trial`].
    refused: BTreeMap<PacketId, ReasonCode>,
    has_accepted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    All,
    /// One message at a time, until one is accepted.
    One,
    /// All messages, to find out whether another one than the last refused one is accepted.
    Trial,
}

/// Consequences of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// Message that is given up, with the reason for its sender.
    pub(crate) given_up: Option<(PacketId, ReasonCode)>,
    /// Reason to end both connections.
    pub(crate) ends: Option<ReasonCode>,
}

impl Refusals {
    /// Starts with new connections.
    pub(crate) fn attach(&mut self) {
        self.refused.clear();
        self.has_accepted = false;
        self.mode = match self.last {
            None => Mode::All,
            Some((_, count)) if count < ATTEMPTS_MAX => Mode::One,
            Some(_) => Mode::Trial,
        };
    }

    /// Notes that the sender has other messages with the same identifiers.
    pub(crate) fn sender_restarted(&mut self) {
        *self = Self::default();
    }

    /// Returns how many messages may be in flight to a receiver that accepts `receive_maximum`.
    pub(crate) fn window(&self, receive_maximum: u16) -> usize {
        if self.mode == Mode::One { 1 } else { usize::from(receive_maximum) }
    }

    /// Notes that a message was accepted, or refused for good.
    pub(crate) fn answered(&mut self, id: PacketId) -> Next {
        self.has_accepted = true;
        self.last.take_if(|(last, _)| *last == id);
        match self.mode {
            Mode::All => return Next::default(),
            Mode::One => self.mode = Mode::All,
            Mode::Trial => {}
        }
        self.judge(0)
    }

    /// Notes that a message was refused for a reason that may pass. `unanswered` messages have no other answer.
    pub(crate) fn refused(&mut self, id: PacketId, reason: ReasonCode, unanswered: usize) -> Next {
        if self.mode == Mode::Trial && reason != ReasonCode::QuotaExceeded {
            self.refused.insert(id, reason);
            return self.judge(unanswered);
        }
        let before = self.last.filter(|(last, _)| *last == id).map_or(0, |(_, count)| count);
        let count = if reason == ReasonCode::QuotaExceeded { 0 } else { before.saturating_add(1) };
        self.last = Some((id, count));
        Next { ends: Some(reason), ..Next::default() }
    }

    /// Decides on a connection of [`Mode::Trial`] about the message that was refused last.
    fn judge(&mut self, unanswered: usize) -> Next {
        if self.mode != Mode::Trial {
            return Next::default();
        }
        let refused = self.last.and_then(|(id, _)| Some((id, *self.refused.get(&id)?)));
        match refused {
            Some((id, _)) if self.has_accepted => {
                let given_up = self.refused.remove_entry(&id);
                (self.mode, self.last) = (Mode::All, None);
                // Others that were refused meanwhile must come again.
                let other = self.refused.first_key_value().map(|(id, reason)| (*id, *reason));
                self.last = other.map(|(id, _)| (id, 1));
                Next { given_up, ends: other.map(|(_, reason)| reason) }
            }
            // It was accepted now.
            None if self.last.is_none() => {
                self.mode = Mode::All;
                let ends = self.refused.first_key_value().map(|(_, reason)| *reason);
                Next { given_up: None, ends }
            }
            _ => {
                let is_all = unanswered > 0 && self.refused.len() >= unanswered;
                let ends = self.refused.first_key_value().filter(|_| is_all).map(|(_, reason)| *reason);
                Next { given_up: None, ends }
            }
        }
    }
}

/// Returns whether a refusal says little about the message: the receiver may accept it later. Meridian sends 0x80 when
/// a shard has no leader, and 0x97 when a disk or a queue is full.
pub(crate) fn may_pass(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::PacketIdentifierInUse
            | ReasonCode::QuotaExceeded
    )
}
