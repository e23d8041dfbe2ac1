//! Helpers of the log's tests: recorded events, and short ways to open and append.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use storage::fault::FaultDisk;
use storage::{Error, GroupId, LogListener, Opened, Options, Record, Shortage, Vacate, open};

/// Events that the log reported.
#[derive(Clone, Default)]
pub struct EventRecorder(pub Arc<Mutex<RecordedEvents>>);

#[derive(Default)]
pub struct RecordedEvents {
    pub durable: BTreeMap<GroupId, u64>,
    pub checkpoints: BTreeMap<GroupId, u64>,
    pub bodies: u64,
    pub dropped: Vec<GroupId>,
    pub vacate: Vec<Vacate>,
    pub full: usize,
    pub room: usize,
    pub failed: usize,
}

impl LogListener for EventRecorder {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        self.0.lock().expect("news").durable.extend(groups.iter().copied());
    }
    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        self.0.lock().expect("news").checkpoints.insert(group, index);
    }
    fn bodies_durable(&mut self, _: GroupId, records: u64) {
        self.0.lock().expect("news").bodies += records;
    }
    fn dropped(&mut self, group: GroupId) {
        self.0.lock().expect("news").dropped.push(group);
    }
    fn vacate(&mut self, vacate: Vacate) {
        self.0.lock().expect("news").vacate.push(vacate);
    }
    fn full(&mut self, _: Shortage) {
        self.0.lock().expect("news").full += 1;
    }
    fn room(&mut self) {
        self.0.lock().expect("news").room += 1;
    }
    fn failed(&mut self, _: &Error) {
        self.0.lock().expect("news").failed += 1;
    }
}

impl EventRecorder {
    pub fn durable(&self, group: u16) -> u64 {
        self.0.lock().expect("news").durable.get(&GroupId(group)).copied().unwrap_or(0)
    }
    pub fn checkpoint(&self, group: u16) -> Option<u64> {
        self.0.lock().expect("news").checkpoints.get(&GroupId(group)).copied()
    }
    pub fn bodies(&self) -> u64 {
        self.0.lock().expect("news").bodies
    }
    pub fn dropped(&self) -> Vec<u16> {
        self.0.lock().expect("news").dropped.iter().map(|group| group.0).collect()
    }
    pub fn vacates(&self) -> Vec<Vacate> {
        std::mem::take(&mut self.0.lock().expect("news").vacate)
    }
}

pub fn options() -> Options {
    Options { segment_bytes: 4096, reserve_bytes: 0, entropy: Some([7; 48]), ..Options::default() }
}

pub fn try_open(disk: &FaultDisk, options: &Options) -> Result<(Opened, EventRecorder), Error> {
    let recorder = EventRecorder::default();
    let opened = open(Arc::new(disk.clone()), options.clone(), Box::new(recorder.clone()), &mut |_| {})?;
    Ok((opened, recorder))
}

pub fn open_on(disk: &FaultDisk) -> (Opened, EventRecorder) {
    try_open(disk, &options()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn entry(group: u16, index: u64, payload: &[u8]) -> Record {
    Record::Entry { group: GroupId(group), term: 1, index, payload: payload.to_vec().into() }
}

pub fn part(group: u16, part: u32, checkpoint: u64, payload: &[u8]) -> Record {
    Record::Part { group: GroupId(group), part, checkpoint, payload: payload.into() }
}

/// Creates bodies of an entry: its index.
pub fn bodies(index: u64) -> (u64, Arc<[u8]>) {
    (index, index.to_le_bytes().as_slice().into())
}

pub fn done(group: u16, checkpoint: u64) -> Record {
    Record::Done { group: GroupId(group), checkpoint }
}

/// Commits until nothing is queued.
pub fn drain(opened: &mut Opened) {
    while opened.writer.commit_once().expect("a commit") != storage::Commit::Idle {}
}

/// Commits and runs the keeper until there is nothing to do.
pub fn settle(opened: &mut Opened) {
    drain(opened);
    while opened.keeper.keep() {
        drain(opened);
    }
}

/// Returns the entries after the checkpoint, as index and payload.
pub fn entries(opened: &Opened, group: u16) -> Vec<(u64, Vec<u8>)> {
    let Some(found) = opened.recovery.groups.iter().find(|g| g.group == GroupId(group)) else {
        return vec![];
    };
    found.entries().map(|entry| entry.map(|e| (e.index, e.payload.to_vec())).expect("an entry")).collect()
}

/// Returns the parts of the checkpoint, by number.
pub fn parts(opened: &Opened, group: u16) -> BTreeMap<u32, Vec<u8>> {
    let Some(found) = opened.recovery.groups.iter().find(|g| g.group == GroupId(group)) else {
        return BTreeMap::new();
    };
    found.parts().map(|part| part.map(|(n, bytes)| (n, bytes.to_vec())).expect("a part")).collect()
}
