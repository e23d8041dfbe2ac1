//! Reads of retained messages in a cluster whose shards have replicas: for new subscriptions, for walks of durable
//! sessions, and for operators.
//!
//! The worker that would host a shard on this node reads it. It first asks the leader of the shard for its index, and
//! waits until the replica here has applied that. Then the read finds everything that was acknowledged before, and its
//! pages need no other node. Without a replica the pages come from the leader, one at a time.
//!
//! One request for the index serves all reads that wait for it. A read that begins later waits for the next one.

mod frames;

use std::collections::BTreeMap;
use std::time::Duration;

use shard::{LANES_MAX, Mutation, NodeIncarnation, mutated};

use self::frames::{Answer, Origin, PageWanted, ToReader, ToShard};
pub(super) use self::frames::{is_for_reader, is_for_shard};
use super::Lanes;
use super::asking::Asking;
use super::frame::FrameError;
use crate::admin::{Reply, RetainedMessage, RetainedPage};
use crate::batch::WorkerCommand;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::message::Message;
use crate::peers::{FrameExtras, Port};
use crate::retained::{self, OWN_TOPICS, Page, PageBudget, Scan};
use crate::store::{Producer, ReadTicket};
use crate::worker::Worker;
use crate::worker::retained::list_page;
use crate::worker::shards::HostedShards;

/// A party that reads retained messages.
pub(in crate::worker) enum Reader {
    Connection(Scan),
    /// An operator lists messages of a shard. `last` is the last shard that may have some.
    List {
        shard: ShardId,
        last: ShardId,
        filter: Box<str>,
        after: Option<Box<str>>,
        limit: usize,
        reply: Reply<RetainedPage>,
    },
    /// An operator wants the message of a topic.
    Message {
        topic: Box<str>,
        reply: Reply<Option<Box<RetainedMessage>>>,
    },
}

/// Reads of a worker, and reads of other nodes from the shards of this worker.
#[derive(Default)]
pub(super) struct RetainedReads {
    /// Reads that wait until they may begin, by their numbers.
    waiting: BTreeMap<u64, Waiting>,
    /// Reads that wait for a page of a leader, by the numbers of their requests.
    pages: BTreeMap<u64, PageRead>,
    /// Number of the read of each connection, in one of the two.
    by_connection: BTreeMap<ConnectionId, u64>,
    /// Shards that reads wait for.
    shards: BTreeMap<ShardId, Waits>,
    /// Number of the last read or request.
    last: u64,
    /// A request may be ready to be sent.
    has_frames: bool,
    /// Requests of workers for the index of a shard that this node leads, the last one of each.
    served: BTreeMap<(ShardId, Producer), (Origin, ReadTicket)>,
    counters: ReadCounters,
}

/// Counters and a gauge of the reads of retained messages from shards of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Reads that wait now.
    pub waiting: u64,
    /// Requests for the index of a shard.
    pub indexes: u64,
    /// Reads that had to wait until the replica of this node had applied the index.
    pub behind: u64,
    /// Pages from replicas of this node.
    pub own_pages: u64,
    /// Pages from leaders on other nodes.
    pub leader_pages: u64,
    /// Requests that a node could not answer, because it did not lead the shard.
    pub unreadable: u64,
    /// Reads that ended with their connections before they had a page.
    pub dropped: u64,
}

