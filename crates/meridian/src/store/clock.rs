//! The clocks of this machine, and the file that records them with the node's time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shardlog::Moment;

const FILE: &str = "clock";

/// Current clocks, for this point of the node's time.
pub fn now(node: Duration) -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    let boot = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Moment { node, wall, boot, boot_id: boot_id.trim().to_owned() }
}

/// File in which the clock is written down from time to time.
pub struct ClockFile(PathBuf);

impl ClockFile {
    pub fn of(directory: &Path) -> Self {
        Self(directory.join(FILE))
    }

    /// Reads the file. `None` when it is missing or unreadable: then no time has passed.
    pub fn read(&self) -> Option<Moment> {
        Moment::decode(&fs::read_to_string(&self.0).ok()?)
    }

    /// Writes the file without a sync: a clock that is a little behind only makes data expire a little later.
    pub fn write(&self, moment: &Moment) -> io::Result<()> {
        let beside = self.0.with_extension("new");
        fs::write(&beside, moment.encode())?;
        fs::rename(beside, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_back_and_any_other_content_is_no_clock() {
        let directory = std::env::temp_dir().join(format!("meridian-clock-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = ClockFile::of(&directory);
        assert_eq!(file.read(), None);
        let moment = now(Duration::from_secs(3600));
        file.write(&moment).expect("written");
        let read = file.read().expect("a clock");
        assert_eq!((read.node, read.boot_id), (moment.node, moment.boot_id));
        fs::write(directory.join(FILE), "2 1 1 1 x").expect("written");
        assert_eq!(file.read(), None);
        fs::remove_dir_all(directory).expect("removed");
    }
}
