//! Keeps empty segments ready and frees old ones. Works in parallel with the writer and never delays it.
//! [`spawn`](crate::spawn) gives it a thread.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Shortage};
use crate::events::Vacate;
use crate::id::{GroupId, SegmentId};
use crate::options::mutated;
use crate::part_index::PartLocation;
use crate::queue::{AfterDrop, Item};
use crate::record::size;
use crate::segment::Pin;
use crate::spare::{Spare, make_spare};
use crate::state::{Group, Notice, Shared, State, read_record};

/// Housekeeping of the log.
pub struct Keeper {
    shared: Arc<Shared>,
    /// Error that was logged last, so that the same error is not logged once a second.
    last_error: Option<String>,
    /// Time of the last lack of room for another segment.
    full_at: Option<Instant>,
}

/// Time for which there has to be room before it is reported to operators. On a full disk the log frees a segment
/// now and then, and fills it again.
const ROOM_LASTS: Duration = Duration::from_secs(30);
/// Number of segments up to which nothing is freed, as long as there is room.
const SEGMENTS_MIN: u64 = 4;
/// Number of freed segments that are kept beyond the reserve, so that they need not be created again.
const SPARES_OVER: usize = 4;
/// Time between two pieces of a spare, in multiples of the time for one piece. Syncs of the log wait for a piece, so
/// four of five wait for none.
const PAUSES: u32 = 4;
/// Maximum time of such a pause for each MiB, so that a spare on a slow disk is ready in a few seconds.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Maximum size of the parts that one step moves, in bytes.
const MOVE_BYTES: u64 = 1 << 20;

/// Number of bodies of a freed segment that are removed from the index at once.
const FORGET_AT_ONCE: usize = 4096;