impl ReadCounters {
    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            indexes: self.indexes + other.indexes,
            behind: self.behind + other.behind,
            own_pages: self.own_pages + other.own_pages,
            leader_pages: self.leader_pages + other.leader_pages,
            unreadable: self.unreadable + other.unreadable,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// A read that waits for shards.
struct Waiting {
    reader: Reader,
    /// Number of shards that it waits for.
    left: usize,
    /// Indexes of its shards, as far as they are known.
    indexes: Vec<(ShardId, u64)>,
    since: Time,
}

/// A read that waits for a page of a leader.
struct PageRead {
    reader: Reader,
    shard: ShardId,
    index: u64,
    since: Time,
    is_sent: bool,
}

/// Reads that wait for one shard.
#[derive(Default)]
struct Waits {
    /// Reads that the next request for the index serves.
    unasked: Vec<u64>,
    /// Request for the index that is not answered.
    asked: Option<Asked>,
    /// Reads that wait until the replica here has applied an index.
    applying: BTreeMap<u64, Vec<u64>>,
}

struct Asked {
    number: u64,
    reads: Vec<u64>,
    is_sent: bool,
}

/// Longest time that a read of an operator waits. The operator has given up before.
const OPERATOR_WAIT: Duration = Duration::from_secs(30);

impl Waits {
    fn is_empty(&self) -> bool {
        self.unasked.is_empty() && self.asked.is_none() && self.applying.is_empty()
    }
}

impl Reader {
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Connection(scan) => Some(scan.connection),
            Self::List { .. } | Self::Message { .. } => None,
        }
    }

    /// Filter, position in the shard, and limit of the next page.
    fn page_of(&self, shard: ShardId) -> (&str, Option<&str>, usize) {
        match self {
            Self::Connection(scan) => (&scan.filter, scan.after(shard), scan.limit),
            Self::List { filter, after, limit, .. } => (filter, after.as_deref(), *limit),
            // A Topic Name is a filter that matches itself.
            Self::Message { topic, .. } => (topic, None, 1),
        }
    }
}

impl RetainedReads {
    pub fn counters(&self) -> ReadCounters {
        ReadCounters { waiting: (self.waiting.len() + self.pages.len()) as u64, ..self.counters }
    }

    /// Returns whether requests may be ready to be sent.
    pub fn has_frames(&self) -> bool {
        self.has_frames
    }

    /// Sends everything that is not answered to a leader that is known now: an earlier one may not have got it.
    pub fn leader_known(&mut self, shard: ShardId) {
        let asked = self.shards.get_mut(&shard).and_then(|waits| waits.asked.as_mut());
        asked.into_iter().for_each(|asked| asked.is_sent = false);
        let pages = self.pages.values_mut().filter(|page| page.shard == shard);
        pages.for_each(|page| page.is_sent = false);
        self.has_frames |= !self.shards.is_empty() || !self.pages.is_empty();
    }

    /// Sends everything again in the name of another incarnation of this node.
    pub fn restart(&mut self) {
        let asked = self.shards.values_mut().filter_map(|waits| waits.asked.as_mut());
        asked.for_each(|asked| asked.is_sent = false);
        self.pages.values_mut().for_each(|page| page.is_sent = false);
        self.has_frames = true;
    }

    /// Takes the requests that can be sent, with the nodes and the shards that they are for.
    fn take_frames(&mut self, own: (u64, WorkerId), asking: &Asking) -> Vec<(u64, ShardId, Vec<u8>)> {
        let mut frames = Vec::new();
        if !std::mem::take(&mut self.has_frames) {
            return frames;
        }
        let (incarnation, worker) = (own.0, own.1.0);
        for (shard, waits) in &mut self.shards {
            let Some(leader) = asking.leader(*shard) else { continue };
            if waits.asked.is_none() && !waits.unasked.is_empty() {
                self.last += 1;
                self.counters.indexes += 1;
                let reads = std::mem::take(&mut waits.unasked);
                waits.asked = Some(Asked { number: self.last, reads, is_sent: false });
            }
            if let Some(Asked { number, is_sent: is_sent @ false, .. }) = &mut waits.asked {
                *is_sent = true;
                let origin = Origin { incarnation, worker, number: *number };
                frames.push((leader, *shard, frames::index_wanted(origin)));
            }
        }
        for (number, page) in self.pages.iter_mut().filter(|(_, page)| !page.is_sent) {
            let Some(leader) = asking.leader(page.shard) else { continue };
            page.is_sent = true;
            let (filter, after, limit) = page.reader.page_of(page.shard);
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            let wanted = PageWanted { index: page.index, limit, filter, after: after.unwrap_or_default() };
            let origin = Origin { incarnation, worker, number: *number };
            frames.push((leader, page.shard, frames::page_wanted(origin, &wanted)));
        }
        frames
    }

    /// Ends the read of a connection.
    fn drop_read(&mut self, connection: ConnectionId) {
        if let Some(number) = self.by_connection.remove(&connection) {
            self.waiting.remove(&number);
            self.pages.remove(&number);
            self.counters.dropped += 1;
        }
    }

