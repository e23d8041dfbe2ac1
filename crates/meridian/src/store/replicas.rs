//! The file that records which replicas of shards the log has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use broker::ShardId;
use shardlog::StoredReplicas;

const FILE: &str = "replicas";
/// Begin of the first line of the file. The version of the placement follows.
const FORM: &str = "1 ";

/// File with the version of the placement that it is of, and a line for each replica: the shard, and the index of the
/// command that added the replica.
pub struct ReplicasFile(PathBuf);

impl ReplicasFile {
    pub fn of(directory: &Path) -> Self {
        Self(directory.join(FILE))
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
        let lines = stored.since.iter().map(|(shard, since)| format!("{} {since}\n", shard.0));
        let text = format!("{FORM}{}\n{}", stored.version, lines.collect::<String>());
        api::durable::replace(&self.0, text.as_bytes())
    }
}

fn decode(text: &str) -> Option<StoredReplicas> {
    let mut lines = text.strip_suffix('\n')?.lines();
    let version = lines.next()?.strip_prefix(FORM)?.parse().ok()?;
    let replica = |line: &str| {
        let (shard, since) = line.split_once(' ')?;
        Some((ShardId(shard.parse().ok()?), since.parse().ok()?))
    };
    Some(StoredReplicas { version, since: lines.map(replica).collect::<Option<_>>()? })
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
            let stored = StoredReplicas { version: 9, since };
            file.write(&stored).expect("written");
            assert_eq!(file.read(), Ok(Some(stored)));
        }
        for text in ["", "1 9", "2 9\n", "1\n", "1 9\n3\n", "1 9\n3 4", "1 9\n3 x\n", "1 9\n70000 1\n"] {
            fs::write(directory.join(FILE), text).expect("written");
            let error = file.read().expect_err(text);
            assert!(error.contains("newer version"), "{error}");
        }
        fs::remove_dir_all(directory).expect("removed");
    }
}
