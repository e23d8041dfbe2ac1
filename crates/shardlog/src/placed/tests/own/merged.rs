//! The log of a node alone is made from those of cores.

use storage::offline;

use super::*;
use crate::merge::{CoreData, MergedShard, merge_shard};

/// Data of a core on its disk, as a restore reads it.
fn core_data(name: &str, disk: &FaultDisk, stored: &StoredReplicas) -> CoreData {
    let (log, _) = offline::read(Arc::new(disk.clone())).expect("a log");
    CoreData { name: name.to_owned(), log, stored: stored.clone() }
}

/// Makes a log of the cores' replicas. Returns the shard that a node alone starts with, and its log.
fn merge(cores: &[CoreData]) -> Result<(MergedShard, Shard, Log), String> {
    let disk = FaultDisk::new(90);
    let open = |disk: &FaultDisk| {
        let options = storage::Options { segment_bytes: 1 << 20, ..storage::Options::default() };
        storage::open(Arc::new(disk.clone()), options, Box::new(()), &mut |_| ()).expect("a log")
    };
    let mut opened = open(&disk);
    let (log, writer) = (opened.log.clone(), &mut opened.writer);
    let mut flush = || loop {
        if writer.commit_once().expect("a disk") == storage::Commit::Idle {
            return Ok(());
        }
    };
    let merged = merge_shard(SHARD, cores, OWNER_KEY, &log, &mut flush)?.expect("a replica");
    drop((opened, log));
    // All of it is durable.
    let mut opened = open(&disk.crash());
    let group = opened.recovery.groups.remove(0);
    assert_eq!(group.group, group_of(SHARD));
    let shard = restore(SHARD.0, Some(group), OWNER_KEY, &mut || ()).expect("a shard");
    shard.check_invariants();
    Ok((merged, shard, opened.log))
}

/// Payload and expiry of messages in the log of a node alone.
fn messages(log: &Log, keys: &[MessageKey]) -> Vec<(Vec<u8>, u64)> {
    let read = keys.iter().map(|key| {
        let bodies = log.read_bodies(group_of(SHARD), key.index()).expect("it is in the log");
        let view = stored(&bodies, key.index(), RecordForm::ALONE).message(*key).expect("a message");
        (view.payload.to_vec(), view.expires)
    });
    read.collect()
}

/// A core that leads the shard, before and after it has committed something.
struct Led {
    before: FaultDisk,
    after: FaultDisk,
    list: StoredReplicas,
    state: Shard,
    keys: Vec<MessageKey>,
}

fn led() -> Led {
    let disk = FaultDisk::new(70);
    let (_, keys) = run_alone(&disk);
    let mut core = start(&disk, StoredReplicas::default());
    let mut started = begin(&mut core).expect("a disk");
    let list = sync::lock(&core.stored).clone();
    let before = FaultDisk::new(71);
    offline::copy(&disk, &before, &mut |_, _| ()).expect("a copy");
    lead(&mut core, &mut started);
    drop(core);
    Led { before, after: disk.kill(), list, state: started.state, keys }
}

#[test]
fn the_newest_replica_becomes_the_shard_of_a_node_alone() {
    let Led { before, after, list, state, keys } = led();
    let newest = core_data("after", &after, &list);
    let oldest = core_data("before", &before, &list);
    let names = [files(&before), files(&after)];
    for (cores, at) in [(vec![newest, oldest], 0), (vec![core_data("before", &before, &list)], 0)] {
        let is_newest = cores.len() == 2;
        let replicas = cores.len();
        let (merged, shard, log) = merge(&cores).expect("it is made");
        assert_eq!((merged.core, merged.replicas, merged.lost_messages), (at, replicas, 0));
        assert_eq!((shard.counts().sessions, shard.counts().owned), (2, 0));
        assert_eq!(shard.incarnation(), Some(shard.now()), "it is a shard of a node alone");
        assert_eq!(merged.now_ms, shard.now());
        assert_eq!(shard.now() == state.now(), is_newest, "the time of the last batch");
        let shift = NOW.0 - OWN_NOW.0;
        let expected = [(b"one".to_vec(), NEVER), (b"two".to_vec(), 160_000 + shift)];
        assert_eq!(messages(&log, &keys), expected);
        assert_eq!((merged.retained, shard.retained_counts().0), (1, 1));
    }
    assert_eq!(names, [files(&before), files(&after)], "a restore changes none of its sources");
}

/// Another core may have the messages that one has lost.
#[test]
fn messages_come_from_any_core_that_has_them() {
    let Led { before, after, list, keys, .. } = led();
    // Without its list, a core's records have another form, so their messages are not found.
    let cores = [core_data("before", &before, &list), core_data("after", &after, &StoredReplicas::default())];
    let (merged, _, log) = merge(&cores).expect("it is made");
    assert_eq!((merged.core, merged.lost_messages), (1, 0));
    assert_eq!(messages(&log, &keys).len(), 2);
    let (merged, shard, _) = merge(&cores[1..]).expect("it is made");
    assert_eq!(merged.lost_messages, 2, "they are counted");
    assert_eq!(shard.counts().sessions, 2);
}

#[test]
fn the_moment_of_a_change_is_refused() {
    let disk = FaultDisk::new(80);
    run_alone(&disk);
    let own = StoredReplicas { own: [SHARD].into(), ..StoredReplicas::default() };
    let error = merge(&[core_data("core", &disk.kill(), &own)]).map(drop).expect_err("it has both forms");
    assert!(error.contains("start that node once more"), "{error}");
}

#[test]
fn no_replica_is_no_shard() {
    let disk = FaultDisk::new(81);
    let other = core_data("core", &led().after, &StoredReplicas::default());
    let options = storage::Options { segment_bytes: 1 << 20, ..storage::Options::default() };
    let opened = storage::open(Arc::new(disk), options, Box::new(()), &mut |_| ()).expect("a log");
    let merged = merge_shard(ShardId(7), &[other], OWNER_KEY, &opened.log, &mut || Ok(()));
    assert!(matches!(merged, Ok(None)), "{merged:?}");
}

fn files(disk: &FaultDisk) -> Vec<(String, Vec<u8>)> {
    let mut names = storage::Disk::list(disk).expect("names");
    names.sort();
    names.into_iter().map(|name| (name.clone(), disk.contents(&name).expect("a file"))).collect()
}
