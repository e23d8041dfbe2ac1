//! The node's clock over its lives: it goes on after a restart where it stood, plus the time in between.
//!
//! While the machine stays up, its own clock says how long that was, whatever happens to the wall clock; after a reboot only the wall
//! clock can, and it may be wrong: it counts for a day at most.

use std::time::Duration;

/// What a wall clock may make of the time between two lives.
pub(crate) const WALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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

    /// As it is written down.
    pub fn encode(&self) -> String {
        let Self { node, wall, boot, boot_id } = self;
        format!("1 {} {} {} {boot_id}\n", node.as_millis(), wall.as_millis(), boot.as_millis())
    }

    /// `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace();
        if fields.next()? != "1" {
            return None;
        }
        let mut millis = || Some(Duration::from_millis(fields.next()?.parse().ok()?));
        let (node, wall, boot) = (millis()?, millis()?, millis()?);
        Some(Self { node, wall, boot, boot_id: fields.next().unwrap_or_default().to_owned() })
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
    fn a_moment_is_read_as_it_was_written_and_anything_else_is_none() {
        let written = moment(HOUR, YEAR, HOUR, "boot-id");
        assert_eq!(Moment::decode(&written.encode()), Some(written));
        for text in ["", "2 1 1 1 x", "1 x 1 1", "1 1"] {
            assert_eq!(Moment::decode(text), None, "{text:?}");
        }
    }
}
