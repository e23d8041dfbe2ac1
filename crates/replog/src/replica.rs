use std::collections::BTreeMap;

use foldhash::quality::FixedState;

use crate::delta::{CopyPart, Delta, Operation, Value};
use crate::id::{Incarnation, Position, WriterId};
use crate::log::{Log, NO_ROUND};

/// Lives of a writer that are kept while what it has now is not complete.
const INCARNATIONS_KEPT: usize = 3;

/// What one node holds of the maps of all writers: its own, complete, and others' as far as it has heard.
#[derive(Debug)]
pub struct Replica<V> {
    writers: BTreeMap<WriterId, WriterState<V>>,
    dead: BTreeMap<WriterId, Dead>,
    /// Logs of such, which are given up in portions.
    dropped: Vec<(WriterId, Log<V>)>,
    /// Sources that were refused something ([`Self::poll_refused_source`]).
    refused_sources: Vec<SourceId>,
    hasher: FixedState,
    tombstones_max: usize,
    /// Another one with each change of what the writers have.
    revision: u64,
}

#[derive(Debug)]
pub(crate) struct WriterState<V> {
    pub incarnation: Incarnation,
    pub log: Log<V>,
    /// Of all operations up to here it has heard, of those on the same key at least of the last.
    pub position: Position,
    copying: Option<Copying>,
    round: u32,
    pub is_own: bool,
    is_suspect: bool,
}

/// Lives of a writer that are over: all up to one, but for one that goes on nevertheless. A writer that has lost its number may begin one with a smaller
/// number than it had before.
#[derive(Debug, Default)]
struct Dead {
    upto: Incarnation,
    except: Option<Incarnation>,
}

/// A whole copy that is coming.
#[derive(Debug)]
struct Copying {
    source: SourceId,
    /// How far it is.
    upto: Position,
    /// Others whose words could not be taken meanwhile, which do not know that.
    refused: Vec<SourceId>,
}

/// A key of a writer has a value, or none. Told whenever that changes, and sometimes again when a writer begins a new life while what it
/// wrote before is still being forgotten.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a, V> {
    pub writer: WriterId,
    pub key: &'a [u8],
    /// `None`: it has none any more.
    pub value: Option<&'a V>,
}

/// A delta was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// How far the replica is with this writer now.
    pub position: Position,
    /// Keys that changed.
    pub changes: usize,
}

/// Why a delta was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// The writer is this node.
    Own,
    /// The incarnation was declared dead.
    Dead,
    /// A later incarnation is known.
    Old { known: Incarnation },
    /// Something before it is missing: to be asked for from here on.
    Gap { position: Position },
    /// Another source is sending a whole copy: when that has come, or is given up, this one has to be heard again
    /// ([`Replica::poll_refused_source`]).
    Copying,
}

/// Whom a delta came from: one feed of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub u64);

impl<V: Value> Replica<V> {
    /// An empty one. `hash_seed` is the node's secret, so that nobody chooses keys that collide; of each writer so many deletions are
    /// remembered as `tombstones_max` says, for readers that are behind.
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

    /// This node is a writer from now on, in a life of which nobody knows anything yet.
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

    /// Changes a key of a map of this node's own, `None` deletes it. Returns the position of the change; `None` when there is nothing to
    /// change or the map is not its own.
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

