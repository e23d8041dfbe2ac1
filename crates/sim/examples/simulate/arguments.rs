//! The command line.

pub const HELP: &str = "\
Usage: cargo xtask sim [--seeds N] [--seed S] [--step N] [--minutes M] [--threads T] [--cluster | --full | --quorum] [--trace | --mutations]

  --seeds N     simulations to run, 1000 if not given
  --seed S      the first seed, 0 if not given
  --step N      from one seed to the next, 1 if not given: --cluster --seed 1 --step 4 takes those whose cores agree on the members
  --minutes M   ends after so long, whatever is left
  --threads T   simulations at one time; as many as there are processors if not given
  --cluster     several nodes, and what goes wrong between them
  --full        the same with five nodes, 50 clients, five minutes and 20 faults or more each
  --quorum      replicas that agree on a log
  --trace       prints what happens, for one seed
  --mutations   instead: puts faults into the product, one after the other, and tries up to N seeds with each; with --cluster or
                --quorum only those that are to be noticed there";

use sim::Shape;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    pub seeds: u64,
    pub seed: u64,
    pub step: u64,
    pub minutes: Option<u64>,
    pub threads: usize,
    pub shape: Shape,
    pub trace: bool,
    pub mutations: bool,
}

impl Arguments {
    /// # Errors
    /// What is wrong with it.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut parsed = Self {
            seeds: 1000,
            seed: 0,
            step: 1,
            minutes: None,
            threads,
            shape: Shape::Node,
            trace: false,
            mutations: false,
        };
        let mut seeds = None;
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let text = arguments.next().ok_or_else(|| format!("{argument} wants a number"))?;
                text.parse::<u64>().map_err(|_| format!("{argument} wants a number, not {text}"))
            };
            match argument.as_str() {
                "--seeds" => seeds = Some(number()?),
                "--seed" => parsed.seed = number()?,
                "--step" => parsed.step = number()?.max(1),
                "--minutes" => parsed.minutes = Some(number()?),
                "--threads" => parsed.threads = number()?.clamp(1, 256) as usize,
                "--cluster" if parsed.shape == Shape::Node => parsed.shape = Shape::Cluster,
                "--cluster" => {}
                "--full" => parsed.shape = Shape::FullCluster,
                "--quorum" => parsed.shape = Shape::Quorum,
                "--trace" => parsed.trace = true,
                "--mutations" => parsed.mutations = true,
                other => return Err(format!("unknown argument {other}")),
            }
        }
        parsed.seeds = seeds.unwrap_or(if parsed.trace { 1 } else { parsed.seeds });
        Ok(parsed)
    }
}
