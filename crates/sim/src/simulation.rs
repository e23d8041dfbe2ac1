//! One seed, from outside.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::report::Report;
use crate::trace::Trace;
use crate::world::World;

/// What a seed does, and whether anything was wrong.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    pub seed: u64,
    /// Whether what happened is wanted as text.
    pub trace: bool,
    /// What the log is made to do wrong.
    #[cfg(feature = "trial")]
    pub mutation: Option<crate::Mutation>,
}

/// Something was wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    /// What.
    pub why: String,
}

impl Simulation {
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            trace: false,
            #[cfg(feature = "trial")]
            mutation: None,
        }
    }

    /// Runs it; also returns its trace.
    ///
    /// # Errors
    /// [`Failure`]. Whatever panics on the way, in the product or in a check, is one.
    pub fn run(&self) -> (Result<Report, Failure>, Vec<String>) {
        let trace = if self.trace { Trace::on() } else { Trace::default() };
        let mut world = World::new(self.seed, trace);
        #[cfg(feature = "trial")]
        {
            let of_shard = match self.mutation {
                Some(crate::Mutation::Shard(mutation)) => Some(mutation),
                _ => None,
            };
            shard::mutate(of_shard);
            if let Some(crate::Mutation::Log(mutation)) = self.mutation {
                world.mutate(mutation);
            }
        }
        let result = catch_unwind(AssertUnwindSafe(|| world.run()));
        let lines = world.take_trace();
        let result = match result {
            Ok(()) => Ok(world.report()),
            Err(panic) => Err(Failure { seed: self.seed, why: text_of(&*panic) }),
        };
        // What panicked may not be fit to be dropped.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(world)));
        (dropped.map_or_else(|_| result.clone(), |()| result.clone()), lines)
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}