    /// Takes in what another node says of a writer, and tells `on_change` what that changes.
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
                // What an earlier life wrote is void.
                self.drop_writer(writer);
                self.begin(writer, incarnation);
            }
        }
        let Some(held) = self.writers.get_mut(&writer) else { return Err(NotApplied::Dead) };
        let begins = copy != CopyPart::No && after == Position::default();
        let from = match &mut held.copying {
            // Whoever copies: nothing is missing before it.
            _ if copy == CopyPart::No && after <= held.position => held.position,
            // Two copies of different times cannot be told from one without what was deleted between them.
            Some(copying) if copying.source != source && !begins => {
                if !copying.refused.contains(&source) {
                    copying.refused.push(source);
                }
                return Err(NotApplied::Copying);
            }
            _ if copy == CopyPart::No => held.position,
            Some(copying) if !begins => copying.upto,
            // One that begins takes the place of another, whose source may have stopped.
            _ => Position::default(),
        };
        if after > from {
            return Err(NotApplied::Gap { position: held.position });
        }
        if begins {
            held.round += 1;
        }
        // A delta of another source may be older than the copy: what it brings is no sign that the copy mentioned it.
        let round = if copy == CopyPart::No { NO_ROUND } else { held.round };
        let mut changes = 0;
        for Operation { position, key, value } in operations {
            // All up to here was heard of: what is not there any more was deleted, and the source has not heard of that.
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

    /// Nothing more comes from a source: its copies are given up, and what they brought stays.
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

    /// Nothing comes from a source at present. Its copies go on when that changes, but for those for which others were refused.
    pub fn source_down(&mut self, source: SourceId) {
        for held in self.writers.values_mut() {
            let is_given_up = |copying: &mut Copying| copying.source == source && !copying.refused.is_empty();
            if let Some(copying) = held.copying.take_if(is_given_up) {
                self.refused_sources.extend(copying.refused);
            }
        }
    }

    /// A source that was refused something for the copy of another one, which is no reason any more. It believes that this replica has
    /// heard it: its feed has to begin again with what the replica has now. The call of [`Self::lost`] by which it does takes it from here.
    pub fn poll_refused_source(&mut self) -> Option<SourceId> {
        self.refused_sources.pop()
    }

    /// An incarnation of a writer, and every one before it, is dead for good: its entries go ([`Self::forget_some`]), and what is still
    /// on its way is refused.
    pub fn declare_dead(&mut self, writer: WriterId, incarnation: Incarnation) {
        let dead = self.dead.entry(writer).or_default();
        dead.upto = incarnation.max(dead.upto);
        dead.except.take_if(|except| *except <= incarnation);
        self.drop_if_dead(writer);
    }

    /// A life of a writer is not dead after all. Whether it counted as dead: then what was told of it was refused.
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

    /// A life of a writer goes on, and what was told of a later one is void, of which nothing more is taken. Whether there was such a life: then what was told of
    /// the one that goes on was refused.
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

    /// Whether this node writes that.
    pub fn is_own(&self, writer: WriterId) -> bool {
        self.writers.get(&writer).is_some_and(|held| held.is_own)
    }

    /// Whether a life of a writer was declared dead.
    pub fn is_dead(&self, writer: WriterId, incarnation: Incarnation) -> bool {
        self.dead
            .get(&writer)
            .is_some_and(|dead| incarnation <= dead.upto && dead.except != Some(incarnation))
    }

    /// A life of which nothing is known yet.
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

    /// Forgets up to `count` entries of the dead. `may_go` says of a writer, and how far the replica is with the life that it has now, whether what is not
    /// in that life is void: until then its entries stay. False when there are no more that may go.
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
            // A later life may have it, too.
            let is_held = self.writers.get(&writer).is_some_and(|held| held.log.get(&key).is_some());
            let is_kept = || self.dropped(writer).any(|(_, log)| log.get(&key).is_some());
            if !is_held && !is_kept() {
                on_change(Change { writer, key: &key, value: None });
            }
        }
        self.next_to_forget(&may_go).is_some()
    }

    /// The oldest life that goes. A writer that begins anew again and again keeps few of its lives.
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

    /// Entries of earlier lives of a writer that are not forgotten yet, those of the earliest first.
    pub fn remains(&self, writer: WriterId) -> impl Iterator<Item = (&[u8], &V)> {
        self.dropped(writer).flat_map(|(_, log)| log.iter())
    }

    /// Nobody hears of a writer at present; its entries stay.
    pub fn set_suspect(&mut self, writer: WriterId, is_suspect: bool) {
        if let Some(held) = self.writers.get_mut(&writer) {
            held.is_suspect = is_suspect;
        }
    }

    pub fn is_suspect(&self, writer: WriterId) -> bool {
        self.writers.get(&writer).is_some_and(|held| held.is_suspect)
    }

    /// How far the replica is with each writer.
    pub fn vector(&self) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
        self.writers.iter().map(|(writer, held)| (*writer, held.incarnation, held.position))
    }

    /// While this is the same so is [`Self::vector`], and no feed finds more than before.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How far the replica is with a writer.
    pub fn position(&self, writer: WriterId) -> Option<Position> {
        self.writers.get(&writer).map(|held| held.position)
    }

    /// The life of a writer that the replica is about.
    pub fn incarnation(&self, writer: WriterId) -> Option<Incarnation> {
        self.writers.get(&writer).map(|held| held.incarnation)
    }

    /// Whether a whole copy of some writer is under way.
    pub fn is_copying(&self) -> bool {
        self.writers.values().any(|held| held.copying.is_some())
    }

    pub fn get(&self, writer: WriterId, key: &[u8]) -> Option<&V> {
        self.writers.get(&writer)?.log.get(key)
    }

    /// All keys of a writer, in the order of their last changes.
    pub fn entries(&self, writer: WriterId) -> impl Iterator<Item = (&[u8], &V)> {
        self.writers.get(&writer).into_iter().flat_map(|held| held.log.iter())
    }

    /// Keys of a writer, deletions that are remembered, bytes of all of their keys.
    pub fn size(&self, writer: WriterId) -> (usize, usize, usize) {
        let log = self.writers.get(&writer).map(|held| &held.log);
        log.map_or((0, 0, 0), |log| (log.len(), log.tombstones(), log.key_bytes()))
    }

    /// A hash of all keys of a writer with their values: the same wherever these are the same.
    pub fn digest(&self, writer: WriterId) -> u64 {
        self.writers.get(&writer).map_or(0, |held| held.log.digest())
    }

    /// Deletions of a writer up to there are forgotten.
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
            assert!(held.log.floor() <= held.position, "only what was heard of is forgotten");
            assert!(!held.is_own || held.copying.is_none());
            assert!(held.copying.as_ref().is_none_or(|copying| !copying.refused.contains(&copying.source)));
        }
    }
}
