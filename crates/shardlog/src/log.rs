//! The log of a node, as the shards of its broker use it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use broker::{
    Condition, Message, Node, ReplicaStart, SHARDS, ShardId, ShardSet, StoreEvent, StoreLog, Wanted,
};
use shard::{MessageKey, Mutation, StoredBatch, mutated};
use storage::{Bodies, GroupId, Log, LogEvent, LogListener, Record, SegmentId, Shortage, Vacate};

use crate::agreement::AgreementInput;

/// Groups of the node's replica of the meta group: its entries, and its votes.
pub const META: [GroupId; 2] = [GroupId(0), GroupId(u16::MAX)];

/// Groups that a core can write although its disk is full, for as long as its reserve lasts: the meta group, for which
/// other cores wait, and the votes for shards, without which no other core could lead them.
pub const URGENT: [GroupId; 2 + SHARDS as usize] = {
    let mut groups = [META[0]; 2 + SHARDS as usize];
    groups[1] = META[1];
    let mut shard = 0;
    while shard < SHARDS {
        groups[2 + shard as usize] = votes_of(ShardId(shard));
        shard += 1;
    }
    groups
};

/// Returns the group of a shard's batches.
pub fn group_of(shard: ShardId) -> GroupId {
    GroupId(shard.0 + 1)
}

/// Returns the group of the votes of a shard's replica.
pub const fn votes_of(shard: ShardId) -> GroupId {
    GroupId(u16::MAX - 1 - shard.0)
}

/// Form of the records of a shard in the log: batches, or entries of an agreement that have a batch each.
///
/// A shard that was that of a node alone has batches up to an index, and entries after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordForm {
    /// Index of the last record that is a batch.
    pub batches_until: u64,
    /// Time in milliseconds by which the clock of these batches is behind that of the entries.
    pub batches_behind_ms: u64,
}

impl RecordForm {
    /// The shard belongs to a node alone.
    pub const ALONE: Self = Self { batches_until: u64::MAX, batches_behind_ms: 0 };
    /// The shard has belonged to a cluster from its beginning.
    pub const AGREED: Self = Self { batches_until: 0, batches_behind_ms: 0 };

    fn is_batch(self, index: u64) -> bool {
        index <= self.batches_until
    }

    /// Time in milliseconds by which the times of the messages of a record are behind.
    pub(crate) fn behind_ms(self, index: u64) -> u64 {
        if self.is_batch(index) { self.batches_behind_ms } else { 0 }
    }
}

/// Returns the record of a batch of a node alone.
pub(crate) fn batch_of_own(shard: ShardId, index: u64, batch: Arc<Vec<u8>>) -> Record {
    Record::Entry { group: group_of(shard), term: 1, index, payload: batch }
}

/// Returns whether a group is that of the votes of a shard's replica: then the shards belong to a cluster.
pub fn is_of_agreement(group: GroupId) -> bool {
    !META.contains(&group) && is_of_votes(group)
}

fn shard_of(group: GroupId) -> ShardId {
    ShardId(if is_of_votes(group) { u16::MAX - 1 - group.0 } else { group.0 - 1 })
}

fn is_of_votes(group: GroupId) -> bool {
    group.0 > u16::MAX / 2
}

/// Listener for the groups of [`META`]. It gets no events about room.
pub type MetaListener = Box<dyn Fn(LogEvent) + Send + Sync>;

/// Passes the events of the log to the node's shards and to the meta group. Shards without an agreement receive none
/// before the node exists.
#[derive(Default)]
pub struct LogNotifier {
    node: OnceLock<Weak<Node>>,
    meta: Mutex<MetaSink>,
    condition: AtomicU8,
    /// True if the node's shards have agreements with other nodes.
    are_agreed: bool,
    attached: Mutex<Attached>,
    /// Shared with the reads of each shard that have no result yet.
    reads: [Arc<()>; SHARDS as usize],
}

