//! Runner of a trial: a process that crashes and restarts, and the comparison after each start.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::model::{Generations, Model, encode_part};
use super::{Tally, Trial};
use crate::fault::{FaultDisk, FaultPlan};
use crate::id::GroupId;
use crate::{
    Bodies, Commit, Error, ForEachEvent, LogEvent, LogListener, Opened, Options, RecoveredGroup, SegmentId,
    open,
};
use random::Random;

/// Events of the log since the last look.
#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<LogEvent>>>);

impl EventRecorder {
    fn push(&self, event: LogEvent) {
        sync::lock(&self.0).push(event);
    }

    fn listener(&self) -> Box<dyn LogListener> {
        let recorder = self.clone();
        Box::new(ForEachEvent(move |event| recorder.push(event)))
    }

    fn take(&self) -> Vec<LogEvent> {
        std::mem::take(&mut *sync::lock(&self.0))
    }
}

pub(super) struct Runner {
    trial: Trial,
    random: Random,
    disk: FaultDisk,
    groups: BTreeMap<GroupId, Generations>,
    options: Options,
    tally: Tally,
    recorder: EventRecorder,
    failed: bool,
    /// True when this incarnation has no faults.
    calm: bool,
}

/// Expected effect of a flipped bit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    None,
    Flipped,
}

const SEGMENT: u64 = 4096;

impl Runner {
    pub fn new(trial: Trial) -> Self {
        let mut random = Random::new(trial.seed ^ 0x5EED);
        let disk = FaultDisk::new(random.draw());
        let groups = (1..=3).map(|n| (GroupId(n), Generations::new(GroupId(n)))).collect();
        let options = Options {
            segment_bytes: SEGMENT,
            reserve_bytes: 0,
            commit_bytes_max: [600, 2000, 8 << 20][random.below_u64(3) as usize],
            low_bytes_per_commit: [200, 1 << 20][random.below_u64(2) as usize],
            entropy: Some([trial.seed as u8; 48]),
            urgent: if trial.seed.is_multiple_of(2) { &[GroupId(2)] } else { &[] },
            mutation: trial.mutation,
            ..Options::default()
        };
        Self {
            trial,
            random,
            disk,
            groups,
            options,
            tally: Tally::default(),
            recorder: EventRecorder::default(),
            failed: false,
            calm: false,
        }
    }

    pub fn run(mut self) -> Result<Tally, String> {
        self.tally.trials = 1;
        for incarnation in 0..self.trial.incarnations {
            self.plan(incarnation);
            self.live()?;
            if incarnation == 0 {
                self.tally.operations = self.disk.operations();
            }
            let killed = !self.planned(incarnation) && self.random.below_u64(3) == 0;
            self.disk = if killed { self.disk.kill() } else { self.disk.crash() };
        }
        self.last_incarnation()?;
        self.flip()?;
        self.tally.faults = self.disk.counts();
        Ok(self.tally)
    }

    fn planned(&self, incarnation: u32) -> bool {
        incarnation == 0 && self.trial.cut_at.is_some()
    }

    /// Plans the faults of this incarnation.
    fn plan(&mut self, incarnation: u32) {
        let mut plan = FaultPlan::default();
        let at = self.disk.operations() + 1 + self.random.below_u64(150);
        if self.trial.cut_at.is_some() {
            plan.cut_at = self.trial.cut_at.filter(|_| incarnation == 0);
        } else {
            match self.random.below_u64(8) {
                0..5 => plan.cut_at = Some(at),
                5 => plan.sync_fails_at = Some(at),
                6 => plan.write_full_at = Some(at),
                _ => {}
            }
        }
        self.disk.set_plan(plan);
    }

