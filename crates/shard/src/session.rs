//! A durable session.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::SessionUid;
use crate::inbound::Inbound;
use crate::limits::{Limits, QueueFull, QueueLimits};
use crate::message::NEVER;
use crate::queue::{LINK_PINNED_BYTES_MAX, LINK_PINNED_MAX, PINNED_MAX, Queue, Window};
use crate::shard_set::ShardSet;
use crate::subscriptions::Subscriptions;

/// State of a session.
///
/// **Invariant:** small, because a node holds millions of absent sessions. Rare fields are behind a pointer.
#[derive(Debug)]
pub(crate) struct Session {
    pub client_id: Box<str>,
    pub uid: SessionUid,
    /// Connection of the last Claim.
    pub connection: u64,
    /// Time at which the session ends; [`NEVER`] while it is owned, and with a Session Expiry Interval of
    /// `u32::MAX`.
    pub ends: u64,
    /// Number at which an empty queue continues. Meaningless while there is a queue.
    pub next: u64,
    pub subscriptions: Subscriptions,
    pub queue: Option<Box<Queue>>,
    pub extra: Option<Box<Extra>>,
    /// Grows with every Claim, from 1 on.
    pub epoch: u32,
    pub user: u32,
    /// Session Expiry Interval in seconds.
    pub expiry_s: u32,
    /// Era of the node that claimed it last. An owner whose era has ended is gone.
    pub era: u32,
    /// Receive Maximum of its client.
    pub receive_maximum: u16,
    pub bucket: u16,
    pub has_owner: bool,
    /// True when more of its queue had expired than is dropped at once: the next Tick continues.
    pub stuck: bool,
    /// True for the session of a linked cluster.
    pub is_link: bool,
}

const _: () = assert!(size_of::<Session>() <= 104);

#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub inbound: Inbound,
    pub will: Option<ArmedWill>,
    /// Walks by Topic Filter, to which the session has subscribed or was refused.
    pub walks: BTreeMap<Box<str>, Walk>,
    pub queue_limits: Option<QueueLimits>,
}

/// Progress of queueing the retained messages of a subscription.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Shards whose messages are all queued.
    pub done: ShardSet,
    /// Topic up to which messages of one more shard are queued; empty when there is no such shard.
    pub after: Box<str>,
}

/// The Will of the last Claim.
#[derive(Clone, Debug)]
pub(crate) struct ArmedWill {
    /// An encoded [`MessageView`](crate::MessageView).
    pub message: Arc<[u8]>,
    /// Will Delay Interval in seconds.
    pub delay_s: u32,
    /// Time at which it is due; [`NEVER`] while the session is owned.
    pub due: u64,
}

/// Returns the time `seconds` after `now`. `u32::MAX` seconds is never (3.1.2.11.2).
pub(crate) fn after(now: u64, seconds: u32) -> u64 {
    if seconds == u32::MAX { NEVER } else { now.saturating_add(u64::from(seconds) * 1000) }
}

impl Extra {
    pub fn is_empty(&self) -> bool {
        self.will.is_none() && self.inbound.is_empty() && self.walks.is_empty() && self.queue_limits.is_none()
    }
}

impl Session {
    /// Time at which the session needs attention: it ends, its Will is due, or the last Tick did not finish.
    /// [`NEVER`]: no deadline.
    pub fn deadline(&self) -> u64 {
        let will = self.will().map_or(NEVER, |will| will.due);
        if self.stuck { 0 } else { self.ends.min(will) }
    }

    pub fn will(&self) -> Option<&ArmedWill> {
        self.extra.as_ref()?.will.as_ref()
    }

    pub fn take_will(&mut self) -> Option<ArmedWill> {
        let will = self.extra.as_mut()?.will.take();
        self.drop_extra_if_empty();
        will
    }

    pub fn set_will(&mut self, will: ArmedWill) {
        self.extra.get_or_insert_default().will = Some(will);
    }

    /// Limits of the session. Its queue may have its own.
    pub fn limits(&self, common: &Limits) -> Limits {
        common.with(self.queue_limits())
    }

    /// Returns what may be open at a time, with the session's limits.
    pub fn window(&self, limits: &Limits) -> Window {
        let receive_maximum = self.receive_maximum.max(1);
        let (deliveries, bytes) = match self.is_link {
            true => (LINK_PINNED_MAX, LINK_PINNED_BYTES_MAX.min(limits.queue_bytes_max)),
            false => (PINNED_MAX, limits.queue_bytes_max),
        };
        Window { deliveries: deliveries.min(receive_maximum), bytes }
    }

    pub fn queue_limits(&self) -> Option<&QueueLimits> {
        self.extra.as_ref()?.queue_limits.as_ref()
    }

    /// Returns whether its queue refuses messages when it is full.
    pub fn refuses_messages(&self) -> bool {
        self.queue_limits().is_some_and(|limits| limits.full == QueueFull::Refuse)
    }

    pub fn set_queue_limits(&mut self, limits: Option<QueueLimits>) {
        if limits.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().queue_limits = limits;
            self.drop_extra_if_empty();
        }
    }

    pub fn inbound(&self) -> Option<&Inbound> {
        Some(&self.extra.as_ref()?.inbound)
    }

    pub fn inbound_mut(&mut self) -> &mut Inbound {
        &mut self.extra.get_or_insert_default().inbound
    }

    pub fn drop_extra_if_empty(&mut self) {
        self.extra.take_if(|extra| extra.is_empty());
    }

    pub fn walks(&self) -> impl Iterator<Item = (&str, &Walk)> {
        let walks = self.extra.as_ref().map(|extra| &extra.walks);
        walks.into_iter().flatten().map(|(filter, walk)| (&**filter, walk))
    }

    /// Stores a walk. At most `max` walks exist; none begins beyond them.
    pub fn set_walk(&mut self, filter: &str, walk: Walk, max: usize) {
        let walks = &mut self.extra.get_or_insert_default().walks;
        if walks.len() < max || walks.contains_key(filter) {
            walks.insert(filter.into(), walk);
        }
        self.drop_extra_if_empty();
    }

    pub fn end_walk(&mut self, filter: &str) {
        if let Some(extra) = &mut self.extra {
            extra.walks.remove(filter);
        }
        self.drop_extra_if_empty();
    }

    /// Returns the queue. It exists while it has entries, and while the session is owned.
    pub fn queue_mut(&mut self) -> &mut Queue {
        let next = self.next;
        self.queue.get_or_insert_with(|| Box::new(Queue::at(next)))
    }

    /// Frees memory that a session does not need while it is absent.
    pub fn shrink(&mut self) {
        match &mut self.queue {
            Some(queue) if queue.is_empty() => {
                self.next = queue.end();
                self.queue = None;
            }
            Some(queue) => queue.shrink(),
            None => {}
        }
    }
}