/// Shards whose agreements run on the node.
#[derive(Default)]
struct Attached {
    shards: ShardSet,
    /// Events for the others, which they get when they begin: a replica may have written, and waits for that.
    early: Vec<(ShardId, AgreementInput)>,
    /// Form of the records of shards that were those of this node alone.
    forms: BTreeMap<ShardId, RecordForm>,
    /// Shards whose replica has ended, with the number of their groups that are not dropped yet. Events until then are
    /// of that replica.
    dropping: BTreeMap<ShardId, usize>,
}

/// Receiver of the events of the groups of [`META`].
enum MetaSink {
    /// No listener is set yet: events are kept. A replica may write before the listener is set, and waits until
    /// the write is durable.
    Buffered(Vec<LogEvent>),
    Attached(MetaListener),
}

impl Default for MetaSink {
    fn default() -> Self {
        Self::Buffered(Vec::new())
    }
}

impl MetaSink {
    fn push(&mut self, event: LogEvent) {
        match self {
            Self::Buffered(events) => events.push(event),
            Self::Attached(listener) => listener(event),
        }
    }
}

impl LogNotifier {
    /// Creates the notifier for a node whose shards have agreements with other nodes. Those of `shards` begin with the
    /// node, the others by [`Self::start_replica`].
    pub fn of_agreements(shards: ShardSet) -> Self {
        let attached = Mutex::new(Attached { shards, ..Attached::default() });
        Self { are_agreed: true, attached, ..Self::default() }
    }

    fn deliver_to(&self, node: &Arc<Node>) {
        let mut attached = sync::lock(&self.attached);
        if self.node.set(Arc::downgrade(node)).is_err() {
            debug_assert!(false, "a log has one node");
        }
        attached.deliver(node);
    }

    /// Passes events of the log to the agreements of shards.
    fn agreement_events(&self, events: impl Iterator<Item = (ShardId, LogEvent)>) {
        let mut attached = sync::lock(&self.attached);
        attached.early.extend(events.map(|(shard, event)| (shard, AgreementInput::Log(event))));
        if let Some(node) = self.node() {
            attached.deliver(&node);
        }
    }

    /// Begins a replica on the node. It gets its earlier events.
    pub(crate) fn start_replica(&self, shard: ShardId, start: ReplicaStart) {
        let mut attached = sync::lock(&self.attached);
        attached.shards.insert(shard);
        if let Some(node) = self.node() {
            node.start_replica(start);
            attached.deliver(&node);
        }
    }

    /// Takes the events of a shard about durable parts and checkpoints, before its replica begins. Returns the number
    /// of parts, and the index of the last checkpoint.
    pub(crate) fn take_checkpoint_events(&self, shard: ShardId) -> (u64, Option<u64>) {
        let (mut parts, mut checkpoint) = (0, None);
        sync::lock(&self.attached).early.retain(|(of, input)| match input {
            AgreementInput::Log(LogEvent::PartsDurable(_, some)) if *of == shard => {
                parts += some;
                false
            }
            AgreementInput::Log(LogEvent::Checkpointed(_, index)) if *of == shard => {
                checkpoint = checkpoint.max(Some(*index));
                false
            }
            _ => true,
        });
        (parts, checkpoint)
    }

    /// Takes the events of a shard about durable entries, before its replica begins. Returns the index of the last one.
    pub(crate) fn take_durable(&self, shard: ShardId) -> u64 {
        let mut last = 0;
        sync::lock(&self.attached).early.retain(|(of, input)| match input {
            AgreementInput::Log(LogEvent::Durable(group, index))
                if *of == shard && *group == group_of(shard) =>
            {
                last = last.max(*index);
                false
            }
            _ => true,
        });
        last
    }

    #[cfg(test)]
    pub(crate) fn take_early(&self) -> Vec<(ShardId, AgreementInput)> {
        std::mem::take(&mut sync::lock(&self.attached).early)
    }

    /// Sets the form of the records of a shard whose replica is about to begin.
    pub(crate) fn set_form(&self, shard: ShardId, form: RecordForm) {
        let forms = &mut sync::lock(&self.attached).forms;
        match form {
            RecordForm::AGREED => drop(forms.remove(&shard)),
            _ => drop(forms.insert(shard, form)),
        }
    }