    /// Adds a read that waits.
    fn insert(&mut self, number: u64, waiting: Waiting) {
        if let Some(connection) = waiting.reader.connection() {
            // A connection asks for one page at a time.
            self.by_connection.insert(connection, number);
        }
        self.waiting.insert(number, waiting);
    }

    /// Adds a read that wants a page of a leader.
    fn insert_page(&mut self, page: PageRead) {
        self.last += 1;
        if let Some(connection) = page.reader.connection() {
            self.by_connection.insert(connection, self.last);
        }
        self.pages.insert(self.last, page);
        self.has_frames = true;
    }

    /// Handles the index of a shard.
    fn index_known(&mut self, shard: ShardId, number: u64, index: u64) {
        let Some(waits) = self.shards.get_mut(&shard) else { return };
        let Some(asked) = waits.asked.take_if(|asked| asked.number == number) else { return };
        for read in &asked.reads {
            if let Some(waiting) = self.waiting.get_mut(read) {
                waiting.indexes.push((shard, index));
            }
        }
        waits.applying.entry(index).or_default().extend(asked.reads);
        self.has_frames |= !waits.unasked.is_empty();
    }

    /// Takes the reads whose shards have all applied their indexes.
    fn take_ready(&mut self, applied: impl Fn(ShardId) -> u64) -> Vec<Waiting> {
        let mut ready = Vec::new();
        for (shard, waits) in &mut self.shards {
            if waits.applying.is_empty() {
                continue;
            }
            let applied = applied(*shard);
            while let Some(first) = waits.applying.first_entry()
                && (*first.key() <= applied || mutated(Mutation::ReadStale))
            {
                for number in first.remove() {
                    let Some(waiting) = self.waiting.get_mut(&number) else { continue };
                    waiting.left -= 1;
                    if waiting.left == 0 {
                        ready.extend(self.waiting.remove(&number));
                    }
                }
            }
        }
        self.shards.retain(|_, waits| !waits.is_empty());
        for connection in ready.iter().filter_map(|waiting| waiting.reader.connection()) {
            self.by_connection.remove(&connection);
        }
        ready
    }

    /// Takes the read that waits for a page.
    fn take_page(&mut self, number: u64) -> Option<PageRead> {
        let page = self.pages.remove(&number)?;
        page.reader.connection().map(|connection| self.by_connection.remove(&connection));
        Some(page)
    }

    /// Handles that a node could not answer a request. It is sent again to the next leader, or after a while.
    fn not_answered(&mut self, shard: ShardId, number: u64) {
        self.counters.unreadable += 1;
        let asked = self.shards.get_mut(&shard).and_then(|waits| waits.asked.as_mut());
        if let Some(asked) = asked.filter(|asked| asked.number == number) {
            asked.is_sent = false;
        }
        if let Some(page) = self.pages.get_mut(&number) {
            page.is_sent = false;
        }
    }

    /// Forgets reads that nobody waits for, and sends requests again that were not answered. Called once a second.
    fn tend(&mut self, now: Time) {
        let is_over =
            |reader: &Reader, since: Time| reader.connection().is_none() && since.after(OPERATOR_WAIT) <= now;
        self.waiting.retain(|_, waiting| !is_over(&waiting.reader, waiting.since));
        self.pages.retain(|_, page| !is_over(&page.reader, page.since));
        let Self { waiting, shards, .. } = self;
        for waits in shards.values_mut() {
            waits.unasked.retain(|read| waiting.contains_key(read));
            waits.asked.iter_mut().for_each(|asked| asked.reads.retain(|read| waiting.contains_key(read)));
            waits.applying.retain(|_, reads| {
                reads.retain(|read| waiting.contains_key(read));
                !reads.is_empty()
            });
        }
        shards.retain(|_, waits| !waits.is_empty());
        self.has_frames = !self.shards.is_empty() || !self.pages.is_empty();
    }

    /// Ends the reads from a shard that this node does not lead any more. Returns them.
    fn end_shard(&mut self, shard: ShardId) -> Vec<(Producer, Origin)> {
        let ended = self.served.extract_if(.., |(of, _), _| *of == shard);
        ended.map(|((_, producer), (origin, _))| (producer, origin)).collect()
    }
}

