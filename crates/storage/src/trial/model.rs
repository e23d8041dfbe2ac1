//! Small state machine of one group, and the events that it received from the log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::id::GroupId;
use crate::{Record, Vacate};
use random::Random;

/// Operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    kind: OpKind,
    part: u32,
    /// Unique number.
    nonce: u64,
    filler: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpKind {
    Set,
    Delete,
}

impl Op {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend_from_slice(&self.part.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend((0..self.filler).map(|n| (self.nonce as usize).wrapping_add(n * 7) as u8));
        bytes
    }

    /// Returns whether the entry holds the value with this nonce; used to check a body that was read.
    pub fn has_nonce(&self, nonce: u64) -> bool {
        self.nonce == nonce && self.kind != OpKind::Delete
    }
}

/// Nonce of a part's value, and the entry that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub index: u64,
    pub nonce: u64,
    filler: usize,
}

pub(super) type State = BTreeMap<u32, Value>;

pub(super) fn encode_part(value: Option<&Value>) -> Vec<u8> {
    let Some(value) = value else { return vec![] };
    let mut bytes = value.index.to_le_bytes().to_vec();
    bytes.extend_from_slice(&value.nonce.to_le_bytes());
    bytes.resize(16 + value.filler / 4, value.nonce as u8);
    bytes
}

#[derive(Clone)]
struct Writing {
    index: u64,
    parts: VecDeque<(u32, Vec<u8>)>,
}

/// Model of a group.
#[derive(Clone)]
pub(super) struct Model {
    pub group: GroupId,
    /// All entries of this timeline; index 1 first.
    pub history: Vec<Op>,
    pub reported: u64,
    /// Last index that was reported before the last commit.
    pub reported_before: u64,
    pub checkpoint_reported: Option<u64>,
    pub checkpoint_reported_before: Option<u64>,
    /// Checkpoints whose `Done` was appended.
    pub checkpoints: BTreeMap<u64, State>,
    state: State,
    dirty: BTreeSet<u32>,
    writing: Option<Writing>,
    /// The `Done` that is not durable yet.
    finishing: Option<u64>,
    vacates: Vec<(Vacate, bool)>,
    /// Number of bodies that were appended and not reported as durable.
    bodies_pending: u64,
}

/// Work for segments that are to be freed.
pub(super) struct Vacated {
    pub bodies: Vec<(u64, Arc<[u8]>)>,
    pub records: Vec<Record>,
    /// Requests whose segments the group no longer needs.
    pub free: Vec<Vacate>,
}

/// Models of a group that was dropped and began again, in the order of time.
#[derive(Clone)]
pub(super) struct Generations {
    /// The last one is in use. The drops of the others are not reported.
    pub models: VecDeque<Model>,
    /// Entries of generations whose drop is durable.
    past: Vec<Vec<Op>>,
}

impl Generations {
    pub fn new(group: GroupId) -> Self {
        Self { models: [Model::new(group)].into(), past: vec![] }
    }

    /// Returns the generation that is in use.
    pub fn current(&mut self) -> &mut Model {
        self.models.back_mut().expect("a generation is in use")
    }

    /// Returns the generation that events are of.
    pub fn oldest(&mut self) -> &mut Model {
        self.models.front_mut().expect("a generation is in use")
    }

    /// Begins another generation.
    pub fn begin(&mut self) {
        let group = self.current().group;
        self.models.push_back(Model::new(group));
    }

    /// The drop of the oldest generation is durable.
    pub fn dropped(&mut self) -> Result<(), String> {
        if self.models.len() == 1 {
            return Err(format!("{} was notified of a drop too many", self.current().group));
        }
        self.past.extend(self.models.pop_front().map(|model| model.history));
        Ok(())
    }

    /// Keeps the generation that a start found. The drops of earlier ones are durable, and those of later ones lost.
    pub fn found(&mut self, generation: usize) -> &mut Model {
        self.models.truncate(generation + 1);
        self.past.extend(self.models.drain(..generation).map(|model| model.history));
        self.current()
    }

    /// Returns the last index of an entry that was dropped.
    pub fn last_dropped(&self) -> u64 {
        self.past.iter().map(|history| history.len() as u64).max().unwrap_or(0)
    }

    /// Returns whether the payload was appended as the entry at this index, in any generation.
    pub fn has_entry(&self, index: u64, payload: &[u8]) -> bool {
        let at = (index as usize).wrapping_sub(1);
        let histories = self.past.iter().chain(self.models.iter().map(|model| &model.history));
        histories.into_iter().any(|history| history.get(at).is_some_and(|op| op.encode() == payload))
    }
}

/// Number of parts of a group.
const PARTS: u64 = 12;

fn apply(state: &mut State, index: u64, op: &Op) {
    match op.kind {
        OpKind::Set => {
            state.insert(op.part, Value { index, nonce: op.nonce, filler: op.filler });
        }
        OpKind::Delete => {
            state.remove(&op.part);
        }
    }
}

impl Model {
    pub fn new(group: GroupId) -> Self {
        Self {
            group,
            history: vec![],
            reported: 0,
            reported_before: 0,
            checkpoint_reported: None,
            checkpoint_reported_before: None,
            checkpoints: BTreeMap::new(),
            state: State::new(),
            dirty: BTreeSet::new(),
            writing: None,
            finishing: None,
            vacates: vec![],
            bodies_pending: 0,
        }
    }