    fn form_of(&self, shard: ShardId) -> RecordForm {
        if !self.are_agreed {
            return RecordForm::ALONE;
        }
        sync::lock(&self.attached).forms.get(&shard).copied().unwrap_or(RecordForm::AGREED)
    }

    /// Ends a replica on the node.
    pub(crate) fn stop_replica(&self, shard: ShardId) {
        sync::lock(&self.attached).shards.remove(shard);
        if let Some(node) = self.node() {
            node.stop_replica(shard);
        }
    }

    /// Notes that the groups of a replica that has ended are about to be dropped.
    pub(crate) fn drops(&self, shard: ShardId) {
        sync::lock(&self.attached).dropping.insert(shard, 2);
    }

    /// Returns true, once, when the groups are dropped.
    pub(crate) fn has_dropped(&self, shard: ShardId) -> bool {
        let mut attached = sync::lock(&self.attached);
        let has_dropped = attached.dropping.get(&shard) == Some(&0);
        if has_dropped {
            attached.dropping.remove(&shard);
        }
        has_dropped
    }

    /// Returns whether reads of a shard have no result yet. The result for a replica must not reach the next one.
    pub(crate) fn has_reads(&self, shard: ShardId) -> bool {
        Arc::strong_count(&self.reads[usize::from(shard.0)]) > 1
    }

    fn dropped(&self, shard: ShardId) {
        let mut attached = sync::lock(&self.attached);
        attached.early.retain(|(of, _)| *of != shard);
        if let Some(groups) = attached.dropping.get_mut(&shard) {
            *groups = groups.saturating_sub(1);
        }
    }

    /// Passes something to the agreement of a shard.
    pub fn tell(&self, shard: ShardId, input: AgreementInput) {
        self.event(shard, input.into());
    }

    /// Sets the listener for the groups of [`META`]. It also receives all earlier events. Only the first call
    /// counts.
    pub fn set_meta_listener(&self, listener: MetaListener) {
        let mut sink = self.meta();
        if let MetaSink::Buffered(events) = &mut *sink {
            events.drain(..).for_each(&listener);
            *sink = MetaSink::Attached(listener);
        }
    }

    fn meta(&self) -> MutexGuard<'_, MetaSink> {
        sync::lock(&self.meta)
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.get()?.upgrade()
    }

    fn event(&self, shard: ShardId, event: StoreEvent) {
        if let Some(node) = self.node() {
            node.store_event(shard, event);
        }
    }

    fn condition(&self, condition: Condition) {
        self.condition.store(condition as u8, Ordering::Release);
        if let Some(node) = self.node() {
            node.store_condition(condition);
        }
    }
}

impl Attached {
    /// Passes the events of the attached shards to the node.
    fn deliver(&mut self, node: &Arc<Node>) {
        let Self { shards, early, .. } = self;
        let events = early.extract_if(.., |(shard, _)| shards.contains(*shard));
        node.store_events(events.map(|(shard, input)| (shard, input.into())));
    }
}

/// Forwards the events of the log to the workers' mailboxes.
pub struct EventForwarder(pub Arc<LogNotifier>);

