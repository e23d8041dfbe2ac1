//! Trials: groups at work on a [`FaultDisk`](crate::fault::FaultDisk) that crashes again and again, and an oracle that knows what they were
//! told. The same seed gives the same trial. For the crash tests and for the long form of them, `examples/crash.rs`.

mod model;
mod runner;
mod scenarios;

pub use scenarios::Scenario;

use crate::Mutation;
use crate::fault::FaultCounts;
use runner::Runner;

/// One trial.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub seed: u64,
    /// What the log is made to do wrong.
    pub mutation: Option<Mutation>,
    /// In the first life, the power goes at this operation of the disk; `None`: the seed decides what goes wrong.
    pub cut_at: Option<u64>,
    /// Lives of the process.
    pub incarnations: u32,
    /// Steps of a life, if nothing ends it before.
    pub steps: u32,
}

/// What trials did and looked at: a figure that stays 0 says that nothing of it was tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub trials: u64,
    pub starts: u64,
    pub commits: u64,
    /// Entries that were compared after a start.
    pub entries: u64,
    /// Parts of checkpoints that were.
    pub parts: u64,
    /// Bodies that were read by their index.
    pub bodies: u64,
    /// Starts that cut a torn commit.
    pub cut: u64,
    /// Segments that were freed.
    pub freed: u64,
    /// Times that the log said that the disk is full, and that there is room again.
    pub full: u64,
    pub room: u64,
    /// Commits that failed.
    pub failed: u64,
    /// Flipped bits that were noticed when opening, when reading, that cut the last commit, and that hit nothing.
    pub flips_refused: u64,
    pub flips_read: u64,
    pub flips_cut: u64,
    pub flips_harmless: u64,
    /// Logs that were repaired after a flip.
    pub repairs: u64,
    /// Operations of the disk in the first life.
    pub operations: u64,
    pub faults: FaultCounts,
}

impl Tally {
    /// Adds up.
    pub fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        self.starts += other.starts;
        self.commits += other.commits;
        self.entries += other.entries;
        self.parts += other.parts;
        self.bodies += other.bodies;
        self.cut += other.cut;
        self.freed += other.freed;
        self.full += other.full;
        self.room += other.room;
        self.failed += other.failed;
        self.flips_refused += other.flips_refused;
        self.flips_read += other.flips_read;
        self.flips_cut += other.flips_cut;
        self.flips_harmless += other.flips_harmless;
        self.repairs += other.repairs;
        self.operations += other.operations;
        self.faults.add(other.faults);
    }

    /// The figures that are 0, by name.
    #[must_use]
    pub fn idle(&self) -> Vec<&'static str> {
        let figures = [
            ("starts", self.starts),
            ("commits", self.commits),
            ("entries", self.entries),
            ("parts", self.parts),
            ("bodies", self.bodies),
            ("cut", self.cut),
            ("freed", self.freed),
            ("full", self.full),
            ("room", self.room),
            ("failed", self.failed),
            ("flips_refused", self.flips_refused),
            ("flips_read", self.flips_read),
            ("flips_cut", self.flips_cut),
            ("flips_harmless", self.flips_harmless),
            ("repairs", self.repairs),
            ("cuts", self.faults.cuts),
            ("sectors_lost", self.faults.sectors_lost),
            ("writes_torn", self.faults.writes_torn),
            ("names_lost", self.faults.names_lost),
            ("syncs_failed", self.faults.syncs_failed),
            ("disk full", self.faults.full),
        ];
        figures.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }
}

impl Trial {
    /// A trial of which the seed decides everything.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        Self { seed, mutation: None, cut_at: None, incarnations: 6, steps: 120 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// What is wrong, in a sentence, when the log broke its word.
    pub fn run(&self) -> Result<Tally, String> {
        Runner::new(*self).run().map_err(|why| format!("seed {}: {why}", self.seed))
    }
}