/// Index up to which the replica of a shard on this node has applied its records. A shard without a replica is read
/// from its leader, which has applied the index that it has sent.
fn applied(shards: &HostedShards, shard: ShardId) -> u64 {
    shards.state(shard).map_or(u64::MAX, shard::Shard::applied)
}

impl Worker {
    /// Reads retained messages in a cluster. The answer comes when the shards have leaders.
    pub(in crate::worker) fn read_retained(&mut self, reader: Reader) {
        let now = self.clock.now();
        let (wanted, known) = match &reader {
            Reader::Connection(scan) => {
                let (first, last) = retained::shard_range(&scan.filter);
                let here = self.retained_here(first..=last);
                (here.filter(|shard| !scan.done.contains(*shard)).collect(), scan.indexes.clone())
            }
            Reader::List { shard, .. } => (vec![*shard], None),
            Reader::Message { topic, .. } => (vec![retained::shard_of(topic)], None),
        };
        let Some(lanes) = &mut self.lanes else { return };
        let reads = &mut lanes.retained;
        reads.last += 1;
        let (number, mut left) = (reads.last, 0);
        for shard in wanted.into_iter().filter(|shard| *shard != OWN_TOPICS) {
            let known = known.iter().flat_map(|known| known.iter()).find(|(of, _)| *of == shard);
            match known.map(|(_, index)| *index) {
                // The shard has a new replica here, if at all.
                Some(index) if applied(&self.shards, shard) < index => {
                    reads.shards.entry(shard).or_default().applying.entry(index).or_default().push(number);
                }
                Some(_) => continue,
                None => {
                    reads.shards.entry(shard).or_default().unasked.push(number);
                    reads.has_frames = true;
                }
            }
            left += 1;
        }
        let indexes = known.map_or(Vec::new(), |known| known.to_vec());
        if left == 0 {
            return self.begin_read(reader, indexes);
        }
        reads.insert(number, Waiting { reader, left, indexes, since: now });
    }

    /// Reads from shards that have applied everything that the read must find.
    pub(in crate::worker) fn begin_read(&mut self, mut reader: Reader, indexes: Vec<(ShardId, u64)>) {
        let behind = self.shards_behind(&reader, &indexes);
        if !behind.is_empty() {
            return self.wait_for_replicas(reader, indexes, &behind);
        }
        let lacks = |shard: ShardId| shard != OWN_TOPICS && self.shards.state(shard).is_none();
        let shard = match &mut reader {
            Reader::Connection(scan) => {
                scan.indexes = Some(indexes.as_slice().into());
                match self.first_unread(scan) {
                    Some(shard) if lacks(shard) => shard,
                    _ => {
                        let Reader::Connection(scan) = reader else { return };
                        self.count_read(|counters| counters.own_pages += 1);
                        return self.answer_scan(scan);
                    }
                }
            }
            Reader::List { shard, .. } if lacks(*shard) => *shard,
            Reader::Message { topic, .. } if lacks(retained::shard_of(topic)) => retained::shard_of(topic),
            Reader::List { .. } | Reader::Message { .. } => {
                self.count_read(|counters| counters.own_pages += 1);
                return match reader {
                    Reader::List { shard, last, filter, after, limit, reply } => {
                        reply(self.retained_list((shard, last), &filter, after.as_deref(), limit));
                    }
                    Reader::Message { topic, reply } => reply(self.retained_message(&topic).map(Box::new)),
                    Reader::Connection(_) => {}
                };
            }
        };
        let index = indexes.iter().find(|(of, _)| *of == shard).map_or(0, |(_, index)| *index);
        let since = self.clock.now();
        if let Some(lanes) = &mut self.lanes {
            lanes.retained.insert_page(PageRead { reader, shard, index, since, is_sent: false });
        }
    }

    /// Shards of a read whose replicas here have not applied their indexes. They began while it waited for other
    /// shards.
    fn shards_behind(&self, reader: &Reader, indexes: &[(ShardId, u64)]) -> Vec<(ShardId, u64)> {
        let is_done =
            |shard: ShardId| matches!(reader, Reader::Connection(scan) if scan.done.contains(shard));
        let is_behind = |(shard, index): &(ShardId, u64)| {
            !is_done(*shard) && applied(&self.shards, *shard) < *index && !mutated(Mutation::ReadStale)
        };
        indexes.iter().copied().filter(is_behind).collect()
    }

