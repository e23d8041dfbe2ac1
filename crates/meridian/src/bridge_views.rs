//! The bridges of the node for the API.

use std::sync::Arc;

use api::BridgeView;
use bridge::{Side, Traffic};
use bridges::Bridges;

/// The bridges of a node with its name.
pub struct BridgeViews {
    pub bridges: Arc<Bridges>,
    pub node: String,
}

impl api::Bridges for BridgeViews {
    fn views(&self) -> Vec<BridgeView> {
        self.bridges.views().into_iter().map(|view| self.view(view)).collect()
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
        let dropped = Side::ALL.iter().flat_map(|side| counters.dropped.of(*side));
        let (out, into) = (traffic(Side::Local), traffic(Side::Remote));
        BridgeView {
            node: self.node.clone(),
            enabled: bridge.is_enabled,
            connected: bridge.connected_s.is_some(),
            failing: bridge.is_failing,
            connected_s: bridge.connected_s,
            session: bridge.session,
            queued_messages: bridge.queued,
            in_flight_out: bridge.in_flight_out,
            in_flight_in: bridge.in_flight_in,
            messages_out: out.messages,
            bytes_out: out.bytes,
            messages_in: into.messages,
            bytes_in: into.bytes,
            refused: refused.sum(),
            dropped: dropped.sum(),
            reconnects: counters.reconnects,
            failed_attempts: counters.failed_attempts,
            remote_sessions_lost: counters.remote_sessions_lost,
            name: bridge.name,
            state: bridge.state,
            last_error: bridge.last_error,
        }
    }
}
