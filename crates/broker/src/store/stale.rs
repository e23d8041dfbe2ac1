//! Identities of messages of QoS 2 that no publisher sends again.

use std::collections::HashMap;

use shard::Shard;

use super::{Identity, session_id};
use crate::ids::{SessionId, ShardId};

/// Finds identities that shards of a node alone still remember after the end of their exchanges, by shard. The process
/// ended before the shards had forgotten them. Every second message of a Packet Identifier has the same identity, so a
/// later message would count as a repetition, and would be lost [MQTT-4.3.3-4].
pub fn stale_identities(shards: &[&Shard]) -> Vec<(ShardId, Identity)> {
    let by_id: HashMap<u16, &Shard> = shards.iter().map(|shard| (shard.id(), *shard)).collect();
    let mut stale = Vec::new();
    for shard in shards {
        let known =
            shard.known_identities().map(|shard::Identity { origin, number }| Identity { origin, number });
        for identity in known.filter(|identity| !identity.is_of_shard()) {
            let (owner, slot) = SessionId::of_origin(identity.origin);
            let session = by_id.get(&owner.0).and_then(|owner| owner.session_at_slot(slot));
            // The toggle of a Packet Identifier is the one of its present or next message.
            let is_current = session.is_some_and(|session| {
                session_id(owner, session.uid()).origin() == identity.origin
                    && session.has_toggle((identity.number / 2) as u16) == (identity.number % 2 == 1)
            });
            if !is_current {
                stale.push((ShardId(shard.id()), identity));
            }
        }
    }
    stale
}
