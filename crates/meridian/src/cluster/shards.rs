//! Shards of the cluster on this node: the key of their owners, and the thread that begins and ends their replicas.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broker::Node;
use cluster::meta::{CoreLog, Placement};
use cluster::{ClusterRouter, RouterCommand};
use consensus::{Config, LogGroup, Member};
use shardlog::{AgreementOwner, FOLLOW_AGAIN_MS, PlacedConfig, PlacedReplicas};

use super::Shared;
use crate::store::ShardsLog;

/// Time after which a replica that cannot begin is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// The last placement that the thread of the cluster router has passed on.
pub struct ShardPlacements {
    node: Arc<Node>,
    /// Version of the placement that was passed on; 0 before the first.
    version: u64,
    /// Thread of the replicas, on a core. It ends when this is dropped.
    replicas: Option<Sender<Arc<Placement>>>,
}

impl ShardPlacements {
    /// Passes on the placement when it has changed. Called after each turn of the cluster router.
    pub fn poll(&mut self, router: &ClusterRouter, shared: &Shared) {
        let Some(placement) = router.placement().filter(|placement| placement.version != self.version) else {
            return;
        };
        self.version = placement.version;
        self.node.set_owner_hash(placement.owner_key);
        shared.placement_known.known();
        if let Some(replicas) = &self.replicas {
            // The thread ends with the process only.
            let _ = replicas.send(placement.clone());
        }
    }
}

/// Parts of a node for the shards of its cluster, until it starts.
pub struct PreparedShards {
    /// Log of a core.
    pub log: Option<(CoreLog, ShardsLog)>,
    pub seed: u64,
}

impl PreparedShards {
    /// Starts the thread of the replicas, on a core. `clock` is the instant at which the node's time begins.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        self,
        node: &Arc<Node>,
        clock: Instant,
        shared: &Arc<Shared>,
    ) -> Result<(ShardPlacements, Option<JoinHandle<()>>), String> {
        let of_node = |replicas| ShardPlacements { node: node.clone(), version: 0, replicas };
        let Some((own, log)) = self.log else { return Ok((of_node(None), None)) };
        let ShardsLog { log, notifier, recovered, stored, file, reads } = log;
        let owner = {
            let (notifier, reads, shared) = (notifier.clone(), reads, shared.clone());
            move || AgreementOwner {
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
            group: Config::new(LogGroup(0), own.replica, Member { node: own.node }, self.seed),
            log,
            notifier,
            owner: Box::new(owner),
            store: Box::new(move |stored| file.write(stored)),
        };
        let replicas = PlacedReplicas::new(config, stored, recovered);
        // tidy: allow(unbounded-channel): the placement changes once for each replica that moves.
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
    placements: &Receiver<Arc<Placement>>,
    now: &dyn Fn() -> broker::Time,
) {
    let (mut placement, mut again, mut last_error): (Option<Arc<Placement>>, _, Option<String>) =
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
        let Some(placement) = &placement else { continue };
        let error = replicas.follow(now(), placement).err();
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