    pub fn state_at(&self, index: u64) -> State {
        let mut state = State::new();
        for (op, at) in self.history.iter().zip(1..=index) {
            apply(&mut state, at, op);
        }
        state
    }

    /// Returns the present state, up to the last reported entry.
    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn append(&mut self, random: &mut Random) -> Record {
        let kind = if random.below_u64(8) == 0 { OpKind::Delete } else { OpKind::Set };
        let filler = match random.below_u64(40) {
            0 => 3000 + random.below_u64(4000),
            1..10 => random.below_u64(900),
            _ => random.below_u64(120),
        };
        let (part, nonce) = (random.below_u64(PARTS) as u32, random.draw());
        self.push(Op { kind, part, nonce, filler: filler as usize })
    }

    fn push(&mut self, op: Op) -> Record {
        let payload = op.encode().into();
        self.history.push(op);
        Record::Entry { group: self.group, term: 1, index: self.history.len() as u64, payload }
    }

    pub fn durable(&mut self, index: u64) -> Result<(), String> {
        if index <= self.reported || index > self.history.len() as u64 {
            return Err(format!("{} was notified of {index} after {}", self.group, self.reported));
        }
        for at in self.reported + 1..=index {
            let op = self.history[at as usize - 1];
            apply(&mut self.state, at, &op);
            self.dirty.insert(op.part);
        }
        self.reported = index;
        Ok(())
    }

    pub fn bodies_durable(&mut self, records: u64) -> Result<(), String> {
        match self.bodies_pending.checked_sub(records) {
            Some(pending) => self.bodies_pending = pending,
            None => return Err(format!("{} was notified of {records} bodies too many", self.group)),
        }
        Ok(())
    }

    pub fn checkpoint_durable(&mut self, index: u64) -> Result<(), String> {
        if self.finishing != Some(index) {
            return Err(format!(
                "{} was notified of the checkpoint {index}, and appended {:?}",
                self.group, self.finishing
            ));
        }
        self.finishing = None;
        self.checkpoint_reported = Some(index);
        Ok(())
    }

    /// Returns some parts of a checkpoint, and begins one if there is none. The last call includes its `Done`.
    pub fn checkpoint(&mut self, random: &mut Random) -> Vec<Record> {
        if self.finishing.is_some() || self.checkpoint_reported == Some(self.reported) {
            return vec![];
        }
        let writing = self.writing.take().unwrap_or_else(|| {
            let parts = std::mem::take(&mut self.dirty)
                .into_iter()
                .map(|part| (part, encode_part(self.state.get(&part))))
                .collect();
            Writing { index: self.reported, parts }
        });
        self.write_on(writing, random)
    }

    fn write_on(&mut self, mut writing: Writing, random: &mut Random) -> Vec<Record> {
        let (group, checkpoint) = (self.group, writing.index);
        let some = 1 + random.below_u64(PARTS) as usize;
        let mut records: Vec<Record> = (0..some)
            .filter_map(|_| writing.parts.pop_front())
            .map(|(part, bytes)| Record::Part { group, part, checkpoint, payload: bytes.into() })
            .collect();
        if writing.parts.is_empty() {
            records.push(Record::Done { group, checkpoint });
            self.checkpoints.insert(checkpoint, self.state_at(checkpoint));
            self.finishing = Some(checkpoint);
        } else {
            self.writing = Some(writing);
        }
        records
    }

    pub fn request_vacate(&mut self, vacate: Vacate) {
        self.vacates.push((vacate, false));
    }

    pub fn has_vacate_requests(&self) -> bool {
        !self.vacates.is_empty()
    }

    /// Keeps the bodies of live entries of segments that are to be freed.
    pub fn vacate(&mut self, random: &mut Random) -> Vacated {
        let (mut bodies, mut free) = (vec![], vec![]);
        for (vacate, are_kept) in std::mem::take(&mut self.vacates) {
            let is_inside = |index: u64| {
                vacate.entries.is_some_and(|(first, last)| (first..=last).contains(&index))
                    || vacate.bodies.contains(&index)
            };
            let is_covered = vacate.entries.is_none_or(|(_, last)| self.checkpoint_reported >= Some(last));
            // Entries that are not reported yet may be in the segment too.
            if is_covered && !are_kept {
                let live = self.state.values().map(|value| value.index).filter(|index| is_inside(*index));
                bodies.extend(live.map(|index| (index, self.history[index as usize - 1].encode().into())));
            }
            if is_covered && bodies.is_empty() && self.bodies_pending == 0 {
                free.push(vacate);
            } else {
                self.vacates.push((vacate, is_covered));
            }
        }
        self.bodies_pending += bodies.len() as u64;
        Vacated { bodies, records: self.checkpoint(random), free }
    }

    /// Resets the model to a log that was opened again: it has the checkpoint and the entries after it up to
    /// `last`.
    pub fn restarted(&mut self, checkpoint: Option<u64>, last: u64) {
        self.history.truncate(last as usize);
        self.checkpoints.retain(|index, _| Some(*index) <= checkpoint);
        self.state = self.state_at(last);
        self.dirty = (checkpoint.unwrap_or(0)..last).map(|at| self.history[at as usize].part).collect();
        (self.reported, self.reported_before) = (last, last);
        (self.checkpoint_reported, self.checkpoint_reported_before) = (checkpoint, checkpoint);
        (self.writing, self.finishing) = (None, None);
        self.vacates.clear();
        self.bodies_pending = 0;
    }

    pub fn live_bytes(&self) -> u64 {
        self.state.values().map(|value| value.filler as u64 + 64).sum()
    }
}
