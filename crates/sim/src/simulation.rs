//! Simulation of one seed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::agreed::{AgreedShards, Moves};
use crate::cluster::SimCluster;
use crate::linked::Linked;
use crate::quorum::Quorum;
use crate::report::Report;
use crate::trace::Trace;
use crate::world::World;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    pub seed: u64,
    pub shape: Shape,
    /// True if the trace is recorded.
    pub trace: bool,
    /// Mutation to activate.
    #[cfg(feature = "trial")]
    pub mutation: Option<crate::Mutation>,
}

/// Kind of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One node on a disk with faults.
    Node,
    /// Several nodes and clients.
    Cluster,
    /// Five nodes, 50 clients, five minutes, 20 faults or more.
    FullCluster,
    /// Replicas of a consensus group.
    Quorum,
    /// Shards with replicas on three nodes. With some seeds like [`Self::MovingShards`].
    Shards,
    /// Shards with replicas on three of five cores, which move.
    MovingShards,
    /// Linked clusters of one node each.
    Linked,
}

/// A failed simulation.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    /// Message of the check that failed.
    pub why: String,
}

impl Simulation {
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            shape: Shape::Node,
            trace: false,
            #[cfg(feature = "trial")]
            mutation: None,
        }
    }

    /// Runs the simulation. Also returns its trace.
    ///
    /// # Errors
    /// [`Failure`], for any panic in the product or in a check.
    pub fn run(&self) -> (Result<Report, Failure>, Vec<String>) {
        let trace = if self.trace { Trace::on() } else { Trace::default() };
        #[cfg(feature = "trial")]
        crate::mutation::activate(self.mutation);
        match self.shape {
            Shape::Node => {
                #[allow(unused_mut, reason = "only trials change it")]
                let mut world = World::new(self.seed, trace);
                #[cfg(feature = "trial")]
                if let Some(crate::Mutation::Log(mutation)) = self.mutation {
                    world.mutate(mutation);
                }
                self.run_one(world)
            }
            Shape::Cluster | Shape::FullCluster => {
                self.run_one(SimCluster::new(self.seed, self.shape == Shape::FullCluster, trace))
            }
            Shape::Quorum => self.run_one(Quorum::new(self.seed, trace)),
            Shape::Shards => self.run_one(AgreedShards::new(self.seed, Moves::Sometimes, trace)),
            Shape::MovingShards => self.run_one(AgreedShards::new(self.seed, Moves::Always, trace)),
            Shape::Linked => self.run_one(Linked::new(self.seed, trace)),
        }
    }

    fn run_one<W: Run>(&self, mut world: W) -> (Result<Report, Failure>, Vec<String>) {
        let result = catch_unwind(AssertUnwindSafe(|| world.run()));
        let lines = world.take_trace();
        let result = match result {
            Ok(()) => Ok(world.report()),
            Err(panic) => Err(Failure { seed: self.seed, why: text_of(&*panic) }),
        };
        // The destructor of a simulation that panicked may panic, too.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(world)));
        (dropped.map_or_else(|_| result.clone(), |()| result.clone()), lines)
    }
}

/// A simulation that can be run.
trait Run {
    fn run(&mut self);
    fn report(&self) -> Report;
    fn take_trace(&mut self) -> Vec<String>;
}

macro_rules! runs {
    ($($world:ty),+) => {
        $(impl Run for $world {
            fn run(&mut self) {
                self.run();
            }

            fn report(&self) -> Report {
                self.report()
            }

            fn take_trace(&mut self) -> Vec<String> {
                self.take_trace()
            }
        })+
    };
}

runs!(World, SimCluster, Quorum, AgreedShards, Linked);

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}
