//! Memory of the messages that wait for connections of a worker, and the publishers that wait for them.

use slab::Slab;

use crate::backlog::{Backlog, Waiting};
use crate::batch::Token;
use crate::connection::Connection;
use crate::ids::Time;
use crate::message_queue::Awaited;
use crate::slots::Slots;
use crate::store::Enqueue;

/// Messages of a worker that wait for its connections. Each connection has its own queue; this type has the sums.
#[derive(Default)]
pub(super) struct Queues {
    /// Bytes of all waiting messages.
    bytes: u64,
    /// Messages that wait for queue slots of connections, with their tokens.
    pending: Slab<Pending>,
    backlog: Backlog,
}

/// State of a message that is being delivered: whether it waits for receivers without a free queue slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waits {
    #[default]
    No,
    /// The message has one receiver on this worker, which waits with the token of the message.
    ForOnlyReceiver,
    /// A record with this key counts the receivers.
    Record(u32),
}

/// A message that waits for `remaining` receivers.
struct Pending {
    token: Token,
    remaining: u32,
}

impl Queues {
    /// Bytes of messages that wait for connections of the worker.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes that a connection holds in its queue.
    pub fn hold(&mut self, connection: &mut Connection, bytes: usize) {
        connection.hold(bytes);
        self.bytes += bytes as u64;
    }

    /// Subtracts bytes that no longer wait in the queue of a connection.
    pub fn release(&mut self, connection: &mut Connection, bytes: usize) {
        self.bytes -= bytes as u64;
        connection.release(bytes);
    }

    /// Adds bytes that wait in the overflow of a connection. The connection holds them when they enter its queue.
    pub fn overflows(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Subtracts the bytes of a connection that has ended.
    pub fn forget(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    /// Removes the first waiting message from the queue of a connection.
    pub fn skip_waiting(&mut self, connection: &mut Connection, now: Time) -> Option<Enqueue> {
        let flow = connection.flow.as_mut()?;
        let entry = flow.queue.pop()?;
        flow.note_left(now);
        self.release(connection, entry.message.size());
        Some(entry)
    }

    /// Marks a connection as one with waiting messages.
    pub fn note_backlog(&mut self, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.marks.backlogged, true) {
            self.backlog.push(connection.id.slot, connection.id.generation);
        }
    }

    /// Adds a receiver for which a publisher waits. `waits` is the state of the message.
    pub fn await_receiver(&mut self, waits: &mut Waits, token: Token) -> Awaited {
        let key = match *waits {
            Waits::Record(key) => key,
            Waits::No | Waits::ForOnlyReceiver => self.pending.insert(Pending { token, remaining: 0 }) as u32,
        };
        *waits = Waits::Record(key);
        self.pending[key as usize].remaining += 1;
        Awaited::Record(key)
    }

    /// Removes a receiver that has a queue slot or is disconnected. Returns the token if it was the last one.
    pub fn receiver_done(&mut self, awaited: Awaited) -> Option<Token> {
        let key = match awaited {
            Awaited::Nobody => return None,
            Awaited::By(token) => return Some(token),
            Awaited::Record(key) => key,
        };
        let pending = self.pending.get_mut(key as usize)?;
        pending.remaining -= 1;
        (pending.remaining == 0).then(|| self.pending.remove(key as usize).token)
    }

    /// Slots and generations of the connections for which messages wait, or waited a moment ago.
    pub fn backlogged(&self) -> impl Iterator<Item = (u32, u32)> {
        self.backlog.iter()
    }

    /// Number of connections for which messages wait, or waited a moment ago.
    pub fn waiting_clients(&self) -> usize {
        self.backlog.len()
    }

    /// Continues the walk over the connections with waiting messages. Returns the result of the last complete walk.
    pub fn walk_backlog(&mut self, connections: &mut Slots<Connection>, now: Time) -> Waiting {
        self.backlog.step(|slot, generation| {
            let connection = connections.get_mut(slot, generation)?;
            let waiting = connection.waiting(now);
            connection.marks.backlogged = waiting.is_some();
            waiting
        });
        self.backlog.last()
    }

    /// Keys of the messages for which publishers wait, with the number of receivers that lack them.
    pub fn awaited(&self) -> impl Iterator<Item = (usize, u32)> {
        self.pending.iter().map(|(key, pending)| (key, pending.remaining))
    }
}
