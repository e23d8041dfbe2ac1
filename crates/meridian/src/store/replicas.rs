//! The file that records which replicas of shards the log has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use broker::ShardId;
use shardlog::{RecordForm, StoredReplicas};

const FILE: &str = "replicas";
/// Name in a backup: a node does not start with a backup that somebody has copied into its data directory.
const FILE_OF_BACKUP: &str = "replicas-of-backup";
/// Begin of the first line of the file. The version of the placement follows.
const FORM: &str = "1 ";
/// The same, if shards of the node alone are or were among the replicas, or replicas could not be read.
const WITH_OWN: &str = "2 ";

/// File with the version of the placement that it is of, and these lines:
///
/// - for each replica the shard, and the index of the command that added the replica. If it began with the shard of
///   the node alone, then also the index of the last batch of that, and the time by which the clock of the batches is
///   behind
/// - `own` and a shard, for each shard of the node alone that is about to become a replica
/// - `failed` and a shard, for each replica that could not be read and that may be dropped
pub struct ReplicasFile(PathBuf);

impl ReplicasFile {
    pub fn of(directory: &Path) -> Self {
        Self(directory.join(FILE))
    }

    /// The file in a backup.
    pub fn of_backup(directory: &Path) -> Self {
        Self(directory.join(FILE_OF_BACKUP))
    }

    /// Reads the file; `None` if there is none, which is so on a node that keeps its own sessions.
    ///
    /// # Errors
    /// The file is damaged or of a later version.
    pub fn read(&self) -> Result<Option<StoredReplicas>, String> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", self.0.display())),
        };
        decode(&text).map(Some).ok_or_else(|| {
            format!(
                "{}: not a list of replicas that this version can read. Start a newer version, or move the data \
                 directory away: with an empty one the node gets its replicas from the other cores",
                self.0.display()
            )
        })
    }

    /// Replaces the file durably.
    pub fn write(&self, stored: &StoredReplicas) -> io::Result<()> {
        api::durable::replace(&self.0, encode(stored).as_bytes())
    }
}

fn encode(stored: &StoredReplicas) -> String {
    let is_plain = stored.own.is_empty() && stored.forms.is_empty() && stored.failed.is_empty();
    let form = if is_plain { FORM } else { WITH_OWN };
    let replica = |(shard, since): (&ShardId, &u64)| match stored.forms.get(shard) {
        Some(RecordForm { batches_until, batches_behind_ms }) => {
            format!("{} {since} {batches_until} {batches_behind_ms}\n", shard.0)
        }
        None => format!("{} {since}\n", shard.0),
    };
    let replicas: String = stored.since.iter().map(replica).collect();
    let own: String = stored.own.iter().map(|shard| format!("own {}\n", shard.0)).collect();
    let failed: String = stored.failed.iter().map(|shard| format!("failed {}\n", shard.0)).collect();
    format!("{form}{}\n{replicas}{own}{failed}", stored.version)
}

fn decode(text: &str) -> Option<StoredReplicas> {
    let mut lines = text.strip_suffix('\n')?.lines();
    let first = lines.next()?;
    let with_own = first.starts_with(WITH_OWN);
    let version = first.strip_prefix(if with_own { WITH_OWN } else { FORM })?.parse().ok()?;
    let mut stored = StoredReplicas { version, ..StoredReplicas::default() };
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        let shard = |text: &str| Some(ShardId(text.parse().ok()?));
        match fields[..] {
            ["own", own] if with_own => drop(stored.own.insert(shard(own)?)),
            ["failed", failed] if with_own => drop(stored.failed.insert(shard(failed)?)),
            [id, since] => drop(stored.since.insert(shard(id)?, since.parse().ok()?)),
            [id, since, until, behind] if with_own => {
                let (batches_until, batches_behind_ms) = (until.parse().ok()?, behind.parse().ok()?);
                stored.since.insert(shard(id)?, since.parse().ok()?);
                stored.forms.insert(shard(id)?, RecordForm { batches_until, batches_behind_ms });
            }
            _ => return None,
        }
    }
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_back_and_a_damaged_one_is_an_error() {
        let directory = std::env::temp_dir().join(format!("meridian-replicas-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = ReplicasFile::of(&directory);
        assert_eq!(file.read(), Ok(None));
        for since in [[].into(), [(ShardId(0), 7), (ShardId(15), u64::MAX)].into()] {
            let stored = StoredReplicas { version: 9, since, ..StoredReplicas::default() };
            assert!(encode(&stored).starts_with("1 9\n"), "as versions without own shards read it");
            file.write(&stored).expect("written");
            assert_eq!(file.read(), Ok(Some(stored)));
        }
        let form = RecordForm { batches_until: 70, batches_behind_ms: u64::MAX };
        let (own, since) = ([ShardId(2), ShardId(3)].into(), [(ShardId(0), 7), (ShardId(3), 7)].into());
        let forms = [(ShardId(3), form)].into();
        let stored = StoredReplicas { version: 9, since, own, forms, failed: [ShardId(0)].into() };
        for stored in [
            StoredReplicas { own: [].into(), forms: [].into(), ..stored.clone() },
            StoredReplicas { failed: [].into(), ..stored.clone() },
            stored,
        ] {
            file.write(&stored).expect("written");
            assert_eq!(file.read(), Ok(Some(stored)));
        }
        for text in [
            "",
            "1 9",
            "1\n",
            "1 9\n3\n",
            "1 9\n3 4",
            "1 9\n3 x\n",
            "1 9\n70000 1\n",
            "1 9\nown 3\n",
            "1 9\n3 4 5 6\n",
            "2 9\n3 4 5\n",
            "2 9\nown x\n",
            "1 9\nfailed 3\n",
            "3 9\n",
        ] {
            fs::write(directory.join(FILE), text).expect("written");
            let error = file.read().expect_err(text);
            assert!(error.contains("newer version"), "{error}");
        }
        fs::remove_dir_all(directory).expect("removed");
    }
}