impl LogListener for EventForwarder {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        for (group, index) in groups.iter().filter(|(group, _)| META.contains(group)) {
            self.0.meta().push(LogEvent::Durable(*group, *index));
        }
        let of_shards = groups.iter().filter(|(group, _)| !META.contains(group));
        if self.0.are_agreed {
            let event = |(group, index): &_| (shard_of(*group), LogEvent::Durable(*group, *index));
            return self.0.agreement_events(of_shards.map(event));
        }
        if let Some(node) = self.0.node() {
            let event = |(group, index): &_| (shard_of(*group), StoreEvent::Durable(*index));
            node.store_events(of_shards.map(event));
        }
    }

    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        let event = LogEvent::Checkpointed(group, index);
        if META.contains(&group) {
            return self.0.meta().push(event);
        }
        if self.0.are_agreed {
            return self.0.agreement_events([(shard_of(group), event)].into_iter());
        }
        self.0.event(shard_of(group), StoreEvent::Checkpointed(index));
    }

    /// Shards without an agreement pace their checkpoints themselves.
    fn parts_durable(&mut self, group: GroupId, parts: u64) {
        let event = LogEvent::PartsDurable(group, parts);
        if META.contains(&group) {
            self.0.meta().push(event);
        } else if self.0.are_agreed {
            self.0.agreement_events([(shard_of(group), event)].into_iter());
        }
    }

    fn bodies_durable(&mut self, group: GroupId, records: u64) {
        debug_assert!(!META.contains(&group), "the meta group has no bodies");
        self.0.event(shard_of(group), StoreEvent::KeptDurable(records));
    }

    fn dropped(&mut self, group: GroupId) {
        // A node that is no core any more drops its replica of the meta group.
        if !META.contains(&group) {
            self.0.dropped(shard_of(group));
        }
    }

    fn vacate(&mut self, vacate: Vacate) {
        if META.contains(&vacate.group) {
            return self.0.meta().push(LogEvent::Vacate(vacate));
        }
        if self.0.are_agreed {
            let shard = shard_of(vacate.group);
            return self.0.agreement_events([(shard, LogEvent::Vacate(vacate))].into_iter());
        }
        let Vacate { group, segment, entries, bodies } = vacate;
        let vacate = broker::Vacate { segment: segment.0, batches: entries, kept: bodies };
        self.0.event(shard_of(group), StoreEvent::Vacate(vacate));
    }

    /// Stores the condition. The log itself reports a full disk to operators, and not each time.
    fn full(&mut self, _: Shortage) {
        self.0.condition(Condition::Full);
    }

    fn room(&mut self) {
        self.0.condition(Condition::Good);
    }

    fn failed(&mut self, error: &storage::Error) {
        tracing::error!(
            %error,
            "the disk has failed; messages that have to be kept are no longer acknowledged. Check the disk, then restart the node"
        );
        self.0.meta().push(LogEvent::Failed(error.to_string()));
        if self.0.are_agreed {
            let event = |shard| (ShardId(shard), LogEvent::Failed(error.to_string()));
            self.0.agreement_events((0..SHARDS).map(event));
        }
        self.0.condition(Condition::Failed);
    }
}

/// Request of a shard to read messages back from the log.
#[derive(Debug)]
pub struct ReadRequest {
    shard: ShardId,
    messages: Requested,
    form: RecordForm,
    /// Counted by [`LogNotifier::has_reads`] until the shard has the result.
    _counted: Arc<()>,
}

#[derive(Debug)]
enum Requested {
    /// Messages for the shard.
    Wanted(Vec<Wanted>),
    /// Messages that the log keeps after their segment is freed.
    Kept { keys: Vec<MessageKey>, is_second_try: bool },
}

/// Schedules a read for later, on another thread: a disk may take long, and a reactor never waits.
type ReadScheduler = Box<dyn Fn(ReadRequest) + Send + Sync>;

/// Log access for all shards of a node.
pub struct ShardLog {
    log: Log,
    notifier: Arc<LogNotifier>,
    schedule_read: ReadScheduler,
}

impl ShardLog {
    /// Creates the log access. `schedule_read` is called on reactors and arranges that [`ReadRequest::run`] is
    /// called elsewhere.
    pub fn new(
        log: Log,
        notifier: Arc<LogNotifier>,
        schedule_read: impl Fn(ReadRequest) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { log, notifier, schedule_read: Box::new(schedule_read) })
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    fn schedule(&self, shard: ShardId, messages: Requested) {
        let counted = self.notifier.reads[usize::from(shard.0)].clone();
        let form = self.notifier.form_of(shard);
        (self.schedule_read)(ReadRequest { shard, messages, form, _counted: counted });
    }
}

