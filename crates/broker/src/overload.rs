//! Overload level of a worker, computed from its reactor and its queues. [`Level`] says what is refused at which level.

use std::time::Duration;

use crate::ids::Time;
use crate::settings::Overload as Settings;

/// Work that a node refuses. Each level includes the levels below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    Calm,
    /// New connections: they wait in the listen backlog, and those that were accepted get 0x89.
    Busy,
    /// QoS 0 messages to clients that have unread output.
    High,
    /// Reading from the clients that send most, for a second at a time.
    Severe,
}

/// One worker's load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Weight of the commands in the reactor's mailbox.
    pub mailbox_bytes: u64,
    /// Bytes of the node that wait for connected clients, and the maximum for them.
    pub waiting_bytes: u64,
    pub waiting_max: u64,
}

/// Overload level of one worker. It rises at once and falls by one at a time.
#[derive(Debug, Default)]
pub struct Overload {
    level: Level,
    /// Microseconds per turn, averaged over about a second: one slow turn is no overload.
    turn_us: f64,
    last_turn: Time,
    lower_since: Option<Time>,
}

/// Period of the average, in microseconds.
const AVERAGED_US: f64 = 1e6;

impl Level {
    pub const ALL: [Level; 4] = [Level::Calm, Level::Busy, Level::High, Level::Severe];

    /// Number of the level, 0 to 3.
    pub fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn of(number: u8) -> Level {
        Level::ALL[usize::from(number).min(3)]
    }
}

impl Overload {
    /// Records a turn. The time between two turns was idle.
    pub fn turn(&mut self, now: Time, took: Duration) {
        let took_us = took.as_secs_f64() * 1e6;
        let slept_us = (now.since(self.last_turn).as_secs_f64() * 1e6 - took_us).max(0.0);
        self.last_turn = now;
        self.turn_us *= AVERAGED_US / (AVERAGED_US + slept_us);
        self.turn_us += (took_us - self.turn_us) * took_us / (took_us + AVERAGED_US);
    }

    /// Computes the level at the beginning of a turn. It applies to this worker until the next call.
    pub fn assess(&mut self, now: Time, load: Load, settings: &Settings) -> Level {
        self.turn(now, Duration::ZERO);
        let measured = self.measure(load, settings);
        if measured >= self.level {
            self.level = measured;
            self.lower_since = None;
            return measured;
        }
        let since = *self.lower_since.get_or_insert(now);
        if since.after(settings.cooldown) <= now {
            self.level = Level::of(self.level.number() - 1);
            self.lower_since = Some(now);
        }
        self.level
    }

