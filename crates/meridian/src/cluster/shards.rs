//! Shards of the cluster on this node: the key of their owners, and the thread that begins and ends their replicas.

use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broker::Node;
use cluster::meta::{CoreLog, Placement, ShardLeaders};
use cluster::{ClusterRouter, RouterCommand};
use consensus::{Config, LogGroup, Member};
use shardlog::{AgreementOwner, FOLLOW_AGAIN_MS, PlacedConfig, PlacedReplicas};

use super::Shared;
use crate::signals;
use crate::store::ShardsLog;

/// Time after which a replica that cannot begin is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// Time for which a core whose sessions are refused waits for a vote. The leader gives it one in two steps, each of 5 s
/// at most, and may lose its leadership between them.
const VOTE_WAIT: Duration = Duration::from_secs(20);

/// The last placement that the thread of the cluster router has passed on.
pub struct ShardPlacements {
    node: Arc<Node>,
    /// Versions of the placement, the roster and the known leaders that were passed on; 0 before the first.
    versions: (u64, u64, u64),
    /// Last [`KnownPlacement::refused_votes`] that was passed on.
    refused_votes: bool,
    /// Thread of the replicas, on a core. It ends when this is dropped.
    replicas: Option<Sender<KnownPlacement>>,
}

/// Placement of shards, and the nodes that should lead them.
struct KnownPlacement {
    placement: Arc<Placement>,
    leaders: ShardLeaders,
    /// This core votes in the meta group, although its sessions are refused.
    refused_votes: bool,
}

impl ShardPlacements {
    /// Passes on the placement and the preferred leaders when they may have changed. Called after each turn of the
    /// cluster router.
    pub fn poll(&mut self, now: link::Time, router: &ClusterRouter, shared: &Shared) {
        self.node.keep_ephemeral_sessions(router.keeps_ephemeral_sessions());
        self.node.read_queue_limits(router.reads_queue_limits());
        self.node.read_queue_refusals(router.reads_queue_refusals());
        let versions = router.placement_versions();
        // The status of the group is looked up on such a core only: this is called often.
        let refused_votes = router.has_other_state() && router.has_vote(now);
        let is_new = (versions, refused_votes) != (self.versions, self.refused_votes);
        let Some(placement) = router.placement().filter(|_| is_new) else { return };
        if versions.0 != self.versions.0 {
            self.node.set_owner_hash(placement.owner_key);
            // A core that cannot take part with its sessions serves nobody.
            if !router.has_other_state() {
                shared.placement_known.known();
            }
        }
        (self.versions, self.refused_votes) = (versions, refused_votes);
        if let Some(replicas) = &self.replicas {
            let leaders = router.preferred_leaders().unwrap_or_default();
            // The thread ends with the process only.
            let _ = replicas.send(KnownPlacement { placement: placement.clone(), leaders, refused_votes });
        }
    }
}

/// Parts of a node for the shards of its cluster, until it starts.
pub struct PreparedShards {
    /// Log of a core.
    pub log: Option<(CoreLog, ShardsLog)>,
    pub seed: u64,
    /// CONNACK may be sent before the client's Claim is answered.
    pub overlaps_connacks: bool,
    /// Messages here can have durability `memory`, so replicas report what they have in memory.
    pub reports_held: bool,
    /// Maximum number of bytes that a replica copies in a second.
    pub copy_rate: NonZeroU64,
}

impl PreparedShards {
    /// Starts the thread of the replicas, on a core. `clock` is the instant at which the node's time begins.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        self,
        node: &Arc<Node>,
        clock: broker::Instant,
        shared: &Arc<Shared>,
    ) -> Result<(ShardPlacements, Option<JoinHandle<()>>), String> {
        let Self { log, seed, overlaps_connacks, reports_held, copy_rate } = self;
        node.overlap_connacks(overlaps_connacks);
        let of_node = |replicas| ShardPlacements {
            node: node.clone(),
            versions: (0, 0, 0),
            refused_votes: false,
            replicas,
        };
        let Some((own, log)) = log else { return Ok((of_node(None), None)) };
        let ShardsLog { log, notifier, recovered, stored, own: own_state, file, reads } = log;
        let owner = {
            let (notifier, reads, shared) = (notifier.clone(), reads, shared.clone());
            move || AgreementOwner {
                transfer_permit: shared.transfer_permit.clone(),
                schedule_read: {
                    let (notifier, reads) = (notifier.clone(), reads.clone());
                    Box::new(move |shard, read| reads.read_for_agreement(shard, read, notifier.clone()))
                },
                report_reached: {
                    let shared = shared.clone();
                    Box::new(move |shard, epoch| {
                        report(&shared.sender, RouterCommand::ShardChanged(shard, epoch))
                    })
                },
            }
        };
        let config = PlacedConfig {
            own,
            group: Config {
                reports_held,
                copy_rate,
                ..Config::new(LogGroup(0), own.replica, Member { node: own.node }, seed)
            },
            log,
            notifier,
            owner: Box::new(owner),
            store: Box::new(move |stored| file.write(stored)),
        };
        let replicas = PlacedReplicas::new(config, stored, recovered, own_state);
        // tidy: allow(unbounded-channel): one message for each change of a replica, a node or a leader.
        let (sender, placements) = channel();
        let began = node.began();
        let now = move || broker::Time(began.0 + clock.elapsed().as_millis() as u64);
        let thread = critical::spawn("shards", move || follow(replicas, &placements, &now));
        let thread = thread.map_err(|error| format!("no thread for the replicas of shards: {error}"))?;
        Ok((of_node(Some(sender)), Some(thread)))
    }
}