impl ReadRequest {
    /// Reads the messages, and passes them to the shard or keeps them. Waits for the disk.
    pub fn run(self, log: &Log, notifier: &LogNotifier) {
        let event = match self.messages {
            Requested::Wanted(wanted) => StoreEvent::Read(read(log, self.shard, wanted, self.form)),
            Requested::Kept { keys, is_second_try } => {
                keep(log, self.shard, &keys, (is_second_try, self.form))
            }
        };
        notifier.event(self.shard, event);
    }

    /// Ends the request like [`Self::run`] on a disk that fails to read: for the simulator.
    pub fn fail(self, notifier: &LogNotifier) {
        let event = match self.messages {
            Requested::Wanted(wanted) => {
                StoreEvent::Read(wanted.into_iter().map(|wanted| (wanted, None)).collect())
            }
            Requested::Kept { keys, .. } => StoreEvent::Kept { records: 0, failed: keys },
        };
        notifier.event(self.shard, event);
    }

    /// Returns whether all messages are requested for the first time.
    pub fn is_first_try(&self) -> bool {
        match &self.messages {
            Requested::Wanted(wanted) => wanted.iter().all(|wanted| !wanted.is_second_try),
            Requested::Kept { is_second_try, .. } => !is_second_try,
        }
    }
}

/// Reads what the log has of a batch; `None` where the disk cannot return it.
fn read_batch(
    log: &Log,
    shard: ShardId,
    index: u64,
    (is_second_try, form): (bool, RecordForm),
) -> Option<Bodies> {
    let read = log.read_bodies(group_of(shard), index);
    // Of a node alone, the entry of this index is the batch, also if the kept messages are damaged.
    let read = read.or_else(|error| match form.is_batch(index) {
        false => Err(error),
        true => log.read(group_of(shard), index).map(Bodies::InEntry).map_err(|_| error),
    });
    match read {
        Ok(bodies) => Some(bodies),
        Err(error) => {
            let shard = shard.0;
            if is_second_try {
                tracing::error!(%error, shard, index, "messages cannot be read back from the log");
            } else {
                tracing::debug!(%error, shard, index, "messages not found in the log; reading them again");
            }
            None
        }
    }
}

/// Returns what was read of the record with this index, as a batch.
pub fn stored(bodies: &Bodies, index: u64, form: RecordForm) -> StoredBatch<'_> {
    match bodies {
        Bodies::InEntry(payload) if !form.is_batch(index) => {
            StoredBatch::Whole(consensus::entry_command(payload).unwrap_or_default())
        }
        Bodies::InEntry(payload) => StoredBatch::Whole(payload),
        Bodies::Kept(payload) => StoredBatch::Kept(payload),
    }
}

fn read(log: &Log, shard: ShardId, wanted: Vec<Wanted>, form: RecordForm) -> Vec<(Wanted, Option<Message>)> {
    // Messages that were published together are in one record.
    let mut batches: HashMap<u64, Option<Bodies>> = HashMap::new();
    let read = wanted.into_iter().map(|wanted| {
        let index = wanted.key.index();
        let batch = batches
            .entry(index)
            .or_insert_with(|| read_batch(log, shard, index, (wanted.is_second_try, form)));
        let view = batch.as_ref().and_then(|batch| stored(batch, index, form).message(wanted.key).ok());
        (wanted, view.map(|view| Message::of_stored(&view.shifted(form.behind_ms(index)))))
    });
    let mut read: Vec<_> = read.collect();
    if mutated(Mutation::WrongBody)
        && let [(_, first), .., (_, last)] = &mut read[..]
    {
        std::mem::swap(first, last);
    }
    read
}

