//! The bridges of the node for the API.

use std::sync::Arc;

use api::{BridgeDrops, BridgeEntry, BridgeView, EntryRefused, Timestamp, WaitingMessages};
use auth::Authorship;
use bridge::{Counters, Dropped, Side, Traffic};
use bridges::{BridgeSettings, Bridges};
use definitions::{Definition, settings_to_json};
use serde_json::{Map, Value};

use crate::entry_views::{authorship, entry_refused, remove_messages, source};

/// Advice on finding out which bridges exist.
const LIST: &str = "`GET /api/v1/bridges` lists the bridges";

/// The bridges of a node with its name.
pub struct BridgeViews {
    pub bridges: Arc<Bridges>,
    pub node: String,
}

impl api::Bridges for BridgeViews {
    fn views(&self) -> Vec<BridgeView> {
        self.bridges.views().into_iter().map(|view| self.view(view)).collect()
    }

    fn bridge(&self, name: &str) -> Option<BridgeEntry> {
        self.bridges.registry().definitions().get(name).map(|bridge| entry(bridge))
    }

    fn put_bridge(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        let registry = self.bridges.registry();
        registry.put(name, settings, &authorship(by)).map_err(|error| entry_refused(error, LIST))
    }

    fn remove_bridge(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let removed = self.bridges.registry().remove(name).map_err(|error| entry_refused(error, LIST));
        let is_name = definitions::check_name(name).is_ok();
        remove_messages(removed, waiting, is_name, || self.bridges.remove_session(name))
    }
}

fn entry(bridge: &Definition<BridgeSettings>) -> BridgeEntry {
    BridgeEntry {
        name: bridge.settings.name.clone(),
        enabled: bridge.settings.enabled,
        source: source(bridge.source),
        settings: settings_to_json(&bridge.settings),
        author: bridge.author.clone(),
        changed_at: bridge.changed_ms.map(Timestamp::of_ms),
        fault: bridge.fault.clone(),
    }
}

impl BridgeViews {
    fn view(&self, bridge: bridges::BridgeView) -> BridgeView {
        let counters = &bridge.counters;
        let traffic = |from: Side| {
            let all = counters.messages.of(from).iter();
            all.fold(Traffic::default(), |sum, it| Traffic {
                messages: sum.messages + it.messages,
                bytes: sum.bytes + it.bytes,
            })
        };
        let refused = Side::ALL.iter().flat_map(|side| counters.refused.of(*side).values());
        let drops = drops(counters, bridge.queue.dropped);
        let (out, into) = (traffic(Side::Local), traffic(Side::Remote));
        BridgeView {
            node: self.node.clone(),
            configured: bridge.is_configured,
            source: bridge.source.map(source),
            enabled: bridge.is_enabled,
            connected: bridge.connected_s.is_some(),
            failing: bridge.is_failing,
            connected_s: bridge.connected_s,
            session: bridge.session,
            queued_messages: bridge.queue.messages,
            queued_bytes: bridge.queue.bytes,
            oldest_s: bridge.queue.oldest_s,
            in_flight_out: bridge.in_flight_out,
            in_flight_in: bridge.in_flight_in,
            messages_out: out.messages,
            bytes_out: out.bytes,
            messages_in: into.messages,
            bytes_in: into.bytes,
            refused: refused.sum(),
            postponed: counters.postponed.local + counters.postponed.remote,
            dropped: drops.sum(),
            dropped_by_cause: drops,
            reconnects: counters.reconnects,
            failed_attempts: counters.failed_attempts,
            remote_sessions_lost: counters.remote_sessions_lost,
            name: bridge.name,
            state: bridge.state,
            last_error: bridge.last_error,
        }
    }
}

fn drops(counters: &Counters, queue: u64) -> BridgeDrops {
    let of = |cause| Side::ALL.iter().map(|from| counters.dropped(*from, cause)).sum::<u64>();
    BridgeDrops {
        queue,
        too_large: of(Dropped::TooLarge),
        no_room: of(Dropped::BufferFull),
        not_ready: of(Dropped::NotReady),
        too_many_hops: of(Dropped::HopLimit),
        closes: of(Dropped::ClosesConnection),
        // The origin of a message counts for links only.
        looped: of(Dropped::OwnLoop) + of(Dropped::OwnOrigin),
        unmapped: of(Dropped::NotMapped) + of(Dropped::OtherOrigin),
    }
}