    fn measure(&self, load: Load, settings: &Settings) -> Level {
        let reached = |value: f64, steps: [f64; 3]| {
            Level::of(steps.iter().filter(|step| steps[0] > 0.0 && value >= **step).count() as u8)
        };
        let doubling = |first: f64| [first, 2.0 * first, 4.0 * first];
        let turn = reached(self.turn_us, doubling(settings.turn.as_secs_f64() * 1e6));
        let mailbox = reached(load.mailbox_bytes as f64, doubling(settings.mailbox_bytes.bytes() as f64));
        // Each level takes half of what is left.
        let percent = f64::from(settings.queued_percent);
        let percents = [percent, (percent + 100.0) / 2.0, (percent + 300.0) / 4.0];
        let waiting = 100.0 * load.waiting_bytes as f64 / load.waiting_max.max(1) as f64;
        turn.max(mailbox).max(reached(waiting, percents))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1000;

    fn turns(overload: &mut Overload, from: u64, count: u64, each: Duration) -> u64 {
        let mut now = from;
        for _ in 0..count {
            now += each.as_millis() as u64;
            overload.turn(Time(now), each);
        }
        now
    }

    fn assess(overload: &mut Overload, now: u64) -> Level {
        overload.assess(Time(now), Load::default(), &Settings::default())
    }

    #[test]
    fn long_turns_raise_the_level_and_one_does_not() {
        let ms = Duration::from_millis;
        for (each, level) in
            [(400, Level::Calm), (600, Level::Busy), (1200, Level::High), (2500, Level::Severe)]
        {
            let mut overload = Overload::default();
            let now = turns(&mut overload, 0, 1, ms(each.min(700)));
            assert_eq!(assess(&mut overload, now), Level::Calm, "one of {each} ms");
            let now = turns(&mut overload, now, 20, ms(each));
            assert_eq!(assess(&mut overload, now), level, "many of {each} ms");
        }
        let mut overload = Overload::default();
        let now = turns(&mut overload, 0, 100_000, ms(1));
        assert_eq!(assess(&mut overload, now), Level::Calm, "always busy with short turns");
    }

    #[test]
    fn the_level_falls_by_one_at_a_time() {
        let cooldown = Settings::default().cooldown.as_millis() as u64;
        let mut overload = Overload::default();
        let mut now = turns(&mut overload, 0, 20, Duration::from_secs(3));
        assert_eq!(assess(&mut overload, now), Level::Severe);
        now += 100 * SECOND;
        overload.turn(Time(now), Duration::ZERO);
        for level in [Level::Severe, Level::High, Level::Busy, Level::Calm, Level::Calm] {
            assert_eq!(assess(&mut overload, now), level);
            assert_eq!(assess(&mut overload, now + cooldown - 1), level);
            now += cooldown;
        }
    }

    #[test]
    fn queues_and_mailboxes_count_as_well() {
        let settings = Settings::default();
        let level = |load: Load| Overload::default().assess(Time(1), load, &settings);
        let waiting = |percent| level(Load { waiting_bytes: percent, waiting_max: 100, ..Load::default() });
        assert_eq!([79, 80, 90, 95].map(waiting), Level::ALL);
        let first = settings.mailbox_bytes.bytes();
        let mailbox = |times| level(Load { mailbox_bytes: times * first, ..Load::default() });
        assert_eq!([0, 1, 2, 4].map(mailbox), Level::ALL);
        let off = Settings {
            turn: Duration::ZERO,
            mailbox_bytes: settings::ByteSize::kib(0),
            queued_percent: 0,
            ..settings
        };
        let load = Load { mailbox_bytes: u64::MAX, waiting_bytes: u64::MAX, waiting_max: 1 };
        let mut overload = Overload::default();
        turns(&mut overload, 0, 20, Duration::from_secs(3));
        assert_eq!(overload.assess(Time(60 * SECOND), load, &off), Level::Calm);
    }

    proptest! {
        /// The level is never below the measured one, falls by at most one per `cooldown`, and returns to calm.
        #[test]
        fn the_level_follows_the_load(
            steps in prop::collection::vec((0..3_000_u64, 0..5_000_u64, 0..200_u64), 0..200),
        ) {
            let settings = Settings::default();
            let cooldown = settings.cooldown.as_millis() as u64;
            let (mut overload, mut now, mut fell) = (Overload::default(), 0, None);
            for (slept, took, waiting_bytes) in steps {
                now += slept + took;
                overload.turn(Time(now), Duration::from_millis(took));
                let load = Load { waiting_bytes, waiting_max: 100, ..Load::default() };
                let (before, measured) = (overload.level, overload.measure(load, &settings));
                let level = overload.assess(Time(now), load, &settings);
                prop_assert!(level >= measured && level.number() + 1 >= before.number());
                if level < before {
                    prop_assert!(fell.is_none_or(|at| at + cooldown <= now));
                    fell = Some(now);
                }
            }
            for _ in 0..5 {
                now += 100 * cooldown.max(SECOND);
                overload.turn(Time(now), Duration::ZERO);
                overload.assess(Time(now), Load::default(), &settings);
            }
            prop_assert_eq!(overload.level, Level::Calm);
        }
    }
}