/// Appends the messages to the log again, except those of batches that the disk cannot return.
fn keep(
    log: &Log,
    shard: ShardId,
    keys: &[MessageKey],
    (is_second_try, form): (bool, RecordForm),
) -> StoreEvent {
    let keys = if mutated(Mutation::KeepFirst) { &keys[..keys.len().min(1)] } else { keys };
    let (mut failed, mut bodies) = (Vec::new(), Vec::new());
    for keys in keys.chunk_by(|one, next| one.index() == next.index()) {
        let index = keys[0].index();
        let Some(batch) = read_batch(log, shard, index, (is_second_try, form)) else {
            failed.extend_from_slice(keys);
            continue;
        };
        // With their own times: the form says how the log's messages of this index are read.
        let (payload, missing) = stored(&batch, index, form).keep(keys);
        if !missing.is_empty() {
            tracing::error!(shard = shard.0, ?missing, "messages are not in the log and are lost");
        }
        if !payload.is_empty() {
            bodies.push((index, payload.into()));
        }
    }
    let records = bodies.len() as u64;
    log.append_bodies(group_of(shard), bodies);
    StoreEvent::Kept { records, failed }
}
impl StoreLog for ShardLog {
    fn connect(&self, node: &Arc<Node>) {
        self.notifier.deliver_to(node);
    }

    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>) {
        self.log.append([batch_of_own(shard, index, batch)]);
    }

    fn part(&self, shard: ShardId, checkpoint: u64, part: u32, bytes: Vec<u8>) {
        let payload = bytes.into();
        self.log.append([Record::Part { group: group_of(shard), part, checkpoint, payload }]);
    }

    fn checkpointed(&self, shard: ShardId, checkpoint: u64) {
        self.log.append([Record::Done { group: group_of(shard), checkpoint }]);
    }

    fn read(&self, shard: ShardId, wanted: Vec<Wanted>) {
        self.schedule(shard, Requested::Wanted(wanted));
    }

    fn keep(&self, shard: ShardId, keys: Vec<MessageKey>, is_second_try: bool) {
        self.schedule(shard, Requested::Kept { keys, is_second_try });
    }

    fn append_bodies(&self, shard: ShardId, bodies: Vec<(u64, Vec<u8>)>) {
        let form = self.notifier.form_of(shard);
        let own_form = |(index, payload): (u64, Vec<u8>)| {
            // The log's messages of these batches have the times of a node alone.
            let payload = match form.behind_ms(index) {
                0 => payload,
                ms => StoredBatch::kept_shifted_back(&payload, index, ms).unwrap_or(payload),
            };
            (index, payload.into())
        };
        let bodies = bodies.into_iter().map(own_form).collect();
        self.log.append_bodies(group_of(shard), bodies);
    }

    fn has_bodies(&self, shard: ShardId, index: u64) -> bool {
        self.log.has_bodies(group_of(shard), index)
    }

    fn vacated(&self, shard: ShardId, segment: u64) {
        if let Err(refused) = self.log.vacated(group_of(shard), SegmentId(segment)) {
            tracing::error!(%refused, shard = shard.0, segment, "segment is not freed: the group still needs it");
        }
    }

    fn report_live(&self, shard: ShardId, bytes: u64) {
        self.log.report_live(group_of(shard), bytes);
    }

    fn condition(&self) -> Condition {
        match self.notifier.condition.load(Ordering::Acquire) {
            0 => Condition::Good,
            1 => Condition::Full,
            _ => Condition::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that votes alone does so when it begins, and the log may report that before the listener is set.
    #[test]
    fn events_before_the_listener_is_set_are_delivered_in_order() {
        let notifier = Arc::new(LogNotifier::default());
        let mut events = EventForwarder(notifier.clone());
        let [entries, votes] = META;
        events.durable(&[(entries, 7), (GroupId(3), 1), (votes, 1)]);
        events.checkpoint_durable(entries, 7);
        let vacate = Vacate { group: entries, segment: SegmentId(1), entries: Some((1, 5)), bodies: vec![] };
        events.vacate(vacate.clone());
        let all = Arc::new(Mutex::new(Vec::new()));
        let recorder = all.clone();
        notifier.set_meta_listener(Box::new(move |event| recorder.lock().unwrap().push(event)));
        let before = [
            LogEvent::Durable(entries, 7),
            LogEvent::Durable(votes, 1),
            LogEvent::Checkpointed(entries, 7),
            LogEvent::Vacate(vacate),
        ];
        assert_eq!(*all.lock().unwrap(), before);
        events.durable(&[(votes, 2)]);
        assert_eq!(all.lock().unwrap()[before.len()..], [LogEvent::Durable(votes, 2)]);
    }
}