    fn start(&mut self, damage: Damage) -> Result<Option<Opened>, String> {
        self.recorder = EventRecorder::default();
        self.failed = false;
        no_segment_is_missing(&self.disk)?;
        let disk = Arc::new(self.disk.clone());
        let opened = match open(disk, self.options.clone(), self.recorder.listener(), &mut |_| {}) {
            Ok(opened) => opened,
            // A planned fault: the next incarnation tries again.
            Err(Error::Io { .. } | Error::Full { .. }) if damage == Damage::None && !self.calm => {
                return Ok(None);
            }
            Err(error) if damage == Damage::Flipped && error.is_damage() => {
                self.tally.flips_refused += 1;
                return Ok(None);
            }
            Err(error) => return Err(format!("the log does not open: {error}")),
        };
        self.tally.starts += 1;
        self.tally.cut += u64::from(opened.recovery.report.cut_bytes > 0);
        match self.compare(&opened, damage) {
            Ok(()) => {
                for (group, generations) in &mut self.groups {
                    opened.log.report_live(*group, generations.current().live_bytes());
                }
                Ok(Some(opened))
            }
            // The power failed during the read.
            Err(CompareError::Disk(_)) if damage == Damage::None && !self.calm => Ok(None),
            Err(CompareError::Disk(why) | CompareError::Damage(why)) if damage == Damage::None => Err(why),
            Err(CompareError::Disk(_) | CompareError::Damage(_)) => {
                self.tally.flips_read += 1;
                Ok(None)
            }
            Err(CompareError::Undetected(why)) => Err(why),
        }
    }

    /// Checks that the recovered state is what the log reported, and holds nothing that was never appended.
    fn compare(&mut self, opened: &Opened, damage: Damage) -> Result<(), CompareError> {
        let mut found: BTreeMap<GroupId, &RecoveredGroup> =
            opened.recovery.groups.iter().map(|found| (found.group, found)).collect();
        let mut cut = false;
        for (group, generations) in &mut self.groups {
            let found = found.remove(group);
            let generation = found_generation(generations, found, damage, &mut self.tally)?;
            let (checkpoint, last) = found.map_or((None, 0), |found| (found.checkpoint, found.last));
            for index in last + 1..=generations.last_dropped() {
                if opened.log.has_bodies(*group, index) {
                    return Err(undetected(format!("{group}: entry {index} is there again after a drop")));
                }
            }
            let model = generations.found(generation);
            cut |= last < model.reported || checkpoint < model.checkpoint_reported;
            model.restarted(checkpoint, last);
            for (part, value) in model.state() {
                let body = opened.log.read_bodies(*group, value.index).map(|bodies| match bodies {
                    Bodies::InEntry(payload) => payload,
                    Bodies::Kept(payload) => {
                        self.tally.kept += 1;
                        payload
                    }
                });
                let body = body.map_err(|error| compare_error(&error, &format!("{group}, part {part}")))?;
                let op = model.history[value.index as usize - 1];
                if body.as_ref() != op.encode() || !op.has_nonce(value.nonce) {
                    return Err(undetected(format!("{group}: entry {} is another", value.index)));
                }
                self.tally.bodies += 1;
            }
        }
        if let Some(group) = found.keys().next() {
            return Err(undetected(format!("{group} never wrote anything")));
        }
        if damage == Damage::Flipped {
            let what = if cut { &mut self.tally.flips_cut } else { &mut self.tally.flips_harmless };
            *what += 1;
        }
        Ok(())
    }

    fn live(&mut self) -> Result<(), String> {
        let Some(mut opened) = self.start(Damage::None)? else { return Ok(()) };
        for _ in 0..self.trial.steps {
            if self.step(&mut opened)? == StepResult::Stop {
                break;
            }
        }
        self.tally.freed += opened.log.stats().freed;
        Ok(())
    }

