//! The node's clock over its lives: it goes on after a restart where it stood, plus the time in between.
//!
//! While the machine stays up, its own clock says how long that was, whatever happens to the wall clock; after a reboot only the wall
//! clock can, and it may be wrong: it counts for a day at most.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a wall clock may make of the time between two lives.
const WALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const FILE: &str = "clock";

/// A point of the node's time, with what the clocks of the machine said then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The node's time.
    pub node: Duration,
    /// Since 1970, by the wall clock.
    pub wall: Duration,
    /// Since the machine was started; does not stand still while it sleeps.
    pub boot: Duration,
    /// Which start of the machine that was.
    pub boot_id: String,
}

impl Moment {
    /// The clocks as they are, for this point of the node's time.
    pub fn now(node: Duration) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = uptime.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
        let boot = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { node, wall, boot, boot_id: boot_id.trim().to_owned() }
    }

    /// The node's time at a later moment.
    pub fn node_at(&self, later: &Moment) -> Duration {
        let same_boot = !self.boot_id.is_empty() && self.boot_id == later.boot_id;
        let between = if same_boot {
            later.boot.saturating_sub(self.boot)
        } else {
            later.wall.saturating_sub(self.wall).min(WALL_MAX)
        };
        self.node + between
    }
}

/// The file in which the clock is written down from time to time.
pub struct ClockFile(PathBuf);

impl ClockFile {
    pub fn of(directory: &Path) -> Self {
        Self(directory.join(FILE))
    }

    /// `None` when there is none, or it is not to be read: then no time has passed.
    pub fn read(&self) -> Option<Moment> {
        let text = fs::read_to_string(&self.0).ok()?;
        let mut fields = text.split_whitespace();
        if fields.next()? != "1" {
            return None;
        }
        let mut millis = || Some(Duration::from_millis(fields.next()?.parse().ok()?));
        let (node, wall, boot) = (millis()?, millis()?, millis()?);
        Some(Moment { node, wall, boot, boot_id: fields.next().unwrap_or_default().to_owned() })
    }

    /// Not synced: a clock that is a little behind makes things last a little longer.
    pub fn write(&self, moment: &Moment) -> io::Result<()> {
        let Moment { node, wall, boot, boot_id } = moment;
        let text = format!("1 {} {} {} {boot_id}\n", node.as_millis(), wall.as_millis(), boot.as_millis());
        let beside = self.0.with_extension("new");
        fs::write(&beside, text)?;
        fs::rename(beside, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn moment(node: Duration, wall: Duration, boot: Duration, boot_id: &str) -> Moment {
        Moment { node, wall, boot, boot_id: boot_id.to_owned() }
    }

    #[test]
    fn a_wall_clock_that_jumps_changes_nothing_while_the_machine_is_up() {
        let last = moment(HOUR, YEAR * 50, HOUR, "a");
        for wall in [YEAR * 49, YEAR * 51, Duration::ZERO] {
            assert_eq!(last.node_at(&moment(Duration::ZERO, wall, HOUR * 2, "a")), HOUR * 2);
        }
    }

    #[test]
    fn after_a_reboot_the_wall_clock_counts_within_bounds() {
        let last = moment(HOUR, YEAR * 50, HOUR * 9, "a");
        let at = |wall| last.node_at(&moment(Duration::ZERO, wall, Duration::ZERO, "b"));
        assert_eq!(at(YEAR * 50 + HOUR), HOUR * 2);
        assert_eq!(at(YEAR * 49), HOUR, "it never goes back");
        assert_eq!(at(YEAR * 51), HOUR + WALL_MAX);
    }

    #[test]
    fn the_file_is_read_as_it_was_written_and_anything_else_is_no_clock() {
        let directory = std::env::temp_dir().join(format!("meridian-clock-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = ClockFile::of(&directory);
        assert_eq!(file.read(), None);
        let written = moment(HOUR, YEAR, HOUR, "boot-id");
        file.write(&written).expect("written");
        assert_eq!(file.read(), Some(written));
        for text in ["", "2 1 1 1 x", "1 x 1 1", "1 1"] {
            fs::write(directory.join(FILE), text).expect("written");
            assert_eq!(file.read(), None, "{text:?}");
        }
        fs::remove_dir_all(directory).expect("removed");
    }
}
