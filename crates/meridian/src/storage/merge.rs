//! `meridian storage restore` of a cluster: backups of its cores become the data directory of one node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::storage::offline::{self, OfflineStats};
use ::storage::{Options, RealDisk, open};
use broker::{SHARDS, ShardId};
use cluster::meta::{MetaState, Placement};
use configstore::LocalStore;
use shardlog::{CoreData, MergedShard, Moment, merge_meta, merge_shard};

use super::{DIRECTORY, beside, existing, text};
use crate::drain::order;
use crate::store::{ClockFile, ReplicasFile};

/// Returns whether a log is that of a core whose shards belong to a cluster.
pub fn is_of_cluster(stats: &OfflineStats) -> bool {
    stats.groups.iter().any(|group| shardlog::is_of_agreement(group.group))
}

/// Makes a data directory for a node from those of the cores of a cluster, or their backups. With `incomplete`, shards
/// that no core has begin empty.
pub fn restore(cores: &[PathBuf], dir: &Path, incomplete: bool) -> Result<ExitCode, String> {
    let (directory, data_dir) = match dir.file_name().is_some_and(|name| name == DIRECTORY) {
        true => (dir.to_owned(), dir.parent().unwrap_or(Path::new("")).to_owned()),
        false => (dir.join(DIRECTORY), dir.to_owned()),
    };
    for taken in [directory.clone(), data_dir.join(configstore::FILE)] {
        if taken.exists() {
            return Err(format!(
                "{} is there already: give a directory without the data of a node",
                taken.display()
            ));
        }
    }
    let cores: Vec<CoreData> = cores.iter().map(|core| open_core(core)).collect::<Result<_, _>>()?;
    let meta = merge_meta(&cores)?;
    let Some(placement) = &meta.placement else {
        return Err("the cores have not agreed on the placement of shards yet: there is nothing to restore \
                    from them together; restore each backup by itself"
            .to_owned());
    };
    let unfinished = beside(&directory, "unfinished");
    if unfinished.exists() {
        return Err(format!(
            "{} is left from a restore that did not end: remove it first",
            unfinished.display()
        ));
    }
    fs::create_dir_all(&data_dir).map_err(|error| format!("{}: {error}", data_dir.display()))?;
    let written = write(&cores, placement, &unfinished, incomplete).and_then(|is_whole| {
        finish(&meta, &unfinished, &directory, &data_dir)?;
        Ok(is_whole)
    });
    match written {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) => {
            if unfinished.exists()
                && let Err(error) = fs::remove_dir_all(&unfinished)
            {
                eprintln!("{} is incomplete: remove it ({error})", unfinished.display());
            }
            Err(error)
        }
    }
}

fn open_core(core: &Path) -> Result<CoreData, String> {
    let (directory, disk) = existing(core)?;
    let name = directory.display().to_string();
    let (log, recovery) = offline::read(Arc::new(disk)).map_err(text)?;
    if !recovery.groups.iter().any(|group| shardlog::is_of_agreement(group.group)) {
        return Err(format!("{name} is not of a core of a cluster with replicas: restore it by itself"));
    }
    let stored = match ReplicasFile::of(&directory).read()? {
        Some(stored) => stored,
        None => ReplicasFile::of_backup(&directory).read()?.unwrap_or_default(),
    };
    Ok(CoreData { name, log, stored })
}

/// Writes all shards and the clock. Returns false if something is missing, which was printed.
fn write(cores: &[CoreData], placement: &Placement, into: &Path, incomplete: bool) -> Result<bool, String> {
    let mut entropy = [0; 48];
    getrandom::fill(&mut entropy).map_err(|error| format!("the system has no random bytes: {error}"))?;
    // The secret begins with the key by which sessions find their owners.
    entropy[16..32].copy_from_slice(&placement.owner_key);
    let options = Options {
        entropy: Some(entropy),
        now_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
        ..Options::default()
    };
    let disk = RealDisk::open(into).map_err(text)?;
    let mut opened = open(Arc::new(disk), options, Box::new(()), &mut |_| {}).map_err(text)?;
    let (log, writer) = (opened.log.clone(), &mut opened.writer);
    let mut flush = || loop {
        match writer.commit_once().map_err(text)? {
            ::storage::Commit::Idle => return Ok(()),
            ::storage::Commit::Wrote { .. } => {}
            ::storage::Commit::NoRoom => {
                return Err("the destination has no room: give a directory on a larger disk".to_owned());
            }
        }
    };
    let (mut is_whole, mut now_ms) = (true, 0);
    for shard in (0..SHARDS).map(ShardId) {
        let Some(merged) = merge_shard(shard, cores, placement.owner_key, &log, &mut flush)? else {
            if !incomplete {
                return Err(format!(
                    "no directory has a replica of shard {}: add those of other cores, or restore the rest with \
                     --incomplete, without the sessions and retained messages of that shard",
                    shard.0
                ));
            }
            println!("shard {}: MISSING; it begins empty", shard.0);
            is_whole = false;
            continue;
        };
        let voters = placement.shard(shard).map_or(0, |placed| placed.voters.len());
        is_whole &= print_shard(shard, &merged, cores, voters);
        now_ms = now_ms.max(merged.now_ms);
    }
    // Sessions expire by the time since then, as after a stop of the node.
    let at = Duration::from_millis(now_ms);
    let moment = Moment { node: at, wall: at, boot: Duration::ZERO, boot_id: String::new() };
    ClockFile::of(into).write(&moment).map_err(|error| format!("{}: {error}", into.display()))?;
    Ok(is_whole)
}

/// Returns false if something is missing.
fn print_shard(shard: ShardId, merged: &MergedShard, cores: &[CoreData], voters: usize) -> bool {
    let MergedShard { core, replicas, counts, retained, lost_messages, .. } = *merged;
    println!(
        "shard {}: {} sessions, {} queued messages, {retained} retained messages, from {}",
        shard.0, counts.sessions, counts.queued_messages, cores[core].name
    );
    if lost_messages > 0 {
        println!("shard {}: LOST {lost_messages} queued messages, which no directory has", shard.0);
    }
    let is_majority = replicas * 2 > voters;
    if !is_majority {
        println!(
            "shard {}: only {replicas} of {voters} replicas are here: what the others acknowledged last may be MISSING",
            shard.0
        );
    }
    is_majority && lost_messages == 0
}

/// Gives the log its name, and writes what operators have changed in the cluster.
fn finish(meta: &MetaState, unfinished: &Path, directory: &Path, data_dir: &Path) -> Result<(), String> {
    // Drains are of nodes of the cluster that was. A session of the dashboard may have ended since.
    let without = [order::TABLE, api::SESSIONS];
    let records = LocalStore::create(data_dir, &meta.records, &without).map_err(|error| error.to_string())?;
    let renamed = fs::rename(unfinished, directory).and_then(|()| fs::File::open(data_dir)?.sync_all());
    renamed.map_err(|error| format!("{}: {error}", directory.display()))?;
    println!("{records} users, rules, bans, keys, settings and other records of operators");
    println!();
    println!("{} is ready. Start one node with it: alone, or as the first core of a new", data_dir.display());
    println!("cluster (no cluster.join). The other nodes join with empty data directories.");
    Ok(())
}
