//! State of one shard, and the application of batches to it.

mod checkpoint;
mod deliver;
mod encode;
mod enqueue;
mod ephemeral;
mod inspect;
mod invariants;
mod ownership;
mod publish;
mod repeat;
mod restore;
mod rewrite;
mod shift;
mod subscribe;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::quality::FixedState;
use routing::{Index, IndexLimits, Reader};

use crate::batch::{Batch, reused};
use crate::bodies::Bodies;
use crate::command::{Command, Decoded};
use crate::counts::Counts;
use crate::deadline::Deadline;
use crate::effect::{Answer, Effect};
use crate::entry::Entry;
use crate::ephemeral::Ephemeral;
use crate::eras::Eras;
use crate::error::ApplyError;
use crate::groups::Groups;
use crate::identities::Identities;
use crate::ids::fnv64;
use crate::ids::{INDEX_MAX, MessageKey, REST, SessionUid};
use crate::limits::Limits;
use crate::message::MessageView;
use crate::mutation::{Mutation, mutated};
use crate::parts::Parts;
use crate::retained::Retained;
use crate::route::Route;
use crate::session::Session;
use crate::sessions::Sessions;

pub use ephemeral::EphemeralView;
pub use inspect::{EntryView, Orphan, SessionView, packet_id};
pub use rewrite::{Cursor, Found};
pub use time::{CLOCK_STEP_MAX_MS, ELAPSED_MAX_MS, TICK_MAX};

use restore::Pages;

/// One shard: the sessions of the Client Identifiers that hash to it, and the retained messages of the topics that
/// do.
pub struct Shard {
    id: u16,
    /// Index of the last record that was applied.
    applied: u64,
    /// The state's clock in ms.
    now: u64,
    limits: Limits,
    sessions: Sessions<Session>,
    /// Slots of sessions whose queue refuses messages when it is full.
    refusing: BTreeSet<u32>,
    ephemerals: Sessions<Ephemeral>,
    /// Number of sessions of both kinds ever created.
    sessions_created: u64,
    bodies: Bodies,
    retained: Retained,
    identities: Identities,
    /// Wills to be published.
    wills: BTreeMap<u64, Arc<[u8]>>,
    wills_created: u64,
    /// Messages of shared subscriptions whose member is gone.
    orphans: BTreeMap<u64, Entry>,
    orphans_created: u64,
    /// Deadlines of sessions, by time and slot.
    deadlines: BTreeSet<Deadline>,
    /// Incarnations of nodes that own sessions.
    eras: Eras,
    /// Slot at which the sweep continues; that of an ephemeral session plus [`SESSIONS_MAX`](crate::SESSIONS_MAX).
    sweep: u32,
    /// Sessions with shared subscriptions, which are not in `routes`.
    groups: Groups,
    routes: Arc<Index<Route>>,
    reader: Reader<Route>,
    matches: Vec<Route>,
    ids: Vec<u32>,
    /// Memory for the commands of a batch.
    commands: Vec<Decoded<'static>>,
    /// Progress of a record that is applied in portions.
    portion: Option<Portion>,
    /// Number of effects at which a portion ends.
    effects_max: usize,
    counts: Counts,
    parts: Parts,
    /// Pages of incomplete parts, while a checkpoint is read.
    pages: BTreeMap<u16, Pages>,
}

/// Progress of a record that is too large to be applied at once.
#[derive(Clone, Copy, Debug, Default)]
struct Portion {
    /// The command to continue with.
    command: u32,
    /// Progress of a Publish: the routes in `matches` that are done, and the number of sessions that have the
    /// message.
    routes: usize,
    matched: u32,
    /// Clock before the record, in ms.
    before: u64,
    /// Number and bytes of the retained messages before the record.
    retained: (usize, u64),
}

/// Number of bytes that count as one effect when a part has to be encoded before it changes: about as much work.
const SAVED_PER_EFFECT: usize = 256;

impl Shard {
    /// Creates an empty shard. `hash_key` is the node's secret: with it, a client could create filters and
    /// identifiers that collide. No effect of the shard depends on it.
    pub fn new(id: u16, hash_key: [u8; 16]) -> Self {
        let [low, high] = [0, 8].map(|at| {
            let bytes: [u8; 8] = std::array::from_fn(|byte| hash_key[at + byte]);
            u64::from_le_bytes(bytes)
        });
        let hasher = FixedState::with_seed(low ^ high.rotate_left(32));
        let routes = Arc::new(Index::new(hash_key, IndexLimits::default()));
        let reader = routes.reader();
        Self {
            id,
            applied: 0,
            now: 0,
            limits: Limits::default(),
            sessions: Sessions::new(hasher.clone()),
            refusing: BTreeSet::new(),
            ephemerals: Sessions::new(hasher.clone()),
            sessions_created: 0,
            bodies: Bodies::new(hasher),
            retained: Retained::default(),
            identities: Identities::default(),
            wills: BTreeMap::new(),
            wills_created: 0,
            orphans: BTreeMap::new(),
            orphans_created: 0,
            deadlines: BTreeSet::new(),
            eras: Eras::default(),
            sweep: 0,
            groups: Groups::default(),
            routes,
            reader,
            matches: Vec::new(),
            ids: Vec::new(),
            commands: Vec::new(),
            portion: None,
            effects_max: usize::MAX,
            counts: Counts::default(),
            parts: Parts::new(),
            pages: BTreeMap::new(),
        }
    }