    /// Checks that, without faults, all appended records become durable and segments are freed.
    fn last_incarnation(&mut self) -> Result<(), String> {
        self.disk.set_plan(FaultPlan::default());
        self.calm = true;
        let Some(mut opened) = self.start(Damage::None)? else {
            return Err("the log does not open although there are no faults".to_owned());
        };
        for _ in 0..self.trial.steps {
            self.step(&mut opened)?;
        }
        self.disk.set_capacity(None);
        for _ in 0..200 {
            opened.keeper.keep();
            self.commit(&mut opened)?;
            self.answer(&mut opened);
        }
        for _ in 0..2000 {
            opened.keeper.keep();
            self.commit(&mut opened)?;
        }
        for (group, generations) in &mut self.groups {
            let (drops, model) = (generations.models.len() - 1, generations.current());
            if model.reported != model.history.len() as u64 || drops > 0 {
                let all = model.history.len();
                return Err(format!(
                    "{group} was notified of {} of {all} entries, {drops} drops are missing, and nothing happens",
                    model.reported
                ));
            }
        }
        // The last commit stands alone: a flip in it may look like a torn commit.
        let model = self.groups.values_mut().next().ok_or("there are groups")?.current();
        let record = model.append(&mut self.random);
        opened.log.append([record]);
        self.commit(&mut opened)?;
        self.tally.freed += opened.log.stats().freed;
        Ok(())
    }

    fn step(&mut self, opened: &mut Opened) -> Result<StepResult, String> {
        match self.random.below_u64(100) {
            0..45 => {
                let group = GroupId(1 + self.random.below_u64(3) as u16);
                let model = of(&mut self.groups, group)?.current();
                let count = 1 + self.random.below_u64(4);
                let records: Vec<_> = (0..count).map(|_| model.append(&mut self.random)).collect();
                opened.log.append(records);
                opened.log.report_live(group, model.live_bytes());
            }
            45..75 => return self.commit(opened),
            75..85 => {
                opened.keeper.keep();
            }
            85..93 => self.answer(opened),
            93..97 => {
                let group = GroupId(1 + self.random.below_u64(3) as u16);
                let model = of(&mut self.groups, group)?.current();
                opened.log.append(model.checkpoint(&mut self.random));
            }
            97 => {
                let group = GroupId(1 + self.random.below_u64(3) as u16);
                of(&mut self.groups, group)?.begin();
                opened.log.drop_group(group);
            }
            98 => self.disk.set_capacity(Some(self.disk.used() + self.random.below_u64(2 * SEGMENT))),
            _ => self.disk.set_capacity(None),
        }
        Ok(StepResult::Continue)
    }

    fn answer(&mut self, opened: &mut Opened) {
        for (group, generations) in &mut self.groups {
            let model = generations.current();
            if model.has_vacate_requests() {
                let vacated = model.vacate(&mut self.random);
                opened.log.append_bodies(*group, vacated.bodies);
                opened.log.append(vacated.records);
                for vacate in vacated.free {
                    // A refusal is tried again: the model goes by the checkpoint that was reported to it.
                    if opened.log.vacated(*group, vacate.segment).is_err() {
                        model.request_vacate(vacate);
                    }
                }
            }
        }
    }

    fn commit(&mut self, opened: &mut Opened) -> Result<StepResult, String> {
        let result = opened.writer.commit_once();
        self.tally.commits += u64::from(matches!(result, Ok(Commit::Wrote { .. })));
        // The commit holds records of the log itself or parts only: it is the last one now.
        if matches!(result, Ok(Commit::Wrote { bytes: 1.., .. })) {
            for model in self.groups.values_mut().flat_map(|generations| &mut generations.models) {
                (model.reported_before, model.checkpoint_reported_before) =
                    (model.reported, model.checkpoint_reported);
            }
        }
        self.listen()?;
        if result.is_err() {
            self.tally.failed += 1;
            if !self.failed {
                return Err("a commit failed and no group was notified".to_owned());
            }
            // The failure is final: no event follows.
            let groups = self.groups.values_mut();
            opened.log.append(groups.map(|generations| generations.current().append(&mut self.random)));
            let again = opened.writer.commit_once();
            if again.is_ok() || !self.recorder.take().is_empty() {
                return Err("the log went on after it failed".to_owned());
            }
            return Ok(StepResult::Stop);
        }
        Ok(StepResult::Continue)
    }

