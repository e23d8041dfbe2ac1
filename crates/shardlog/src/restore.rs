//! Recovery: the state of the shards in the log, and the incarnation that begins with it.

use std::time::Duration;

use broker::{Incarnation, SHARDS, ShardId, Time};
use shard::{Mutation, PartId, Shard, mutated};
use storage::RecoveredGroup;

use crate::log::{META, group_of};
use crate::moment::Moment;

/// Removes the groups of the meta group from `groups` and returns them.
pub fn take_meta(groups: &mut Vec<RecoveredGroup>) -> Vec<RecoveredGroup> {
    groups.extract_if(.., |group| META.contains(&group.group)).collect()
}

/// Sorts the recovered groups by shard; `None` for shards that never wrote. Call [`take_meta`] first.
///
/// # Errors
/// A message: there is a group that this version does not know.
pub fn sort(groups: Vec<RecoveredGroup>) -> Result<Vec<(u16, Option<RecoveredGroup>)>, String> {
    let mut found: Vec<Option<RecoveredGroup>> = (0..SHARDS).map(|_| None).collect();
    for group in groups {
        let index = (0..SHARDS).find(|shard| group_of(ShardId(*shard)) == group.group);
        let index = index.ok_or_else(|| {
            format!(
                "the log has a group {} that this version does not know: start a newer version",
                group.group
            )
        })?;
        found[usize::from(index)] = Some(group);
    }
    Ok((0..SHARDS).zip(found).collect())
}

/// Number of records that [`restore`] reads for a shard.
#[must_use]
pub fn records(group: &RecoveredGroup) -> u64 {
    group.parts_count() as u64 + (group.last - group.checkpoint.unwrap_or(0))
}

/// Restores one shard from its checkpoint and later records. `read` is called for each record of [`records`].
///
/// # Errors
/// A message that names what cannot be read.
pub fn restore(
    id: u16,
    group: Option<RecoveredGroup>,
    hash_key: [u8; 16],
    read: &mut dyn FnMut(),
) -> Result<Shard, String> {
    restore_group(id, group, hash_key, read).map_err(|error| format!("shard {id}: {error}"))
}

fn restore_group(
    id: u16,
    group: Option<RecoveredGroup>,
    hash_key: [u8; 16],
    read: &mut dyn FnMut(),
) -> Result<Shard, String> {
    let mut shard = Shard::new(id, hash_key);
    let Some(group) = group else { return Ok(shard) };
    if let Some(checkpoint) = group.checkpoint {
        for part in group.parts() {
            let (part, bytes) = part.map_err(|error| error.to_string())?;
            shard.restore_part(PartId::from_u32(part), &bytes).map_err(|error| error.to_string())?;
            read();
        }
        shard.restored(checkpoint).map_err(|error| error.to_string())?;
    }
    let mut effects = Vec::new();
    let pass_over = |shard: &mut Shard| {
        while let Some((_, last)) =
            group.lost.iter().find(|(first, last)| (*first..=*last).contains(&(shard.applied() + 1)))
        {
            shard.pass_over(*last);
        }
    };
    for entry in group.entries() {
        pass_over(&mut shard);
        let entry = entry.map_err(|error| error.to_string())?;
        if mutated(Mutation::ForgetLastBatch) && entry.index == group.last {
            break;
        }
        shard.apply(entry.index, &entry.payload, &mut effects).map_err(|error| error.to_string())?;
        effects.clear();
        read();
    }
    pass_over(&mut shard);
    Ok(shard)
}

/// Returns the incarnation that begins with these shards. `last_moment` is the last stored moment, `now` the
/// present one of the machine's clocks.
pub fn incarnation(shards: &[Shard], last_moment: Option<&Moment>, now: &Moment) -> Incarnation {
    let shard_time = shards.iter().map(|shard| Duration::from_millis(shard.now())).max().unwrap_or_default();
    let node = last_moment.map_or(shard_time, |last_moment| last_moment.node_at(now)).max(shard_time);
    Incarnation { began: Time(node.as_millis() as u64), number: now.wall.as_millis() as u64 }
}
