//! Bit flips: a damaged log is refused, or it is complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardlog::{EventForwarder, LogNotifier};
use storage::fault::FaultDisk;
use storage::{Commit, Disk, Error, GroupId, Opened, Record};

use super::World;

/// Number of flips per seed.
const FLIPS: usize = 3;
/// Group whose last entry is a commit of its own. A damaged last commit looks like a torn one, and is cut.
const LAST: GroupId = GroupId(1);

/// Parts of the checkpoint, and readable entries, of each group.
type Held = BTreeMap<GroupId, (BTreeMap<u32, Vec<u8>>, BTreeMap<u64, Arc<[u8]>>)>;

impl World {
    /// Flips bits of the disk at the end, one at a time.
    pub(super) fn flip_bits(&mut self) {
        let disk = self.scene.machine.disk.kill();
        disk.set_capacity(None);
        let mut opened = self.open(&disk).expect("it was opened before");
        let found = opened.recovery.groups.iter().find(|group| group.group == LAST);
        let last = found.map_or(0, |group| group.last);
        for index in last + 1..=last + 2 {
            let payload = Arc::new(b"a commit of its own".to_vec());
            opened.log.append([Record::Entry { group: LAST, term: 1, index, payload }]);
            while !matches!(opened.writer.commit_once(), Ok(Commit::Idle)) {}
        }
        let last = last + 2;
        drop(opened);
        let mut names = disk.list().expect("a disk that works");
        names.sort();
        // Each flip uses a copy, so that the disk stays as it is.
        let whole = self.held(&disk.kill()).expect("nothing is damaged");
        for _ in 0..FLIPS {
            let cx = &mut self.scene.cx;
            let name = cx.random.pick(&names).clone();
            let length = disk.contents(&name).map_or(0, |bytes| bytes.len());
            let (offset, bit) = (cx.random.below(length), cx.random.below(8));
            if length == 0 {
                continue;
            }
            cx.log(|| format!("bit {bit} of byte {offset} of {name} flips"));
            let damaged = disk.kill();
            damaged.flip(&name, offset as u64, bit as u32);
            let found = self.held(&damaged);
            let report = &mut self.scene.cx.report;
            report.bits_flipped += 1;
            match found {
                Err(_) => report.check_damage_refused += 1,
                Ok(found) => {
                    let tells = |(group, index): (GroupId, u64)| (group, index) == (LAST, last);
                    assert_whole(&whole, &found, tells);
                    report.check_damage_harmless += 1;
                    report.check_damage_parts +=
                        whole.values().map(|(parts, _)| parts.len() as u64).sum::<u64>();
                    report.check_damage_entries +=
                        whole.values().map(|(_, entries)| entries.len() as u64).sum::<u64>();
                }
            }
        }
    }

    fn open(&self, disk: &FaultDisk) -> Result<Opened, Error> {
        let moment = self.scene.machine.moment(self.scene.cx.now(), Duration::ZERO);
        let events = Box::new(EventForwarder(Arc::new(LogNotifier::default())));
        storage::open(Arc::new(disk.clone()), self.plan.setup.options(&moment), events, &mut |_| ())
    }

    /// Reads all data of a log, like a start and later reads of messages.
    fn held(&self, disk: &FaultDisk) -> Result<Held, Error> {
        let opened = self.open(disk)?;
        let mut held = Held::new();
        for group in opened.recovery.groups {
            let parts = group.parts().collect::<Result<BTreeMap<_, _>, _>>()?;
            let parts = parts.into_iter().map(|(part, bytes)| (part, bytes.to_vec())).collect();
            let mut entries = BTreeMap::new();
            for entry in group.entries() {
                let entry = entry?;
                entries.insert(entry.index, entry.payload);
            }
            for index in 1..=group.checkpoint.unwrap_or(0) {
                match opened.log.read(group.group, index) {
                    Ok(entry) => drop(entries.insert(index, entry)),
                    Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            held.insert(group.group, (parts, entries));
        }
        Ok(held)
    }
}

/// Asserts that only entries are missing that may be.
fn assert_whole(whole: &Held, found: &Held, may_miss: impl Fn((GroupId, u64)) -> bool) {
    for (group, (parts, entries)) in whole {
        let Some((found_parts, found_entries)) = found.get(group) else {
            panic!("{group} is missing, of a damaged log that was not refused")
        };
        assert!(
            parts == found_parts,
            "the checkpoint of {group} is another, of a damaged log that was not refused"
        );
        for (index, entry) in entries {
            let found = found_entries.get(index);
            assert!(
                found == Some(entry) || found.is_none() && may_miss((*group, *index)),
                "entry {index} of {group} is missing or another, of a damaged log that was not refused"
            );
        }
    }
}
