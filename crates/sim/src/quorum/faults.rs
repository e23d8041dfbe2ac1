//! What goes wrong, and when.

use crate::random::Random;
use crate::schedule::{Micros, SECOND};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`.
    Kill { place: usize },
    /// The power goes.
    Cut { place: usize },
    /// It goes for some of them at once.
    CutMany { places: Vec<usize> },
    /// The disk is lost: whoever comes back is another replica.
    Wipe { place: usize },
    /// For so long the disk says to have written what it has not, and then the power goes: where all that matters is on the disks of a majority of the others.
    Lie { place: usize, time: Micros },
    /// `kill -9`, and a bit of the disk flips.
    Rot { place: usize },
    /// The next sync fails.
    FailSync { place: usize },
    /// The disk has room for so many bytes more, and for so long; something else of the node writes meanwhile, and may need all that it has.
    Full { place: usize, room: u64, time: Micros, holds: bool },
    /// SIGSTOP, and later SIGCONT.
    Pause { place: usize, time: Micros },
    /// Nothing gets through between two groups.
    Partition { one: Vec<usize>, time: Micros },
    /// One reaches nobody.
    Isolate { place: usize, time: Micros },
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
    pub fn any(random: &mut Random, places: usize, election: Micros) -> Self {
        let place = random.below(places);
        let other = (place + 1 + random.below(places - 1)) % places;
        let time = SECOND / 10 + random.draw() % (10 * SECOND);
        let mut some = |always: usize, never: usize| -> Vec<usize> {
            (0..places).filter(|at| *at == always || *at != never && random.percent(40)).collect()
        };
        let (group, voters) = (some(place, other), some(place, places));
        let (room, holds) = (random.draw() % 50_000, random.percent(50));
        match random.below(124) {
            0..=11 => Self::Kill { place },
            12..=21 => Self::Cut { place },
            22..=25 => Self::CutMany { places: group },
            26..=31 => Self::Wipe { place },
            32..=34 => Self::FailSync { place },
            35..=42 => Self::Pause { place, time },
            43..=54 => Self::Partition { one: group, time },
            55..=61 => Self::Isolate { place, time: time + 8 * election },
            62..=70 => Self::OneWay { from: place, to: other, time },
            71..=76 => {
                Self::Lossy { from: place, to: other, percent: 10 + random.below(60) as u8, time: 2 * time }
            }
            77..=83 => Self::Lose { one: place, other },
            84..=92 => Self::Resize { voters },
            93..=99 => Self::Transfer { to: place },
            100..=107 => Self::Lie { place, time: time / 3 },
            108..=115 => Self::Rot { place },
            _ => Self::Full { place, room, time, holds },
        }
    }
}
