//! Agreement of the nodes' clocks.

use link::{Lane, NodeId, Time};

use super::ClusterRouter;
use crate::clocks::ClockEvent;
use crate::features::CLOCKS;
use crate::wire::PeerMessage;

/// Advice for setting a clock.
const FIX: &str = "have NTP set it (timedatectl set-ntp true, or chronyc makestep), a restart is not needed";

impl ClusterRouter {
    /// Sets this node's wall clock, in milliseconds since 1970. It may be adjusted while the node runs. It stamps
    /// retained messages and is compared with other nodes' clocks.
    pub fn set_wall_clock(&mut self, now: Time, wall_ms: u64) {
        self.clocks.set(now, wall_ms);
        self.node.set_wall_clock(self.clocks.base());
    }

    /// Asks peers for their clocks. It runs together with requests for leases, so it causes no wake-up of its own.
    pub(super) fn ask_clocks(&mut self, now: Time) {
        let due: Vec<NodeId> = self.clocks.due(now).filter(|id| self.can(*id, CLOCKS)).collect();
        for id in due {
            if self.send_message(now, id, Lane::CONTROL, &PeerMessage::AskClock(now.0)) {
                self.clocks.asked(now, id);
            }
        }
    }

    pub(super) fn clock_asked(&mut self, now: Time, from: NodeId, stamp: u64) {
        let wall_ms = self.clocks.wall_ms(now);
        // A node without an answer asks again.
        self.send_message(now, from, Lane::CONTROL, &PeerMessage::Clock { stamp, wall_ms });
    }

    /// Reports which clocks are wrong, and which are right again.
    pub(super) fn judge_clocks(&mut self, now: Time) {
        let cores = self.membership.meta.roster().cores().count();
        let changes = self.clocks.judge(now, cores);
        self.node.set_cluster_clock(self.clocks.followed(now, cores));
        let Some(all) = changes else { return };
        self.node.set_wall_clock(self.clocks.base());
        for event in all {
            match event {
                ClockEvent::Off(ahead) => tracing::warn!(
                    ahead_ms = ahead,
                    "the clock of this machine is {} those of most other nodes: {FIX}. Until then certificates, tokens and bans expire here at \
                     the wrong time",
                    offset_text(ahead)
                ),
                ClockEvent::Right => {
                    tracing::info!("the clock of this machine agrees with those of most other nodes again")
                }
                ClockEvent::Differs { peer, ahead, is_sure } => {
                    let Some(peer) = self.peers.get(&peer) else { continue };
                    let node = &*peer.info.name;
                    let offset_text = offset_text(ahead);
                    if is_sure {
                        tracing::warn!(
                            node,
                            ahead_ms = ahead,
                            "the clock of node {node} is {offset_text} those of most nodes: {FIX}, there"
                        );
                    } else {
                        tracing::warn!(
                            node,
                            ahead_ms = ahead,
                            "the clock of node {node} is {offset_text} that of this node, and either may be the wrong one: {FIX}, there or here"
                        );
                    }
                }
                ClockEvent::Agrees(peer) => {
                    if let Some(peer) = self.peers.get(&peer) {
                        tracing::info!(
                            node = &*peer.info.name,
                            "the clock of the node agrees with that of this node again"
                        );
                    }
                }
            }
        }
    }
}

/// Formats an offset, such as `2.5 s behind` or `1.0 hours ahead of`.
fn offset_text(ahead: i64) -> String {
    let seconds = ahead.unsigned_abs() as f64 / 1e3;
    let much = match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7_200.0 => format!("{:.1} minutes", seconds / 60.0),
        ..172_800.0 => format!("{:.1} hours", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    };
    format!("{much} {}", if ahead < 0 { "behind" } else { "ahead of" })
}

#[cfg(test)]
mod tests {
    use super::offset_text;

    #[test]
    fn an_offset_is_shown_in_units_of_its_size() {
        let texts = [2_500, -60_000, 3_600_000, -7_200_000, 86_400_000, i64::MIN].map(offset_text);
        assert_eq!(
            texts[..5],
            [
                "2.5 s ahead of",
                "60.0 s behind",
                "60.0 minutes ahead of",
                "2.0 hours behind",
                "24.0 hours ahead of"
            ]
        );
        assert!(texts[5].ends_with(" days behind"));
    }
}
