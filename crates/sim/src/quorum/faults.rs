//! What goes wrong, and when.

use crate::random::Random;
use crate::schedule::{Micros, SECOND};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`.
    Kill { host: usize },
    /// The power goes.
    Cut { host: usize },
    /// It goes for some of them at once.
    CutMany { hosts: Vec<usize> },
    /// The disk is lost: whoever comes back is another replica.
    Wipe { host: usize },
    /// For so long the disk says to have written what it has not, and then the power goes: where all that matters is on the disks of a majority of the others.
    Lie { host: usize, time: Micros },
    /// `kill -9`, and a bit of the disk flips.
    Rot { host: usize },
    /// The next sync fails.
    FailSync { host: usize },
    /// The disk has room for so many bytes more, and for so long; something else of the node writes meanwhile, and may need all that it has.
    Full { host: usize, room: u64, time: Micros, holds: bool },
    /// SIGSTOP, and later SIGCONT.
    Pause { host: usize, time: Micros },
    /// Nothing gets through between two groups.
    Partition { one: Vec<usize>, time: Micros },
    /// One reaches nobody.
    Isolate { host: usize, time: Micros },
    /// Nothing gets from one to another; the other way it does.
    OneWay { from: usize, to: usize, time: Micros },
    /// So many frames of a hundred are lost.
    Lossy { from: usize, to: usize, percent: u8, time: Micros },
    /// A connection is lost, with what was under way, and both know.
    Lose { one: usize, other: usize },
    /// These are to vote from now on.
    Resize { voters: Vec<usize> },
    /// The leader is asked to hand over.
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
        match random.below(124) {
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
            _ => Self::Full { host, room, time, holds },
        }
    }
}