    fn wait_for_replicas(&mut self, reader: Reader, indexes: Vec<(ShardId, u64)>, behind: &[(ShardId, u64)]) {
        let since = self.clock.now();
        let Some(lanes) = &mut self.lanes else { return };
        let reads = &mut lanes.retained;
        reads.last += 1;
        for (shard, index) in behind {
            let waits = reads.shards.entry(*shard).or_default();
            waits.applying.entry(*index).or_default().push(reads.last);
        }
        reads.insert(reads.last, Waiting { reader, left: behind.len(), indexes, since });
    }

    /// The shard of this worker from which the next page of a scan begins.
    fn first_unread(&self, scan: &Scan) -> Option<ShardId> {
        let (first, last) = retained::shard_range(&scan.filter);
        self.retained_here(first..=last).find(|shard| !scan.done.contains(*shard))
    }

    fn count_read(&mut self, count: impl FnOnce(&mut ReadCounters)) {
        if let Some(lanes) = &mut self.lanes {
            count(&mut lanes.retained.counters);
        }
    }

    /// Ends the read of a connection that is closed.
    pub(in crate::worker) fn drop_scan(&mut self, connection: ConnectionId) {
        if let Some(lanes) = &mut self.lanes {
            lanes.retained.drop_read(connection);
        }
    }

    /// Begins the reads whose replicas have applied enough, and answers workers whose barriers have passed.
    pub(in crate::worker) fn resume_reads(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        let ready = lanes.retained.take_ready(|shard| applied(&self.shards, shard));
        let served = lanes.retained.served.extract_if(.., |(shard, _), (_, ticket)| {
            self.shards.get(*shard).is_some_and(|host| host.is_readable(*ticket))
        });
        let served: Vec<_> =
            served.map(|((shard, producer), (origin, _))| (shard, producer, origin)).collect();
        for Waiting { reader, indexes, .. } in ready {
            self.begin_read(reader, indexes);
        }
        for (shard, producer, origin) in served {
            let index = applied(&self.shards, shard);
            self.send_to_reader(producer, frames::index(origin, shard, index));
        }
    }

    /// Performs periodic work on reads, about once a second.
    pub(in crate::worker) fn tend_reads(&mut self) {
        let now = self.clock.now();
        if let Some(lanes) = &mut self.lanes {
            lanes.retained.tend(now);
        }
    }

    /// Sends the requests of reads on their way.
    pub(super) fn send_reads(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        let Lanes { own, asking, retained, .. } = &mut **lanes;
        for (node, shard, bytes) in retained.take_frames((own.incarnation, self.id), asking) {
            self.send_frame(node, Port::Shard(shard), bytes);
        }
    }

    fn send_to_reader(&mut self, producer: Producer, bytes: Vec<u8>) {
        self.send_frame(producer.owner.node, Port::Worker(WorkerId(producer.lane)), bytes);
    }

    /// Reports to readers that this node does not lead a shard any more.
    pub(super) fn end_reads(&mut self, shard: ShardId) {
        let ended = self.lanes.as_mut().map(|lanes| lanes.retained.end_shard(shard));
        for (producer, origin) in ended.into_iter().flatten() {
            self.send_to_reader(producer, frames::unreadable(origin, shard));
        }
    }

