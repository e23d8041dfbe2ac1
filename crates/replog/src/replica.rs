use std::collections::BTreeMap;

use foldhash::quality::FixedState;

use crate::delta::{CopyPart, Delta, Operation, Value};
use crate::id::{Incarnation, Position, WriterId};
use crate::log::{Log, NO_ROUND};

/// Maximum incarnations of a writer that are kept while the present one is not complete.
const INCARNATIONS_KEPT: usize = 3;

/// State of one node: the maps of all writers, its own complete, and others up to the received position.
#[derive(Debug)]
pub struct Replica<V> {
    writers: BTreeMap<WriterId, WriterState<V>>,
    dead: BTreeMap<WriterId, Dead>,
    /// Dropped logs, which are freed in portions.
    dropped: Vec<(WriterId, Log<V>)>,
    /// Sources that were refused deltas ([`Self::poll_refused_source`]).
    refused_sources: Vec<SourceId>,
    hasher: FixedState,
    tombstones_max: usize,
    /// Number that changes with every change of the writers' state.
    revision: u64,
}

#[derive(Debug)]
pub(crate) struct WriterState<V> {
    pub incarnation: Incarnation,
    pub log: Log<V>,
    /// Position up to which the replica knows the last operation on each key.
    pub position: Position,
    copying: Option<Copying>,
    round: u32,
    pub is_own: bool,
    is_suspect: bool,
}

/// Ended incarnations of a writer: all up to a number, except one that continues. A writer that has lost its number may
/// start one with a smaller number than before.
#[derive(Debug, Default)]
struct Dead {
    upto: Incarnation,
    except: Option<Incarnation>,
}

/// A whole copy that is arriving.
#[derive(Debug)]
struct Copying {
    source: SourceId,
    /// Position that it has reached.
    upto: Position,
    /// Other sources whose deltas were refused meanwhile, and that do not know it.
    refused: Vec<SourceId>,
}

/// Change of a key's value. Reported on every change, and sometimes again while entries of a writer's previous
/// incarnation are still being forgotten.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a, V> {
    pub writer: WriterId,
    pub key: &'a [u8],
    /// New value, or `None` when the key has none any more.
    pub value: Option<&'a V>,
}

/// Result of an applied delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Position of the replica for this writer now.
    pub position: Position,
    /// Number of changed keys.
    pub changes: usize,
}

/// Reason why a delta was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// The writer is this node.
    Own,
    /// The incarnation was declared dead.
    Dead,
    /// A later incarnation is known.
    Old { known: Incarnation },
    /// Earlier changes are missing: request them from this position.
    Gap { position: Position },
    /// Another source is sending a whole copy. When that is complete or given up, this source must send again
    /// ([`Replica::poll_refused_source`]).
    Copying,
}

/// Source of a delta: one feed of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub u64);

impl<V: Value> Replica<V> {
    /// Creates an empty replica. `hash_seed` is a secret of the node, so that no client can choose colliding keys. Up
    /// to `tombstones_max` deletions of each writer are remembered, for readers that are behind.
    pub fn new(hash_seed: u64, tombstones_max: usize) -> Self {
        Self {
            writers: BTreeMap::new(),
            dead: BTreeMap::new(),
            dropped: Vec::new(),
            refused_sources: Vec::new(),
            hasher: FixedState::with_seed(hash_seed),
            tombstones_max,
            revision: 0,
        }
    }

    /// Makes this node a writer, with a new incarnation that no other node knows yet.
    pub fn own(&mut self, writer: WriterId, incarnation: Incarnation) {
        let own = WriterState { is_own: true, ..self.fresh(incarnation) };
        self.drop_writer(writer);
        self.writers.insert(writer, own);
        self.revision += 1;
    }

    fn fresh(&self, incarnation: Incarnation) -> WriterState<V> {
        WriterState {
            incarnation,
            log: Log::new(self.hasher.clone()),
            position: Position::default(),
            copying: None,
            round: NO_ROUND,
            is_own: false,
            is_suspect: false,
        }
    }

    /// Changes a key of one of this node's own maps; `None` deletes it. Returns the position of the change, or `None`
    /// when nothing changes or the map is not its own.
    pub fn set(&mut self, writer: WriterId, key: &[u8], value: Option<V>) -> Option<Position> {
        let held = self.writers.get_mut(&writer).filter(|held| held.is_own)?;
        if held.log.get(key) == value.as_ref() {
            return None;
        }
        held.position.0 += 1;
        held.log.put(key, held.position, value, NO_ROUND);
        held.log.compact(self.tombstones_max, held.position);
        self.revision += 1;
        Some(held.position)
    }

