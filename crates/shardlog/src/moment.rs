//! The node's clock across incarnations: after a restart it continues where it stopped, plus the time in between.
//!
//! While the machine stays up, its boot clock gives that time, even when the wall clock jumps. After a reboot only
//! the wall clock can give it, and it may be wrong: it counts for a day at most.

use std::time::Duration;

/// Maximum time between two incarnations that the wall clock can add.
pub(crate) const WALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A moment of the node's time, with the readings of the machine's clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The node's time.
    pub node: Duration,
    /// Time since 1970, by the wall clock.
    pub wall: Duration,
    /// Time since the machine was started; continues while the machine sleeps.
    pub boot: Duration,
    /// Id of that start of the machine.
    pub boot_id: String,
}

impl Moment {
    /// Returns the node's time at a later moment.
    pub fn node_at(&self, later: &Moment) -> Duration {
        let same_boot = !self.boot_id.is_empty() && self.boot_id == later.boot_id;
        let between = if same_boot {
            later.boot.saturating_sub(self.boot)
        } else {
            later.wall.saturating_sub(self.wall).min(WALL_MAX)
        };
        self.node + between
    }

    /// Encodes the moment as text.
    pub fn encode(&self) -> String {
        let Self { node, wall, boot, boot_id } = self;
        format!("1 {} {} {} {boot_id}\n", node.as_millis(), wall.as_millis(), boot.as_millis())
    }

    /// Decodes a moment; `None` for any other text.
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
    fn a_jump_of_the_wall_clock_changes_nothing_while_the_machine_is_up() {
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
    fn a_moment_is_decoded_as_encoded_and_other_text_is_refused() {
        let written = moment(HOUR, YEAR, HOUR, "boot-id");
        assert_eq!(Moment::decode(&written.encode()), Some(written));
        for text in ["", "2 1 1 1 x", "1 x 1 1", "1 1"] {
            assert_eq!(Moment::decode(text), None, "{text:?}");
        }
    }
}
