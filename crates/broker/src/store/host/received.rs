//! QoS 2 publishes of durable sessions that are received and not released [MQTT-4.3.3-10].

use mqtt::{PacketId, ReasonCode};
use shard::Command;

use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::batch::Token;
use crate::durability::Durability;
use crate::ids::{ConnectionId, SessionId, Time};
use crate::store::log::Condition;
use crate::store::{Completion, session_uid};

impl ShardHost {
    /// Remembers a publish before PUBREC is sent [MQTT-4.3.3-8].
    pub(super) fn receive(
        &mut self,
        now: Time,
        id: SessionId,
        packet_id: PacketId,
        (durability, token): (Durability, Token),
        out: &mut ShardOutput,
    ) {
        let session = session_uid(id);
        let Some(live) = self.live.get(&session) else {
            // The connection is closed, and nothing waits for the answer.
            return out.acknowledged.push((token, ReasonCode::Success));
        };
        if self.replica.condition() == Condition::Failed {
            return out.acknowledged.push((token, ReasonCode::ImplementationSpecificError));
        }
        let command = Command::Receive { session, epoch: live.epoch, packet_id };
        // In a cluster the next node must know that the exchange is open: it asks the shards to forget the message.
        if durability == Durability::Memory && !self.producers.is_asking() {
            // Bounded by the client's Receive Maximum: PUBCOMP waits.
            out.acknowledged.push((token, ReasonCode::Success));
            return self.propose(now, &command, Continuation::Nobody);
        }
        self.propose(now, &command, Continuation::Token(token));
    }

    /// Forgets a publish before PUBCOMP is sent [MQTT-4.3.3-11].
    pub(super) fn released_by_client(
        &mut self,
        now: Time,
        id: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        out: &mut ShardOutput,
    ) {
        let session = session_uid(id);
        let Some(live) = self.live.get(&session) else {
            return out.complete(Completion::Complete { connection, packet_id });
        };
        let command = Command::Released { session, epoch: live.epoch, packet_id };
        self.propose(now, &command, Continuation::Released { connection, packet_id });
    }

    /// Forgets a publish that was refused. With `flip`, some shards may have it, so its Packet Identifier's next
    /// message is a different one.
    pub(super) fn forget_received(&mut self, now: Time, id: SessionId, packet_id: PacketId, flip: bool) {
        let session = session_uid(id);
        let Some(epoch) = self.live.get(&session).map(|live| live.epoch) else { return };
        if flip {
            // A toggle flips with the release of a received publish.
            self.propose(now, &Command::Receive { session, epoch, packet_id }, Continuation::Nobody);
            return self.propose(now, &Command::Released { session, epoch, packet_id }, Continuation::Nobody);
        }
        self.propose(now, &Command::Refuse { session, epoch, packet_id }, Continuation::Nobody);
    }
}