    /// Handles a request of a reader for a shard of this worker.
    pub(super) fn take_read(&mut self, node: u64, shard: ShardId, bytes: &[u8]) -> Result<(), FrameError> {
        let (origin, page) = match frames::decode_for_shard(bytes)? {
            ToShard::IndexWanted(origin) => (origin, None),
            ToShard::PageWanted(origin, wanted) => (origin, Some(wanted)),
        };
        if origin.worker >= LANES_MAX {
            return Err(FrameError);
        }
        let owner = NodeIncarnation { node, incarnation: origin.incarnation };
        let producer = Producer { owner, lane: origin.worker };
        let (Some(lanes), Some(host)) = (&mut self.lanes, self.shards.get_mut(shard)) else {
            self.send_to_reader(producer, frames::unreadable(origin, shard));
            return Ok(());
        };
        let Some(wanted) = page else {
            lanes.retained.served.insert((shard, producer), (origin, host.request_read()));
            return Ok(());
        };
        let answer = if host.state().applied() < wanted.index {
            frames::unreadable(origin, shard)
        } else {
            let now = self.clock.now();
            let (mut budget, mut found) = (PageBudget::of_messages(wanted.limit as usize), Vec::new());
            let after = Some(wanted.after).filter(|after| !after.is_empty());
            let after = retained::page_of(
                (host.state(), host.ahead_ms()),
                now,
                wanted.filter,
                after,
                &mut budget,
                &mut found,
            );
            let extras = FrameExtras { origins: self.node.origins(), ..FrameExtras::default() };
            frames::page(origin, shard, (now, extras), (&found, budget.examined()), after.as_deref())
        };
        self.send_to_reader(producer, answer);
        Ok(())
    }

    /// Handles the answer of a shard to a read of this worker.
    pub(super) fn take_read_answer(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let now = self.clock.now();
        let ToReader { incarnation, shard, number, answer } = frames::decode_for_reader(bytes, now)?;
        let Some(lanes) = self.lanes.as_mut().filter(|lanes| lanes.own.incarnation == incarnation) else {
            return Ok(());
        };
        match answer {
            Answer::Index(index) => {
                lanes.retained.counters.behind += u64::from(applied(&self.shards, shard) < index);
                lanes.retained.index_known(shard, number, index);
                self.resume_reads();
            }
            Answer::Page { examined, after, messages } => {
                if let Some(page) = lanes.retained.take_page(number).filter(|page| page.shard == shard) {
                    lanes.retained.counters.leader_pages += 1;
                    let after = Some(after).filter(|after| !after.is_empty()).map(Into::into);
                    self.page_read(page, examined as usize, after, messages);
                }
            }
            Answer::Unreadable => lanes.retained.not_answered(shard, number),
        }
        Ok(())
    }

