//! Messages of QoS 0 for sessions that store them, such as those of actions: the shard of the session queues them as
//! messages of QoS 1.
//!
//! No publisher waits for such a message, so it is dropped and counted where another publisher would have to wait.
//!
//! **Invariant:** the connection gets such a message from its shard only.

use mqtt::QoS;

use super::Worker;
use crate::batch::SubscriptionIds;
use crate::ids::ShardId;
use crate::message::Shared;
use crate::overload::Level;
use crate::store::{Enqueue, Request};

impl Worker {
    /// Stores a message for the session of a connection.
    pub(super) fn store_qos0(&mut self, slot: u32, (retain, ids): (bool, &[u32]), shared: &mut Shared<'_>) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        let Some(session) = connection.session else { return };
        if let Some(why) = self.cannot_store_qos0(session.shard) {
            return self.dropped(slot, &shared.view, why);
        }
        let (message, subscription_ids) = (shared.message(), SubscriptionIds::of(ids));
        let entry = Enqueue { message, qos: QoS::AtLeastOnce, retain, subscription_ids, group: None };
        let enqueue =
            Request::Enqueue { session, entries: vec![entry], group: None, token: None, page: None };
        self.outbox.request(session.shard, enqueue);
    }

    /// Returns why the shard gets no message that no publisher waits for, and counts the message.
    fn cannot_store_qos0(&mut self, shard: ShardId) -> Option<&'static str> {
        if self.load.level() >= Level::High || self.node.is_overloaded() {
            self.counters.dropped_overload += 1;
            return Some("the node is overloaded");
        }
        if self.node.refusal().is_some() {
            self.counters.dropped_not_stored += 1;
            return Some("the log accepts no messages");
        }
        if self.full_shards().contains(shard) {
            self.counters.dropped_not_stored += 1;
            return Some("the shard of the session does not answer");
        }
        None
    }
}
