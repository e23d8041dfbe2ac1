//! Faults of a consensus group.

use crate::schedule::{Micros, SECOND};
use random::Random;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kills the process (`kill -9`).
    Kill { host: usize },
    /// Cuts the power of one machine.
    Cut { host: usize },
    /// Cuts the power of several machines at once.
    CutMany { hosts: Vec<usize> },
    /// Replaces the disk: the next replica there has another id.
    Wipe { host: usize },
    /// Makes the disk report writes that it has not made, for a time, and then cuts its power. A majority of the others
    /// must have all important data on their disks.
    Lie { host: usize, time: Micros },
    /// Kills the process, and flips a bit of the disk.
    Rot { host: usize },
    /// Fails the next sync.
    FailSync { host: usize },
    /// Fails the next read of the log.
    FailRead { host: usize },
    /// Limits the free space of the disk to `room` bytes, for a time. Another user of the log writes meanwhile, and may
    /// need all its segments.
    Full { host: usize, room: u64, time: Micros, holds: bool },
    /// Stops the process for a time (SIGSTOP and SIGCONT).
    Pause { host: usize, time: Micros },
    /// Cuts the network between two groups.
    Partition { one: Vec<usize>, time: Micros },
    /// Cuts one machine off from all others.
    Isolate { host: usize, time: Micros },
    /// Cuts the network from one machine to another, in one direction.
    OneWay { from: usize, to: usize, time: Micros },
    /// Loses this percentage of frames.
    Lossy { from: usize, to: usize, percent: u8, time: Micros },
    /// Loses a connection with the data on it. Both ends notice it.
    Lose { one: usize, other: usize },
    /// Changes the wanted voters.
    Resize { voters: Vec<usize> },
    /// Adds a learner. When it has all entries, cuts the leader and it off from all others for a time. Then the learner
    /// is removed.
    Learn { time: Micros },
    /// Asks the leader to transfer its leadership.
    Transfer { to: usize },
}

impl Fault {
    pub fn any(random: &mut Random, hosts: usize, election: Micros) -> Self {
        let host = random.below(hosts);
        let other = (host + 1 + random.below(hosts - 1)) % hosts;
        let time = SECOND / 10 + random.draw() % (10 * SECOND);
        let mut some = |always: usize, never: usize| -> Vec<usize> {
            (0..hosts).filter(|at| *at == always || *at != never && random.percent(40)).collect()
        };
        let (group, voters) = (some(host, other), some(host, hosts));
        let (room, holds) = (random.draw() % 50_000, random.percent(50));
        match random.below(128) {
            0..=11 => Self::Kill { host },
            12..=21 => Self::Cut { host },
            22..=25 => Self::CutMany { hosts: group },
            26..=31 => Self::Wipe { host },
            32..=34 => Self::FailSync { host },
            35..=42 => Self::Pause { host, time },
            43..=54 => Self::Partition { one: group, time },
            55..=61 => Self::Isolate { host, time: time + 8 * election },
            62..=70 => Self::OneWay { from: host, to: other, time },
            71..=76 => {
                Self::Lossy { from: host, to: other, percent: 10 + random.below(60) as u8, time: 2 * time }
            }
            77..=83 => Self::Lose { one: host, other },
            84..=92 => Self::Resize { voters },
            93..=99 => Self::Transfer { to: host },
            100..=107 => Self::Lie { host, time: time / 3 },
            108..=115 => Self::Rot { host },
            116..=119 => Self::FailRead { host },
            _ => Self::Full { host, room, time, holds },
        }
    }
}