    /// Passes a page of a leader to the reader.
    fn page_read(
        &mut self,
        PageRead { reader, shard, .. }: PageRead,
        examined: usize,
        after: Option<Box<str>>,
        messages: Vec<Message>,
    ) {
        let now = self.clock.now();
        match reader {
            Reader::Connection(Scan { connection, filter, done, indexes, .. }) => {
                let (first, last) = retained::shard_range(&filter);
                let is_next = |next: &ShardId| *next > shard && !done.contains(*next);
                let rest = || self.retained_here(first..=last).find(is_next);
                let next = after.map(|after| (shard, after));
                let next = next.or_else(|| rest().map(|shard| (shard, Box::default())));
                let page = Page { connection, messages, examined, next, indexes };
                self.outbox.post(connection.worker, WorkerCommand::Page(Box::new(page)));
            }
            Reader::List { last, reply, .. } => {
                let items = messages.iter().map(|message| retained::info(now, message)).collect();
                reply(list_page((shard, last), items, after));
            }
            Reader::Message { reply, .. } => {
                reply(messages.first().map(|message| Box::new(retained::whole(now, message))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardSet;
    use crate::peers::Leader;

    const SHARD: ShardId = ShardId(3);
    const OWN: NodeIncarnation = NodeIncarnation { node: 1, incarnation: 9 };
    const NOW: Time = Time(1_000);

    /// Reads of a worker, and the leaders that it knows.
    struct Worker {
        reads: RetainedReads,
        asking: Asking,
    }

    impl Worker {
        fn new() -> Self {
            Self { reads: RetainedReads::default(), asking: Asking::new(OWN, WorkerId(0), 4) }
        }

        fn leads(&mut self, node: u64, term: u64) {
            self.asking.begin(SHARD, Leader { node, term });
            self.reads.leader_known(SHARD);
        }

        /// Begins a read of one shard for a connection.
        fn read(&mut self, slot: u32) {
            self.reads.last += 1;
            let number = self.reads.last;
            self.reads.shards.entry(SHARD).or_default().unasked.push(number);
            self.reads.has_frames = true;
            let (reader, indexes) = (reader(slot), Vec::new());
            self.reads.insert(number, Waiting { reader, left: 1, indexes, since: NOW });
        }

        /// Nodes and numbers of the requests for an index that are sent now.
        fn sent(&mut self) -> Vec<(u64, u64)> {
            let frames = self.reads.take_frames((OWN.incarnation, WorkerId(0)), &self.asking);
            let number = |bytes: &[u8]| match frames::decode_for_shard(bytes) {
                Ok(ToShard::IndexWanted(origin)) => origin.number,
                other => panic!("{other:?}"),
            };
            frames.iter().map(|(node, _, bytes)| (*node, number(bytes))).collect()
        }

        /// Slots of the connections whose reads begin, with the index that they have.
        fn ready(&mut self, applied: u64) -> Vec<(u32, u64)> {
            let ready = self.reads.take_ready(|_| applied).into_iter();
            ready.map(|it| (it.reader.connection().map_or(0, |id| id.slot), it.indexes[0].1)).collect()
        }
    }

    fn connection(slot: u32) -> ConnectionId {
        ConnectionId { worker: WorkerId(0), slot, generation: 1 }
    }

    fn reader(slot: u32) -> Reader {
        let (done, limit) = (ShardSet::EMPTY, 10);
        let (connection, filter) = (connection(slot), "a".into());
        Reader::Connection(Scan { connection, filter, done, from: None, limit, indexes: None })
    }

    #[test]
    fn one_request_serves_the_reads_that_wait_and_later_ones_wait_for_the_next() {
        let mut worker = Worker::new();
        worker.read(1);
        worker.read(2);
        assert!(worker.sent().is_empty(), "nobody leads");
        worker.leads(7, 1);
        let [(7, first)] = worker.sent()[..] else { panic!("one request to the leader") };
        worker.read(3);
        assert!(worker.sent().is_empty(), "one request is on its way");
        worker.reads.index_known(SHARD, first, 50);
        assert!(worker.ready(49).is_empty(), "the replica is behind");
        assert_eq!(worker.ready(50), [(1, 50), (2, 50)]);
        let [(7, second)] = worker.sent()[..] else { panic!("one request to the leader") };
        worker.reads.index_known(SHARD, first, 70);
        assert!(worker.ready(99).is_empty(), "an answer that comes again serves no later read");
        worker.reads.index_known(SHARD, second, 60);
        assert_eq!(worker.ready(99), [(3, 60)]);
        assert_eq!(worker.reads.counters().waiting, 0);
        assert!(worker.reads.shards.is_empty() && worker.reads.by_connection.is_empty());
    }

    #[test]
    fn the_next_leader_is_asked_again() {
        let mut worker = Worker::new();
        worker.leads(7, 1);
        worker.read(1);
        let [(7, number)] = worker.sent()[..] else { panic!("one request to the leader") };
        worker.asking.link_lost(7);
        assert!(worker.sent().is_empty());
        worker.leads(8, 2);
        assert_eq!(worker.sent(), [(8, number)]);
        worker.reads.not_answered(SHARD, number);
        assert!(worker.sent().is_empty(), "it is asked again after a while");
        worker.reads.tend(NOW);
        assert_eq!(worker.sent(), [(8, number)]);
    }

    #[test]
    fn a_read_ends_with_its_connection_and_leaves_nothing() {
        let mut worker = Worker::new();
        worker.read(1);
        worker.read(2);
        worker.reads.drop_read(connection(1));
        worker.reads.drop_read(connection(1));
        worker.leads(7, 1);
        let [(7, number)] = worker.sent()[..] else { panic!("one request to the leader") };
        let (index, is_sent) = (5, false);
        let page = PageRead { reader: reader(3), shard: SHARD, index, since: NOW, is_sent };
        worker.reads.insert_page(page);
        worker.reads.drop_read(connection(3));
        worker.reads.index_known(SHARD, number, 50);
        assert_eq!(worker.ready(50), [(2, 50)]);
        let counters = worker.reads.counters();
        assert_eq!((counters.waiting, counters.dropped), (0, 2));
        worker.reads.tend(NOW);
        assert!(worker.reads.shards.is_empty() && worker.reads.by_connection.is_empty());
    }
}