/// A live record in a segment that is to be freed.
enum Move {
    Part { group: GroupId, part: u32, location: PartLocation },
    Done { group: GroupId, checkpoint: u64 },
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last_error: None, full_at: None }
    }

    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.shared.wait_for_call(limit)
    }

    /// Runs one round: creates spares, chooses segments to free, moves parts out of them, and frees segments.
    /// Returns true when it did anything.
    pub fn keep(&mut self) -> bool {
        let rounds = [Self::make_spares, Self::choose, Self::free, Self::release_segments];
        let mut worked = false;
        for round in rounds {
            match round(self) {
                Ok(did) => worked |= did,
                Err(error) => self.report_error(&error),
            }
        }
        if worked {
            self.shared.kick_writer();
        }
        worked
    }

    /// Reports to operators that there is room again, once that has lasted for a while. Call it about once a
    /// second.
    pub fn report(&mut self, now: Instant) {
        let mut state = self.shared.state();
        if state.was_full.take().or(state.full).is_some() {
            self.full_at = Some(now);
            return;
        }
        if state.reported.is_some() && self.full_at.is_none_or(|at| at + ROOM_LASTS <= now) {
            state.reported = None;
            tracing::info!("the log has room again; messages for durable sessions are accepted");
        }
    }

    fn report_error(&mut self, error: &Error) {
        let text = error.to_string();
        if self.last_error.as_ref() != Some(&text) {
            tracing::error!(error = %text, "log housekeeping failed: segments cannot be freed or created; trying again");
            self.last_error = Some(text);
        }
        if error.is_damage() {
            self.shared.state().damage = Some(error.clone());
        }
    }

    /// Creates one spare per call, so that a stop does not wait long.
    fn make_spares(&mut self) -> Result<bool, Error> {
        let wanted = self.shared.options.spares();
        let name = {
            let mut state = self.shared.state();
            if state.starved {
                return Ok(false);
            }
            if state.spares.len() >= wanted {
                return Ok(state.set_full(None));
            }
            state.spare_name()
        };
        let disk = &*self.shared.disk;
        let bytes = self.shared.options.segment_bytes;
        let pause = |took, bytes| self.pause(took, bytes);
        let made = make_spare(disk, &name, bytes, Some(&pause));
        let made = made.and_then(|file| disk.sync_dir().map(|()| file));
        match made {
            Ok(file) => {
                let mut state = self.shared.state();
                state.spares.push_back(Spare::new(name, file, bytes));
                if state.spares.len() >= wanted {
                    state.set_full(None);
                }
                drop(state);
                self.shared.kick_keeper();
                Ok(true)
            }
            Err(error) => {
                let shortage = Shortage::of(&error);
                let mut state = self.shared.state();
                // Connections come and go: nothing is refused for lack of descriptors as long as spares are ready.
                if shortage == Some(Shortage::Descriptors) && state.full.is_none() && !state.spares.is_empty()
                {
                    let last_error = Shortage::Descriptors.to_string();
                    if self.last_error.as_ref() != Some(&last_error) {
                        tracing::warn!("{last_error}; the log continues with the segments that are ready");
                        self.last_error = Some(last_error);
                    }
                    return Ok(false);
                }
                let changed = state.set_full(Some(shortage.unwrap_or(Shortage::Segment)));
                drop(state);
                if changed {
                    self.shared.counters().full_count += 1;
                }
                if shortage.is_some() {
                    return Ok(changed);
                }
                if changed {
                    self.shared.kick_writer();
                }
                Err(Error::io(&disk.path(&name), "create")(error))
            }
        }
    }

    /// Leaves the disk to the log after a piece of a spare. Returns false if the spare is needed at once.
    fn pause(&self, took: Duration, bytes: u32) -> bool {
        let is_urgent = {
            let state = self.shared.state();
            state.spares.is_empty() || state.full.is_some()
        };
        !is_urgent && self.shared.wait_unless_stopped((took * PAUSES).min(PAUSE_MAX * bytes / (1 << 20)))
    }

    /// Asks the groups to vacate the oldest segments, at most a quarter of the surplus at a time.
    fn choose(&mut self) -> Result<bool, Error> {
        let abandoned = self.shared.queue().abandoned.clone();
        let is_abandoned = |group: &GroupId| abandoned.iter().any(|(abandoned, _)| abandoned == group);
        let mut state = self.shared.state();
        if state.groups.iter().any(|(group, known)| known.silent && !is_abandoned(group)) {
            return Ok(false);
        }
        // On a full disk the running work uses up the reserve if nothing is freed.
        let least = if state.full.is_some() { 0 } else { SEGMENTS_MIN * self.shared.options.segment_bytes };
        let excess = state.total_bytes().saturating_sub(least.max(2 * state.live_bytes()));
        let mut requested: u64 =
            state.vacating.keys().filter_map(|id| state.segments.get(id)).map(|s| s.bytes).sum();
        let goal = excess.div_ceil(4);
        let mut victims = vec![];
        let open = state.open_segment().map(|s| s.id);
        for (id, segment) in &state.segments {
            if requested >= goal || Some(*id) == open {
                break;
            }
            if !state.vacating.contains_key(id) {
                requested += segment.bytes;
                victims.push(*id);
            }
        }
        let are_waited_for = || state.vacating.values().flatten().any(is_abandoned);
        if !abandoned.is_empty() && (!victims.is_empty() || are_waited_for()) {
            drop(state);
            return self.drop_abandoned(abandoned.iter().any(|(_, after)| *after == AfterDrop::AnotherCopy));
        }
        let mut chosen = vec![];
        for segment in &victims {
            let requests: Vec<Vacate> = state
                .groups
                .iter()
                .filter_map(|(group, known)| {
                    let entries = known.entries.span(*segment);
                    let bodies = known.bodies.in_segment(*segment);
                    let is_any = entries.is_some() || !bodies.is_empty();
                    is_any.then_some(Vacate { group: *group, segment: *segment, entries, bodies })
                })
                .collect();
            let waiting = requests.iter().map(|vacate| vacate.group).collect();
            let waiting = if mutated!(self.shared.options, FreeTooEarly) { BTreeSet::new() } else { waiting };
            state.vacating.insert(*segment, waiting);
            chosen.extend(requests);
        }
        drop(state);
        for vacate in &mut chosen {
            vacate.bodies.sort_unstable();
            vacate.bodies.dedup();
        }
        let mut state = self.shared.state();
        // A group that was dropped meanwhile is not asked.
        let is_asked = |vacate: &Vacate| {
            let waiting = state.vacating.get(&vacate.segment);
            waiting.is_some_and(|waiting| waiting.contains(&vacate.group))
        };
        chosen.retain(|vacate| mutated!(self.shared.options, FreeTooEarly) || is_asked(vacate));
        state.notices.extend(chosen.into_iter().map(Notice::Vacate));
        Ok(!victims.is_empty())
    }

    /// Drops groups that have no owner. Segments are chosen when that is durable.
    fn drop_abandoned(&self, becomes_copy: bool) -> Result<bool, Error> {
        if becomes_copy {
            // Before the drop: what rests on the groups must not be taken for whole without them.
            self.shared.identity.copied()?.write(&*self.shared.disk)?;
        }
        let groups = self.shared.drop_abandoned();
        tracing::info!(
            groups = ?groups.iter().map(|group| group.0).collect::<Vec<_>>(),
            "groups of the log that have no owner are dropped, because segments are to be freed"
        );
        Ok(!groups.is_empty())
    }

    /// Works on the oldest segment that is being freed. Segments are freed in order, so that there is never a hole.
    fn free(&mut self) -> Result<bool, Error> {
        let (pin, moves) = {
            let mut state = self.shared.state();
            let Some((&oldest, segment)) = state.segments.first_key_value() else { return Ok(false) };
            let pin = segment.pin();
            if state.vacating.get(&oldest).is_none_or(|waiting| !waiting.is_empty())
                || state.floor_requested > oldest.0
                || state.moving > 0
            {
                return Ok(false);
            }
            let forget = mutated!(self.shared.options, ForgetParts);
            let (moves, blocked) = if forget { (vec![], false) } else { live_in(&state, oldest) };
            if moves.is_empty() {
                if blocked {
                    return Ok(false);
                }
                state.floor_requested = oldest.0 + 1;
                drop(state);
                self.shared.append([Item::Floor(oldest.next())].into_iter());
                return Ok(true);
            }
            (pin, moves)
        };
        self.queue_moves(&pin, moves)
    }

    fn queue_moves(&mut self, segment: &Pin, moves: Vec<Move>) -> Result<bool, Error> {
        let (mut items, mut bytes) = (vec![], 0);
        for item in moves {
            items.push(match item {
                Move::Part { group, part, location } => {
                    let (_, payload) = read_record(segment, location.offset)?;
                    bytes += size(payload.len());
                    Item::MovedPart { group, part, location, payload }
                }
                Move::Done { group, checkpoint } => Item::MovedDone { group, checkpoint },
            });
            if bytes >= MOVE_BYTES {
                break;
            }
        }
        let moved = items.len();
        self.shared.state().moving += moved;
        self.shared.append(items.into_iter());
        Ok(moved > 0)
    }

    /// Frees the segments before the durable floor.
    fn release_segments(&mut self) -> Result<bool, Error> {
        let disk = &*self.shared.disk;
        let mut worked = false;
        loop {
            let (segment, recycle) = {
                let mut state = self.shared.state();
                let Some((&id, segment)) = state.segments.first_key_value() else { return Ok(worked) };
                if id.0 >= state.floor || segment.pinned() {
                    return Ok(worked);
                }
                let segment = segment.clone();
                state.segments.remove(&id);
                state.vacating.remove(&id);
                state.groups.values_mut().for_each(|g| g.entries.forget(id));
                let room = !state.starved && state.spares.len() < self.shared.options.spares() + SPARES_OVER;
                let recycle = segment.bytes == self.shared.options.segment_bytes && room;
                (segment, recycle.then(|| state.spare_name()))
            };
            let name = segment.id.file();
            let failed = Error::io(&segment.path, "remove");
            let result = match &recycle {
                Some(spare) => disk.rename(&name, spare),
                None => disk.remove(&name),
            };
            // Sync before the next segment is removed, because a crash must not restore this one alone. Sync before
            // the file is reused, too, because reuse gives it another header.
            let is_synced = !mutated!(self.shared.options, SkipFreedSync);
            result.and_then(|()| if is_synced { disk.sync_dir() } else { Ok(()) }).map_err(failed)?;
            self.shared.counters().freed += 1;
            // In portions: commits and appending threads wait for the state.
            let forget = |group: &mut Group| group.bodies.forget_some(segment.id, FORGET_AT_ONCE);
            while self.shared.state().groups.values_mut().any(forget) {}
            let spare = recycle.map(|name| Spare::new(name, segment.file.clone(), segment.bytes));
            self.shared.state().spares.extend(spare);
            worked = true;
        }
    }
}

/// Returns the live parts that can be moved out of the segment, and whether other parts have to wait for a
/// checkpoint to finish.
fn live_in(state: &State, segment: SegmentId) -> (Vec<Move>, bool) {
    let (mut moves, mut blocked) = (vec![], false);
    for (group, known) in &state.groups {
        let part_index = &known.part_index;
        blocked |= part_index.pending_in(segment);
        for (part, location) in part_index.live().filter(|(_, location)| location.segment == segment) {
            if part_index.movable(part, location) {
                moves.push(Move::Part { group: *group, part, location });
            } else {
                blocked = true;
            }
        }
        if let (Some(done), Some(checkpoint)) = (part_index.done, part_index.checkpoint)
            && done.segment == segment
        {
            moves.push(Move::Done { group: *group, checkpoint });
        }
    }
    (moves, blocked)
}
