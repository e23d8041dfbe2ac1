//! Whether the clocks of the nodes agree.

use link::{Lane, NodeId, Time};

use super::Fabric;
use crate::clocks::Said;
use crate::features::CLOCKS;
use crate::wire::Word;

/// What sets a clock.
const FIX: &str = "have NTP set it (timedatectl set-ntp true, or chronyc makestep), a restart is not needed";

impl Fabric {
    /// This node's clock of the world says so now, milliseconds since 1970. What is retained is stamped by it, and the clocks of other nodes
    /// are held against it: it may be set while the node runs.
    pub fn set_world(&mut self, now: Time, world: u64) {
        self.clocks.set(now, world);
        self.node.set_world(self.clocks.base());
    }

    /// Peers are asked what their clocks say. Called when cores are asked for leases: it wakes nobody who sleeps.
    pub(super) fn ask_clocks(&mut self, now: Time) {
        let due: Vec<NodeId> = self.clocks.due(now).filter(|id| self.can(*id, CLOCKS)).collect();
        for id in due {
            if self.say(now, id, Lane::CONTROL, &Word::AskClock(now.0)) {
                self.clocks.asked(now, id);
            }
        }
    }

    pub(super) fn clock_asked(&mut self, now: Time, from: NodeId, stamp: u64) {
        let world = self.clocks.world(now);
        // Whoever gets no answer asks again.
        self.say(now, from, Lane::CONTROL, &Word::Clock { stamp, world });
    }

    /// Says which clocks are wrong, and which are right again.
    pub(super) fn judge_clocks(&mut self, now: Time) {
        let Some(all) = self.clocks.judge(now) else { return };
        self.node.set_world(self.clocks.base());
        for said in all {
            match said {
                Said::Off(ahead) => tracing::warn!(
                    ahead_ms = ahead,
                    "the clock of this machine is {} those of most other nodes: {FIX}. Until then certificates, tokens and bans end here at \
                     the wrong time",
                    apart(ahead)
                ),
                Said::Right => {
                    tracing::info!("the clock of this machine agrees with those of most other nodes again")
                }
                Said::Differs { peer, ahead, is_sure } => {
                    let Some(peer) = self.peers.get(&peer) else { continue };
                    let node = &*peer.info.name;
                    let apart = apart(ahead);
                    if is_sure {
                        tracing::warn!(
                            node,
                            ahead_ms = ahead,
                            "the clock of node {node} is {apart} those of most nodes: {FIX}, there"
                        );
                    } else {
                        tracing::warn!(
                            node,
                            ahead_ms = ahead,
                            "the clock of node {node} is {apart} that of this node, and either may be the wrong one: {FIX}, there or here"
                        );
                    }
                }
                Said::Agrees(peer) => {
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

/// `2.5 s behind`, `1.0 hours ahead of`.
fn apart(ahead: i64) -> String {
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
    use super::apart;

    #[test]
    fn a_difference_is_told_in_units_of_its_size() {
        let told = [2_500, -60_000, 3_600_000, -7_200_000, 86_400_000, i64::MIN].map(apart);
        assert_eq!(
            told[..5],
            [
                "2.5 s ahead of",
                "60.0 s behind",
                "60.0 minutes ahead of",
                "2.0 hours behind",
                "24.0 hours ahead of"
            ]
        );
        assert!(told[5].ends_with(" days behind"));
    }
}
