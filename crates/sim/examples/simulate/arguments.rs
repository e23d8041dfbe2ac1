//! Command line of the example.

pub const HELP: &str = "\
Usage: cargo xtask sim [--seeds N] [--seed S] [--step N] [--minutes M] [--threads T] [--cluster | --full | --quorum | --shards | --moving | --linked] [--trace | --mutations]

  --seeds N     number of simulations, 1000 by default
  --seed S      first seed, 0 by default
  --step N      difference between two seeds, 1 by default
  --minutes M   stop after this time, whatever is left
  --threads T   number of simulations at one time, by default one per processor
  --cluster     simulate several nodes, and faults between them
  --full        simulate clusters of five nodes, with 50 clients, for five minutes and with at least 20 faults each
  --quorum      simulate the replicas of one consensus group
  --shards      simulate shards with replicas on three nodes, and with some seeds like --moving
  --moving      simulate shards with replicas on three of five cores, which move
  --linked      simulate two or three linked clusters
  --trace       print all events of one seed
  --mutations   instead, build each mutation into the product, and run up to N seeds with it; with --cluster or --quorum,
                only the mutations that have to be noticed there";

use sim::Shape;

/// Arguments of a run.
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
    /// Parses the arguments.
    ///
    /// # Errors
    /// The argument that is unknown, or whose number is missing or invalid.
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
                let text = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
                text.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {text}"))
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
                "--shards" if parsed.shape == Shape::Node => parsed.shape = Shape::Shards,
                "--shards" => {}
                "--moving" => parsed.shape = Shape::MovingShards,
                "--linked" => parsed.shape = Shape::Linked,
                "--trace" => parsed.trace = true,
                "--mutations" => parsed.mutations = true,
                other => return Err(format!("unknown argument {other}")),
            }
        }
        parsed.seeds = seeds.unwrap_or(if parsed.trace { 1 } else { parsed.seeds });
        Ok(parsed)
    }
}
