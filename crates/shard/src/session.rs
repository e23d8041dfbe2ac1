//! A durable session.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::SessionUid;
use crate::inbound::Inbound;
use crate::message::NEVER;
use crate::queue::Queue;
use crate::subscriptions::Subscriptions;

/// **Invariant:** small: a node holds millions that are away. What only some have lies behind a pointer.
#[derive(Debug)]
pub(crate) struct Session {
    pub client_id: Box<str>,
    pub uid: SessionUid,
    /// Of the last Claim.
    pub connection: u64,
    /// When it ends; [`NEVER`] while it is owned, and with a Session Expiry Interval of `u32::MAX`.
    pub ends: u64,
    /// Where an empty queue goes on. Of no meaning while there is one.
    pub next: u64,
    pub subscriptions: Subscriptions,
    pub queue: Option<Box<Queue>>,
    pub extra: Option<Box<Extra>>,
    /// Grows with every Claim, from 1 on.
    pub epoch: u32,
    pub user: u32,
    /// Session Expiry Interval.
    pub expiry_s: u32,
    /// Of the shard at the last Claim: an owner of an earlier era is gone.
    pub era: u32,
    pub window: u16,
    pub bucket: u16,
    pub has_owner: bool,
    /// More of its queue had expired than is dropped at once: the next Tick goes on.
    pub stuck: bool,
}

const _: () = assert!(size_of::<Session>() <= 104);

#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub inbound: Inbound,
    pub will: Option<ArmedWill>,
    /// By Topic Filter, which the session has subscribed to or has been refused.
    pub walks: BTreeMap<Box<str>, Walk>,
}

/// How far the retained messages of a subscription have been queued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Shards of which all are queued, as bits.
    pub done: u16,
    /// Of another shard those up to this topic are; empty when there is no such shard.
    pub after: Box<str>,
}

/// The Will of the last Claim.
#[derive(Clone, Debug)]
pub(crate) struct ArmedWill {
    /// A [`MessageView`](crate::MessageView), encoded.
    pub message: Arc<[u8]>,
    /// Will Delay Interval.
    pub delay_s: u32,
    /// [`NEVER`] while the session is owned.
    pub due: u64,
}

/// When something that was said to last `seconds` is over. `u32::MAX` seconds is never (3.1.2.11.2).
pub(crate) fn after(now: u64, seconds: u32) -> u64 {
    if seconds == u32::MAX { NEVER } else { now.saturating_add(u64::from(seconds) * 1000) }
}

impl Extra {
    pub fn is_empty(&self) -> bool {
        self.will.is_none() && self.inbound.is_empty() && self.walks.is_empty()
    }
}

impl Session {
    /// When it is to be looked at: it ends, its Will is due, or the last look was not enough. [`NEVER`]: not at all.
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

    /// At most `max` walks; beyond them none begins.
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

    /// The queue, which is there as long as something is in it, and while the session is owned.
    pub fn queue_mut(&mut self) -> &mut Queue {
        let next = self.next;
        self.queue.get_or_insert_with(|| Box::new(Queue::at(next)))
    }

    /// Gives memory back that a session does not need while it is away.
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