    /// Applies the record that follows the last one, and appends its effects.
    ///
    /// # Errors
    /// The record is not the next, or its payload is not a batch. The state is unchanged then.
    pub fn apply(&mut self, index: u64, batch: &[u8], effects: &mut Vec<Effect>) -> Result<(), ApplyError> {
        while !self.apply_some(index, batch, usize::MAX, effects)? {}
        Ok(())
    }

    /// Applies a record in portions of about `effects` effects each, because one message may go to very many
    /// sessions. Returns true when the whole record is applied. Until then only the next portion of it may be
    /// applied, and the state may be read.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub fn apply_some(
        &mut self,
        index: u64,
        batch: &[u8],
        portion: usize,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, ApplyError> {
        self.effects_max = effects.len().saturating_add(portion.max(1));
        let done = self.apply_portion(index, batch, effects)?;
        if done && mutated(Mutation::ApplyTwice) && index.is_multiple_of(8) {
            self.applied -= 1;
            self.effects_max = usize::MAX;
            self.apply_portion(index, batch, &mut Vec::new())?;
        }
        Ok(done)
    }

    fn apply_portion(
        &mut self,
        index: u64,
        batch: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<bool, ApplyError> {
        let expected = self.applied() + 1;
        if index != expected || index >= INDEX_MAX {
            return Err(ApplyError::OutOfOrder { expected, index });
        }
        let batch = Batch::decode(index, batch, std::mem::take(&mut self.commands))?;
        let resumed = self.portion.take();
        let mut at = resumed.unwrap_or(Portion {
            before: self.now,
            retained: (self.retained.len(), self.retained.bytes()),
            ..Portion::default()
        });
        if resumed.is_none() {
            self.touch(REST);
            self.applied = index;
            self.advance_clock(batch.now);
        }
        while let Some(decoded) = batch.commands.get(at.command as usize) {
            let is_enough = effects.len() >= self.effects_max;
            if is_enough || !self.apply_command(&mut at, decoded, effects) {
                self.portion = Some(at);
                self.commands = reused(batch.commands);
                return Ok(false);
            }
            at.command += 1;
        }
        if at.retained != (self.retained.len(), self.retained.bytes()) {
            let (messages, bytes) = (self.retained.len() as u64, self.retained.bytes());
            effects.push(Effect::RetainedChanged { messages, bytes });
        }
        self.reader.quiescent();
        self.commands = reused(batch.commands);
        Ok(true)
    }

    /// Returns whether a record is applied in part.
    pub fn is_midway(&self) -> bool {
        self.portion.is_some()
    }

    /// Skips a lost record that a repair could not save. The state that it would have changed stays as it was.
    pub fn pass_over(&mut self, index: u64) {
        self.touch(REST);
        self.applied = self.applied.max(index);
    }

    /// Applies a command. Returns false when the portion ends before the command does.
    fn apply_command(&mut self, at: &mut Portion, decoded: &Decoded<'_>, effects: &mut Vec<Effect>) -> bool {
        let Decoded { command, message, request } = decoded;
        let (ordinal, message) = (at.command, *message);
        // A Publish that began in an earlier portion was checked there.
        if let Some(request) = request
            && at.routes == 0
            && let Some(answer) = self.answer_repeat(command, *request)
        {
            effects.push(Effect::Answer { ordinal, answer });
            return true;
        }
        let answer = match command {
            Command::Started { incarnation, elapsed_ms } => {
                self.started(*incarnation, at.before, *elapsed_ms);
                Answer::Done
            }
            Command::NodeEnded(owner) => {
                self.node_ended(*owner);
                Answer::Done
            }
            Command::Configure(limits) => {
                self.limits = *limits;
                Answer::Done
            }
            Command::Tick => self.tick(effects),
            Command::Sweep { count } => self.sweep(*count, effects),
            Command::Claim(claim) => {
                self.claim(ordinal, claim, *request, effects);
                return true;
            }
            Command::Release { session, epoch, expiry_s, will } => {
                self.release(*session, *epoch, *expiry_s, *will, effects)
            }
            Command::End { session } => self.end(*session, effects),
            Command::Subscribe { session, epoch, filters } => {
                self.subscribe(*session, *epoch, filters, effects)
            }
            Command::Unsubscribe { session, epoch, filters } => {
                self.unsubscribe(*session, *epoch, filters, effects)
            }
            Command::Publish { message: view, wait, identity } => {
                let key = MessageKey::new(self.applied, message);
                match self.publish(at, key, view, (*wait, *identity), effects) {
                    Some(answer) => answer,
                    None => return false,
                }
            }
            Command::Forget(identity) => {
                self.identities.remove(*identity);
                Answer::Done
            }
            Command::ForgetBelow(identity) => {
                self.identities.forget_below(*identity);
                Answer::Done
            }
            Command::ForgetOrigin { origin } => {
                self.identities.forget_origin(*origin);
                Answer::Done
            }
            Command::Enqueue(enqueue) => {
                self.enqueue_one(ordinal, MessageKey::new(self.applied, message), enqueue, effects)
            }
            Command::Acknowledge { session, epoch, packet_id, kind } => {
                self.acknowledge(*session, *epoch, *packet_id, *kind, effects)
            }
            Command::Receive { session, epoch, packet_id } => self.receive(*session, *epoch, *packet_id),
            Command::Released { session, epoch, packet_id } => self.released(*session, *epoch, *packet_id),
            Command::Refuse { session, epoch, packet_id } => self.refuse(*session, *epoch, *packet_id),
            Command::Overdue { session } => self.overdue(*session, effects),
            Command::Walk { session, filter, step } => self.walk(*session, filter, *step, effects),
            Command::Retain { message } => self.retain(message),
            Command::RetainIfLater { message } if self.retains_later(message) => Answer::Done,
            Command::RetainIfLater { message } => self.retain(message),
            Command::WillDone { id } => {
                self.wills.remove(id);
                Answer::Done
            }
            Command::Rewrite(rewrite) => self.rewrite(MessageKey::new(self.applied, message), rewrite),
            Command::OrphanDone { id } => {
                if let Some(mut entry) = self.orphans.remove(id) {
                    self.bodies.remove(&mut entry);
                }
                Answer::Done
            }
        };
        if let (Some(request), Answer::Refused { .. }) = (request, &answer) {
            self.note_refused(*request);
        }
        effects.push(Effect::Answer { ordinal, answer });
        true
    }

    fn retain(&mut self, message: &MessageView<'_>) -> Answer {
        self.touch(crate::ids::retained_bucket(message.topic));
        let replaced = if message.payload.is_empty() {
            self.retained.remove(message.topic) // [MQTT-3.3.1-6] [MQTT-3.3.1-7]
        } else {
            self.retained.set(message)
        };
        Answer::Retained { replaced }
    }

    /// Returns whether the retained message of the topic is a later one than this. Linked clusters compare the same two
    /// messages: of two of one time, both take the same.
    fn retains_later(&self, message: &MessageView<'_>) -> bool {
        let known = self.retained.get(message.topic).and_then(|bytes| MessageView::decode(bytes).ok());
        let rank = |message: &MessageView<'_>| (message.received, fnv64(message.payload));
        known.is_some_and(|known| rank(&known) > rank(message))
    }

    /// Returns whether a session has a connection. It has none any more if the era of its owner has ended.
    #[inline]
    fn is_owned(&self, session: &Session) -> bool {
        session.has_owner && self.eras.is_live(session.era)
    }

    /// Returns the slot of a session that is about to change.
    fn slot(&mut self, uid: SessionUid, effects: &mut Vec<Effect>) -> Result<u32, Answer> {
        let bucket = self.sessions.get(uid).ok_or(Answer::Gone)?.bucket;
        self.touch(bucket);
        self.settle(uid.slot(), effects);
        // A session that should have been released may have ended by the release.
        self.sessions.get(uid).map(|_| uid.slot()).ok_or(Answer::Gone)
    }

    /// Returns the slot of a session for a command of its owner.
    fn owned_slot(&mut self, uid: SessionUid, epoch: u32) -> Result<u32, Answer> {
        let session = self.sessions.get(uid).ok_or(Answer::Gone)?;
        let bucket = session.bucket;
        if !self.is_owned(session) || session.epoch != epoch {
            self.counts.stale += 1;
            return Err(Answer::Stale);
        }
        self.touch(bucket);
        Ok(uid.slot())
    }

    /// Notes that a part is about to change.
    fn touch(&mut self, bucket: u16) {
        if self.parts.touch(bucket) {
            let bytes = self.encode_part(bucket);
            self.effects_max = self.effects_max.saturating_sub(bytes.len() / SAVED_PER_EFFECT);
            self.parts.save(bucket, bytes);
        }
    }
}