    fn listen(&mut self) -> Result<(), String> {
        for event in self.recorder.take() {
            match event {
                LogEvent::Durable(group, index) => of(&mut self.groups, group)?.oldest().durable(index)?,
                LogEvent::Checkpointed(group, index) => {
                    of(&mut self.groups, group)?.oldest().checkpoint_durable(index)?;
                }
                LogEvent::BodiesDurable(group, records) => {
                    of(&mut self.groups, group)?.oldest().bodies_durable(records)?;
                }
                LogEvent::Dropped(group) => {
                    of(&mut self.groups, group)?.dropped()?;
                    self.tally.drops += 1;
                }
                LogEvent::Vacate(vacate) => {
                    of(&mut self.groups, vacate.group)?.oldest().request_vacate(vacate)
                }
                LogEvent::PartsDurable(..) => {}
                LogEvent::Full(_) => self.tally.full += 1,
                LogEvent::Room => self.tally.room += 1,
                LogEvent::Failed(_) => self.failed = true,
            }
        }
        Ok(())
    }

    /// Flips one bit of a segment. The log notices it, or it hit the last commit or unused bytes.
    fn flip(&mut self) -> Result<(), String> {
        let before = self.disk.kill();
        for _ in 0..4 {
            self.disk = before.kill();
            let names = crate::Disk::list(&self.disk).map_err(|error| error.to_string())?;
            let segments: Vec<&String> =
                names.iter().filter(|name| SegmentId::of_file(name).is_some()).collect();
            let name = segments[self.random.below_u64(segments.len() as u64) as usize];
            let length = self.disk.contents(name).map_or(1, |bytes| bytes.len() as u64);
            self.disk.flip(name, self.random.below_u64(length), self.random.below_u64(8) as u32);
            let groups = self.groups.clone();
            let noticed = (self.tally.flips_refused, self.tally.flips_read);
            self.start(Damage::Flipped)?;
            if noticed != (self.tally.flips_refused, self.tally.flips_read) {
                self.repair(&groups)?;
            }
            self.groups = groups;
        }
        Ok(())
    }
}

impl Runner {
    /// Repairs a log that noticed damage. All records of the new one were appended, and missing ones are reported. If
    /// the record of a drop is missing, earlier entries of its group are there again.
    fn repair(&mut self, groups: &BTreeMap<GroupId, Generations>) -> Result<(), String> {
        let to = FaultDisk::new(self.random.draw());
        let failed = |error: Error| format!("the log cannot be repaired: {error}");
        let report = crate::offline::repair(&self.disk, Arc::new(to.clone())).map_err(failed)?;
        let opened =
            open(Arc::new(to), self.options.clone(), EventRecorder::default().listener(), &mut |_| {})
                .map_err(|error| format!("the repaired log does not open: {error}"))?;
        let mut missing = false;
        for (group, generations) in groups {
            let reported = generations.models.back().map_or(0, |model| model.reported);
            let Some(found) = opened.recovery.groups.iter().find(|found| found.group == *group) else {
                missing |= reported > 0;
                continue;
            };
            missing |= found.last < reported || !found.lost.is_empty();
            for entry in found.entries() {
                let entry = entry.map_err(|error| format!("the repaired log is damaged: {error}"))?;
                if !generations.has_entry(entry.index, &entry.payload) {
                    return Err(format!("{group}: the repaired entry {} was never appended", entry.index));
                }
            }
        }
        if missing && report.damage.is_empty() {
            return Err("the repaired log lacks records, and did not report them".to_owned());
        }
        self.tally.repairs += 1;
        Ok(())
    }
}

/// Checks that segments were removed in order, also across crashes. A repair reads all segments that are there:
/// without the segment that replaced a part, it would save the older part.
pub(super) fn no_segment_is_missing(disk: &FaultDisk) -> Result<(), String> {
    let names = crate::Disk::list(disk).map_err(|error| error.to_string())?;
    let mut ids: Vec<SegmentId> = names.iter().filter_map(|name| SegmentId::of_file(name)).collect();
    ids.sort_unstable();
    match ids.array_windows().find(|[one, next]| one.next() != *next) {
        Some([one, next]) => Err(format!("{one} and {next} are there, and no segment between them")),
        None => Ok(()),
    }
}