    /// Applies a delta, and calls `on_change` for each change.
    ///
    /// # Errors
    /// [`NotApplied`]; nothing is changed.
    pub fn apply(
        &mut self,
        source: SourceId,
        delta: Delta<V>,
        mut on_change: impl FnMut(Change<'_, V>),
    ) -> Result<Applied, NotApplied> {
        let Delta { writer, incarnation, after, upto, copy, operations } = delta;
        if self.is_dead(writer, incarnation) {
            return Err(NotApplied::Dead);
        }
        let known = self.writers.get(&writer);
        if known.is_some_and(|held| held.is_own) {
            return Err(NotApplied::Own);
        }
        match known.map(|held| held.incarnation) {
            Some(known) if known > incarnation => return Err(NotApplied::Old { known }),
            Some(known) if known == incarnation => {}
            _ => {
                // Entries of an earlier incarnation are void.
                self.drop_writer(writer);
                self.begin(writer, incarnation);
            }
        }
        let Some(held) = self.writers.get_mut(&writer) else { return Err(NotApplied::Dead) };
        let begins = copy != CopyPart::No && after == Position::default();
        let from = match &mut held.copying {
            // In a copy nothing before it can be missing.
            _ if copy == CopyPart::No && after <= held.position => held.position,
            // Copies of different times cannot be combined into one without the deletions between them.
            Some(copying) if copying.source != source && !begins => {
                if !copying.refused.contains(&source) {
                    copying.refused.push(source);
                }
                return Err(NotApplied::Copying);
            }
            _ if copy == CopyPart::No => held.position,
            Some(copying) if !begins => copying.upto,
            // A copy that begins replaces another one, whose source may have stopped.
            _ => Position::default(),
        };
        if after > from {
            return Err(NotApplied::Gap { position: held.position });
        }
        if begins {
            held.round += 1;
        }
        // A delta of another source may be older than the copy: its keys do not count as contained in the copy.
        let round = if copy == CopyPart::No { NO_ROUND } else { held.round };
        let mut changes = 0;
        for Operation { position, key, value } in operations {
            // The replica has received all operations up to here: a key that is missing was deleted, and the source
            // does not know that.
            if position <= held.position && !held.log.holds(&key) {
                continue;
            }
            let Some((at, before)) = held.log.put(key, position, value, round) else { continue };
            let (key, value) = held.log.entry(at);
            if before.as_ref() != value {
                changes += 1;
                on_change(Change { writer, key, value });
            }
        }
        match copy {
            CopyPart::No => held.position = held.position.max(upto),
            CopyPart::Part => {
                let mut refused = held.copying.take().map_or(Vec::new(), |copying| copying.refused);
                refused.retain(|other| *other != source);
                held.copying = Some(Copying { source, upto: from.max(upto), refused });
            }
            CopyPart::End => {
                let refused = held.copying.take().map_or(Vec::new(), |copying| copying.refused);
                self.refused_sources.extend(refused.into_iter().filter(|other| *other != source));
                for key in held.log.sweep(held.round, upto) {
                    changes += 1;
                    on_change(Change { writer, key: &key, value: None });
                }
                held.position = held.position.max(upto);
                held.log.raise_floor(upto);
            }
        }
        held.log.compact(self.tombstones_max, held.position);
        self.revision += 1;
        Ok(Applied { position: held.position, changes })
    }

    /// Drops a source that sends nothing more: its copies are given up, and the keys that they brought stay.
    pub fn lost(&mut self, source: SourceId) {
        self.refused_sources.retain(|refused_sources| *refused_sources != source);
        for held in self.writers.values_mut() {
            if let Some(copying) = held.copying.take_if(|copying| copying.source == source) {
                self.refused_sources.extend(copying.refused);
            }
            if let Some(copying) = &mut held.copying {
                copying.refused.retain(|refused| *refused != source);
            }
        }
    }

    /// Notes that a source sends nothing at present. Its copies resume later, except those for which other sources were
    /// refused.
    pub fn source_down(&mut self, source: SourceId) {
        for held in self.writers.values_mut() {
            let is_given_up = |copying: &mut Copying| copying.source == source && !copying.refused.is_empty();
            if let Some(copying) = held.copying.take_if(is_given_up) {
                self.refused_sources.extend(copying.refused);
            }
        }
    }

    /// Returns a source whose deltas were refused because of another source's copy that has ended. The source believes
    /// that they were applied, so its feed must start again from the replica's present state. The call of
    /// [`Self::lost`] that restarts the feed removes it from this list.
    pub fn poll_refused_source(&mut self) -> Option<SourceId> {
        self.refused_sources.pop()
    }

    /// Declares an incarnation of a writer, and every earlier one, dead for good. Its entries are removed
    /// ([`Self::forget_some`]), and deltas in transit are refused.
    pub fn declare_dead(&mut self, writer: WriterId, incarnation: Incarnation) {
        let dead = self.dead.entry(writer).or_default();
        dead.upto = incarnation.max(dead.upto);
        dead.except.take_if(|except| *except <= incarnation);
        self.drop_if_dead(writer);
    }

    /// Declares an incarnation of a writer not dead after all. Returns whether it counted as dead: then deltas of it
    /// were refused.
    pub fn revive(&mut self, writer: WriterId, incarnation: Incarnation) -> bool {
        let was_dead = self.is_dead(writer, incarnation);
        if let Some(dead) = self.dead.get_mut(&writer).filter(|_| was_dead) {
            dead.except = Some(incarnation);
            if self.drop_if_dead(writer) {
                self.begin(writer, incarnation);
            }
        }
        was_dead
    }

    /// Declares that an incarnation of a writer continues, and discards later ones: their entries are void, and none
    /// are accepted any more. Returns whether there was a later one: then deltas of the one that continues were
    /// refused.
    pub fn discard_later(&mut self, writer: WriterId, incarnation: Incarnation) -> bool {
        let Some(held) =
            self.writers.get(&writer).filter(|held| held.incarnation > incarnation && !held.is_own)
        else {
            return false;
        };
        let later = held.incarnation;
        let dead = self.dead.entry(writer).or_default();
        *dead = Dead { upto: later.max(dead.upto), except: Some(incarnation) };
        self.drop_writer(writer);
        self.begin(writer, incarnation);
        true
    }

    /// Returns whether this node is the writer.
    pub fn is_own(&self, writer: WriterId) -> bool {
        self.writers.get(&writer).is_some_and(|held| held.is_own)
    }

    /// Returns whether an incarnation of a writer was declared dead.
    pub fn is_dead(&self, writer: WriterId, incarnation: Incarnation) -> bool {
        self.dead
            .get(&writer)
            .is_some_and(|dead| incarnation <= dead.upto && dead.except != Some(incarnation))
    }

    /// Starts an incarnation that is not known yet.
    fn begin(&mut self, writer: WriterId, incarnation: Incarnation) {
        let fresh = self.fresh(incarnation);
        self.writers.insert(writer, fresh);
        self.revision += 1;
    }

    fn drop_if_dead(&mut self, writer: WriterId) -> bool {
        let held = self.writers.get(&writer).filter(|held| !held.is_own);
        let is_dead = held.is_some_and(|held| self.is_dead(writer, held.incarnation));
        if is_dead {
            self.drop_writer(writer);
        }
        is_dead
    }

    fn drop_writer(&mut self, writer: WriterId) {
        if let Some(held) = self.writers.remove(&writer) {
            self.dropped.push((writer, held.log));
            self.revision += 1;
        }
    }

    /// Forgets up to `count` entries of dead incarnations. `may_go` receives a writer and the replica's position in its
    /// present incarnation, and returns whether entries that are missing there are void; until then they stay. Returns
    /// false when no more may go.
    pub fn forget_some(
        &mut self,
        count: usize,
        may_go: impl Fn(WriterId, Option<(Incarnation, Position)>) -> bool,
        mut on_change: impl FnMut(Change<'_, V>),
    ) -> bool {
        let Some(at) = self.next_to_forget(&may_go) else { return false };
        let (writer, log) = &mut self.dropped[at];
        let (writer, keys) = (*writer, log.drain(count));
        if keys.is_empty() {
            self.dropped.remove(at);
        }
        for key in keys {
            // A later incarnation may have the key, too.
            let is_held = self.writers.get(&writer).is_some_and(|held| held.log.get(&key).is_some());
            let is_kept = || self.dropped(writer).any(|(_, log)| log.get(&key).is_some());
            if !is_held && !is_kept() {
                on_change(Change { writer, key: &key, value: None });
            }
        }
        self.next_to_forget(&may_go).is_some()
    }

    /// Returns the oldest incarnation to forget. A writer that restarts again and again keeps few of its incarnations.
    fn next_to_forget(
        &self,
        may_go: impl Fn(WriterId, Option<(Incarnation, Position)>) -> bool,
    ) -> Option<usize> {
        let now = |writer| self.writers.get(&writer).map(|held| (held.incarnation, held.position));
        self.dropped.iter().position(|(writer, _)| {
            may_go(*writer, now(*writer)) || self.dropped(*writer).count() > INCARNATIONS_KEPT
        })
    }

    fn dropped(&self, writer: WriterId) -> impl Iterator<Item = &(WriterId, Log<V>)> {
        self.dropped.iter().filter(move |(of, _)| *of == writer)
    }

    /// Iterates over entries of earlier incarnations of a writer that are not forgotten yet, the earliest first.
    pub fn remains(&self, writer: WriterId) -> impl Iterator<Item = (&[u8], &V)> {
        self.dropped(writer).flat_map(|(_, log)| log.iter())
    }

    /// Marks a writer as unreachable or reachable; its entries stay.
    pub fn set_suspect(&mut self, writer: WriterId, is_suspect: bool) {
        if let Some(held) = self.writers.get_mut(&writer) {
            held.is_suspect = is_suspect;
        }
    }

    pub fn is_suspect(&self, writer: WriterId) -> bool {
        self.writers.get(&writer).is_some_and(|held| held.is_suspect)
    }

    /// Iterates over the position for each writer.
    pub fn vector(&self) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
        self.writers.iter().map(|(writer, held)| (*writer, held.incarnation, held.position))
    }

    /// Returns a number that is the same only while [`Self::vector`] is and no feed has more to send.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the position for a writer.
    pub fn position(&self, writer: WriterId) -> Option<Position> {
        self.writers.get(&writer).map(|held| held.position)
    }

    /// Returns the incarnation of a writer that the replica holds.
    pub fn incarnation(&self, writer: WriterId) -> Option<Incarnation> {
        self.writers.get(&writer).map(|held| held.incarnation)
    }

    /// Returns whether a whole copy of some writer is in progress.
    pub fn is_copying(&self) -> bool {
        self.writers.values().any(|held| held.copying.is_some())
    }

    pub fn get(&self, writer: WriterId, key: &[u8]) -> Option<&V> {
        self.writers.get(&writer)?.log.get(key)
    }

    /// Iterates over all keys of a writer, in the order of their last changes.
    pub fn entries(&self, writer: WriterId) -> impl Iterator<Item = (&[u8], &V)> {
        self.writers.get(&writer).into_iter().flat_map(|held| held.log.iter())
    }

    /// Returns for a writer the number of keys, of remembered deletions, and the bytes of all their keys.
    pub fn size(&self, writer: WriterId) -> (usize, usize, usize) {
        let log = self.writers.get(&writer).map(|held| &held.log);
        log.map_or((0, 0, 0), |log| (log.len(), log.tombstones(), log.key_bytes()))
    }

    /// Returns a hash of all keys of a writer with their values: the same in all replicas with the same keys and
    /// values.
    pub fn digest(&self, writer: WriterId) -> u64 {
        self.writers.get(&writer).map_or(0, |held| held.log.digest())
    }

    /// Returns the position up to which deletions of a writer are forgotten.
    pub(crate) fn floor(&self, writer: WriterId) -> Position {
        self.writers.get(&writer).map_or(Position::default(), |held| held.log.floor())
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = (WriterId, &WriterState<V>)> {
        self.writers.iter().map(|(writer, held)| (*writer, held))
    }

    pub fn check_invariants(&self) {
        for (writer, held) in &self.writers {
            held.log.check_invariants();
            assert!(held.is_own || !self.is_dead(*writer, held.incarnation));
            assert!(held.log.floor() <= held.position, "only received deletions are forgotten");
            assert!(!held.is_own || held.copying.is_none());
            assert!(held.copying.as_ref().is_none_or(|copying| !copying.refused.contains(&copying.source)));
        }
    }
}
