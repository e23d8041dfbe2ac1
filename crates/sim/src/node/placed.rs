//! Replicas of a node that begin and end as the placement says, like those of a core.

use std::sync::{Arc, Mutex};

use broker::ShardId;
use cluster::meta::{CoreLog, Placement, ShardLeaders};
use shardlog::{FOLLOW_AGAIN_MS, LogNotifier, PlacedConfig, PlacedReplicas, StoredReplicas};
use storage::{Log, RecoveredGroup};

use super::{Node, PendingRead, ReplicaSetup, agreement_owner};
use crate::context::Context;
use crate::schedule::{Event, MILLI};

/// Parts of a core for the replicas that a placement gives it.
#[derive(Clone)]
pub struct PlacedSetup {
    pub own: CoreLog,
    /// List of the replicas on the disk.
    pub stored: Arc<Mutex<StoredReplicas>>,
    /// Shards whose groups have the members of an epoch, as their leaders here have reported.
    pub reached: Arc<Mutex<Vec<(ShardId, u64)>>>,
}

/// Replicas of a process, and the last placement that it knows.
pub(super) struct Placed {
    replicas: PlacedReplicas,
    placement: Option<Arc<Placement>>,
    /// An event for the next step is scheduled.
    is_scheduled: bool,
}

impl Placed {
    /// Starts without replicas: the process knows no placement yet. `recovered` are the groups of replicas in the log.
    pub fn start(
        cx: &mut Context,
        setup: &ReplicaSetup,
        (log, notifier): (&Log, &Arc<LogNotifier>),
        recovered: Vec<RecoveredGroup>,
        reads: &Arc<Mutex<Vec<PendingRead>>>,
    ) -> Option<Self> {
        let PlacedSetup { own, stored, reached } = setup.placed.clone()?;
        let known = sync::lock(&stored).clone();
        let (setup, reads) = (setup.clone(), reads.clone());
        let config = PlacedConfig {
            own,
            group: consensus::Config { seed: cx.random.draw(), ..setup.config.clone() },
            log: log.clone(),
            notifier: notifier.clone(),
            owner: Box::new(move || {
                let reached = reached.clone();
                let report = move |shard, epoch| sync::lock(&reached).push((shard, epoch));
                agreement_owner(&setup, &reads, Box::new(report))
            }),
            store: Box::new(move |list| {
                *sync::lock(&stored) = list.clone();
                Ok(())
            }),
        };
        let replicas = PlacedReplicas::new(config, known, recovered, None);
        Some(Self { replicas, placement: None, is_scheduled: false })
    }
}

impl Node {
    /// Follows a placement, and the leaders that the shards should have.
    ///
    /// # Panics
    /// Panics when a replica cannot begin or end.
    pub fn follow(&mut self, cx: &mut Context, placement: &Arc<Placement>, leaders: &ShardLeaders) {
        let now = self.time(cx);
        let Some(placed) = &mut self.placed else { return };
        let is_new = placed.placement.as_ref().is_none_or(|known| known.version < placement.version);
        if is_new {
            placed.placement = Some(placement.clone());
            placed.replicas.follow(now, placement).expect("replicas begin and end");
        }
        placed.replicas.prefer(leaders);
        self.after_follow(cx);
    }

    /// Goes on with replicas that begin or end.
    pub(super) fn follow_again(&mut self, cx: &mut Context) {
        let now = self.time(cx);
        let Some(placed) = &mut self.placed else { return };
        placed.is_scheduled = false;
        if let Some(placement) = &placed.placement {
            placed.replicas.follow(now, placement).expect("replicas begin and end");
        }
        self.after_follow(cx);
    }

    fn after_follow(&mut self, cx: &mut Context) {
        if let Some(placed) = self.placed.as_mut().filter(|placed| placed.replicas.waits())
            && !std::mem::replace(&mut placed.is_scheduled, true)
        {
            let incarnation = self.incarnation;
            cx.after(FOLLOW_AGAIN_MS * MILLI, Event::Follow { incarnation });
        }
        self.send_posted(cx);
        self.check_log_queue(cx);
    }

    /// Version of the placement whose replicas the node has. `None` while some of them begin or end.
    pub fn placed_version(&self) -> Option<u64> {
        let placed = self.placed.as_ref().filter(|placed| !placed.replicas.waits())?;
        placed.placement.as_ref().map(|placement| placement.version)
    }
}