fn of(groups: &mut BTreeMap<GroupId, Generations>, group: GroupId) -> Result<&mut Generations, String> {
    groups.get_mut(&group).ok_or_else(|| format!("there is no {group}"))
}

#[derive(PartialEq, Eq)]
enum StepResult {
    Continue,
    Stop,
}

/// Reason why a comparison ended.
enum CompareError {
    /// The disk reported an error.
    Disk(String),
    /// The log noticed damage.
    Damage(String),
    /// The log did not notice the damage.
    Undetected(String),
}

fn undetected(why: String) -> CompareError {
    CompareError::Undetected(why)
}

fn compare_error(error: &Error, what: &str) -> CompareError {
    match error {
        Error::Io { .. } => CompareError::Disk(format!("{what}: {error}")),
        Error::Corrupt(_) => CompareError::Damage(format!("{what}: {error}")),
        _ => CompareError::Undetected(format!("{what}: {error}")),
    }
}

/// Returns which generation of the group a start found: the oldest, or a later one if drops became durable.
fn found_generation(
    generations: &Generations,
    found: Option<&RecoveredGroup>,
    damage: Damage,
    tally: &mut Tally,
) -> Result<usize, CompareError> {
    let mut first_error = None;
    for (generation, model) in generations.models.iter().enumerate() {
        match compare_generation(model, found, damage, tally) {
            Ok(()) => return Ok(generation),
            Err(error @ CompareError::Undetected(_)) => first_error = first_error.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(first_error.unwrap_or_else(|| undetected("a group without a generation".to_owned())))
}

fn compare_generation(
    model: &Model,
    found: Option<&RecoveredGroup>,
    damage: Damage,
    tally: &mut Tally,
) -> Result<(), CompareError> {
    let group = model.group;
    let (checkpoint, last) = found.map_or((None, 0), |found| (found.checkpoint, found.last));
    let (reported, checkpoint_reported) = match damage {
        Damage::None => (model.reported, model.checkpoint_reported),
        Damage::Flipped => (model.reported_before, model.checkpoint_reported_before),
    };
    if last < reported || last > model.history.len() as u64 {
        let all = model.history.len();
        return Err(undetected(format!(
            "{group} was notified of {reported} of {all} entries, and {last} are there"
        )));
    }
    if checkpoint < checkpoint_reported {
        return Err(undetected(format!("{group}: checkpoint {checkpoint_reported:?} is {checkpoint:?} now")));
    }
    found.map_or(Ok(()), |found| compare_group(model, found, tally))
}

fn compare_group(model: &Model, found: &RecoveredGroup, tally: &mut Tally) -> Result<(), CompareError> {
    let group = found.group;
    let mut at = found.checkpoint.unwrap_or(0);
    if let Some(checkpoint) = found.checkpoint {
        let Some(state) = model.checkpoints.get(&checkpoint) else {
            return Err(undetected(format!("{group} never made a checkpoint {checkpoint}")));
        };
        let mut expected: BTreeMap<u32, Vec<u8>> =
            state.iter().map(|(part, value)| (*part, encode_part(Some(value)))).collect();
        for part in found.parts() {
            let (part, bytes) = part.map_err(|error| compare_error(&error, "a part"))?;
            if expected.remove(&part).as_deref() != Some(&bytes) {
                return Err(undetected(format!(
                    "{group}: part {part} is not what checkpoint {checkpoint} had"
                )));
            }
            tally.parts += 1;
        }
        if let Some(part) = expected.keys().next() {
            return Err(undetected(format!("{group}: part {part} of checkpoint {checkpoint} is missing")));
        }
    }
    for entry in found.entries() {
        let entry = entry.map_err(|error| compare_error(&error, "an entry"))?;
        at += 1;
        let same = model.history.get(at as usize - 1).is_some_and(|op| op.encode() == *entry.payload);
        if entry.index != at || !same {
            return Err(undetected(format!(
                "{group}: entry {} is not what was appended as {at}",
                entry.index
            )));
        }
        tally.entries += 1;
    }
    if at != found.last {
        return Err(undetected(format!("{group}: entries end at {at}, not at {}", found.last)));
    }
    Ok(())
}