fn report(sender: &OnceLock<transport::Sender<RouterCommand>>, command: RouterCommand) {
    if let Some(sender) = sender.get() {
        // A thread that has ended needs no reports.
        let _ = sender.send(command);
    }
}

/// Follows the placements until their sender ends.
fn follow(
    mut replicas: PlacedReplicas,
    placements: &Receiver<KnownPlacement>,
    now: &dyn Fn() -> broker::Time,
) {
    let (mut placement, mut again, mut last_error): (Option<KnownPlacement>, _, Option<String>) =
        (None, None, None);
    loop {
        let next = match again {
            Some(after) => placements.recv_timeout(after),
            None => placements.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(next) => placement = Some(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some(KnownPlacement { placement, leaders, refused_votes }) = &placement else { continue };
        let error = replicas.follow(now(), placement).err();
        replicas.prefer(leaders);
        if replicas.is_refused() {
            let error = error.unwrap_or_default();
            let next = |after| placements.recv_timeout(after).map(|known| known.refused_votes);
            match await_vote(*refused_votes, &next, &error, VOTE_WAIT) {
                // Without the votes of such cores, the others may have no majority.
                Vote::Given => {
                    tracing::error!("{error}. Until then this core only votes, and serves no client")
                }
                Vote::Refused => {
                    tracing::error!("{error}; the node stops");
                    // Without it, the node goes on without shards.
                    let _ = signals::stop_this_process();
                }
                Vote::Ended => {}
            }
            return;
        }
        again = match error.is_some() {
            _ if replicas.waits() => Some(Duration::from_millis(FOLLOW_AGAIN_MS)),
            true => Some(TRY_AGAIN),
            false => None,
        };
        if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(*error)) {
            tracing::error!("{error}");
        }
        last_error = error;
    }
}

/// Result of waiting for a vote of a core whose sessions are refused.
#[derive(Debug, PartialEq, Eq)]
enum Vote {
    Given,
    Refused,
    /// The node stops already.
    Ended,
}

/// Waits until a core whose sessions are refused has a vote. The leader may be about to give it one: it counts in the
/// majority then, and must not stop at that moment. `next` returns whether it has one at the next change.
fn await_vote(
    has_vote: bool,
    next: &dyn Fn(Duration) -> Result<bool, RecvTimeoutError>,
    error: &str,
    wait_max: Duration,
) -> Vote {
    if has_vote {
        return Vote::Given;
    }
    let seconds = wait_max.as_secs();
    tracing::error!("{error}. The node serves no client, and stops in {seconds} s unless it gets a vote");
    let until = Instant::now() + wait_max;
    loop {
        match next(until.saturating_duration_since(Instant::now())) {
            Ok(true) => return Vote::Given,
            Ok(false) => {}
            Err(RecvTimeoutError::Timeout) => return Vote::Refused,
            Err(RecvTimeoutError::Disconnected) => return Vote::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn wait(votes: &Receiver<bool>, wait_max: Duration) -> Vote {
        await_vote(false, &|after| votes.recv_timeout(after), "refused", wait_max)
    }

    #[test]
    fn a_core_whose_sessions_are_refused_waits_for_its_vote() {
        assert_eq!(await_vote(true, &|_| panic!("it has a vote"), "refused", VOTE_WAIT), Vote::Given);
        // The placement changes before the vote is given, and that takes a moment.
        let (sender, votes) = channel();
        sender.send(false).unwrap();
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            sender.send(true).unwrap();
            sender
        });
        assert_eq!(wait(&votes, VOTE_WAIT), Vote::Given);
        drop(late.join().unwrap());
        assert_eq!(wait(&votes, VOTE_WAIT), Vote::Ended, "the node stops meanwhile");
    }

    #[test]
    fn a_core_whose_sessions_are_refused_and_that_gets_no_vote_stops() {
        let (sender, votes) = channel();
        sender.send(false).unwrap();
        let (began, wait_max) = (Instant::now(), Duration::from_millis(200));
        assert_eq!(wait(&votes, wait_max), Vote::Refused);
        assert!(began.elapsed() >= wait_max, "other changes do not end the time");
        drop(sender);
    }
}
