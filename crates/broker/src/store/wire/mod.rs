//! Encoding of requests to a shard that another node leads, and of what the shard sends back. Read [`encode_request`]
//! and [`ShardAnswer`] first.
//!
//! Each form begins with a byte that gives its kind, followed by its fields in the order of the types. The kinds are
//! constants in `request` and `answer`. A kind keeps its form for ever: another form gets another kind. Little endian:
//!
//! ```text
//! connection  slot u32, generation u32
//! session     shard u16, slot u32, generation u32; groups have the same form
//! identity    origin u64, number u64
//! text        length u32, UTF-8
//! option      u8 0, or u8 1 and the value
//! list        count u32, and the values
//! shards      length u8, and so many bytes of bits: the first shard has the lowest bit; the last byte is not 0
//! message     length u32, and the form of a message between nodes, see `peers::frame`
//! will        a message whose expiry and age count from its publication; its owner is in front of its properties, and
//!             the end of the owner's admission is an interval, see `WillOwner::sign_for_node`
//! token       u8: 0 none, 1 of a publisher, 2 of an append of a shard, 3 another
//! payers      key of the user u32, key of the mountpoint u32; 0 for nobody
//! ```
//!
//! Some fields stay on their node:
//! - A token. The shard answers the number of the request instead, and the receiver of the answer knows the token.
//! - The worker of a connection. A connection of a request belongs to the request's lane, that of an answer to the
//!   worker that receives it.
//! - Reservations of unusual arrangements of wildcards, and the [`Payers`] of a session, whom the leader finds by the
//!   owner of the Client Identifier. Those of a retained message travel as keys.
//! - [`Release::will_owner`]. The leader reads the owner from the stored Will.
//! - The node that has sent a copy of a retained message.
//! - The publisher of a message.
//!
//! Clocks of nodes differ, so times are sent as differences.
//!
//! **Invariant:** no bytes of another node cause a panic, or more memory than a small multiple of their length.
//!
//! [`Payers`]: crate::quota::Payers
//! [`Release::will_owner`]: crate::store::Release::will_owner

mod answer;
mod reader;
mod request;
#[cfg(test)]
mod tests;
mod writer;

use mqtt::ReasonCode;
pub(crate) use shard::Malformed;

pub(crate) use answer::{decode_answer, encode_answer};
pub(crate) use request::{decode_request, encode_request};

use super::{Completion, DueWill};
use crate::ids::{ShardId, Time, WorkerId};
use crate::origin::Origins;
use crate::quota::Quotas;

/// Origin of a request from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestOrigin {
    /// Number that stands for the remote worker and the shard on this worker. It is that of no worker of the node.
    pub lane: WorkerId,
    /// Shard that is asked.
    pub shard: ShardId,
    /// Number of the request on its lane.
    pub number: u64,
}

/// A message of a shard to a worker of another node.
#[derive(Debug)]
pub(crate) enum ShardAnswer {
    Completion(Completion),
    /// Result of the request with this number, in place of its token.
    Acknowledged {
        number: u64,
        reason: ReasonCode,
    },
    Will(Box<DueWill>),
    /// Requests up to this number are committed, except those that still wait for their own answer.
    Settled {
        number: u64,
    },
}

/// Decodes bytes as a request and as an answer, for the fuzz target.
pub fn decode_wire_form(bytes: &[u8]) {
    drop(decode_request(bytes, CHECKED, CHECKED_AT, &Quotas::default()));
    drop(decode_answer(bytes, CHECKED.lane, CHECKED_AT));
}

/// Checks that bytes are refused, or decoded to something that travels, for the fuzz target.
///
/// # Panics
/// If what was decoded cannot be encoded again, or is something else then.
pub fn check_wire_form(bytes: &[u8]) {
    let (mut again, quotas) = (Vec::new(), Quotas::default());
    if let Ok(request) = decode_request(bytes, CHECKED, CHECKED_AT, &quotas) {
        encode_request(&request, CHECKED_AT, &mut again);
        let decoded = decode_request(&again, CHECKED, CHECKED_AT, &quotas).expect("a request");
        assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
    }
    again.clear();
    if let Ok(answer) = decode_answer(bytes, CHECKED.lane, CHECKED_AT) {
        encode_answer(&answer, CHECKED_AT, Origins::Kept, &mut again);
        let decoded = decode_answer(&again, CHECKED.lane, CHECKED_AT).expect("an answer");
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
    }
}

/// Origin of requests that are checked.
const CHECKED: RequestOrigin = RequestOrigin { lane: WorkerId(99), shard: ShardId(3), number: 7 };
const CHECKED_AT: Time = Time(1 << 40);

fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}
